"""The planner's question: users per engine at a promised speed, under which policy.

`answer` returns the JSON document `specsched/answer/1`, `plan` (how many GPUs the traffic needs)
`specsched/plan/1`; `report` turns them into text, plots and a page.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, cast

from ..calibration import Calibration
from ..documents.answer import Answer, Capacity, Crossover, CurveRow, PolicyRow
from ..documents.shared import LimitsStated, RunsIn, Summary
from ..errors import WorkloadError
from ..profile import StepProfile
from ..schedule import make
from ..simulator import Serving
from ..simulator.limits import NO_LIMITS, Limits, goodput, judged
from ..simulator.outside import outside_curve
from ..trace import Trace
from ..workers import map_points
from .about import about
from .capacity import (
    TO_SPARE,
    Load,
    Question,
    Search,
    capacity_of,
    captured_loads,
    curve_loads,
    ladder,
)
from .deployment import runs_in
from .doubts import input_warnings, left_out
from .explore import Explored, explored_by
from .headline import headline
from .inputs import Inputs, Progress, check_promise, load_inputs, once, report_progress
from .prefill import left_out_by_request, load_of, probe, settle

REFERENCE = "hindsight"  # the myopic reference of `hindsight_share`; not a bound


def answer(
    trace: Trace | str | os.PathLike[str],
    profile: StepProfile | str | os.PathLike[str],
    sla_tps: float,
    *,
    policies: Sequence[str] | None = None,
    concurrency: Sequence[int] | None = None,
    sla_fraction: float = 0.95,
    limits: Limits = NO_LIMITS,
    requests: int = 1000,
    seed: int = 0,
    calibration: Calibration | str | None = "sts",
    block_size: int | None = None,
    serving: Serving | None = None,
    explore: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
    **serving_options: Any,
) -> Answer:
    """Capacity at an SLA for every policy, with curves, crossovers, a recommendation and its warnings.

    Parameters
    ----------
    sla_tps : tokens per second a user is promised; `sla_fraction` of the requests must reach it.
    limits : on times of a request, promised together with the speed: `Limits(ttft_seconds=0.5, ...)`. With
        one on the first token the engine prefills.
    policies : names (docs/architecture.md, Policies); default off, fixed:1, fixed:γ, threshold:0.3,
        early-stop, lagged:2.
    concurrency : try these loads alone instead of the ladder; capacity is then one of them.
    requests : measured requests of each run.
    calibration : "sts" or "affine" fits on half the requests and replays the others; None or "none" replays
        raw confidences; or a Calibration, or the path of one.
    explore : find as well the capacity at other SLAs around this one, and with 10 % more or less acceptance:
        about a third more runs. `--out` does.
    serving, serving_options : see `simulate`; `prefill` may be "auto" (the default: the rule of
        `planner/prefill.py`).
    workers : threads (default: all cores). The answer does not depend on them.
    progress : called as (loads done, None, policy) from any thread.

    Raises SpecschedError children for whatever cannot be run. An SLA that nobody reaches is an answer.
    """
    _check(sla_tps, sla_fraction, requests, concurrency)
    given = load_inputs(
        trace, profile, policies, calibration, block_size, seed, serving, serving_options, limits
    )
    said: list[str] = []
    if not given.prefill_asked:
        given, said = settle(given, probe(given, float(sla_tps), sla_fraction, requests, seed))
    question = Question(
        given.replay,
        given.profile,
        given.serving,
        float(sla_tps),
        sla_fraction,
        requests,
        seed,
        given.sees_token,
        limits,
    )
    searches = [Search(question, policy) for policy in given.policies]
    reference = Search(question, make(REFERENCE, block_size=given.replay.block_size))
    report_progress([*searches, reference], lambda search: len(search.loads), progress)

    found = map_points(lambda s: _capacity(s, concurrency), searches, workers)
    loads = curve_loads(question, max(f["capacity"] for f in found))
    if concurrency is not None:
        loads = sorted(set(concurrency))
    map_points(lambda s: [s.at(load) for load in loads], searches, workers)
    explored = [Explored() for _ in searches]
    if explore and concurrency is None:
        pairs = list(zip(searches, found, strict=True))
        explored = map_points(lambda pair: explored_by(pair[0], pair[1]["capacity"]), pairs, workers)
    rows = map_points(
        lambda triple: _policy_row(*triple, reference),
        list(zip(searches, found, explored, strict=True)),
        workers,
    )
    return _document(given, question, searches, rows, loads, said, ladder_tried=concurrency is None)


def _document(
    given: Inputs,
    question: Question,
    searches: list[Search],
    rows: list[PolicyRow],
    loads: list[int],
    said: list[str],
    ladder_tried: bool,
) -> Answer:
    """The document `specsched/answer/1`."""
    trace, profile, serving = given.trace, given.profile, given.serving
    document: Answer = {
        "schema": "specsched/answer/1",
        "sla_tps": question.sla_tps,
        "sla_fraction": question.share,
        "limits": cast(LimitsStated, question.limits.document()),
        "profile": profile.name,
        "trace": trace.name,
        "gpus_per_engine": profile.gpus,
        "block_size": given.replay.block_size,
        "recommended": _recommend(rows),
        "recommended_runs_in": _runs_in(rows, trace),
        "headline": "",
        "warnings": _warnings(given, searches, rows, said),
        "not_modelled": left_out(serving, "arrivals (a closed loop: every user asks again at once)"),
        "calibration": given.note,
        "settings": {
            "requests": question.requests,
            "seed": question.seed,
            "prefill": serving.prefill,
            "context": serving.context,
            "loads": "ladder" if ladder_tried else "given",
            "kv_reserve": serving.kv_reserve,
        },
        "provenance": {"profile": profile.provenance, "trace": trace.metadata.get("provenance", {})},
        "crossovers": crossovers(searches, loads),
        "ladder": {
            "rungs": ladder(question) if ladder_tried else loads,
            "refined": ladder_tried,
            "to_spare": TO_SPARE,
        },
        "policies": rows,
        "about": about(trace, profile),
    }
    document["headline"] = headline(document)
    return document


def _check(sla_tps: float, share: float, requests: int, concurrency: Sequence[int] | None) -> None:
    check_promise(sla_tps, share)
    if requests < 20:
        raise WorkloadError(
            f"{requests} measured requests say nothing about a share of them; give 20 or more"
        )
    for load in concurrency if concurrency is not None else ():
        if not 1 <= load <= 1_000_000:
            raise WorkloadError(f"concurrency {load} cannot be run; give whole numbers from 1 to 1000000")
    if concurrency is not None and len(concurrency) == 0:
        raise WorkloadError("the list of concurrencies is empty; give one or more, such as 1,2,4,8")


def _capacity(search: Search, concurrency: Sequence[int] | None) -> Capacity:
    if concurrency is None:
        return capacity_of(search, ladder(search.question))
    wanted, good, failed = search.question.share, 0, None
    for load in sorted(set(concurrency)):
        if not search.at(load).passes(wanted):
            failed = load
            break
        good = load
    gpus = search.question.profile.gpus
    # Between given loads nothing was tried: the interval runs to the load that failed.
    interval = [good, (failed - 1) if failed is not None else good]
    return {
        "capacity": good,
        "capacity_interval": interval,
        "capacity_per_gpu": good / gpus,
        "binds": search.binds(failed),
        "capacity_if_steps": None,  # between given loads nothing is searched
        "pockets": search.pockets(good, sorted(set(concurrency))),
    }


def _policy_row(search: Search, found: Capacity, explored: Explored, reference: Search) -> PolicyRow:
    """One policy of the answer."""
    capacity = found["capacity"]
    row: PolicyRow = {
        "policy": search.policy.name,
        "lossless": search.policy.lossless(search.question.sees_token),
        **found,
        "capacity_at": explored.capacity_at,
        "capacity_if_acceptance": explored.if_acceptance,
        "captured_loads": captured_loads(search.question, search.policy),
        "refused_loads": sorted(c for c, load in search.loads.items() if load.result is None),
        "throughput_at_capacity": 0.0,
        "at_capacity": None,
        "hindsight_share": None,
        "goodput": None,
        "curve": [],
    }
    if capacity > 0:
        q = search.question
        full = q.run(capacity).result(search.policy, q.seed, q.sees_token)
        row["at_capacity"] = cast(Summary, full.summary)
        row["throughput_at_capacity"] = full.summary["throughput"]
        row["goodput"] = goodput(full, judged(full, q.sla_tps, q.limits))
        best = reference.at(capacity).result
        if best is not None:
            row["hindsight_share"] = full.summary["throughput"] / best.summary["throughput"]
    row["curve"] = [
        curve_row(search.loads[c]) for c in sorted(search.loads) if search.loads[c].result is not None
    ]
    return row


def curve_row(load: Load) -> CurveRow:
    """One point of a policy's curve."""
    assert load.result is not None
    summary = load.result.summary
    return {
        "concurrency": load.concurrency,
        "throughput": summary["throughput"],
        "tps_user": summary["tps_user"],
        "emitted_per_step": summary["emitted_per_step"],
        "verify_tokens_per_request": summary["verify_tokens_per_request"],
        "rejected_share": summary["rejected_share"],
        "step_seconds": summary["step_seconds"],
        "tokens_per_pass": summary["tokens_per_pass"],
        "budget_per_pass": summary["budget_per_pass"],
        "off_graph_steps": summary["off_graph_steps"],
        "extrapolated_steps": summary["extrapolated_steps"],
        "steps": summary["steps"],
        "share_at_sla": load.share,
        "share_interval": [load.low, load.high],
        "keeps_tps": load.keeps,
        "limits_kept": load.limits_kept,
        "memory_held": load.held,
        "priced": load.priced,
    }


