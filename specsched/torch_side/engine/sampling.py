"""Drawing tokens: laws from logits, inverse-CDF draws, and uniforms that depend on no call order.

Every random number is a hash of (seed, stream, request, position, k): what a request draws does not depend on
which other requests share its batch, nor on the policy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...errors import SpecschedError

DRAFT, ACCEPT, EMIT, RESIDUAL, TARGET = range(5)
"""Streams of uniforms: draft tokens, acceptance tests, corrected or bonus tokens, first rejects, target
text."""
LEAST_TEMPERATURE = 1e-6
"""Below it logits in float32, divided by the temperature, leave their range; 0 is greedy."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn, of the target and of the drafter alike.

    top_k (0: all) and top_p (1: all) cut both laws, as engines do; the text keeps the target's law so cut
    whatever the drafter's law is. `greedy_draft`: drafts are the drafter's first choice at any temperature,
    the default of engines; its law is then one-hot, and acceptance another one.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    greedy_draft: bool = False

    def __post_init__(self) -> None:
        if self.top_k < 0 or not 0 < self.top_p <= 1:
            raise SpecschedError(
                f"top_k {self.top_k} and top_p {self.top_p:g} cut no law; give a whole number from 0 (all "
                "tokens) and a share above 0, at most 1"
            )

    def target_law(self, logits: Tensor) -> Tensor:
        """The law the text is drawn from: logits [..., V] -> float32[..., V]."""
        return cut(laws(logits, self.temperature), self.top_k, self.top_p)

    def draft_law(self, logits: Tensor) -> Tensor:
        """The law drafts are drawn from: logits [..., Vd] -> float32[..., Vd]."""
        return laws(logits, 0) if self.greedy_draft else self.target_law(logits)


def cut(law: Tensor, top_k: int, top_p: float) -> Tensor:
    """The law without its tail, normalised: of the `top_k` largest (0: all) the fewest that together hold
    `top_p` of what those hold. Of equals the first tokens stay. float32[..., V]."""
    if top_k == 0 and top_p == 1:
        return law
    falling, order = law.sort(dim=-1, descending=True, stable=True)
    if top_k:
        falling[..., top_k:] = 0
    before = falling.cumsum(-1) - falling
    kept = torch.where(before < top_p * falling.sum(-1, keepdim=True), falling, 0)
    # The largest stays, whatever rounding makes of `before`.
    kept[..., 0] = falling[..., 0]
    return torch.zeros_like(law).scatter_(-1, order, kept / kept.sum(-1, keepdim=True))


def laws(logits: Tensor, temperature: float) -> Tensor:
    """softmax(logits / temperature), float32[..., V]; temperature 0 puts all mass on the first largest
    logit."""
    if not temperature >= 0:
        raise SpecschedError(f"temperature {temperature} is not a temperature; give 0 (greedy) or more")
    if 0 < temperature < LEAST_TEMPERATURE:
        raise SpecschedError(
            f"temperature {temperature:g} is less than {LEAST_TEMPERATURE:g}; give 0, which is greedy"
        )
    logits = logits.float()
    if temperature == 0:
        return torch.zeros_like(logits).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
    return torch.softmax(logits if temperature == 1 else logits / temperature, dim=-1)


def draw(law: Tensor, uniform: Tensor) -> Tensor:
    """Inverse-CDF sampling: law float32[n, V] (any positive scale), uniform [n] in [0, 1) -> int64[n].

    `torch.multinomial` draws V exponentials a row, at V = 49152 more than a whole decode step costs.
    """
    total = law.cumsum(-1)
    # A product rounded up to the total itself would point past the last token with any mass.
    top = total[:, -1]
    point = torch.minimum(uniform.to(top) * top, torch.nextafter(top, torch.zeros_like(top)))
    return torch.searchsorted(total, point.unsqueeze(-1), right=True).squeeze(-1)


def residual(target: Tensor, draft: Tensor) -> Tensor:
    """max(0, p_t - p_d), float32[n, V], not normalised. Rows without any mass (p_t = p_d) fall back to
    p_t."""
    rest = (target - draft).clamp_(min=0)
    return torch.where(rest.sum(-1, keepdim=True) > 0, rest, target)


def uniforms(seed: int, stream: int, request: np.ndarray, position: np.ndarray, width: int) -> Tensor:
    """float32[n, width] in [0, 1): entry k of row i hashes (seed, stream, request[i], position[i], k).

    request, position: int64[n]. SplitMix64's finaliser, applied once per coordinate.
    """
    with np.errstate(over="ignore"):
        state = np.full(len(request), np.uint64(seed & (2**64 - 1)))
        for part in (np.full(len(request), stream), request, position):
            state = _mix(state + np.asarray(part).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))
        k = np.arange(1, width + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        bits = _mix(state[:, None] + k)
    # 24 bits: exactly representable, so that rounding never yields 1.0.
    return torch.from_numpy((bits >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24))


def _mix(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
