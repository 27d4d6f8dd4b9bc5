"""Findings about a valid step profile: what deserves a look before answers are built on it.

Curves are never altered here: real costs have inversions and cliffs. A finding says what was seen, where, and
what it does to an answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from .curve import Curve
from .profile import StepProfile
from .trimming import last_pass, trimming

SLOWEST_PASS = 0.5  # s: one forward pass of a served model takes 1 ms to 0.3 s
FASTEST_PASS = 1e-4  # s
MIXED_UNITS = 100.0  # one entry this many times the one before, or one curve this many times another
DRAFTING_INSIDE = "the cost of drafting is inside"  # in the notes of tables of whole steps
LEAST_HOST = 5e-4  # s


class Cliff(NamedTuple):
    """A jump of the cost between neighbouring sizes that exceeds their proportion."""

    before: int  # tokens
    after: int  # tokens
    ratio: float  # cost after / cost before
    kind: str  # "kernel", or "capture limit"


def lint(profile: StepProfile) -> list[str]:
    """One sentence per finding, most serious first."""
    checks = (_units, _shape, _capture, _missing, _memory, _origin)
    return [finding for check in checks for finding in check(profile)]


def _curves(profile: StepProfile) -> Iterator[tuple[str, str, Curve]]:
    """(key, what its sizes count, curve) of every curve present."""
    named = (
        ("verify", "tokens", profile.verify),
        ("eager", "tokens", profile.eager),
        ("attention", "KV tokens", profile.attention),
        ("overhead", "requests", profile.overhead),
        ("draft", "requests", profile.draft),
        ("prefill", "tokens", profile.prefill),
    )
    for key, axis, curve in named:
        if curve is not None:
            yield key, axis, curve


def _units(profile: StepProfile) -> Iterator[str]:
    least = profile.bias_seconds + float(profile.verify.y.min())
    most = profile.bias_seconds + float(profile.verify.y.max())
    if least > SLOWEST_PASS:
        yield (
            f"verify.seconds: the fastest pass takes {least:g} s; that looks like milliseconds (1000 times "
            "too slow): divide by 1000"
        )
    elif most < FASTEST_PASS:
        yield f"verify.seconds: the slowest pass takes {most:g} s; that is too fast: is the unit seconds?"
    for key, axis, curve in _curves(profile):
        i = _leap(curve)
        if i is not None:
            yield (
                f"{key}.seconds[{i}]: {curve.y[i]:g} s at {curve.x[i]:g} {axis} after {curve.y[i - 1]:g} s "
                f"at {curve.x[i - 1]:g}, {_times(curve.y[i], curve.y[i - 1])}: mixed units (ms among s)?"
            )
        ratio = float(curve.y[0]) / max(most, 1e-12)
        if key in ("draft", "overhead", "eager") and ratio > MIXED_UNITS:
            yield f"{key}.seconds starts at {ratio:.0f} times the slowest verify pass: ms given as seconds?"
    for key, value in (("bias_seconds", profile.bias_seconds), ("sync_seconds", profile.sync_seconds)):
        if value > MIXED_UNITS * max(most - profile.bias_seconds, 1e-6):
            yield f"{key} is {value:g} s, far above any pass: ms given as seconds?"


def _leap(curve: Curve) -> int | None:
    """Index of the first entry more than MIXED_UNITS times its neighbour before it, or below 1 / that; far
    sizes may cost more by as much as they are larger."""
    before, after = curve.y[:-1], curve.y[1:]
    larger = np.maximum(curve.x[1:] / np.maximum(curve.x[:-1], 1.0), 1.0)
    odd = (after > MIXED_UNITS * larger * before) & (before > 0) | (before > MIXED_UNITS * after) & (
        after > 0
    )
    return int(np.argmax(odd)) + 1 if odd.any() else None


def _times(a: float, b: float) -> str:
    ratio = max(a, b) / min(a, b)
    shown = f"{ratio:.0f}" if ratio < 1e9 else f"{ratio:.3g}"
    return f"{shown} times" if a > b else f"1/{shown}"


def _shape(profile: StepProfile) -> Iterator[str]:
    last, told = last_pass(profile), trimming(profile)
    if told:
        yield told
    need, why = _longest_pass(profile)
    if last < need:
        yield (
            f"verify is short: it ends at {last:g} tokens and {why} needs passes of {need:g}; steps "
            "beyond are extrapolated"
        )
    for key, axis, curve in _curves(profile):
        falls = np.flatnonzero(np.diff(curve.y) < 0)
        if len(falls):
            worst = falls[np.argmin(curve.y[falls + 1] / curve.y[falls])]
            end = "; past its end it is carried on flat" if falls[-1] == len(curve.y) - 2 else ""
            most = curve.y[worst + 1] / curve.y[worst] - 1.0
            yield (
                f"{key}.seconds falls {len(falls)} of {len(curve.y) - 1} times, most from {curve.x[worst]:g} "
                f"to {curve.x[worst + 1]:g} {axis} ({most:.1%}): real, or noise; kept as it is{end}"
            )


def _longest_pass(profile: StepProfile) -> tuple[float, str]:
    requests = max((float(c.x[-1]) for c in (profile.draft, profile.overhead) if c is not None), default=0.0)
    if not requests:
        return 64.0, "any busy engine"
    block = profile.draft_block_size or 7
    return requests * (1 + block), f"{requests:g} requests with block size {block}"


def _capture(profile: StepProfile) -> Iterator[str]:
    sizes, limit = profile.capture_sizes, profile.graph_limit
    if sizes is None or limit is None:
        if profile.eager is not None:
            yield "eager is never read: it holds above a capture limit, and capture is absent"
        return
    stated = profile.capture_limit
    if stated is not None and stated != limit:
        yield f"capture.limit is {stated}, no captured size: passes above {limit} tokens run off-graph"
    unused = int((sizes > limit).sum())
    if unused:
        yield f"capture.sizes: {unused} sizes above the limit of {limit} tokens are never used"
    used = sizes[sizes <= limit]
    between = used[~np.isin(used, profile.verify.x)]
    if len(between):
        yield (
            f"capture.sizes: {len(between)} of {len(used)} sizes are not points of verify (first "
            f"{between[0]}) and are read between or beyond them; a cliff there is not seen"
        )
    if profile.eager is None:
        yield f"eager is absent: passes above {limit} tokens have no cost, a run that needs one is refused"
        return
    ratio = _ratio(profile, limit, limit + 1)
    if ratio < 1.05:
        yield (
            f"eager: leaving the graph at {limit} tokens costs nothing here ({ratio:.2f} times); published "
            "steps jump up to 5 times there: the curve may lack launch cost"
        )


def drafting_inside(profile: StepProfile) -> bool:
    """Whether its steps were timed with a drafter at work, as whoever imported them noted."""
    return profile.draft is None and DRAFTING_INSIDE in str(profile.provenance.get("notes") or "")


def _missing(profile: StepProfile) -> Iterator[str]:
    if profile.draft is None:
        if drafting_inside(profile):
            yield (
                "draft is absent: whole steps were timed, drafting inside, so what off would cost is "
                "unknown (it is "
                "charged for drafting too); `specsched fit` finds it from a run without drafts"
            )
        else:
            yield "draft is absent: drafting costs nothing here (15-26 % of a step on a published system)"
    elif profile.draft_block_size is None:
        yield "draft.block_size is absent: nobody can tell whether the draft cost fits the trace's blocks"
    host = profile.bias_seconds + (0.0 if profile.overhead is None else float(profile.overhead.y.max()))
    if profile.overhead is None or host < LEAST_HOST:
        found = "is absent" if profile.overhead is None else f"(with bias) is at most {1e3 * host:.2g} ms"
        yield (
            f"overhead {found}: host work, sampling and synchronisation are hardly priced (about sqrt(R) ms "
            "on a published system), so speeds at many requests are too high"
        )
    if profile.sync_seconds == 0.0:
        yield "sync_seconds is 0: early-stop, threshold and global read present confidences for free"
    if profile.attention is None:
        yield "attention is absent: the cost of a step does not depend on context"


def _memory(profile: StepProfile) -> Iterator[str]:
    capacity = profile.kv_capacity_tokens()
    if capacity is None:
        wanted = (("gpu", "memory_bytes"), ("model", "weight_bytes"), ("model", "kv_bytes_per_token"))
        absent = [f"{block}.{key}" for block, key in wanted if not getattr(profile, block).get(key)]
        yield f"{', '.join(absent)} absent: memory does not bound the number of users"
    elif capacity == 0:
        yield "model.weight_bytes exceeds 90 % of the GPUs' memory: no KV fits; check gpu.count and the units"
    elif profile.draft is not None and not profile.knows_drafter_memory:
        yield (
            "draft.weight_bytes, draft.kv_bytes_per_token absent: the memory of the drafter is unknown and "
            "not counted, so that fewer users fit than is said"
        )


def _origin(profile: StepProfile) -> Iterator[str]:
    if profile.provenance_warning:
        yield profile.provenance_warning
    if not profile.provenance.get("licence"):
        yield "provenance.licence is absent: ask the owner before passing the file on"
    p90 = (profile.fit or {}).get("p90_relative_error")
    if isinstance(p90, (int, float)) and p90 > 0.1:
        yield f"fit: a tenth of the samples is off by more than {p90:.0%}; the additive form hides something"


# -- shape, for whoever inspects a profile ----------------------------------------------------------------


def _ratio(profile: StepProfile, before: int, after: int) -> float:
    costs = profile.bias_seconds + profile.verify_seconds(np.array([before, after]))
    return float(costs[1] / costs[0])


def sizes_read(profile: StepProfile) -> np.ndarray:
    """int64[n], rising: token batch sizes at which the cost of a pass may change its course."""
    x = profile.verify.x.astype(np.int64)
    limit = profile.graph_limit
    if limit is None:
        return x
    assert profile.capture_sizes is not None
    sizes = profile.capture_sizes[profile.capture_sizes <= limit]
    if profile.eager is None:
        return sizes
    beyond = profile.eager.x.astype(np.int64)
    return np.concatenate([sizes, [limit + 1], beyond[beyond > limit + 1]])


def sizes_shown(last: int, keep: Sequence[int], most: int) -> np.ndarray:
    """int64[n], rising: token batch sizes at which to draw a cost up to `last` tokens.

    Every one up to `most` of them; of more about `most`, dense at the small end, with both sides of every
    jump after a size in `keep`.
    """
    if last <= most:
        return np.arange(1, last + 1)
    spread = np.unique(np.geomspace(1, last, most).astype(np.int64))
    sides = [at + side for at in keep for side in (0, 1) if 1 <= at + side <= last]
    return np.unique(np.concatenate([spread, np.array(sides, dtype=np.int64)]))


def knee(profile: StepProfile, rise: float = 0.1) -> int | None:
    """Largest token batch up to which a pass costs at most 1 + rise times one of 1; None without a rise."""
    sizes = sizes_read(profile)
    costs = profile.bias_seconds + profile.verify_seconds(np.append(1, sizes))
    above = np.flatnonzero(costs[1:] > (1.0 + rise) * costs[0])
    if not len(above):
        return None
    return int(sizes[above[0] - 1]) if above[0] else 1


def cliffs(profile: StepProfile, least: float = 1.08) -> list[Cliff]:
    """Jumps of at least `least` times between neighbouring sizes, where the cost grows by a quarter more than
    the tokens do."""
    sizes, limit = sizes_read(profile), profile.graph_limit
    found = []
    for before, after in zip(sizes[:-1].tolist(), sizes[1:].tolist(), strict=True):
        ratio = _ratio(profile, before, after)
        if ratio >= least and ratio - 1.0 > 1.25 * (after / before - 1.0):
            kind = "capture limit" if limit is not None and before == limit else "kernel"
            found.append(Cliff(before, after, ratio, kind))
    return found
