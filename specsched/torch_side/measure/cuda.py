"""Timing a target's pass on a GPU: one CUDA graph per captured size, replayed; above the limit, none.

A replay is the graph of the forward pass and the LM head, then the rejection sampler launched behind it, as
engines do; CUDA events stand around both. "draft" times the drafter's graph for R requests. "host" times what
any engine does between passes: filling inputs, planning, copying them over and reading the result back, with
the GPU otherwise idle; real engines do more (`profile fit-overhead` adds it from a measured sweep).
The bench runs without a GPU as well, without graphs: that is how its logic is tested.
"""

from __future__ import annotations

import gc
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
from . import host
from .assembly import assemble
from .decoder import PAGE, PagedDecoder, PassInputs, Verdict, reject
from .draft import DraftInputs, draft_block, random_drafter
from .grid import Point, contexts_of, off_graph_sizes, pass_points, widths_of
from .run import Plan, Progress, run_points

_PLAN = Plan(replays=40, rounds=2, budget_seconds=1500.0)
_QUICK_PLAN = Plan(replays=20, rounds=2, budget_seconds=75.0)  # building the model included
SPARE = 0.25  # of the memory left by the weights: for activations, laws and the drafter's context
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
_MOST_REQUESTS, _QUICK_REQUESTS = 512, 256
_CONTEXTS, _QUICK_CONTEXTS = (2048, 512, 8192), (2048, 512)


