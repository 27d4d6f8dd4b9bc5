"""The question: for this traffic, profile and trace, what to type into the engine, and what it is worth."""

from __future__ import annotations

import os
from typing import Any, Literal, cast

from ...calibration import Calibration
from ...documents.advice import Advice, EngineAdvice, Memory
from ...errors import WorkloadError
from ...profile import StepProfile
from ...schedule import BatchTable
from ...simulator import Serving
from ...simulator.prefill import Load
from ...simulator.serving import kv_capacity
from ...trace import Trace
from ...workers import map_points
from ...workload import parse_arrivals
from ..about import about
from ..capacity import Question, largest_load
from ..deployment import runs_in
from ..doubts import input_warnings, left_out
from ..inputs import Inputs, check_promise, load_inputs, once
from ..prefill import TYPICAL_PASS, left_out_by_request, load_of, probe, prompt_tokens, settle
from .bench import Bench, Setup
from .candidates import SCHEDULE, Considered, at_load, at_sla, policies
from .engines import ENGINES, METHODS
from .lengths import TOLERANCE, accepted_shares, context_of, schedule, table
from .lines import Names, paste
from .settings import advice_of
from .setups import Ask

MOST_BATCH = 1024  # batch sizes that a schedule names
REQUESTS = 600


def advise(
    trace: Trace | str | os.PathLike[str],
    profile: StepProfile | str | os.PathLike[str],
    *,
    sla_tps: float | None = None,
    users: int | None = None,
    rate: float | None = None,
    sla_fraction: float = 0.95,
    method: str = "dspark",
    model: str = "MODEL",
    drafter: str = "DRAFTER",
    folder: str = "",
    requests: int = REQUESTS,
    seed: int = 0,
    calibration: Calibration | str | None = "sts",
    block_size: int | None = None,
    serving: Serving | None = None,
    workers: int | None = None,
    **serving_options: Any,
) -> Advice:
    """Settings for vLLM, SGLang and TensorRT-LLM at this traffic: the document `specsched/advice/1`.

    Parameters
    ----------
    sla_tps, users, rate : the traffic, one of them: tokens/s promised to a user (the engine then takes as
        many users as get it), users of one engine in a closed loop, or requests/s of one engine (Poisson).
    method : kind of drafter, one of METHODS; the engines name their options by it.
    model, drafter, folder : names that the lines hold, and where their tables will lie.
    Others are those of `answer`.

    Raises SpecschedError children for whatever cannot be run.
    """
    kind = _kind(sla_tps, users, rate)
    _check(kind, sla_tps or users or rate or 0.0, sla_fraction, method, requests)
    given = load_inputs(
        trace, profile, ["off", "lagged:2"], calibration, block_size, seed, serving, serving_options
    )
    workload = parse_arrivals(f"poisson:{rate!r}", requests=requests, seed=seed) if rate is not None else None
    said: list[str] = []
    if not given.prefill_asked:
        given, said = settle(given, _load(given, kind, sla_tps, users, rate, sla_fraction, requests, seed))
    bench = Bench(given, requests, seed, sla_fraction, workload, promised=kind == "sla")
    question = Question(
        given.replay,
        given.profile,
        given.serving,
        sla_tps or 1.0,
        sla_fraction,
        requests,
        seed,
        given.sees_token,
    )
    shares, context = accepted_shares(given.replay), context_of(given.replay, given.serving.context)
    most = max(1, min(MOST_BATCH, largest_load(question), _measured(given.profile)))
    chunks = None
    if given.serving.prefill == "chunked":
        chunks = (prompt_tokens(given), float(given.replay.length.mean()))
    rows = schedule(table(given.profile, shares, most, context, chunks))
    found = policies(given.replay.block_size, rows)
    if kind == "sla":
        considered = at_sla(bench, question, given.replay.block_size, found)
    else:
        considered = at_load(bench, users or 1, found)
    if not any(c.rank[0] > 0.0 for c in considered):
        said.insert(0, _nobody(kind, sla_tps, users, rate))
    asks = [Ask(bench, engine, method, rows, considered, sla_tps) for engine in ENGINES]
    engines = map_points(advice_of, asks, workers)
    names = Names(model, drafter, method, folder, _sampled(given.trace), given.calibrated is not None)
    for engine in engines:
        engine["paste"] = paste(engine, given.profile, names)
    best = max(considered, key=lambda c: c.rank)
    return {
        "schema": "specsched/advice/1",
        "profile": given.profile.name,
        "trace": given.trace.name,
        "traffic": {"kind": kind, "value": float(sla_tps or users or rate or 0.0), "share": sla_fraction},
        "method": method,
        "gpus_per_engine": given.profile.gpus,
        "block_size": given.replay.block_size,
        "headline": _headline(engines[0], kind),
        "candidates": [c.row for c in considered],
        "schedule": {
            "rows": [[*row] for row in rows],
            "accepted": shares.tolist(),
            "context": context,
            "tolerance": TOLERANCE,
        },
        "memory": _memory(given),
        "engines": engines,
        "runs_in": runs_in(_name(best), given.trace),
        "calibration": given.note,
        "warnings": once(said, _warnings(given, bench, best, kind), input_warnings(given)),
        "not_modelled": left_out(
            given.serving,
            "what a shorter block saves the drafter (a whole one is paid)",
            "a schedule's own search, beside the rates of the trace",
            *(["arrivals (a closed loop: every user asks again at once)"] if workload is None else []),
        ),
        "about": about(given.trace, given.profile),
    }


