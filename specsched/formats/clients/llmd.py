"""llm-d's benchmark report, YAML or JSON, versions 0.1 and 0.2: what another client measured, in one schema.

Which of its times is a user's depends on the client it comes from: AIPerf and GuideLLM call the mean time of
a request's tokens `inter_token_latency`, the others `time_per_output_token`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ...errors import FormatError, quoted
from ..document import Hints
from ..opened import Opened
from ..runs import Measured, Runs
from ..values import integer, mapping, number
from .figures import all_done, block, rate, same_unit, seconds, speed, value, whole

_OWN_GAP = ("aiperf", "guidellm")
_CONCURRENCY = ("max_concurrency", "max-concurrency", "concurrency", "concurrency_level", "streams")


def recognise(opened: Opened) -> bool:
    if opened.syntax not in ("json", "yaml") or not opened.keys >= {"version", "scenario"}:
        return False
    return bool(opened.keys & {"metrics", "results"}) and isinstance(opened.data["scenario"], dict)


def read(opened: Opened, hints: Hints) -> Runs:
    """The run of one report."""
    where, data = str(opened.path), opened.data
    version = str(data["version"])
    if version == "0.1":
        return _report(opened, _old(data, where), where)
    if version == "0.2" or version.startswith("0.2."):
        return _report(opened, _new(data, where), where)
    raise FormatError(f"{where}: version {quoted(data['version'])} of the benchmark report; known: 0.1, 0.2")


def _old(data: Mapping[str, Any], where: str) -> dict[str, Any]:
    """What is needed of version 0.1."""
    load = block(data, "scenario", "load", where=where) or {}
    metrics = mapping(data.get("metrics"), f"{where}: metrics")
    throughput = block(metrics, "throughput", where=where) or {}
    given = load.get("args")
    args: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    types = (block(data, "scenario", "host", where=where) or {}).get("type")
    roles = [str(role).lower() for role in types] if isinstance(types, list) else []
    return {
        "tool": str(load.get("name", "")),
        "users": next((args[k] for k in _CONCURRENCY if args.get(k) is not None), None),
        "engines": sum(role != "prefill" for role in roles) or 1,
        "apart": "prefill" in roles,
        "clients": 1,
        "requests": block(metrics, "requests", where=where),
        "latency": block(metrics, "latency", where=where) or {},
        "total": value(throughput, ("output_tokens_per_sec",), f"{where}: throughput"),
    }


def _new(data: Mapping[str, Any], where: str) -> dict[str, Any]:
    """What is needed of version 0.2."""
    load = block(data, "scenario", "load", "standardized", where=where) or {}
    found = block(data, "results", "request_performance", "aggregate", where=where)
    if found is None:
        raise FormatError(f"{where}: no results.request_performance.aggregate; the run left no results")
    out = block(found, "throughput", "output_token_rate", where=where) if found.get("throughput") else None
    held = [
        part["standardized"]
        for part in (data["scenario"].get("stack") or ())
        if isinstance(part, Mapping) and isinstance(part.get("standardized"), Mapping)
    ]
    engines = [
        (str(part.get("role", "")).lower(), integer(part.get("replicas") or 1, f"{where}: replicas", 1))
        for part in held
        if part.get("kind") == "inference_engine"
    ]
    return {
        "tool": str(load.get("tool", "")),
        "users": load.get("concurrency"),
        "engines": sum(n for role, n in engines if role != "prefill") or 1,
        "apart": any(role == "prefill" for role, _ in engines),
        "clients": integer(load.get("parallelism") or 1, f"{where}: parallelism", 1),
        "requests": block(found, "requests", where=where),
        "latency": block(found, "latency", where=where) or {},
        "total": rate(out, ("mean",), f"{where}: output_token_rate", "units"),
    }


def _report(opened: Opened, held: Mapping[str, Any], where: str) -> Runs:
    requests = held["requests"]
    if requests is None:
        raise FormatError(f"{where}: no counts of requests; the file was cut, or the run left no results")
    every = integer(requests.get("total") or 0, f"{where}: requests.total")
    failed, cut = (
        integer(requests.get(k) or 0, f"{where}: requests.{k}") for k in ("failures", "incomplete")
    )
    notes = all_done(every - failed, failed, where)
    if cut:
        notes.append(f"{where}: {cut} requests were not finished when it ended.")
    notes += _refuse_parts(held, where)

    def of(name: str, *stats: str) -> float | None:
        return seconds(block(held["latency"], name, where=where), stats, f"{where}: {name}", "units")

    tool = held["tool"].lower()
    name = "inter_token_latency" if tool in _OWN_GAP else "time_per_output_token"
    output = value(block(requests, "output_length", where=where), ("mean",), f"{where}: output_length")
    prompt = value(block(requests, "input_length", where=where), ("mean",), f"{where}: input_length")
    same_unit(
        of("request_latency", "mean"), of("time_to_first_token", "mean"), of(name, "mean"), output, where
    )
    run = Measured(
        source=opened.path.name,
        users=_users(held["users"], where),
        user=speed(of(name, "p50", "mean")),
        total=held["total"],
        prompt_tokens=whole(prompt),
        output_tokens=whole(output),
        prompts=every - failed,
        silent=True,
    )
    return Runs(f"llm-d report of {held['tool'] or 'a client that is not named'}", (run,), tuple(notes))


def _users(given: Any, where: str) -> int | None:
    if given is None or (isinstance(given, float) and math.isinf(given)):
        return None
    if isinstance(given, str):
        try:
            given = float(given)
        except ValueError:
            raise FormatError(f"{where}: concurrency {quoted(given)} is not a number of users") from None
    return integer(number(given, f"{where}: concurrency"), f"{where}: concurrency", 1)


def _refuse_parts(held: Mapping[str, Any], where: str) -> list[str]:
    """Refuse a report whose figures are not those of one engine and its whole load."""
    if held["engines"] > 1:
        raise FormatError(
            f"{where}: its load was spread over {held['engines']} engines, and a fit is of one; give "
            "the load and the "
            "throughput of one of them as a CSV"
        )
    if held["clients"] > 1:
        raise FormatError(
            f"{where}: one of {held['clients']} clients that ran at once (parallelism); its throughput "
            "is a part of "
            "the engine's: add them up in a CSV"
        )
    return (
        [f"{where}: another engine prefilled its prompts: give --prefill disaggregated."]
        if held["apart"]
        else []
    )