class PassBench:
    """A `Bench` over a `PagedDecoder` and a DSpark drafter of the same shape.

    contexts: mean contexts that will be asked for; most_requests: requests of the widest pass.
    """

    def __init__(
        self,
        decoder: PagedDecoder,
        block_size: int,
        contexts: tuple[int, ...],
        most_requests: int,
        most_tokens: int,
        seed: int = 0,
    ) -> None:
        self.decoder, self.block_size = decoder, block_size
        self.device, self.graphs = decoder.device, decoder.device.type == "cuda"
        self.drafter = random_drafter(decoder.shape, block_size, decoder.embedding, decoder.head, seed)
        self.most_requests, self.most_keys = most_requests, 3 * max(contexts) // 2 + block_size + 1
        self._rng = np.random.default_rng(seed)
        self._pool: Any = torch.cuda.graph_pool_handle() if self.graphs else None
        self._captured: dict[tuple[int, int], tuple[PassInputs, Callable[[], None]]] = {}
        vocab = decoder.shape.vocab
        self._logits = torch.empty(most_tokens, vocab, dtype=decoder.dtype, device=self.device)
        self._proposal = torch.empty(most_tokens, vocab, device=self.device).exponential_()
        self._proposal /= self._proposal.sum(-1, keepdim=True)
        self._policy = schedule.Lagged()

    def prepare(self, point: Point) -> tuple[int, Callable[[], dict[str, float]]]:
        """See `Bench`. Raises MemoryError where the KV cache has too few pages."""
        made = {"verify": self._verify, "draft": self._draft, "host": self._host}[point.kind]
        return made(point)

    def release(self) -> None:
        """Drop unused blocks of the allocator; captured graphs stay."""
        if self.graphs:
            gc.collect()
            torch.cuda.empty_cache()

    # --- the target's pass ----------------------------------------------------------------------------------

    def _verify(self, point: Point) -> tuple[int, Callable[[], dict[str, float]]]:
        most = 1 if point.tokens == point.requests else 1 + self.block_size
        inputs, forward = self._pass(point, most)
        contexts, widths = contexts_of(point, self._rng), widths_of(point, self.block_size, self._rng)
        self._fill(inputs, contexts, widths)
        verdict = self._verdict(widths)

        def work() -> None:
            forward()
            reject(self._logits[: point.tokens], verdict, self.block_size)

        return int(contexts.sum()) + point.requests, lambda: {"verify": timed(self.device, work)}

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
        self._captured[key] = inputs, capture(forward, self._pool) if self.graphs else forward
        return self._captured[key]

    def _fill(self, inputs: PassInputs, contexts: np.ndarray, widths: np.ndarray) -> None:
        """Random tokens, ragged contexts, random pages, into the fixed buffers."""
        arrays = layout(
            contexts,
            widths,
            self.decoder.page,
            self.decoder.pages,
            len(inputs.used),
            inputs.table.shape[1],
            self._rng,
        )
        arrays["tokens"] = self._rng.integers(0, self.decoder.shape.vocab, len(inputs.tokens))
        for name, array in arrays.items():
            buffer: Tensor = getattr(inputs, name)
            buffer.copy_(torch.from_numpy(array).to(buffer.dtype))

    def _verdict(self, widths: np.ndarray) -> Verdict:
        tokens, device = int(widths.sum()), self.device
        starts = np.cumsum(widths) - widths
        drafted = torch.from_numpy(self._rng.integers(0, self.decoder.shape.vocab, tokens))
        return Verdict(
            drafted.to(device),
            self._proposal[:tokens],
            torch.from_numpy(starts).to(device),
            torch.from_numpy(widths - 1).to(device),
            torch.rand(tokens, device=device),
            torch.rand(len(widths), device=device),
        )

    # --- the drafter and the host ---------------------------------------------------------------------------

    def _draft(self, point: Point) -> tuple[int, Callable[[], dict[str, float]]]:
        r, device, c = point.requests, self.device, self.drafter.config
        contexts = contexts_of(point, self._rng)
        shape = (r, c.num_key_value_heads, int(contexts.max()), c.head_dim)
        made: dict[str, Any] = {"dtype": self.decoder.dtype, "device": device}
        pairs = [
            (torch.empty(shape, **made).normal_(), torch.empty(shape, **made).normal_())
            for _ in range(c.num_hidden_layers)
        ]
        settled = r * (1 + self.block_size // 2)  # as many as a step that accepts half a block
        positions = torch.from_numpy(contexts).to(device)
        inputs = DraftInputs(
            torch.randint(c.vocab_size, (r,), device=device),
            positions,
            pairs,
            torch.rand(r, self.block_size, device=device),
            torch.randn(settled, c.feature_size, **made),
            positions.repeat_interleave(1 + self.block_size // 2),
        )

        @torch.no_grad()
        def work() -> None:
            draft_block(self.drafter, inputs)

        # A graph of its own, gone with the point: its inputs are as large as the drafter's whole context.
        run = capture(work) if self.graphs else work
        return int(contexts.sum()), lambda: {"draft": timed(device, run)}

    def _host(self, point: Point) -> tuple[int, Callable[[], dict[str, float]]]:
        r, device, whole = point.requests, self.device, 1 + self.block_size
        contexts = contexts_of(point, self._rng)
        confidence = torch.rand(r, self.block_size, device=device)
        answer = torch.zeros(r, 2, dtype=torch.int64, device=device)
        sps = 1.0 / np.linspace(1.0, 2.0, r * whole + 1)
        ids = np.arange(r)
        pages = -(-self.most_keys // self.decoder.page)
        inputs = PassInputs.empty(r, r, pages, 1, self.most_keys, device)

        def once() -> dict[str, float]:
            begun = time.perf_counter()
            self._policy.plan(confidence.double().cpu().numpy(), sps, ids=ids)
            planned = time.perf_counter()
            self._fill(inputs, contexts, np.ones(r, dtype=np.int64))
            answer.cpu().tolist()
            wait(device)
            ended = time.perf_counter()
            return {"host": ended - planned, "sync": planned - begun}

        return int(contexts.sum()), once


def layout(
    contexts: np.ndarray,
    widths: np.ndarray,
    page: int,
    pages: int,
    slots: int,
    table_width: int,
    rng: np.random.Generator,
) -> dict[str, np.ndarray]:
    """The integer arrays of `PassInputs` for requests with `contexts` cached tokens that send `widths` more.

    Pages are drawn at random from the pool, none twice. Raises MemoryError when there are too few.
    """
    requests, tokens = len(contexts), int(widths.sum())
    total = contexts + widths
    needed = -(-total // page)
    if int(needed.sum()) > pages or int(needed.max()) > table_width:
        raise MemoryError(f"{int(needed.sum())} pages of KV are needed, the cache has {pages}")
    drawn = rng.permutation(pages)[: int(needed.sum())]
    table = np.zeros((slots, table_width), dtype=np.int64)
    table[np.repeat(np.arange(requests), needed), _ranks(needed)] = drawn
    row = np.repeat(np.arange(requests), widths)
    position = contexts[row] + _ranks(widths)
    starts = np.full(slots + 1, tokens, dtype=np.int64)
    starts[:requests] = np.cumsum(widths) - widths
    used = np.zeros(slots, dtype=np.int64)
    used[:requests] = total
    slot = table[row, position // page] * page + position % page
    return {"position": position, "slot": slot, "starts": starts, "used": used, "table": table, "row": row}


def _ranks(counts: np.ndarray) -> np.ndarray:
    """0 .. n - 1 for each n of `counts`, one after another."""
    return np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)


def _even(total: int, parts: int) -> np.ndarray:
    return total // parts + (np.arange(parts) < total % parts).astype(np.int64)


def wait(device: torch.device) -> None:
    """Until the device has done all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(device: torch.device, work: Callable[[], None]) -> float:
    """Seconds of `work` on the device: between CUDA events, or wall time without a GPU."""
    if device.type != "cuda":
        begun = time.perf_counter()
        work()
        return time.perf_counter() - begun
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3


def capture(work: Callable[[], None], pool: Any = None) -> Callable[[], None]:
    """A CUDA graph of `work`, warmed up on a side stream first; its replay."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        work()
    return graph.replay


# --- the whole measurement ----------------------------------------------------------------------------------


def measure_cuda(
    device: torch.device,
    key: str,
    shape: ModelShape,
    *,
    dtype: str = "bfloat16",
    block_size: int = 7,
    capture_limit: int = 512,
    quick: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
) -> StepProfile:
    """Profile of a model of `shape` on one CUDA device; `key` names the GPU in the profile's name.

    Raises SpecschedError for a dtype that is not built here and for weights that do not fit.
    """
    begun = time.perf_counter()
    if dtype not in ("bfloat16", "float16"):
        raise SpecschedError(
            f"--dtype {dtype} is not measured here; choose bfloat16 or float16, or --source compose for fp8"
        )
    torch.cuda.set_device(device)
    free, memory = torch.cuda.mem_get_info(device)
    weights = shape.weight_bytes(dtype)
    if weights > 0.8 * free:
        raise SpecschedError(
            f"{shape.name} in {dtype} weighs {weights / 1e9:.0f} GB and {free / 1e9:.0f} GB of "
            f"{torch.cuda.get_device_name(device)} are free; measure a smaller model, or --source compose"
        )
    contexts = tuple(
        c for c in (_QUICK_CONTEXTS if quick else _CONTEXTS) if 2 * c <= (shape.max_context or 1 << 30)
    ) or (max(shape.max_context // 2, 1),)
    requests = _QUICK_REQUESTS if quick else _MOST_REQUESTS
    captured = vllm_capture_sizes(capture_limit)
    before = host.conditions(device)
    decoder = PagedDecoder(shape, 1, _DTYPES[dtype], device, seed=seed)
    most_tokens = off_graph_sizes(captured[-1], quick)[-1]
    bench = PassBench(decoder, block_size, contexts, requests, most_tokens, seed)
    wanted = requests * -(-bench.most_keys // PAGE)
    pages = _pages(decoder, wanted, torch.cuda.mem_get_info(device)[0])
    decoder.grow(pages)
    # A request's last page is half empty on average.
    most_kv = pages * PAGE - requests * PAGE // 2
    points = pass_points(captured, block_size, contexts, requests, most_kv, quick)
    if not any(p.kind == "verify" for p in points):
        raise SpecschedError(
            f"only {pages} pages of KV fit beside {shape.name}, too few for a context of {min(contexts)}; "
            "measure a smaller model, or --source compose"
        )
    spent = time.perf_counter() - begun
    plan = _QUICK_PLAN if quick else _PLAN
    plan = replace(plan, budget_seconds=max(plan.budget_seconds - spent, 20.0), seed=seed)
    run = run_points(bench, points, plan, progress)
    after = host.gpu_state(device.index or 0)
    document = describe(shape, dtype, key, torch.cuda.get_device_name(device), memory, captured)
    return assemble(document, run, block_size, "dspark, 5 layers", before | {"gpu_after": after}, NOTES)


NOTES = (
    "A decoder of this shape with random normal weights and KV, PyTorch kernels in CUDA graphs: flash "
    "attention over 256-token pages, unfused norms and rotary embedding; not an engine's own kernels. Ragged "
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


def _pages(decoder: PagedDecoder, wanted: int, free: int) -> int:
    """Pages a layer that fit in the free memory less the spare part; no more than `wanted`."""
    s = decoder.shape
    bytes_per_page = 2 * s.layers * decoder.page * s.kv_heads * s.head_dim * decoder.keys[0].element_size()
    return max(min(int((1 - SPARE) * free) // bytes_per_page, wanted), 1)
