"""overhead(R): what a start-up cost table misses of every real step, fitted from a measured run without
drafts.

Host work, sampling and synchronisation are in no kernel table, yet on one published system they were about
√R ms, so that the table alone promised 2.6 times the throughput at 256 users. A sweep without speculation
measures the whole step directly: seconds = 1 / (tokens/s of one user), since each step gives each user one
token. What else those steps did, reading context and prefilling prompts, is priced by the profile and must
not be counted a second time: the sweep's own prompts are replayed (`replay`), or its mean context is given.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import ProfileError
from .growth import Growth, fit_growth
from .profile import StepProfile
from .speeds import Sweep, read_sweep

# (profile, requests) -> tokens/s of one user in the sweep's own setting
Replay = Callable[[StepProfile, int], float]
_ROUNDS = 8
_MET = 2e-3  # a replayed speed this near the measured one is met
_TOO_FAST = 0.5  # a measured step below this share of a bare pass is another unit or another machine
_SLOWER = 0.03  # a table this much slower than a measurement is said


def fit_overhead(
    profile: StepProfile,
    sweep: str | os.PathLike[str] | Sweep | tuple[Sequence[int], Sequence[float]],
    context: float | None = None,
    arm: str | None = None,
    replay: Replay | None = None,
) -> StepProfile:
    """`profile` with overhead(R) such that its steps without drafts are those of the sweep.

    `sweep`: a CSV (`read_sweep`) or (requests, tokens/s/user). `context`: mean tokens of context per request
    during the sweep, required where the profile prices attention and `replay` is not given. `replay`: the
    speed that a profile has at a load in the sweep's own setting, prompts and prefill included
    (`simulator.undrafted.speed_without_drafts`); the overhead is then what makes it meet the sweep.

    The curve is the smooth law a + b√R + cR where that meets every load within the noise seen, else it goes
    through every point (never below 0). Past the last load it follows √R, written out to four times of it.
    `fit["overhead"]` says which, and holds speeds by load: table alone, measured, refitted. Raises
    `ProfileError` where the profile has no cost for a load, or is slower than what was measured throughout.
    """
    held = _held(sweep, arm)
    requests, measured = held.requests, 1.0 / held.speeds
    if profile.attention is not None and context is None and replay is None:
        raise ProfileError(
            f"{profile.label} prices attention, so the sweep's prompts matter: without them "
            "attention is counted twice; give its requests' prompt and output tokens, or their mean context"
        )
    document = {**profile.to_dict(), "overhead": None}
    bare = StepProfile.from_dict(document, profile.where or "profile")
    per_request = context or 0.0

    def steps_of(candidate: StepProfile) -> np.ndarray:
        if replay is not None:
            return np.array([1.0 / replay(candidate, int(r)) for r in requests])
        return np.array([candidate.seconds(int(r), int(r), r * per_request, draft=False) for r in requests])

    _refuse_other_units(held, bare)
    table = steps_of(bare)
    _refuse_slower_table(held, table, bare.label)
    extra = np.maximum(measured - table, 0.0)
    for _ in range(_ROUNDS if replay is not None else 0):
        reached = steps_of(_with(document, requests, extra, None))
        if np.all(np.abs(reached / measured - 1.0) < _MET):
            break
        extra = np.maximum(extra + measured - reached, 0.0)
    growth = fit_growth(requests, extra, measured, held.noise)
    smooth = extra if growth is None else growth(requests)
    fitted = _with(document, requests, extra, growth)
    refitted = steps_of(fitted) if replay is not None else table + smooth
    error = np.abs(measured / refitted - 1.0)
    result = fitted.to_dict()
    result["provenance"] = _provenance(profile, held, table, growth, context, replay is not None)
    result["fit"] = {
        **(profile.fit or {}),
        "overhead": {
            "median_relative_error": float(np.median(error)),
            "max_relative_error": float(error.max()),
            "left_out_max_relative_error": _left_out(held, measured - extra, extra),
            "samples": len(requests),
            "prompts": "replayed" if replay is not None else "unknown" if context is None else "elsewhere",
            "law": None if growth is None else list(growth.coefficients),
            "scatter": None if growth is None else growth.scatter,
            "loads": requests.tolist(),
            "table_tok_s_user": (1.0 / table).tolist(),
            "measured_tok_s_user": held.speeds.tolist(),
            "refitted_tok_s_user": (1.0 / refitted).tolist(),
        },
    }
    return StepProfile.from_dict(result)


def slower_loads(profile: StepProfile) -> list[str]:
    """What the fit of `fit_overhead` leaves unexplained: loads at which the table alone is too slow."""
    fit = (profile.fit or {}).get("overhead") or {}
    loads = zip(
        fit.get("loads") or [],
        fit.get("table_tok_s_user") or [],
        fit.get("measured_tok_s_user") or [],
        strict=True,
    )
    slow = [(r, measured / table - 1.0) for r, table, measured in loads if measured / table > 1.0 + _SLOWER]
    if not slow:
        return []
    at, share = max(slow, key=lambda entry: entry[1])
    return [
        f"the table alone is slower than the sweep at {len(slow)} of {len(fit['loads'])} loads, most at {at} "
        f"users ({share:.0%}): no overhead can mend that; is the table of this model, GPU and setting?"
    ]


def _held(sweep: Any, arm: str | None) -> Sweep:
    if isinstance(sweep, Sweep):
        return sweep
    if isinstance(sweep, tuple):
        return Sweep.given(*sweep)
    return read_sweep(sweep, arm)


def _refuse_other_units(sweep: Sweep, bare: StepProfile) -> None:
    """Raise for speeds that are those of all users together, or of another machine."""
    alone = np.array([bare.seconds(int(r), int(r), 0, draft=False) for r in sweep.requests])
    ratio = alone * sweep.speeds  # bare pass / measured step
    worst = int(np.argmax(ratio))
    rises = len(sweep.speeds) > 1 and sweep.speeds[-1] > 1.2 * sweep.speeds[0]
    if ratio[worst] <= 1.0 / _TOO_FAST and not rises:
        return
    load, speed = int(sweep.requests[worst]), float(sweep.speeds[worst])
    shared = alone * sweep.speeds / sweep.requests
    total = rises or (load > 1 and 0.2 < shared[worst] < 1.5)
    why = "that is the total of all users: divide it by the load" if total else "is it of another machine?"
    raise ProfileError(
        f"{sweep.source}: {speed:,.0f} tokens/s of one user at {load} users is a step of {1e3 / speed:.2f} "
        f"ms, and one pass of {bare.label} alone costs {1e3 * alone[worst]:.2f} ms; {why}"
    )


def _refuse_slower_table(sweep: Sweep, table: np.ndarray, label: str) -> None:
    if np.all(table * sweep.speeds >= 1.0 - 1e-9):
        by = float((table * sweep.speeds).max())
        raise ProfileError(
            f"{sweep.source}: {label} alone is at least as slow as the sweep at every load (up to {by:.2f} "
            "times), so it misses no overhead; are its context and prompts right, and its model and GPU "
            "those of the sweep?"
        )


def _with(
    document: dict[str, Any], requests: np.ndarray, extra: np.ndarray, growth: Growth | None
) -> StepProfile:
    sizes, seconds = drawn_out(requests, extra, growth)
    return StepProfile.from_dict(
        {**document, "overhead": {"requests": sizes, "seconds": seconds, "beyond": "slope"}}
    )


def _provenance(
    profile: StepProfile,
    sweep: Sweep,
    table: np.ndarray,
    growth: Growth | None,
    context: float | None,
    replayed: bool,
) -> dict[str, Any]:
    provenance = dict(profile.provenance)
    how = "point by point" if growth is None else f"smoothed (scatter {growth.scatter:.1%} of a step)"
    if replayed:
        what = "with its own prompts and prefill replayed"
    else:
        what = "prompts not replayed" if context is None else f"at {context:g} tokens of context a request"
    note = (
        f"overhead(R) fitted from a sweep without speculation ({sweep.source}, {len(sweep.requests)} loads, "
        f"{sweep.requests[0]}..{sweep.requests[-1]} requests), {what}, {how}: the table alone promised up to "
        f"{(1.0 / sweep.speeds / table).max():.2f} times the measured speed."
    )
    provenance["notes"] = " ".join(filter(None, [str(provenance.get("notes") or ""), note]))
    return provenance


def _left_out(sweep: Sweep, table: np.ndarray, extra: np.ndarray) -> float | None:
    """Largest error at an inner load predicted from the others alone: what the curve is worth between
    points.
    """
    requests, measured = sweep.requests, 1.0 / sweep.speeds
    worst = None
    for i in range(1, len(requests) - 1):
        others = np.delete(np.arange(len(requests)), i)
        growth = fit_growth(requests[others], extra[others], measured[others], sweep.noise)
        at = float(requests[i])
        more = _between(at, requests[others], extra[others]) if growth is None else float(growth(at))
        worst = max(worst or 0.0, abs(measured[i] / (table[i] + more) - 1.0))
    return worst if worst is None else float(worst)


def _between(at: float, requests: np.ndarray, seconds: np.ndarray) -> float:
    """Overhead between measured loads: linear in √R, the shape it was seen to have; √R growth past the
    ends.
    """
    first, last = int(requests[0]), int(requests[-1])
    if at < first:
        return float(seconds[0]) * math.sqrt(at / first)
    if at > last:
        return float(seconds[-1]) * math.sqrt(at / last)
    return float(np.interp(math.sqrt(at), np.sqrt(requests), seconds))


def drawn_out(
    requests: np.ndarray, seconds: np.ndarray, growth: Growth | None
) -> tuple[list[int], list[float]]:
    """The curve from 1 to four times the last load, with enough points that a linear reader follows √R."""
    last = int(requests[-1])
    doublings = [1 << k for k in range((4 * last).bit_length())]
    sizes = sorted({*map(int, requests), *(d for d in doublings if d < 4 * last), 4 * last})
    halfway = {round(math.sqrt(a * b)) for a, b in itertools.pairwise(sizes)}
    sizes = sorted({*sizes, *halfway})
    if growth is None:
        return sizes, [_between(r, requests, seconds) for r in sizes]
    ends = float(growth(last))
    return sizes, [float(growth(r)) if r <= last else ends * math.sqrt(r / last) for r in sizes]
