"""How many GPUs the traffic needs at a promised speed (`specsched plan`).

For each policy: the fewest engines behind a router for which the asked share of requests reaches the SLA,
found by doubling and bisection on one fixed list of arrivals, so that neighbouring fleets differ by an engine
and by nothing else. `planner.plan` is the public name.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from ..calibration import Calibration
from ..documents.plan import Binds, Plan, PlanRow
from ..documents.promise import promise
from ..documents.shared import LimitsStated
from ..errors import WorkloadError
from ..profile import StepProfile
from ..simulator import Serving
from ..simulator.intervals import LEVEL
from ..simulator.limits import NO_LIMITS, Limits, goodput, judged
from ..simulator.noise import Heavier, fleet_noise
from ..simulator.serving import MAX_RUNNING
from ..trace import Trace
from ..workers import map_points
from ..workload import Workload, gamma_burst, portion, prolonged
from .about import about
from .deployment import runs_in
from .doubts import input_warnings, left_out
from .fleet import Fleet, Trial, confirmed, share_interval, under
from .hours import hours
from .inputs import Inputs, Progress, check_promise, load_inputs, once, report_progress
from .margin import worth
from .prefill import left_out_by_request, load_of, probe, settle
from .traffic import Traffic

MOST_REQUESTS = 5_000_000  # of a trial drawn at a rate: 2 GB of jobs
LONGEST, WINDOW = 12_000, 3_000  # requests of a file replayed whole; of the busiest window of a longer one
LEAN = 0.8  # central level whose heavier end the answer carries: in nine of ten traces that is enough
RESIDENCES = 20  # a trial lasts at least so many stays of a request, for a fleet to reach its steady state


def plan(
    trace: Trace | str | os.PathLike[str],
    profile: StepProfile | str | os.PathLike[str],
    sla_tps: float,
    *,
    rate: float | None = None,
    burstiness: float = 1.0,
    workload: Workload | None = None,
    limits: Limits = NO_LIMITS,
    gpu_cost: float | None = None,
    fraction: float = 0.95,
    policies: Sequence[str] | None = None,
    requests: int = 2000,
    seed: int = 0,
    calibration: Calibration | str | None = "sts",
    marginal: bool = True,
    serving: Serving | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
    **serving_options: Any,
) -> Plan:
    """The fewest GPUs that carry the traffic at the SLA, per policy (`specsched/plan/1`).

    Parameters
    ----------
    rate : requests per second of the whole fleet, gaps of this `burstiness` (1: Poisson); or `workload`: any
        arrivals, whole, or their busiest window where they are many; repeated where they end too soon.
    limits : on times of a request, promised together with the speed: `Limits(ttft_seconds=0.5, ...)`. With
        one on the first token the engine prefills.
    gpu_cost : price of a GPU hour, for cost per million output tokens.
    fraction : share of requests that must keep what is promised, speed and limits at once.
    requests : fewest requests of a trial with `rate`; more are drawn where a trial would end too soon. Of a
        workload more than LONGEST requests are replayed only if so many are asked for.
    marginal : whether to search what one engine more and the like are worth.
    serving, serving_options : see `simulate`; `replicas` is what is searched, `router` defaults to
        least-outstanding.

    Raises SpecschedError children for what cannot be run. A speed nobody reaches is an answer: engines None.
    """
    _check(sla_tps, fraction, rate, workload, gpu_cost)
    given = load_inputs(
        trace,
        profile,
        policies,
        calibration,
        None,
        seed,
        serving,
        serving_options,
        limits,
        replicas=serving_options.get("ranks_per_group", 1),
    )
    replay = given.replay
    lengths = replay.length if workload is None or workload.output_tokens is None else workload.output_tokens
    least = RESIDENCES * float(lengths.mean()) / sla_tps
    whole, part = workload, None
    said: list[str] = []
    if workload is None:
        assert rate is not None
        _refuse_endless(rate, sla_tps, least * rate)
        count = max(requests, math.ceil(least * rate))
        workload = gamma_burst(rate, burstiness, requests=count, seed=seed).scaled(rate)
    else:
        most = max(LONGEST if len(workload) <= LONGEST else WINDOW, requests)
        workload, part, said = portion(workload, least, most)
        _refuse_endless(workload.rate, sla_tps, least * workload.rate)
        workload = prolonged(workload, least)
    first: list[str] = []
    if not given.prefill_asked:
        own = {"prompts": workload.prompt_tokens, "lengths": workload.output_tokens}
        given, first = settle(given, probe(given, float(sla_tps), fraction, requests, seed, **own))
    said = [*first, *said]
    traffic = Traffic(
        given.part,
        replay,
        given.profile,
        given.serving,
        workload,
        float(sla_tps),
        limits,
        fraction,
        seed,
        least,
    )
    fleets = [Fleet(traffic, policy) for policy in given.policies]
    report_progress(fleets, lambda fleet: len(fleet.trials), progress)
    rows = map_points(lambda fleet: _row(fleet, gpu_cost, whole is None), fleets, workers)
    asked = rate if rate is not None else workload.rate
    document = _document(given, traffic, fleets, rows, asked, gpu_cost)
    document["portion"] = part
    # What was read of the file decides the rest, its unit above all.
    document["warnings"] = once(workload.warnings, said, document["warnings"])
    best = document["recommended"]
    if best is not None:
        row, fleet = next(pair for pair in zip(rows, fleets, strict=True) if pair[0]["policy"] == best)
        if marginal:
            assert row["engines"] is not None
            document["marginal"] = worth(fleet, row["engines"])
        if whole is not None and whole.recorded:
            document["hours"] = hours(fleet, whole, row, gpu_cost)
    return document


def _refuse_endless(rate: float, sla_tps: float, requests: float) -> None:
    if not requests <= MOST_REQUESTS:
        raise WorkloadError(
            f"--rate {rate:g} at --sla {sla_tps:g} means {requests:.3g} requests in a trial, more than "
            f"the {MOST_REQUESTS:,} that are simulated; lower the rate or raise the SLA"
        )


def _document(
    given: Inputs,
    traffic: Traffic,
    fleets: list[Fleet],
    rows: list[PlanRow],
    rate: float,
    gpu_cost: float | None,
) -> Plan:
    """The document `specsched/plan/1`."""
    best, serving, workload = _recommended(rows), traffic.serving, traffic.workload
    document: Plan = {
        "schema": "specsched/plan/1",
        "sla_tps": traffic.sla_tps,
        "sla_fraction": traffic.share,
        "limits": cast(LimitsStated, traffic.limits.document()),
        "rate": rate,
        "rate_simulated": workload.rate,
        "burstiness": workload.burstiness,
        "requests": len(workload),
        "recorded": workload.recorded,
        "profile": traffic.profile.name,
        "trace": traffic.trace.name,
        "gpus_per_engine": traffic.profile.gpus,
        "gpu_cost_per_hour": gpu_cost,
        "recommended": best["policy"] if best else None,
        "headline": "",
        "recommended_runs_in": runs_in(best["policy"], traffic.trace) if best else None,
        "policies": rows,
        "marginal": None,
        "calibration": given.note,
        "settings": {
            "prefill": serving.prefill,
            "router": serving.router,
            "context": serving.context,
            "max_running": serving.max_running or MAX_RUNNING,
            "seed": traffic.seed,
        },
        "warnings": _warnings(given, traffic, fleets, rows),
        "not_modelled": left_out(serving),
        "portion": None,
        "hours": None,
        "about": about(given.trace, given.profile),
    }
    document["headline"] = headline(document)
    return document


def _check(
    sla_tps: float,
    fraction: float,
    rate: float | None,
    workload: Workload | None,
    gpu_cost: float | None,
) -> None:
    check_promise(sla_tps, fraction)
    for name, value in (("rate", rate), ("gpu_cost", gpu_cost)):
        if value is not None and not (np.isfinite(value) and value > 0):
            raise WorkloadError(f"{name} is {value}; it must be a positive number")
    if (rate is None) == (workload is None):
        raise WorkloadError(
            "give either a rate or a workload, and not both; `workload.scaled(rate)` joins them"
        )
    if workload is not None and len(workload) < 20:
        raise WorkloadError(
            f"workload {workload.name!r}: {len(workload)} arrivals say nothing about a share of them; give "
            "20 or more"
        )


def _row(fleet: Fleet, gpu_cost: float | None, drawn: bool) -> PlanRow:
    """One policy of the plan."""
    gpus_each = fleet.traffic.profile.gpus * fleet.traffic.serving.ranks_per_group
    fewest = fleet.fewest()
    if fewest is not None and drawn:
        fewest = confirmed(fleet, fewest)
    engines = None if fewest is None else _safe(fleet, fewest)
    row: dict[str, Any] = {
        "policy": fleet.policy.name,
        "lossless": fleet.policy.lossless(fleet.traffic.trace.confidence_sees_token),
        "engines": engines,
        "engines_fewest": fewest,
        "gpus": None if engines is None else engines * gpus_each,
        "gpus_interval": None,
        "binds": _binds(fleet.at(max(fleet.trials))) if engines is None else "traffic",
    }
    if engines is not None and fewest is not None:
        heavier, lighter = _noise(fleet, fewest, LEVEL)
        low = under(fleet, lighter, -1.0).fewest(fewest)
        most = under(fleet, heavier, 1.0).fewest(engines)
        row["gpus_interval"] = [
            (min(low, engines) if low is not None else engines) * gpus_each,
            None if most is None else max(most, engines) * gpus_each,
        ]
        if fewest > 1:
            row["binds"] = _binds(fleet.at(fewest - 1))
        row |= _held(fleet.traffic, fleet.at(engines), engines)
        if gpu_cost is not None:
            row["cost_per_hour"] = gpu_cost * row["gpus"]
            row["cost_per_million_tokens"] = gpu_cost * row["gpus"] / (row["throughput"] * 3600.0) * 1e6
    row["curve"] = [
        {
            "engines": t.engines,
            "gpus": t.engines * gpus_each,
            "share_at_sla": t.share,
            "share_interval": share_interval(fleet.traffic, t),
            "backlog_grows": t.grows,
        }
        for t in sorted(fleet.trials.values(), key=lambda t: t.engines)
    ]
    return cast(PlanRow, row)


def _noise(fleet: Fleet, engines: int, level: float) -> tuple[Heavier, Heavier]:
    """(heavier, lighter) traces that the fleet may meet, at the ends of a central interval of this level."""
    traffic, held = fleet.traffic, fleet.at(engines)
    assert held.result is not None  # it keeps its promise
    return fleet_noise(
        held.result,
        traffic.profile,
        traffic.serving,
        held.users(traffic.serving.ranks_per_group),
        traffic.share,
        traffic.seed,
        own_lengths=traffic.workload.output_tokens is not None,
        level=level,
    )


def _safe(fleet: Fleet, fewest: int) -> int:
    """Engines that carry the traffic were its requests heavier than nine traces of ten show them.

    A fleet one engine short misses its promise, one too many costs an engine: so the answer leans to more.
    """
    heavier = under(fleet, _noise(fleet, fewest, LEAN)[0], 1.0).fewest(fewest)
    return max(fewest, heavier if heavier is not None else fewest)


def _held(traffic: Traffic, held: Trial, engines: int) -> dict[str, Any]:
    """What the users of a fleet that keeps its promise get."""
    assert held.result is not None
    summary = held.result.summary
    return {
        "share_at_sla": held.share,
        "goodput": goodput(held.result, judged(held.result, traffic.sla_tps, traffic.limits)),
        "throughput": summary["throughput"],
        "tps_user": summary["tps_user"],
        "tpot_seconds": summary["tpot_seconds"],
        "end_to_end_seconds": summary["end_to_end_seconds"],
        "ttft_seconds": summary.get("ttft_seconds"),
        **{
            key: summary[key]
            for key in ("itl_seconds", "wait_seconds", "tps_user_without_wait", "tps_user_with_wait")
        },
        "emitted_per_step": summary["emitted_per_step"],
        "verify_tokens_per_request": summary["verify_tokens_per_request"],
        "rejected_share": summary["rejected_share"],
        "requests_per_engine": summary["concurrency_mean"] / engines,
    }


def _binds(failed: Trial) -> Binds:
    """What keeps a fleet one engine smaller from the promise."""
    if failed.result is None:
        return "profile"
    a, summary = failed.result.arrays, failed.result.summary
    waited = a["finish_seconds"] > a["ready_seconds"]
    slow, most = failed.missed["speed"], max(failed.missed, key=lambda name: failed.missed[name])
    if failed.missed[most] > slow:
        return "queueing" if most == "ttft" else cast(Binds, most)
    if (summary["preemptions"] or summary["blocked_steps"]) and waited.any():
        # Memory is the cause where it held back at least as many requests as missed the promise beyond those
        # that may; steps during which somebody waited for it say how often it did.
        held_back = max(
            summary["blocked_steps"] / max(summary["steps"], 1), float(np.mean(a["preemptions"] > 0))
        )
        if held_back >= 0.5 * slow:
            return "memory"
    return "queueing" if summary["full_steps"] >= 0.5 * slow * summary["steps"] > 0 else "speed"


def _recommended(rows: list[PlanRow]) -> PlanRow | None:
    """The lossless policy that needs fewest engines; among equals the one whose slowest users are fastest."""
    able = [row for row in rows if row["lossless"] and row["engines"] is not None]
    return min(able, key=lambda row: (row["engines"], -row["tps_user"].get("p05", 0.0)), default=None)


def _warnings(given: Inputs, traffic: Traffic, fleets: list[Fleet], rows: list[PlanRow]) -> list[str]:
    """Each warning once: what was left out by request, those of the inputs, the arrivals, the runs."""
    first: list[str] = []
    said = list(traffic.coming.warnings)  # those of the workload among them
    workload = traffic.workload
    for fleet, row in zip(fleets, rows, strict=True):
        result = fleet.at(row["engines"]).result if row["engines"] is not None else None
        if result is None or row["engines"] is None:
            continue
        said += result.warnings
        if not first:
            own = {"prompts": workload.prompt_tokens, "lengths": workload.output_tokens}
            ranks = row["engines"] * traffic.serving.ranks_per_group
            load = load_of(
                given, result.summary, f"{row['engines']} engines of {row['policy']}", ranks, **own
            )
            first = left_out_by_request(given, load)
    return once(first, input_warnings(given), said)


def headline(document: Plan) -> str:
    """One sentence that concludes."""
    promised = promise(document)
    rows = {row["policy"]: row for row in document["policies"]}
    best = rows.get(document["recommended"] or "")
    if best is None:
        unproved = [row for row in rows.values() if row["lossless"] is None and row["gpus"] is not None]
        if unproved:
            least = min(unproved, key=lambda row: row["gpus"] or 0)
            return (
                f"No policy proved lossless reaches {promised}, however many GPUs; {least['policy']}, "
                f"which is not proved, needs {least['gpus']}."
            )
        return f"No lossless policy tried reaches {promised}, however many GPUs it gets."
    low, high = best["gpus_interval"] or (None, None)
    span = f"{low} ~ {high if high is not None else 'unknown'}"
    gpus = f"{best['gpus']} GPU" + ("s" if best["gpus"] != 1 else "")
    text = f"{document['rate']:.3g} requests/s need {gpus} ({span}) with {best['policy']} for {promised}"
    off = rows.get("off")
    if best["policy"] == "off" and any(row["lossless"] and row is not best for row in rows.values()):
        text = f"Drafting does not pay here: {text}"
    elif off is not None and off is not best and off["gpus"] is None:
        text += "; without drafting no number of GPUs is enough"
    elif off is not None and off is not best and off["gpus"] == best["gpus"]:
        slow = f"{off['tps_user']['p05']:.0f} instead of {best['tps_user']['p05']:.0f} tokens/s"
        text += f"; without drafting as many, but the slowest 5 % of users at {slow}"
    elif off is not None and off is not best:
        text += f"; without drafting {off['gpus']}"
    if "cost_per_million_tokens" in best:
        money = f" {document['currency']}" if "currency" in document else ""
        text += f"; {best['cost_per_million_tokens']:.3g}{money} per million output tokens"
    return text + "."
