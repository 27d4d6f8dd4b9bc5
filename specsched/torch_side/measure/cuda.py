"""Timing a target's pass on a GPU: one CUDA graph per captured size, replayed; above the limit, none.

A replay is the graph of the forward pass and the LM head, then the rejection sampler launched behind it, as
engines do; CUDA events stand around both. "draft" times the drafter's graph for R requests, "prefill" a
prompt alone, without a graph. "host" times what any engine does between passes: filling inputs, planning,
copying them over and reading the result back, with the GPU otherwise idle; real engines do more (`profile
fit-overhead` adds it from a measured sweep). The bench runs without a GPU as well, without graphs: that is
how its logic is tested.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ... import schedule
from ...errors import SpecschedError
from ...profile import StepProfile
from ...profile.shapes import ModelShape, vllm_capture_sizes
from ..drafter.config import DrafterConfig
from . import attention, host
from .assembly import assemble
from .card import Card, NoCard
from .decoder import PagedDecoder, Verdict, reject
from .draft import DraftInputs, config_for, draft_block, random_drafter
from .grid import Point, contexts_of, off_graph_sizes, pass_points, widths_of
from .passes import PAGE, PassInputs, layout, page_table, positions_of
from .run import Plan, Progress, Run, out_of_memory, run_points

_PLAN = Plan(replays=40, rounds=2, budget_seconds=540.0)  # building the model included
_QUICK_PLAN = Plan(replays=20, rounds=2, budget_seconds=100.0)  # likewise
SPARE = 0.25  # of the memory left by the weights: for activations, laws and the drafter's context
LAUNCHED = 0.9  # of a pass's time: where the host took as long to launch it, its kernels waited for the host
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
_MOST_REQUESTS, _QUICK_REQUESTS = 512, 256
_CONTEXTS, _QUICK_CONTEXTS = (2048, 512, 8192), (2048, 512)
_PROMPTS = (128, 512, 2048, 8192)

Prepared = tuple[int, Callable[[], dict[str, float]]]


class PassBench:
    """A `Bench` over a `PagedDecoder` and a drafter of `config`, on a card.

    contexts: mean contexts that will be asked for; most_requests: requests of the widest pass. `greedy`:
    drafts are the most likely tokens; else they are drawn, and verification reads their distributions.
    """

    def __init__(
        self,
        decoder: PagedDecoder,
        config: DrafterConfig,
        contexts: tuple[int, ...],
        most_requests: int,
        most_tokens: int,
        seed: int = 0,
        card: NoCard | None = None,
        greedy: bool = True,
    ) -> None:
        self.decoder, self.block_size, self.greedy = decoder, config.block_size, greedy
        self.card, self.device = card or NoCard(), decoder.device
        self.drafter = random_drafter(config, decoder.embedding, decoder.head, seed)
        self.most_requests, self.most_keys = most_requests, 3 * max(contexts) // 2 + self.block_size + 1
        self._rng = np.random.default_rng(seed)
        self._captured: dict[tuple[int, int], tuple[PassInputs, Callable[[], None]]] = {}
        vocab = decoder.shape.vocab
        self._logits = torch.empty(most_tokens, vocab, dtype=decoder.dtype, device=self.device)
        self._proposal: Tensor | None = None
        if not greedy:
            self._proposal = torch.empty(most_tokens, vocab, device=self.device).exponential_()
            self._proposal /= self._proposal.sum(-1, keepdim=True)
        self._policy = schedule.Lagged()

    def prepare(self, point: Point) -> Prepared:
        """See `Bench`. Raises MemoryError where the KV cache has too few pages."""
        kinds = {
            "verify": self._verify,
            "draft": self._draft,
            "host": self._host,
            "prefill": self._prefill,
        }
        return kinds[point.kind](point)

    def release(self) -> None:
        """Drop unused blocks of the allocator; captured graphs stay."""
        self.card.release()

    # --- the target's pass ----------------------------------------------------------------------------------

    def _verify(self, point: Point) -> Prepared:
        most = 1 if point.tokens == point.requests else 1 + self.block_size
        inputs, forward = self._pass(point, most)
        contexts, widths = contexts_of(point, self._rng), widths_of(point, self.block_size, self._rng)
        self._fill(inputs, contexts, widths)
        verdict = self._verdict(widths)

        def work() -> None:
            forward()
            reject(self._logits[: point.tokens], verdict, self.block_size)

        def once() -> dict[str, float]:
            seconds, launched = self.card.timed(work)
            # Of a graph the host launches one thing; without it the kernels may wait for the host.
            return {"verify": seconds, "launch": launched} if point.eager else {"verify": seconds}

        return int(contexts.sum()) + point.requests, once

    def _pass(self, point: Point, most: int) -> tuple[PassInputs, Callable[[], None]]:
        """Buffers and forward of a size: captured once per (B, most tokens of a request), or eager."""
        key = (point.tokens, most)
        if key in self._captured:
            return self._captured[key]
        slots = point.requests if point.eager else min(point.tokens, self.most_requests)
        pages = -(-self.most_keys // self.decoder.page)
        inputs = PassInputs.empty(point.tokens, slots, pages, most, self.most_keys, self.device)

        @torch.no_grad()
        def forward() -> None:
            self.decoder.logits(self.decoder.forward(inputs), self._logits[: point.tokens])

        if point.eager:
            return inputs, forward
        # Captured with tokens in place: an empty batch could take another path through a kernel.
        self._fill(inputs, np.full(slots, 1), _even(point.tokens, slots))
        self._captured[key] = inputs, self.card.capture(forward)
        return self._captured[key]

    def _fill(self, inputs: PassInputs, contexts: np.ndarray, widths: np.ndarray) -> None:
        """Random tokens, ragged contexts, random pages, into the fixed buffers."""
        place = self.decoder.page, self.decoder.pages, len(inputs.used), inputs.table.shape[1]
        arrays = layout(contexts, widths, *place, self._rng)
        arrays["tokens"] = self._rng.integers(0, self.decoder.shape.vocab, len(inputs.tokens))
        inputs.fill(arrays)

    def _verdict(self, widths: np.ndarray) -> Verdict:
        tokens, device = int(widths.sum()), self.device
        starts = np.cumsum(widths) - widths
        drafted = torch.from_numpy(self._rng.integers(0, self.decoder.shape.vocab, tokens))
        return Verdict(
            drafted.to(device),
            None if self._proposal is None else self._proposal[:tokens],
            torch.from_numpy(starts).to(device),
            torch.from_numpy(widths - 1).to(device),
            torch.rand(tokens, device=device),
        )

    def _prefill(self, point: Point) -> Prepared:
        """One prompt from an empty cache; the LM head sees its last row."""
        n, page = point.tokens, self.decoder.page
        inputs = PassInputs.empty(n, 1, -(-n // page), n, n, self.device)
        self._fill(inputs, np.zeros(1, dtype=np.int64), np.array([n]))

        @torch.no_grad()
        def work() -> None:
            self.decoder.logits(self.decoder.forward(inputs)[-1:]).argmax(-1)

        return n, lambda: {"prefill": self.card.timed(work)[0]}

    # --- the drafter and the host ---------------------------------------------------------------------------

    def _draft(self, point: Point) -> Prepared:
        r, device, c, page = point.requests, self.device, self.drafter.config, self.decoder.page
        contexts = contexts_of(point, self._rng)
        width = self.block_size + self.drafter.masks_beside_anchor
        widths = np.full(r, width, dtype=np.int64)
        needed = -(-(contexts + widths) // page)
        pages, wide = int(needed.sum()), int(needed.max())
        table = page_table(contexts + widths, page, pages, r, wide, self._rng)
        block = PassInputs.empty(r * width, r, wide, width, int((contexts + widths).max()), device)
        block.fill(positions_of(contexts, widths, table, page, r))
        made: dict[str, Any] = {"dtype": self.decoder.dtype, "device": device}
        store = (pages, page, c.num_key_value_heads, c.head_dim)
        keys, values = (
            [torch.empty(store, **made).normal_() for _ in range(c.num_hidden_layers)] for _ in "kv"
        )
        # As many tokens settled as by a step that accepts half a block, the last ones of each context.
        back = np.minimum(1 + self.block_size // 2, contexts)
        settled = positions_of(contexts - back, back, table, page, r)
        inputs = DraftInputs(
            torch.randint(c.vocab_size, (r,), device=device),
            block,
            keys,
            values,
            torch.randn(int(back.sum()), c.feature_size, **made),
            torch.from_numpy(settled["position"]).to(device),
            torch.from_numpy(settled["slot"]).to(device),
        )

        @torch.no_grad()
        def work() -> None:
            draft_block(self.drafter, inputs, self.decoder.attend, self.greedy)

        # A graph of its own, gone with the point: its inputs are as large as the drafter's whole context.
        run = self.card.capture(work)
        return int(contexts.sum()), lambda: {"draft": self.card.timed(run)[0]}

    def _host(self, point: Point) -> Prepared:
        r, device, whole = point.requests, self.device, 1 + self.block_size
        contexts, ones = contexts_of(point, self._rng), np.ones(point.requests, dtype=np.int64)
        confidence = torch.rand(r, self.block_size, device=device)
        answer = torch.zeros(r, 2, dtype=torch.int64, device=device)
        sps = 1.0 / np.linspace(1.0, 2.0, r * whole + 1)
        ids = np.arange(r)
        page = self.decoder.page
        pages = -(-self.most_keys // page)
        inputs = PassInputs.empty(r, r, pages, 1, self.most_keys, device)
        # Pages and tokens are at hand in an engine: what the bench draws at random is drawn beforehand.
        table = page_table(contexts + ones, page, self.decoder.pages, r, pages, self._rng)
        tokens = self._rng.integers(0, self.decoder.shape.vocab, r)

        def once() -> dict[str, float]:
            begun = time.perf_counter()
            self._policy.plan(confidence.double().cpu().numpy(), sps, ids=ids)
            planned = time.perf_counter()
            inputs.fill(positions_of(contexts, ones, table, page, r) | {"tokens": tokens})
            answer.cpu().tolist()
            self.card.wait()
            ended = time.perf_counter()
            return {"host": ended - planned, "sync": planned - begun}

        return int(contexts.sum()), once


def _even(total: int, parts: int) -> np.ndarray:
    return total // parts + (np.arange(parts) < total % parts).astype(np.int64)


# --- the whole measurement ----------------------------------------------------------------------------------


def measure_cuda(
    card: Card,
    key: str,
    shape: ModelShape,
    *,
    dtype: str = "bfloat16",
    block_size: int | None = None,
    capture_limit: int = 512,
    quick: bool = False,
    drafter: str | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> StepProfile:
    """Profile of a model of `shape` on one CUDA device; `key` names the GPU in the profile's name.

    drafter: a folder with a config.json, or such a file, whose drafter is built with random weights; None is
    the paper's DSpark. Raises SpecschedError for a dtype that is not built here, for weights that do not fit,
    for experts on a card older than Hopper, and where the paged attention at hand does not compute attention.
    """
    begun = time.perf_counter()
    config = config_for(drafter, shape, block_size)
    _refuse(card, shape, dtype)
    kernel = attention.choose(card.capability)
    heads = (shape.heads, shape.kv_heads, shape.head_dim)
    with _fits(shape, card):
        difference = attention.check(kernel, card.device, _DTYPES[dtype], heads)
    longest = shape.max_context or 1 << 30
    contexts = tuple(c for c in (_QUICK_CONTEXTS if quick else _CONTEXTS) if 2 * c <= longest) or (
        max(shape.max_context // 2, 1),
    )
    requests = _QUICK_REQUESTS if quick else _MOST_REQUESTS
    captured = vllm_capture_sizes(capture_limit)
    before, state = host.conditions(card.device), host.gpu_state(card.index)
    said = [*([kernel.warning] if kernel.warning else []), *host.busy(state, card.memory())]
    with _fits(shape, card):
        decoder = PagedDecoder(shape, 1, _DTYPES[dtype], card.device, seed=seed, attend=kernel.attend)
        most_tokens = off_graph_sizes(captured[-1], quick)[-1]
        bench = PassBench(decoder, config, contexts, requests, most_tokens, seed, card)
    pages = _grown(decoder, requests * -(-bench.most_keys // PAGE), card)
    # A request's last page is half empty on average; fewer requests than the most fit a small pool.
    most_kv = max(pages * PAGE - requests * PAGE // 2, pages * PAGE // 2)
    prompts = tuple(n for n in _PROMPTS if n <= min(longest, max(contexts)) and n <= pages * PAGE)
    points = pass_points(captured, config.block_size, contexts, requests, most_kv, quick, prompts)
    if not any(p.kind == "verify" for p in points):
        raise SpecschedError(
            f"only {pages} pages of KV fit beside {shape.name}, too few for a context of {min(contexts)}; "
            "measure a smaller model, or --source compose"
        )
    plan = _QUICK_PLAN if quick else _PLAN
    left = max(plan.budget_seconds - (time.perf_counter() - begun), 20.0)
    run = run_points(bench, points, replace(plan, budget_seconds=left, seed=seed), progress)
    after = host.gpu_state(card.index)
    before |= {
        "gpu": state,
        "gpu_after": after,
        "attention": {
            "library": kernel.library,
            "version": kernel.version,
            "difference_from_plain": float(f"{difference:.3g}"),
        },
    }
    said += [*host.throttled(after), *waited_for_the_host(run)]
    document = describe(shape, dtype, key, card.name, card.memory()[1], captured)
    what = f"{config.kind}, {config.num_hidden_layers} layers, greedy, random weights"
    return assemble(document, run, config.block_size, what, before, NOTES, said, bench.drafter.memory())


def _refuse(card: Card, shape: ModelShape, dtype: str) -> None:
    if dtype not in ("bfloat16", "float16"):
        raise SpecschedError(
            f"--dtype {dtype} is not measured here; choose bfloat16 or float16, or --source compose for fp8"
        )
    if shape.experts and card.capability < attention.HOPPER:
        raise SpecschedError(
            f"{shape.name} has experts, and PyTorch's grouped products of them need compute capability 9.0 "
            f"(Hopper) to stand in a CUDA graph; {card.name} has {'.'.join(map(str, card.capability))}: "
            "measure a dense model here, or --source compose"
        )
    free, weights = card.memory()[0], shape.weight_bytes(dtype)
    if weights > 0.8 * free:
        raise SpecschedError(
            f"{shape.name} in {dtype} weighs {weights / 1e9:.0f} GB and {free / 1e9:.0f} GB of "
            f"{card.name} are free; measure a smaller model, or --source compose"
        )


class _fits:
    """A context in which memory that runs out is an error with what to do."""

    def __init__(self, shape: ModelShape, card: Card) -> None:
        self.shape, self.card = shape, card

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None and out_of_memory(error):
            raise SpecschedError(
                f"the memory of {self.card.name} ran out while building {self.shape.name}: is something else "
                "running there? Measure a smaller model, or --source compose"
            ) from None


def _grown(decoder: PagedDecoder, wanted: int, card: Card) -> int:
    """Grow the KV cache to `wanted` pages, or as many as fit beside the spare part; half as many, and again,
    where the allocator disagrees. Returns the pages."""
    s = decoder.shape
    per_page = 2 * s.layers * decoder.page * s.kv_heads * s.head_dim * decoder.keys[0].element_size()
    pages = max(min(int((1 - SPARE) * card.memory()[0]) // per_page, wanted), 1)
    while True:
        try:
            decoder.grow(pages)
            return pages
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error) or pages == 1:
                raise
        decoder.keys.clear()
        decoder.values.clear()
        card.release()
        pages //= 2


def waited_for_the_host(run: Run) -> list[str]:
    """What to say of passes off the graph that took no longer than the host took to launch them."""
    eager = [s for s in run.samples if "launch" in s.seconds]
    bound = [s for s in eager if s.median("launch") >= LAUNCHED * s.median("verify")]
    if not bound:
        return []
    return [
        f"{len(bound)} of {len(eager)} passes off the graph took as long as their launches from Python "
        f"(up to {max(s.point.tokens for s in bound)} tokens): their cost is the host's, not the kernels', "
        "and an engine's differs."
    ]


NOTES = (
    "Experimental. A decoder of this shape with random normal weights and KV, PyTorch kernels in CUDA "
    "graphs: flash attention over 256-token pages, unfused norms and rotary embedding; not an engine's own "
    "kernels. Drafts are greedy, as engines draft unless told otherwise. Ragged "
    "contexts and verification lengths, LM head over all rows and rejection sampler included. overhead holds "
    "the least host work between passes; `specsched profile fit-overhead` adds an engine's own."
)


def describe(
    shape: ModelShape, dtype: str, key: str, device_name: str, memory: int, captured: list[int]
) -> dict[str, Any]:
    """The parts of the profile document that are known before measuring."""
    short = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}[dtype]
    return {
        "name": f"{key}_{shape.name.lower()}_{short}_tp1_measured",
        "gpu": {"name": device_name, "count": 1, "memory_bytes": memory},
        "model": {
            "name": shape.name,
            "weight_bytes": shape.weight_bytes(dtype),
            "kv_bytes_per_token": shape.kv_bytes_per_token(dtype),
            "max_context": shape.max_context,
            "dtype": dtype,
        },
        "capture": {"sizes": captured, "limit": captured[-1]},
    }
