"""The small real engine: continuous batching, any policy, rejection sampling that keeps the target's law.

One step reads as the simulator's does: admit (prefill newcomers) -> draft -> plan -> verify -> commit.

    output token    0 ....... t | t+1 ... t+a | t+a+1     | t+a+2 ... t+γ
                    emitted     | accepted    | corrected | discarded
                              anchor            or bonus = next anchor

`verify` sends anchor and ℓ drafts of every request through the target in one ragged pass. A draft d is
accepted with probability min(1, p_t(d) / p_d(d)); at the first rejection the token is drawn from max(0, p_t
- p_d) normalised, after ℓ acceptances from p_t itself (a bonus). At temperature 0 all laws are one-hot and
the same arithmetic is greedy decoding. Names, prompts files and the statistics of a run are in `decode.py`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from ... import schedule
from ...calibration.metrics import sigmoid
from ...errors import PolicyError, SpecschedError
from ..target.decoder import Target
from .sampling import ACCEPT, DRAFT, EMIT, Sampling, draw, residual, uniforms

if TYPE_CHECKING:
    from ..drafter.base import DraftBlock, DraftContext, Drafter


@dataclass(frozen=True)
class Request:
    """One prompt to answer. `key` names its random stream: the same key and seed give the same text."""

    prompt_ids: tuple[int, ...]
    max_tokens: int
    key: int = 0
    domain: str = "unknown"


class Round(NamedTuple):
    """What happened to one request in one step."""

    position: int
    """index of the anchor among the output tokens, from 0"""
    draft_ids: tuple[int, ...]
    """γ drafted tokens, also those not verified"""
    confidence_logits: tuple[float, ...]
    """γ raw scores"""
    verified: int
    """ℓ: how many drafts the target saw"""
    accepted: int
    """how many it accepted, without the bonus or corrected token; not cut at the end of the text"""


@dataclass
class Output:
    """One answered request: output ids without the prompt, the prefill's token first, and its rounds."""

    request: Request
    output_ids: list[int] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)


class StepTiming(NamedTuple):
    """Seconds of one step and its shape. `host` is what is left: planning, drawing, bookkeeping."""

    requests: int
    tokens: int
    context_tokens: int
    prefill_tokens: int
    prefill_seconds: float
    draft_seconds: float
    verify_seconds: float
    host_seconds: float


class Costs(Protocol):
    """What the engine asks of a step profile (`StepProfile` has it)."""

    def sps(
        self,
        requests: int,
        context_tokens: float,
        max_tokens: int,
        *,
        draft: bool = True,
        sync: bool = False,
    ) -> np.ndarray:
        """Steps per second by token batch size, float64[max_tokens + 1], of steps that draft or do not."""


class Calibrated(Protocol):
    """What the engine asks of a calibration (`Calibration` has it)."""

    def apply(self, logits: Any) -> np.ndarray:
        """float64[n, γ] probabilities of raw logits."""


@dataclass
class _Row:
    """An active request: its slot, the anchor token, the anchor's position in the whole text."""

    output: Output
    slot: int
    anchor: int = -1
    position: int = -1
    done: bool = False

    @property
    def index(self) -> int:
        """Index of the anchor among the output tokens."""
        return self.position - len(self.output.request.prompt_ids)


