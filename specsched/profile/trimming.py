"""Whether a scheduler that decides by a profile ever trims, and whether for a reason that its steps have.

With R requests and whole blocks a pass has B = R (1 + block) tokens. Cutting it to B' pays if the drafts cut
are accepted with less than

    threshold = tokens emitted / T(B) * (T(B) - T(B')) / (B - B')

on average, since then (emitted - cut) / T(B') > emitted / T(B). The largest threshold over B' says how likely
a draft may be and still be cut: near 0 nothing is ever trimmed, above 1 everything is, whatever it is worth.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ..errors import ProfileError
from .isotonic import rising
from .profile import StepProfile

FLAT = 1.02
INERT = 0.05  # drafts less likely than this are few, and little is won by cutting them
_ARTEFACT = 3.0  # a threshold this many times what the costs give is not of the costs
_EMITTED = 0.5  # share of a whole block that a request emits in a step, about
_BLOCK = 7  # where the profile does not say
_CONTEXT = 1024.0  # tokens of a request
_MOST_LOAD = 1024


class Cut(NamedTuple):
    """The cut of a whole pass that pays for the likeliest drafts: R requests, from B tokens to B'."""

    requests: int
    before: int
    after: int
    threshold: float


def last_pass(profile: StepProfile) -> float:
    """The largest pass that was measured, in tokens."""
    last = float(profile.verify.x[-1])
    return last if profile.eager is None else max(last, float(profile.eager.x[-1]))


@lru_cache(maxsize=16)  # of profiles themselves: every run under one asks again
def trimming(profile: StepProfile, block_size: int | None = None) -> str | None:
    """The sentence for a profile by which nothing is ever trimmed, or by artefact; None where all is well.

    `block_size`: drafts a request; what the profile says, or its probes do, where it is not given.
    """
    block = block_size or _block(profile)
    flat = flatness(profile)
    if flat:
        return flat
    cuts = [cut for r in _loads(profile, block) if (cut := best_cut(profile, r, block)) is not None]
    if not cuts:
        return None
    best = max(cuts, key=lambda cut: cut.threshold)
    if best.threshold < INERT:
        return _inert(profile, best)
    honest = best_cut(profile, best.requests, block, plain=True)
    worth = 0.0 if honest is None else honest.threshold
    if best.threshold > _ARTEFACT * worth:
        return _artefact(profile, best, worth)
    return None


def flatness(profile: StepProfile) -> str | None:
    """The sentence for a table by which no pass is cheaper than another, so that nothing can be trimmed."""
    verify, last = profile.verify, last_pass(profile)
    if len(verify.x) == 1 and profile.eager is None:
        return "verify has 1 point: a pass costs the same whatever its tokens, so verifying all always pays"
    whole = profile.verify_seconds(np.append(verify.x, last).astype(np.int64))
    whole = profile.bias_seconds + whole[np.isfinite(whole)]
    if not len(whole) or whole.max() >= FLAT * whole.min():
        return None
    return (
        f"verify is flat (within {whole.max() / whole.min() - 1.0:.1%} from {verify.x[0]:g} to {last:g} "
        "tokens): verifying all always pays, nothing can be trimmed by it; measure larger passes"
    )


def best_cut(profile: StepProfile, requests: int, block: int, plain: bool = False) -> Cut | None:
    """The best cut of whole blocks of so many requests, by what the scheduler decides by: its own table where
    there is one. `plain`: by the costs instead, their falls levelled. None where a pass has no cost."""
    tokens = np.arange(requests, requests * (1 + block) + 1)
    if profile.decision is not None and not plain:
        seconds = profile.decision.seconds(tokens, requests)
    else:
        passes = profile.verify_seconds(tokens)
        base = _step(profile, requests, requests, costs=True) - float(passes[0])
        seconds = base + (rising(passes) if plain and np.all(np.isfinite(passes)) else passes)
    if not np.all(np.isfinite(seconds)):
        return None
    whole, fewer = float(seconds[-1]), seconds[:-1]
    emitted = requests * (1.0 + _EMITTED * block)
    thresholds = emitted / whole * (whole - fewer) / (tokens[-1] - tokens[:-1])
    i = int(np.argmax(thresholds))
    return Cut(requests, int(tokens[-1]), int(tokens[i]), max(float(thresholds[i]), 0.0))


def _block(profile: StepProfile) -> int:
    """Drafts a request. A scheduler probed at 6, 12, 24, ... tokens verified blocks of 5 of 1, 2, 4, ...
    requests."""
    if profile.draft_block_size is not None or profile.decision is None:
        return profile.draft_block_size or _BLOCK
    probes = profile.decision.tokens.x.astype(np.int64)
    width = int(np.gcd.reduce(probes))
    return width - 1 if 1 < width == probes[0] else _BLOCK


def _loads(profile: StepProfile, block: int) -> list[int]:
    """Powers of two up to the largest load that the table covers with whole blocks."""
    table = last_pass(profile) if profile.decision is None else float(profile.decision.tokens.x[-1])
    most = min(int(table // (1 + block)), _MOST_LOAD)
    curves = [
        profile.overhead,
        profile.draft,
        None if profile.decision is None else profile.decision.requests,
    ]
    most = min([most, *(int(c.x[-1]) for c in curves if c is not None)])
    return [1 << k for k in range(max(most, 1).bit_length())]


def _by(profile: StepProfile) -> str:
    return "its costs" if profile.decision is None else f"its scheduler's table ({profile.decision.label})"


def _inert(profile: StepProfile, best: Cut) -> str:
    first, last = _step(profile, 1, 1), _step(profile, best.requests, best.requests)
    whole = _step(profile, best.before, best.requests)
    why = ""
    if last - first > 4.0 * abs(whole - last):
        why = (
            f"; the cost goes with requests ({1e3 * first:.3g} ms at 1, {1e3 * last:.3g} ms at "
            f"{best.requests} "
            f"without drafts, {1e3 * whole:.3g} ms with whole blocks), not with tokens"
        )
    return (
        f"inert: by {_by(profile)} a draft is cut only if it is accepted with less than {best.threshold:.1%} "
        f"(at {best.requests} requests, elsewhere less): next to nothing is ever trimmed{why}"
    )


def _step(profile: StepProfile, tokens: int, requests: int, costs: bool = False) -> float:
    if profile.decision is not None and not costs:
        return float(profile.decision.seconds(tokens, requests))
    try:
        return profile.seconds(tokens, requests, _CONTEXT * requests)
    except ProfileError:  # above the capture limit, without an eager curve
        return float("nan")


def _artefact(profile: StepProfile, best: Cut, worth: float) -> str:
    limit = "every draft" if best.threshold >= 1.0 else f"drafts accepted with up to {best.threshold:.0%}"
    why = (
        "its steps cost no such stairs"
        if profile.decision is not None
        else "its cost falls there although the tokens rise, real or noise"
    )
    return (
        f"trims by artefact: by {_by(profile)} {limit} may be cut at {best.requests} requests (from "
        f"{best.before} "
        f"tokens to {best.after}), where the costs are worth it below {worth:.1%} alone: {why}"
    )