def _measured(profile: StepProfile) -> int:
    """The largest batch size at which every cost by requests was measured; engines carry the last row on."""
    ends = [int(curve.x[-1]) for curve in (profile.draft, profile.overhead) if curve is not None]
    ends = [end for end in ends if end > 1]  # a single point says nothing of where its owner measured
    return min(ends, default=MOST_BATCH)


def _kind(sla_tps: float | None, users: int | None, rate: float | None) -> Literal["sla", "users", "rate"]:
    asked = {"sla": sla_tps, "users": users, "rate": rate}
    given = [name for name, value in asked.items() if value is not None]
    if len(given) != 1:
        raise WorkloadError("give the traffic in one way: an SLA, a number of users, or a rate")
    return cast(Literal["sla", "users", "rate"], given[0])


def _check(kind: str, value: float, share: float, method: str, requests: int) -> None:
    check_promise(value if kind == "sla" else 1.0, share)
    if method not in METHODS:
        raise WorkloadError(f"no drafter of the kind {method!r}; choose one of {', '.join(METHODS)}")
    if requests < 20:
        raise WorkloadError(f"{requests} measured requests are too few to compare settings; give 20 or more")
    if kind == "users" and not 1 <= value <= 1_000_000:
        raise WorkloadError(f"concurrency {value:g} cannot be run; give a whole number from 1 to 1000000")
    if kind == "rate" and not 0.0 < value < float("inf"):
        raise WorkloadError(f"the rate is {value}; it must be a positive number of requests/s")


def _load(
    given: Inputs,
    kind: str,
    sla_tps: float | None,
    users: int | None,
    rate: float | None,
    share: float,
    requests: int,
    seed: int,
) -> Load:
    """The load at which prefill is estimated."""
    if kind == "sla":
        return probe(given, float(sla_tps or 1.0), share, requests, seed)
    if kind == "rate":
        prompt = float(given.replay.prompt_tokens.mean())
        return Load(rate or 1.0, TYPICAL_PASS, prompt, f"{rate:.3g} requests/s")
    bench = Bench(given, min(requests, 200), seed, share)
    result = bench.run(Setup(given.policies[0]), users or 1)
    if result is None:
        return Load(0.0, 1.0, 0.0, "no load")
    return load_of(given, result.summary, f"{users} users of {given.policies[0].name}")


def _name(best: Considered) -> str:
    return best.policy.name


def _sampled(trace: Trace) -> bool:
    """Whether drafts were drawn from the drafter's distribution, not its likeliest tokens."""
    greedy = trace.metadata.get("greedy_draft")
    return bool(trace.metadata.get("temperature", 1.0)) and not greedy


def _memory(given: Inputs) -> Memory:
    profile, serving = given.profile, given.serving
    memory = profile.gpu.get("memory_bytes")
    known = profile.kv_capacity_tokens(serving.kv_reserve) is not None or serving.kv_tokens is not None
    return {
        "total": memory * profile.gpus if memory else None,
        "kept_free": serving.kv_reserve,
        "target_weights": profile.model.get("weight_bytes"),
        "drafter_weights": profile.draft_weight_bytes,
        "target_kv_per_token": profile.model.get("kv_bytes_per_token"),
        "drafter_kv_per_token": profile.draft_kv_bytes_per_token,
        "graph": serving.graph_bytes,
        "kv_tokens": kv_capacity(profile, serving) if known else None,
        "kv_tokens_drafting": kv_capacity(profile, serving, drafting=True) if known else None,
    }


def _warnings(given: Inputs, bench: Bench, best: Considered, kind: str) -> list[str]:
    """What this question makes doubtful beside its inputs: unknown memory, the best run's own warnings."""
    said = []
    profile = given.profile
    if best.policy.drafts and not profile.knows_drafter_memory:
        said.append(
            f"profile {profile.name!r} does not say the memory of its drafter: its weights and KV are not "
            "counted, so that fewer users fit beside it"
        )
    if profile.capture_sizes is None:
        said.append(f"profile {profile.name!r} has no captured sizes: none are advised")
    if (
        isinstance(best.policy, BatchTable)
        and profile.idle_draft == 0.0
        and any(row[2] == 0 for row in best.policy.table.tolist())
    ):
        said.append("batch sizes of 0 drafts are priced without any cost of the idle drafter (--idle-draft)")
    result = bench.run(Setup(best.policy), max(1, best.users))
    said += result.warnings if result is not None else []
    run = left_out_by_request(given, load_of(given, result.summary, f"{best.users} users")) if result else []
    return [*run, *said] if kind != "rate" else said


def _nobody(kind: str, sla: float | None, users: int | None, rate: float | None) -> str:
    if kind == "sla":
        return f"nobody gets {sla:g} tokens/s from this engine, even alone: the settings are for one user"
    if kind == "users":
        return (
            f"{users} users cannot be run: memory does not hold a request, or the profile prices no such pass"
        )
    return f"one engine does not serve {rate:g} requests/s under any setup: requests pile up"


def _headline(engine: EngineAdvice, kind: str) -> str:
    """What vLLM should be told, in a sentence."""
    policy, k = engine["policy"], engine["num_speculative_tokens"]
    told = {
        "off": "no drafting",
        SCHEDULE: f"up to {k} speculative tokens, fewer as batches grow",
    }.get(policy, f"{k} speculative tokens")
    if policy.startswith("lagged"):
        told += " with adaptive verification"
    total = engine["total"]
    gain = ", which is what it does when told only to draft"
    if not total["relative"]:
        gain = "" if total["relative"] is None else gain
    else:
        gain = f": {total['recommended']:,.4g} {total['measure']} instead of {total['default']:,.4g}"
    return f"{engine['title']}: {told}, at most {engine['max_num_seqs']} requests at once{gain}."