def _recommend(rows: list[PolicyRow]) -> str | None:
    """The lossless policy that carries most users; at a tie the one of higher throughput, then the first."""
    able = [row for row in rows if row["lossless"] and row["capacity"] > 0]
    if not able:
        return None
    out: str | None = max(able, key=lambda row: (row["capacity"], row["throughput_at_capacity"]))["policy"]
    return out


def _runs_in(rows: list[PolicyRow], trace: Trace) -> RunsIn | None:
    best = _recommend(rows)
    return runs_in(best, trace) if best is not None else None


def crossovers(searches: list[Search], loads: list[int]) -> list[Crossover]:
    """Where the lossless policy of highest throughput changes along the common loads.

    Each entry: {"from", "to", "between": [load, next load]}, and "concurrency", the later of the two.
    """
    found: list[Crossover] = []
    lossless = [s for s in searches if s.policy.lossless(s.question.sees_token)]
    leader, last = "", 0
    for load in loads:
        tried = {s.policy.name: s.at(load) for s in lossless}
        speeds = {
            name: x.result.summary["throughput"]
            for name, x in tried.items()
            if x.result is not None and x.priced
        }
        if not speeds:
            continue
        best = max(speeds, key=lambda name: speeds[name])
        # A lead within one part in a thousand is no lead: policies that plan the same things tie.
        if leader in speeds and speeds[leader] >= speeds[best] * (1.0 - 1e-3):
            best = leader
        if leader and best != leader:
            found.append({"from": leader, "to": best, "between": [last, load], "concurrency": load})
        leader, last = best, load
    return found


