"""Runs at given loads: `simulate` without --sla, or with arrivals instead of a closed loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from ..calibration import Calibration
from ..documents.runs import RunRow, Runs
from ..documents.shared import LimitsStated
from ..profile import StepProfile
from ..schedule import Policy
from ..simulator import Serving, SimResult, simulate
from ..simulator.backlog import STAYS
from ..simulator.limits import NO_LIMITS, Limits, goodput, judged
from ..simulator.prefill import Load
from ..trace import Trace
from ..workers import Progress, map_points
from ..workload import Workload, parse_arrivals, portion, prolonged
from ..workload.portion import LONGEST
from .about import about
from .doubts import input_warnings, left_out
from .inputs import Inputs, load_inputs, once
from .prefill import PROBE, TYPICAL_PASS, left_out_by_request, load_of, prompt_tokens, settle

LENGTHENED = 100_000  # requests to which a run too short to settle is lengthened at most
LENGTHENINGS = 3


def runs(
    trace: Trace,
    profile: StepProfile,
    policies: Sequence[str] | None = None,
    *,
    concurrency: Sequence[int] | None = None,
    arrivals: str = "closed",
    sla_tps: float | None = None,
    limits: Limits = NO_LIMITS,
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
    with an SLA (tokens/s) or limits on times, the share of good requests and the goodput. `serving`: a
    `Serving`, or its fields as keywords.
    """
    given = load_inputs(
        trace, profile, policies or None, calibration, block_size, seed, serving, serving_options, limits
    )
    workload = parse_arrivals(arrivals, requests=requests, seed=seed)
    part = None
    said: list[str] = []
    if workload is not None and workload.recorded:
        workload, part, said = portion(workload, 0.0, max(requests, LONGEST))
    read = workload.warnings if workload is not None else []  # its unit decides the rest
    loads: list[int | None] = [None] if workload is not None else list(concurrency or ())
    if not given.prefill_asked:
        given, first = settle(given, _load(given, workload, loads, requests, seed))
        said = [*first, *said]
    settings = given.serving

    def one(point: tuple[Policy, int | None]) -> tuple[RunRow, SimResult]:
        policy, load = point
        result = simulate(
            given.part,
            given.profile,
            policy,
            concurrency=load,
            requests=requests,
            seed=seed,
            calibration=given.calibrated,
            workload=workload,
            block_size=block_size,
            log_steps=1,
            serving=settings,
        )
        row: dict[str, Any] = {"policy": result.policy, "lossless": result.lossless, "concurrency": load}
        if sla_tps is not None or limits:
            found = judged(result, sla_tps, limits)
            row["goodput"] = goodput(result, found)
            row["share_at_sla"] = found.share if row["goodput"] is not None else None
        if result.backlog is not None:
            row["backlog"] = result.backlog._asdict() | {"grows": result.backlog.grows}
        return cast(RunRow, row | result.summary), result

    points = [(policy, load) for policy in given.policies for load in loads]
    done = map_points(one, points, workers, progress)
    for _ in range(LENGTHENINGS):
        longer = _lengthened(workload, [result for _, result in done])
        if longer is workload:
            break
        workload = longer
        done = map_points(one, points, workers, progress)
    busiest = max((result for _, result in done), key=lambda result: result.summary["throughput"])
    load = load_of(given, busiest.summary, f"the load of {busiest.policy}", settings.replicas)
    said = [*left_out_by_request(given, load), *said]
    return {
        "schema": "specsched/runs/1",
        "profile": given.profile.name,
        "trace": given.trace.name,
        "arrivals": arrivals,
        "rate": workload.rate if workload is not None else None,
        "burstiness": workload.burstiness if workload is not None else None,
        "arrivals_requests": len(workload) if workload is not None else None,
        "recorded": workload.recorded if workload is not None else None,
        "portion": part,
        "prefill": settings.prefill,
        "sla_tps": sla_tps,
        "limits": cast(LimitsStated, limits.document()),
        "calibration": given.note,
        "warnings": once(read, said, input_warnings(given), *(result.warnings for _, result in done)),
        "not_modelled": left_out(settings),
        "runs": [row for row, _ in done],
        "about": about(given.trace, given.profile),
    }


def _load(
    given: Inputs, workload: Workload | None, loads: Sequence[int | None], requests: int, seed: int
) -> Load:
    """The load at which prefill is estimated: the arrivals', else the largest number of users."""
    if workload is not None:
        own = prompt_tokens(given, workload.prompt_tokens)
        return Load(workload.rate, TYPICAL_PASS, own, f"{workload.rate:.3g} requests/s")
    most = max((load for load in loads if load is not None), default=1)
    policy = given.policies[0]
    few = simulate(
        given.part,
        given.profile,
        policy,
        concurrency=most,
        requests=min(requests, PROBE),
        seed=seed,
        calibration=given.calibrated,
        block_size=given.replay.block_size,
        log_steps=0,
        serving=given.serving,
    )
    return load_of(given, few.summary, f"{most} users of {policy.name}", given.serving.replicas)


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
