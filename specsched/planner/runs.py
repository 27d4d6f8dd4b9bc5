"""Runs at given loads: `simulate` without --sla, or with arrivals instead of a closed loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import schedule
from ..calibration import Calibration, split_and_calibrate
from ..profile import StepProfile
from ..simulator import Serving, serving_of, simulate
from ..trace import Trace
from ..workers import Progress, map_points
from ..workload import Workload, parse_arrivals

STEADY = 20  # stays of a request that arrivals must last for the load to settle
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
) -> dict[str, Any]:
    """Every policy at every load: the JSON document `specsched/runs/1`, one row a run.

    A load is a number of concurrent users of one engine, or the arrivals. Rows hold SimResult's summary and,
    with an SLA (tokens/s), the share of requests that reach it. `serving`: a `Serving`, or its fields as
    keywords.
    """
    settings = serving_of(serving, serving_options)
    names = list(policies) if policies else schedule.default_policies(block_size or trace.block_size)
    replayed, fitted, note = split_and_calibrate(trace, calibration, seed)
    workload = parse_arrivals(arrivals, requests=requests, seed=seed)
    loads: list[int | None] = [None] if workload is not None else list(concurrency or ())

    def one(point: tuple[str, int | None]) -> tuple[dict[str, Any], list[str]]:
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
            row["share_at_sla"] = result.share_at(sla_tps)
        return row | result.summary, result.warnings

    points = [(policy, load) for policy in names for load in loads]
    done = map_points(one, points, workers, progress)
    return {
        "schema": "specsched/runs/1",
        "profile": profile.name,
        "trace": trace.name,
        "arrivals": arrivals,
        "rate": workload.rate if workload is not None else None,
        "prefill": settings.prefill,
        "sla_tps": sla_tps,
        "calibration": note,
        "warnings": list(
            dict.fromkeys(w for row, warnings in done for w in _workload_warnings(workload, row) + warnings)
        ),
        "not_modelled": (
            ["prefill (prompts arrive prefilled)"] if settings.prefill == "disaggregated" else []
        )
        + NOT_MODELLED,
        "runs": [row for row, _ in done],
    }


def _workload_warnings(workload: Workload | None, row: dict[str, Any]) -> list[str]:
    """Whether the arrivals last long enough for the load to settle."""
    if workload is None:
        return []
    span = float(workload.arrival_seconds[-1] - workload.arrival_seconds[0])
    stay = row["concurrency_mean"] * span / len(workload)  # Little's law
    if span >= STEADY * stay:
        return []
    return [
        f"the arrivals of this run last {span:.3g} s, less than {STEADY} times as long as a request: the "
        "load has no time to settle; raise --requests"
    ]
