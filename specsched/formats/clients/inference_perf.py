"""inference-perf (Kubernetes): `stage_N_lifecycle_metrics.json`, one load each. All its times are seconds.

`time_per_output_token` is a request's (last - first token) / (tokens - 1); `inter_token_latency` are the gaps
between single tokens, which with drafts mean something else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import FormatError
from ..document import Hints
from ..opened import Opened
from ..runs import Measured, Runs
from ..values import integer, mapping
from .figures import all_done, block, same_unit, speed, value, whole

KEYS = frozenset({"load_summary", "successes", "failures"})


def recognise(opened: Opened) -> bool:
    return opened.syntax == "json" and opened.keys >= KEYS


def read(opened: Opened, hints: Hints) -> Runs:
    """The run of one stage with a fixed number of users; a summary over stages is refused."""
    where, data = str(opened.path), opened.data
    load, good = (mapping(data[key], f"{where}: {key}") for key in ("load_summary", "successes"))
    bad = mapping(data["failures"], f"{where}: failures")
    if not load:
        raise FormatError(
            f"{where}: an empty load_summary: counters of the server, not of a client; give a lifecycle file"
        )
    done, failed = (
        integer(held.get("count") or 0, f"{where}: {name}.count")
        for name, held in (("successes", good), ("failures", bad))
    )
    if (
        load.get("count") is not None
        and integer(load["count"], f"{where}: load_summary.count") != done + failed
    ):
        raise FormatError(
            f"{where}: {done} successes + {failed} failures are not the {load['count']} requests of "
            "load_summary; "
            "the file contradicts itself"
        )
    notes = all_done(done, failed, where)
    _refuse_several_loads(load, where)
    latency = block(good, "latency", where=where) or {}

    def of(name: str, *stats: str) -> float | None:
        return value(block(latency, name, where=where), stats, f"{where}: {name}")

    output = _length(good, ("output_len", "output_tokens"), where)
    a_token = of("time_per_output_token", "mean")
    same_unit(of("request_latency", "mean"), of("time_to_first_token", "mean"), a_token, output, where)
    run = Measured(
        source=opened.path.name,
        users=integer(load["concurrency"], f"{where}: load_summary.concurrency", 1),
        user=speed(of("time_per_output_token", "median", "mean")),
        total=value(
            block(good, "throughput", where=where), ("output_tokens_per_sec",), f"{where}: throughput"
        ),
        prompt_tokens=whole(_length(good, ("prompt_len", "prompt_tokens"), where)),
        output_tokens=whole(output),
        prompts=done,
        silent=True,
    )
    return Runs("inference-perf", (run,), tuple(notes))


def _length(good: Mapping[str, Any], names: tuple[str, ...], where: str) -> float | None:
    """Mean length; the key was renamed once."""
    for name in names:
        found = value(block(good, name, where=where), ("mean",), f"{where}: {name}")
        if found is not None:
            return found
    return None


def _refuse_several_loads(load: Mapping[str, Any], where: str) -> None:
    if load.get("concurrency") is not None:
        return
    if load.get("requested_rate") is not None:
        raise FormatError(
            f"{where}: a stage of {load['requested_rate']} requests a second, so the number of users at "
            "once is not "
            "fixed; run a stage of `load.type: concurrent`"
        )
    raise FormatError(
        f"{where}: a summary over stages, without a load of its own; give "
        "stage_N_lifecycle_metrics.json of stages of "
        "`load.type: concurrent`"
    )