def _warnings(given: Inputs, searches: list[Search], rows: list[PolicyRow], first: list[str]) -> list[str]:
    """Each warning once: `first`, those of the inputs, then of the runs."""
    said: list[str] = []
    full = max(rows, key=lambda row: row["capacity"])
    if full["at_capacity"] is not None:
        held = f"{full['capacity']} users of {full['policy']}"
        load = load_of(given, dict(full["at_capacity"]), held, given.serving.replicas)
        first = [*first, *left_out_by_request(given, load)]
    for search, row in zip(searches, rows, strict=True):
        name = search.policy.name
        at = search.loads.get(row["capacity"] or 1)
        said += at.result.warnings if at is not None and at.result is not None else []
        said += _beyond(search, row["capacity"])
        refused = [c for c, load in search.loads.items() if load.result is None]
        if refused:
            said.append(
                f"profile {given.profile.name!r} has no cost for passes that {name} needs at {min(refused)} "
                "users"
            )
    outside = {
        s.policy.name: {c: x.result.summary["outside_steps"] for c, x in s.loads.items() if x.result}
        for s in searches
    }
    held_at = {row["policy"]: row["capacity"] for row in rows}
    return once(first, input_warnings(given), said, outside_curve(given.profile, outside, held_at))


def _beyond(search: Search, capacity: int) -> list[str]:
    """Loads of a curve past the last point of verify, where the capacity itself is not."""
    beyond = [
        c for c, x in search.loads.items() if x.result is not None and x.result.summary["extrapolated_steps"]
    ]
    if not beyond or min(beyond) <= capacity:
        return []
    return [
        f"{search.policy.name} from {min(beyond)} users on is extrapolated past the last point of the profile"
    ]
