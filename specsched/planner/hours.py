"""Which hour of recorded arrivals needs how many GPUs, and what a fleet that follows them would save.

Each hour is estimated: the fewest engines whose highest rate, measured on the arrivals of the plan sped up or
slowed down, reaches the demand of the hour's busiest minutes (in output tokens, where the file has them).
"""

from __future__ import annotations

import numpy as np

from ..documents.plan import HourRow, Hours, PlanRow
from ..simulator.limits import judged
from ..workload import Workload
from ..workload.portion import demand
from .fleet import Fleet
from .margin import highest_rate

BINS = ((3600.0, 6), (600.0, 1))  # seconds of an "hour", the largest of which the file has several, and
# parts of it, the busiest of which sets what it needs: parts shorter than minutes are noise
FEWEST_BINS = 3
SIZES, STEPS = 4, 5  # fleet sizes whose highest rate is measured; between them it is interpolated


def hours(fleet: Fleet, workload: Workload, row: PlanRow, gpu_cost: float | None) -> Hours | None:
    """The table of hours for the policy of `fleet`; None where the arrivals are too short for one."""
    at = workload.arrival_seconds - workload.arrival_seconds[0]
    seconds, parts = next((b for b in BINS if at[-1] >= FEWEST_BINS * b[0]), (0.0, 1))
    if not seconds:
        return None
    asked = demand(workload)
    inner = np.bincount((at // (seconds / parts)).astype(np.int64), asked)
    count = -(-len(inner) // parts)
    inner = np.pad(inner, (0, count * parts - len(inner))).reshape(count, parts)
    requests = np.bincount((at // seconds).astype(np.int64), minlength=count)
    peak = inner.max(axis=1) * parts / seconds
    planned = row["engines"] or 1  # a fleet that keeps the promise
    per_request = float(demand(fleet.traffic.workload).mean()) if workload.output_tokens is not None else 1.0
    engines = needed(fleet, peak / per_request, planned)
    engines = np.where(
        _carried(fleet, planned, len(workload), seconds, count), np.minimum(engines, planned), engines
    )
    each = fleet.traffic.profile.gpus * fleet.traffic.serving.ranks_per_group
    first = workload.metadata.get("epoch_seconds")
    table: list[HourRow] = [
        {
            "start_seconds": i * seconds,
            "start": str(np.datetime64(int(first + i * seconds), "s")) if first else None,
            "requests": int(requests[i]),
            "rate": float(requests[i] / min(seconds, max(at[-1] - i * seconds, 1e-9))),
            "gpus": int(engines[i]) * each,
        }
        for i in range(count)
    ]
    length = np.minimum(seconds, np.maximum(at[-1] - np.arange(count) * seconds, 0.0)) / 3600.0
    following = float((engines * each * length).sum())
    most = max(int(engines.max()), planned) * each
    always = float(most * length.sum())
    return {
        "policy": row["policy"],
        "bin_seconds": seconds,
        "method": "estimated from highest rates of fleets of several sizes, busiest ten minutes of each",
        "table": table,
        "gpus_peak": most,
        "gpus_mean": following / float(length.sum()),
        "gpu_hours_peak": always,
        "gpu_hours_following": following,
        "saving": 1.0 - following / always if always else 0.0,
        "cost_peak": None if gpu_cost is None else gpu_cost * always,
        "cost_following": None if gpu_cost is None else gpu_cost * following,
    }


def _carried(fleet: Fleet, planned: int, requests: int, seconds: float, count: int) -> np.ndarray:
    """bool[count]: hours whose requests the planned fleet keeps its promise to, so that none needs more.

    A plan for the busiest window of a file carries every other hour, by what busiest means. A highest rate
    would count a burst twice: it is measured on arrivals that hold the burst already.
    """
    if len(fleet.traffic.workload) != requests:
        return np.ones(count, bool)
    result = fleet.at(planned).result
    if result is None:
        return np.zeros(count, bool)
    at = result.arrays["arrival_seconds"]
    hour = np.minimum(((at - at.min()) // seconds).astype(np.int64), count - 1)
    came = np.bincount(hour, minlength=count)
    found = judged(result, fleet.traffic.sla_tps, fleet.traffic.limits)
    wanted = [(found.good, fleet.traffic.share)]
    wanted += [(~missed, found.shares[name]) for name, missed in found.apart.items()]
    carried = [np.bincount(hour, kept, minlength=count) >= share * came for kept, share in wanted]
    return np.asarray(np.logical_and.reduce(carried))


def needed(fleet: Fleet, rates: np.ndarray, largest: int) -> np.ndarray:
    """int64[n]: fewest engines for each rate (requests/s), at least 1 and at most as many as rates ask."""
    sizes = np.unique(np.rint(np.geomspace(1, max(largest, 1), SIZES)).astype(np.int64))
    found: list[float] = []
    before = 1
    for n in sizes[::-1]:
        start = found[-1] * n / before if found and found[-1] > 0.0 else None
        found.append(highest_rate(fleet.traffic, fleet.policy, int(n), start, STEPS))
        before = int(n)
    carried = np.maximum.accumulate(found[::-1])
    if carried[-1] <= 0.0:
        return np.full(len(rates), largest, dtype=np.int64)
    per_engine = carried[-1] / sizes[-1]
    inside = np.interp(rates, np.concatenate(([0.0], carried)), np.concatenate(([0.0], sizes)))
    wanted = np.ceil(np.where(rates > carried[-1], rates / per_engine, inside) - 1e-9)
    return np.asarray(np.maximum(wanted, 1.0), dtype=np.int64)
