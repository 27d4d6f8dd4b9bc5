"""Runs at given loads: `simulate` without --sla, or with arrivals instead of a closed loop."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

from .. import schedule
from ..calibration import Calibration, split_and_calibrate
from ..documents.runs import RunRow, Runs
from ..profile import StepProfile
from ..simulator import Serving, SimResult, serving_of, simulate
from ..simulator.backlog import STAYS
from ..trace import Trace
from ..workers import Progress, map_points
from ..workload import Workload, parse_arrivals, portion, prolonged
from .about import about

LONGEST = 20_000  # requests of a file replayed whole; a longer one gives its busiest window
LENGTHENED = 100_000  # requests to which a run too short to settle is lengthened at most
LENGTHENINGS = 3
NOT_MODELLED = ["network and detokenisation", "failures and restarts"]


def runs(
    trace: Trace,
    profile: StepProfile,
    policies: Sequence[str] | None = None,
    *,
    concurrency: Sequence[int] | None = None,
    arrivals: str = "closed",
    sla_tps: float | None = None,
    requests: int = 1000,
    seed: int = 0,
    calibration: Calibration | str | None = "sts",
    block_size: int | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
    serving: Serving | None = None,
    **serving_options: Any,
) -> Runs:
    """Every policy at every load: the JSON document `specsched/runs/1`, one row a run.

    A load is a number of concurrent users of one engine, or the arrivals. Rows hold SimResult's summary and,
    with an SLA (tokens/s), the share of requests that reach it. `serving`: a `Serving`, or its fields as
    keywords.
    """
    settings = serving_of(serving, serving_options)
    names = list(policies) if policies else schedule.default_policies(block_size or trace.block_size)
    replayed, fitted, note = split_and_calibrate(trace, calibration, seed)
    workload = parse_arrivals(arrivals, requests=requests, seed=seed)
    part = None
    said: list[str] = []
    if workload is not None and workload.recorded:
        workload, part, said = portion(workload, 0.0, max(requests, LONGEST))
    loads: list[int | None] = [None] if workload is not None else list(concurrency or ())

    def one(point: tuple[str, int | None]) -> tuple[RunRow, SimResult]:
        policy, load = point
        result = simulate(
            replayed,
            profile,
            policy,
            concurrency=load,
            requests=requests,
            seed=seed,
            calibration=fitted,
            workload=workload,
            block_size=block_size,
            log_steps=1,
            serving=settings,
        )
        row: dict[str, Any] = {"policy": result.policy, "lossless": result.lossless, "concurrency": load}
        if sla_tps is not None:
            share = result.share_at(sla_tps)
            row["share_at_sla"] = None if math.isnan(share) else share
        if result.backlog is not None:
            row["backlog"] = result.backlog._asdict() | {"grows": result.backlog.grows}
        return cast(RunRow, row | result.summary), result

    points = [(policy, load) for policy in names for load in loads]
    done = map_points(one, points, workers, progress)
    for _ in range(LENGTHENINGS):
        longer = _lengthened(workload, [result for _, result in done])
        if longer is workload:
            break
        workload = longer
        done = map_points(one, points, workers, progress)
    return {
        "schema": "specsched/runs/1",
        "profile": profile.name,
        "trace": trace.name,
        "arrivals": arrivals,
        "rate": workload.rate if workload is not None else None,
        "burstiness": workload.burstiness if workload is not None else None,
        "arrivals_requests": len(workload) if workload is not None else None,
        "recorded": workload.recorded if workload is not None else None,
        "portion": part,
        "prefill": settings.prefill,
        "sla_tps": sla_tps,
        "calibration": note,
        "warnings": list(dict.fromkeys([*said, *(w for _, result in done for w in result.warnings)])),
        "not_modelled": (
            ["prefill (prompts arrive prefilled)"] if settings.prefill == "disaggregated" else []
        )
        + NOT_MODELLED,
        "runs": [row for row, _ in done],
        "about": about(trace, profile),
    }


def _lengthened(workload: Workload | None, results: Sequence[SimResult]) -> Workload | None:
    """The arrivals drawn on or repeated until every policy's load may settle, up to LENGTHENED requests.

    One whose backlog grows never settles: it is told by that and lengthens nothing.
    """
    found = [r.backlog for r in results if r.backlog is not None]
    short = [b.stay_seconds for b in found if b.short and not b.grows]
    if workload is None or not short or len(workload) >= LENGTHENED:
        return workload
    wanted = 1.1 * STAYS * max(short)
    return prolonged(workload, min(wanted, LENGTHENED / workload.rate))
