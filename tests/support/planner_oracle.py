"""Plans and capacities by brute force: every fleet, every load, by `simulate`, counted in plain Python.

Nothing here searches, keeps or bounds anything: a promise is kept or missed request by request, and the
answer is read off a list of all sizes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from specsched.profile import StepProfile
from specsched.simulator import SimResult, simulate
from specsched.trace import Trace
from specsched.workload import Workload

TOKENS, BLOCK = 24, 4


def line(**changes: Any) -> StepProfile:
    """A pass of B tokens takes 10 ms and 0.2 ms a token; drafting 1 ms. None removes a key."""
    document = {
        "schema": "specsched/profile/1",
        "name": "line",
        "verify": {"tokens": [1, 512], "seconds": [0.01, 0.1122]},
        "draft": {"requests": [1], "seconds": [0.001], "block_size": BLOCK},
        "provenance": {"method": "measured"},
    }
    return StepProfile.from_dict({k: v for k, v in (document | changes).items() if v is not None})


def varied(lengths: Any, acceptance: float = 0.75, prompt: int = 20, seed: int = 3, **metadata: Any) -> Trace:
    """Requests of these lengths, each with an acceptance and confidences of its own around `acceptance`."""
    rng = np.random.default_rng(seed)
    lengths = np.asarray(lengths)
    n = int(lengths.sum())
    p = np.clip(np.repeat(rng.normal(acceptance, 0.08, len(lengths)), lengths), 0.02, 0.98)[:, None]
    accepted = np.cumprod(rng.random((n, BLOCK)) < p, axis=1).sum(axis=1)
    return Trace.from_arrays(
        request=np.repeat(np.arange(len(lengths)), lengths),
        position=np.concatenate([np.arange(length) for length in lengths]),
        confidence_logit=np.log(p / (1 - p)) + rng.normal(0, 0.7, (n, BLOCK)),
        accepted=accepted,
        prompt_tokens=prompt,
        metadata={"licence": "CC0"} | metadata,
    )


# -- fleets ------------------------------------------------------------------------------------------------


def fleet_of(
    engines: int, trace: Trace, profile: StepProfile, policy: str, workload: Workload, **serving: Any
) -> SimResult:
    """So many engines under the arrivals."""
    ranks = engines * serving.get("ranks_per_group", 1)
    return simulate(trace, profile, policy, workload=workload, **{**serving, "replicas": ranks})


def promises(result: SimResult, sla: float, ttft: float | None = None) -> list[tuple[int, bool, bool]]:
    """(traced request, fast enough, in time) of every measured request.

    Speed is tokens / (last token - first anchor). Who decodes nothing has no speed to miss.
    """
    a = result.arrays
    told = []
    for i in range(len(a["tokens"])):
        tokens, spent = int(a["tokens"][i]), float(a["finish_seconds"][i] - a["ready_seconds"][i])
        wait = float(a["ready_seconds"][i] - a["arrival_seconds"][i])
        told.append((int(a["traced"][i]), tokens == 0 or tokens >= sla * spent, ttft is None or wait <= ttft))
    return told


def share_of_fleet(result: SimResult, sla: float, ttft: float | None = None) -> float:
    told = promises(result, sla, ttft)
    return sum(fast and timely for _, fast, timely in told) / len(told)


def fewest_engines(
    most: int,
    trace: Trace,
    profile: StepProfile,
    policy: str,
    workload: Workload,
    sla: float,
    share: float = 0.95,
    ttft: float | None = None,
    **serving: Any,
) -> tuple[int | None, list[float]]:
    """(fewest engines from which on every fleet up to `most` keeps the promise, shares of fleets 1..most)."""
    shares = [
        share_of_fleet(fleet_of(n, trace, profile, policy, workload, **serving), sla, ttft)
        for n in range(1, most + 1)
    ]
    kept = [x >= share for x in shares]
    assert kept == sorted(kept), f"more engines served fewer: {shares}"
    return (kept.index(True) + 1 if any(kept) else None), shares


# -- loads of one engine -----------------------------------------------------------------------------------


def load_passes(result: SimResult, profile: StepProfile, sla: float, share: float = 0.95) -> bool:
    """The definition: enough requests at speed, memory for every user but for 1 % of the steps, prices.

    A table that goes on flat past its end prices nothing there: one step in a hundred may lie beyond it.
    """
    told = promises(result, sla)
    s = result.summary
    flat = "clamp" in (profile.verify.beyond, profile.eager.beyond if profile.eager else "slope")
    priced = not flat or s["extrapolated_steps"] <= 0.01 * s["steps"]
    engines = len({int(x) for x in result.log[:, 2]}) if len(result.log) else 1
    held = s["preemptions"] + s["blocked_steps"] <= 0.01 * s["steps"] * max(engines, 1)
    return sum(fast for _, fast, _ in told) >= share * len(told) and held and priced


def bootstrap(
    values: list[tuple[int, bool]], level: float = 0.95, draws: int = 4000, seed: int = 8
) -> tuple[float, float]:
    """[low, high] of a share when traced requests, with all their replays, are drawn again; plain loops."""
    rng = np.random.default_rng(seed)
    groups = sorted({traced for traced, _ in values})
    hits = np.array([sum(kept for traced, kept in values if traced == g) for g in groups], float)
    replays = np.array([sum(traced == g for traced, _ in values) for g in groups], float)
    shares = []
    for _ in range(draws):
        drawn = rng.integers(0, len(groups), len(groups))
        shares.append(hits[drawn].sum() / replays[drawn].sum())
    shares.sort()
    tail = (1 - level) / 2
    return shares[int(tail * draws)], shares[int((1 - tail) * draws)]
