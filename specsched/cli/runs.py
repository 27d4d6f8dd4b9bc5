"""Runs at given loads: `simulate` without --sla, or with arrivals instead of a closed loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .common import Progress
from .inputs import Inputs, canonical_policies, serving_options

if TYPE_CHECKING:
    from ..workload import Workload

STEADY = 20  # stays of a request that arrivals must last for the load to settle
NOT_MODELLED = ["network and detokenisation", "failures and restarts"]


def table(given: Inputs, options: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Every policy at every load: the JSON document `specsched/runs/1`, one row a run.

    A load is a number of concurrent users of one engine, or the arrivals. Rows hold SimResult's summary and,
    with an SLA, the share of requests that reach it.
    """
    from .. import schedule
    from ..replay import split_and_calibrate
    from ..simulator import simulate
    from ..sweep import map_points
    from ..workload import parse_arrivals

    block = options["block_size"] or given.trace.block_size
    policies = canonical_policies(options["policies"], block) or schedule.default_policies(block)
    replayed, calibration, note = split_and_calibrate(given.trace, options["calibration"], options["seed"])
    workload = parse_arrivals(options["arrivals"], requests=options["requests"], seed=options["seed"])
    loads: list[int | None] = [None] if workload is not None else options["concurrency"]

    def one(point: tuple[str, int | None]) -> tuple[dict[str, Any], list[str]]:
        policy, load = point
        result = simulate(
            replayed,
            given.profile,
            policy,
            concurrency=load,
            requests=options["requests"],
            seed=options["seed"],
            calibration=calibration,
            workload=workload,
            block_size=options["block_size"],
            log_steps=1,
            **serving_options(options),
        )
        row: dict[str, Any] = {"policy": result.policy, "lossless": result.lossless, "concurrency": load}
        if options["sla"] is not None:
            row["share_at_sla"] = result.share_at(options["sla"])
        return row | result.summary, result.warnings

    points = [(policy, load) for policy in policies for load in loads]
    done = map_points(one, points, options["workers"], progress)
    return {
        "schema": "specsched/runs/1",
        "profile": given.profile.name,
        "trace": given.trace.name,
        "arrivals": options["arrivals"],
        "rate": workload.rate if workload is not None else None,
        "prefill": options["prefill"],
        "sla_tps": options["sla"],
        "calibration": note,
        "warnings": list(
            dict.fromkeys(w for row, warnings in done for w in _workload_warnings(workload, row) + warnings)
        ),
        "not_modelled": (
            ["prefill (prompts arrive prefilled)"] if options["prefill"] == "disaggregated" else []
        )
        + NOT_MODELLED,
        "runs": [row for row, _ in done],
    }


def _workload_warnings(workload: Workload | None, row: dict[str, Any]) -> list[str]:
    """What the arrivals make doubtful: their own warnings, and whether they last long enough to settle."""
    if workload is None:
        return []
    said = workload.warnings
    span = float(workload.arrival_seconds[-1] - workload.arrival_seconds[0])
    stay = row["concurrency_mean"] * span / len(workload)  # Little's law
    if span < STEADY * stay:
        said.append(
            f"the arrivals of this run last {span:.3g} s, less than {STEADY} times as long as a request: the "
            "load has no time to settle; raise --requests"
        )
    return said