class Engine:
    """Serves requests on one target and drafter under one policy.

    policy: a name or a `schedule` policy object. Policies that weigh costs need `profile`. `sampling`
    replaces `temperature`.
    `drafter` may be None for `off`. `capacity`: tokens a slot holds, prompt and drafts included.
    Finished requests are appended to `finished`, timings of every step to `timings`.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None,
        policy: str | schedule.Policy = "fixed",
        *,
        temperature: float = 1.0,
        sampling: Sampling | None = None,
        seed: int = 0,
        max_batch: int = 16,
        capacity: int = 1024,
        profile: Costs | None = None,
        calibration: Calibrated | None = None,
    ) -> None:
        gamma = 1 if drafter is None else drafter.block_size
        self.policy = schedule.make(policy, gamma) if isinstance(policy, str) else policy
        if self.policy.drafts and drafter is None:
            raise SpecschedError(
                f"policy {self.policy.name} drafts, but there is no drafter; give one or use off"
            )
        if self.policy.name == "hindsight":
            raise PolicyError(
                "hindsight knows what will be accepted; it runs in the simulator, not in an engine"
            )
        if self.policy.weighs_costs and profile is None:
            raise PolicyError(f"policy {self.policy.name} weighs costs; give the profile they come from")
        self.target, self.drafter, self.gamma = target, drafter, gamma
        self.sampling, self.seed = sampling or Sampling(temperature), seed
        self.profile, self.calibration = profile, calibration
        self.layers = tuple(drafter.target_layer_ids) if drafter is not None and self.policy.drafts else ()
        self.cache = target.new_cache(max_batch, capacity)
        self.context: DraftContext | None = None
        if drafter is not None and self.policy.drafts:
            self.context = drafter.new_context(max_batch, capacity)
        self.waiting: deque[Output] = deque()
        self.rows: list[_Row] = []
        self.finished: list[Output] = []
        self.timings: list[StepTiming] = []
        self._clock = _Clock(target.device)

    @property
    def drafts(self) -> bool | None:
        """Whether every step drafts (True), none (False), or it depends on the step (None)."""
        if isinstance(self.policy, schedule.Bypass):
            return None
        said = {self.policy.drafting(r, self.gamma).any() for r in range(1, self.cache.slots + 1)}
        return bool(said.pop()) if len(said) == 1 else None

    def submit(self, request: Request) -> Output:
        """Queue a request; raises `SpecschedError` when it could never fit a slot."""
        if not request.prompt_ids or request.max_tokens < 1:
            raise SpecschedError(f"request {request.key}: needs a prompt and at least one token to produce")
        needed = len(request.prompt_ids) + request.max_tokens + self.gamma
        if needed > self.cache.capacity:
            raise SpecschedError(
                f"request {request.key} needs {needed} tokens of cache, slots hold {self.cache.capacity}; "
                "raise the capacity, or shorten the prompt or max_tokens"
            )
        output = Output(request)
        self.waiting.append(output)
        return output

    def run(self) -> list[Output]:
        """Step until nothing waits or runs. Returns what finished, in order of finishing."""
        while self.waiting or self.rows:
            self.step()
        return self.finished

    @torch.no_grad()
    def step(self) -> None:
        """Admit, draft, plan, verify, commit."""
        self._clock.start()
        prefilled = self._admit()
        requests, context = len(self.rows), sum(row.position + 1 for row in self.rows)
        tokens = 0
        if self.rows:
            sps, idle_sps = self._costs(context)
            drafting = self.policy.drafting(requests, self.gamma, sps, idle_sps)
            block = self._draft() if drafting.any() else None  # for some: here for all, and not verified
            lengths = self._plan(block, sps)
            tokens = requests + int(lengths.sum())
            law, features = self._verify(block, lengths)
            self._commit(block, lengths, law, features)
            self._retire()
        self.timings.append(StepTiming(requests, tokens, context, prefilled, *self._clock.stop()))

    # --- the four sentences -------------------------------------------------------------------------------

    def _admit(self) -> int:
        """Prefill newcomers; the first token of each is drawn here and becomes its anchor."""
        used = {row.slot for row in self.rows}
        free = [slot for slot in range(self.cache.slots) if slot not in used]
        new = [_Row(self.waiting.popleft(), slot) for slot, _ in zip(free, list(self.waiting), strict=False)]
        if not new:
            return 0
        prompts = [row.output.request.prompt_ids for row in new]
        counts = torch.tensor([len(p) for p in prompts])
        tokens = torch.tensor([t for p in prompts for t in p])
        slots = torch.tensor([row.slot for row in new]).repeat_interleave(counts)
        position = torch.cat([torch.arange(len(p)) for p in prompts])
        self.cache.lengths[[row.slot for row in new]] = 0
        if self.context is not None:
            self.context.clear(torch.tensor([row.slot for row in new]))
        with self._clock.measure("prefill"):
            hidden, features = self.target(tokens, slots, position, self.cache, self.layers)
            last = hidden[(counts.cumsum(0) - 1).to(hidden.device)]
            law = self.sampling.target_law(self.target.precise_logits(last))
        self._observe(slots, position, features, tokens)
        first = draw(law, self._uniform(EMIT, new, -1, 1)[:, 0]).tolist()
        for row, token in zip(new, first, strict=True):
            row.position = len(row.output.request.prompt_ids) - 1
            self._emit(row, [token])
        self.rows = sorted(self.rows + new, key=lambda row: row.slot)
        self._retire()
        return len(tokens)

    def _draft(self) -> DraftBlock | None:
        if self.context is None or self.drafter is None:
            return None
        u = self._uniform(DRAFT, self.rows, 0, self.gamma)
        device = self.target.device
        with self._clock.measure("draft"):
            return self.drafter.draft(
                torch.tensor([row.anchor for row in self.rows], device=device),
                torch.tensor([row.position for row in self.rows], device=device),
                self.context,
                law=self.sampling.draft_law,
                sampler=lambda k, law: draw(law, u[:, k]),
                slots=torch.tensor([row.slot for row in self.rows], device=device),
            )

    def _costs(self, context: int) -> tuple[np.ndarray | None, float | None]:
        """Steps per second of the coming step: by its tokens if it drafts, and if it does not."""
        if self.profile is None:
            return None, None
        requests = len(self.rows)
        top = requests * (1 + self.gamma)
        sps = self.profile.sps(requests, context, top, sync=self.policy.pays_sync)
        if not isinstance(self.policy, schedule.Bypass):
            return sps, None
        return sps, float(self.profile.sps(requests, context, requests, draft=False)[requests])

    def _plan(self, block: DraftBlock | None, sps: np.ndarray | None) -> np.ndarray:
        """Verification lengths int64[R]."""
        if block is None:
            confidence = np.zeros((len(self.rows), max(self.gamma, 1)))
        else:
            logits = block.confidence_logit.cpu().numpy()
            confidence = sigmoid(logits) if self.calibration is None else self.calibration.apply(logits)
        ids = np.array([id(row.output) for row in self.rows], dtype=np.int64)
        return self.policy.plan(confidence, sps, ids=ids).astype(np.int64)

    def _verify(self, block: DraftBlock | None, lengths: np.ndarray) -> tuple[Tensor, Tensor]:
        """The ragged target pass: laws float32[B, V] after each token sent, features [B, F]."""
        counts = torch.from_numpy(lengths + 1)
        inputs = torch.tensor([[row.anchor] for row in self.rows])
        if block is not None:
            inputs = torch.cat([inputs, block.tokens.cpu()], dim=1)
        keep = torch.arange(inputs.shape[1]) < counts.unsqueeze(1)
        position = torch.tensor([row.position for row in self.rows]).unsqueeze(1) + torch.arange(
            inputs.shape[1]
        )
        slots = torch.tensor([row.slot for row in self.rows]).unsqueeze(1).expand_as(position)
        with self._clock.measure("verify"):
            hidden, features = self.target(inputs[keep], slots[keep], position[keep], self.cache, self.layers)
            return self.sampling.target_law(self.target.precise_logits(hidden)), features

    def _commit(self, block: DraftBlock | None, lengths: np.ndarray, law: Tensor, features: Tensor) -> None:
        """Accept, correct, roll the caches back to what is settled, move the anchors."""
        length = torch.from_numpy(lengths)
        starts = (length + 1).cumsum(0) - (length + 1)
        accepted, emitted = self._settle(block, length, starts, law)
        self.policy.settle(accepted.numpy())
        drafts = [[]] * len(self.rows) if block is None else block.tokens.tolist()
        scores = [[]] * len(self.rows) if block is None else block.confidence_logit.tolist()
        kept = torch.arange(int(length.max()) + 1) <= accepted.unsqueeze(1)
        flat = (starts.unsqueeze(1) + torch.arange(kept.shape[1]))[kept]
        slots = torch.tensor([row.slot for row in self.rows]).unsqueeze(1).expand_as(kept)[kept]
        first = torch.tensor([row.position for row in self.rows])
        position = (first.unsqueeze(1) + torch.arange(kept.shape[1]))[kept]
        tokens = torch.tensor(
            [[row.anchor, *d[: kept.shape[1] - 1]] for row, d in zip(self.rows, drafts, strict=True)]
        )[kept]
        self._observe(
            slots, position, features[flat.to(features.device)] if self.layers else features, tokens
        )
        for i, (row, token) in enumerate(zip(self.rows, emitted.tolist(), strict=True)):
            a = int(accepted[i])
            if block is not None:
                row.output.rounds.append(
                    Round(row.index, tuple(drafts[i]), tuple(scores[i]), int(lengths[i]), a)
                )
            self.cache.lengths[row.slot] = row.position + a + 1
            self._emit(row, [*drafts[i][:a], token])

    def _settle(
        self, block: DraftBlock | None, length: Tensor, starts: Tensor, law: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Rejection sampling. Returns (accepted int64[R] on the CPU, the corrected or bonus token
        int64[R])."""
        device = law.device
        u_emit = self._uniform(EMIT, self.rows, 0, 1)[:, 0]
        if block is None:
            return torch.zeros_like(length), draw(law, u_emit)
        r, gamma = block.tokens.shape
        k = torch.arange(gamma, device=device)
        seen = k < length.to(device).unsqueeze(1)
        at = (starts.to(device).unsqueeze(1) + k).clamp(max=len(law) - 1)
        p_target = law[at, block.tokens]
        p_draft = block.probabilities.gather(2, block.tokens.unsqueeze(2)).squeeze(2)
        passed = (self._uniform(ACCEPT, self.rows, 0, gamma) * p_draft < p_target) & seen
        accepted = passed.long().cumprod(1).sum(1)
        final = law[starts.to(device) + accepted]
        rejected = accepted < length.to(device)
        proposal = block.probabilities[torch.arange(r, device=device), accepted.clamp(max=gamma - 1)]
        final = torch.where(rejected.unsqueeze(1), residual(final, proposal), final)
        return accepted.cpu(), draw(final, u_emit)

    # --- pieces -------------------------------------------------------------------------------------------

    def _observe(self, slots: Tensor, position: Tensor, features: Tensor, tokens: Tensor) -> None:
        if self.context is not None:
            device = self.target.device
            with self._clock.measure("draft"):
                self.context.observe(slots.to(device), position.to(device), features, tokens.to(device))

    def _emit(self, row: _Row, tokens: Sequence[int]) -> None:
        """Append tokens, cut at a stop token or at the length asked for; the last one is the new anchor."""
        request, out = row.output.request, row.output.output_ids
        for token in tokens:
            out.append(token)
            row.position += 1
            if token in self.target.config.eos_token_ids or len(out) == request.max_tokens:
                row.done = True
                break
        row.anchor = out[-1]

    def _retire(self) -> None:
        self.finished.extend(row.output for row in self.rows if row.done)
        self.rows = [row for row in self.rows if not row.done]

    def _uniform(self, stream: int, rows: Sequence[_Row], index: int, width: int) -> Tensor:
        """float32[R, width]; `index` -1 stands for the prefill, before any anchor."""
        keys = np.array([row.output.request.key for row in rows], dtype=np.int64)
        at = np.array([index if index < 0 else row.index + 1 for row in rows], dtype=np.int64)
        return uniforms(self.seed, stream, keys, at + 1, width).to(self.target.device)


class _Clock:
    """Wall seconds of the parts of a step; waits for the device where there is one."""

    def __init__(self, device: torch.device) -> None:
        self._wait: Callable[[], None] = torch.cuda.synchronize if device.type == "cuda" else lambda: None
        self._parts = dict.fromkeys(("prefill", "draft", "verify"), 0.0)
        self._begun = 0.0

    def start(self) -> None:
        self._parts = dict.fromkeys(self._parts, 0.0)
        self._begun = time.perf_counter()

    @contextmanager
    def measure(self, part: str) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        self._wait()
        self._parts[part] += time.perf_counter() - begun

    def stop(self) -> tuple[float, float, float, float]:
        """Seconds of prefill, draft, verify and of all the rest."""
        total = time.perf_counter() - self._begun
        prefill, draft, verify = self._parts.values()
        return prefill, draft, verify, total - prefill - draft - verify
