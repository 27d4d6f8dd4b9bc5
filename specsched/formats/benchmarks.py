"""Benchmark results of other tools as `Measured` runs, each recognised by its content.

Here: vllm bench serve (JSON), SGLang bench_serving (JSON lines), and tables (CSV) with a row a run. Reports
of clients that write more are in `clients`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import FormatError
from ..files.guard import reading
from .acceptance import from_survival
from .clients import aiperf, guidellm, inference_perf, llmd
from .document import Hints
from .opened import Opened, open_file
from .runs import Measured, Runs
from .values import integer, number, numbers
from .vllm.benchmark import RATES, SERVE

_SGLANG = frozenset({"backend", "max_concurrency", "output_throughput", "total_output_tokens"})
_NONE = ("", "none", "nan", "null", "-")
# Column names of tables as people write them; the first that is there counts.
_COLUMNS: dict[str, tuple[str, ...]] = {
    "users": ("concurrency", "users", "max_concurrency", "requests", "num_reqs", "batch_size"),
    "user": ("tok_s_user", "tps_user", "tokens_per_second_per_user", "tokens_s_user", "tok_s_user_p50"),
    "total": ("tok_s_total", "total_tok_s", "output_throughput", "output_tok_s", "throughput"),
    "tpot_ms": ("median_tpot_ms", "tpot_p50_ms", "tpot_ms"),
    "prompt_tokens": ("prompt_tokens", "input_tokens", "input_len", "isl"),
    "output_tokens": ("output_tokens", "output_len", "osl"),
    "prompts": ("num_prompts", "prompts", "completed"),
    "accept_length": ("accept_length", "acceptance_length", "mean_acceptance_length"),
    "policy": ("policy",),
    "arm": ("arm",),
    "drafter": ("drafter",),
    "text": ("text", "domain", "dataset", "thinking"),
}
_LEFT_OUT = ("clipped", "capacity_limited")
_FIXED = re.compile(r"(?:fixed|static|k|spec|draft)[-_: ]?(\d{1,2})", re.IGNORECASE)
_OFF = ("nospec", "no-spec", "no_spec", "off", "none", "baseline", "autoregressive", "ar")


def read_runs(path: str | os.PathLike[str], arms: Mapping[str, str] | None = None) -> Runs:
    """The runs of a file. `arms`: policies by the name of an arm, or of a file that is one run.

    Raises FormatError for a file of no known kind, and for figures that cannot be of one run.
    """
    with reading(path, FormatError):
        opened = open_file(path)
        _refuse_aggregates(opened)
        read = reader_of(opened)
        if read is not None:
            return _named(read(opened, {}), arms or {})
    raise FormatError(
        f"{opened.path}: not a benchmark result that is known. Seen: {opened.seen}. Known: {KNOWN}"
    )


def look(path: str | os.PathLike[str]) -> Runs | None:
    """The runs of a file as it has them, nobody asked which policy an arm ran; None for other files."""
    with reading(path, FormatError):
        opened = open_file(path)
        _refuse_aggregates(opened)
        read = reader_of(opened)
        if read is None:
            return None
        found = read(opened, {})
        return replace(found, runs=tuple(run.checked() for run in found.runs))


def reader_of(opened: Opened) -> Callable[[Opened, Hints], Runs] | None:
    """What reads this file as runs, or None."""
    return next((read for recognise, read in READERS if recognise(opened)), None)


def _refuse_aggregates(opened: Opened) -> None:
    """Raise for files that clients write beside their results, with what to give instead."""
    about = opened.data.get("metadata") if isinstance(opened.data, dict) else None
    if isinstance(about, dict) and "aggregation_type" in about:
        raise FormatError(
            f"{opened.path}: AIPerf's statistics over several runs; give profile_export_aiperf.json of "
            "each run"
        )
    if opened.syntax == "jsonl" and opened.keys >= {"start_time", "end_time", "info", "error"}:
        raise FormatError(
            f"{opened.path}: inference-perf's requests one by one; give stage_N_lifecycle_metrics.json "
            "of its stages"
        )


def _named(found: Runs, arms: Mapping[str, str]) -> Runs:
    """Policies by arm: given, else what the arm's name says; runs of an arm given as `skip` are left out."""
    runs = []
    for run in found.runs:
        names = (run.arm, run.source, run.file)
        said = next((arms[name] for name in names if name is not None and name in arms), None)
        if said == "skip":
            continue
        policy = said or run.policy or _policy_of(run)
        runs.append(replace(run, policy=policy).checked())
    if not runs:
        raise FormatError(f"{found.runs[0].source}: every arm is left out")
    return replace(found, runs=tuple(runs))


def _policy_of(run: Measured) -> str | None:
    """What the name of an arm says: off, or a fixed number of drafts; None where there is no arm to name."""
    if run.arm is None:
        return None
    if run.arm.strip().lower() in _OFF:
        return "off"
    match = _FIXED.search(run.arm)
    if match:
        return f"fixed:{int(match[1])}"
    raise FormatError(
        f"{run.source}: which policy is arm {run.arm!r}? Say it: --arm '{run.arm}=fixed:7' (off, "
        "lagged:2, ...), "
        f"or --arm '{run.arm}=skip'"
    )


def read_serve(opened: Opened, hints: Hints) -> Runs:
    """`vllm bench serve --save-result`: one run, with its speculative counters where it drafted."""
    where, data = str(opened.path), opened.data
    completed = integer(data.get("completed", 0), f"{where}: completed")
    if completed < 1:
        raise FormatError(f"{where}: no request was completed; run the benchmark again")
    failed = integer(data.get("failed") or 0, f"{where}: failed")
    if failed > 0.02 * completed:
        raise FormatError(
            f"{where}: {failed} requests failed beside {completed}; its speeds are of a broken run"
        )
    users = data.get("max_concurrency")
    more: dict[str, Any] = {}
    if data.get(RATES) is not None:
        rates = numbers(data[RATES], f"{where}: {RATES}", positive=False)
        drafts = integer(data.get("spec_decode_num_drafts", 0), f"{where}: spec_decode_num_drafts")
        found = from_survival(rates, drafts, False, where)
        more["conditional"] = tuple(found.conditional.tolist())
        more["accept_length"] = found.mean_length
        proposed = float(data.get("spec_decode_draft_tokens") or 0.0)
        more["trimmed"] = bool(drafts and 0 < proposed < 0.99 * drafts * found.block_size)
    tpot = data.get("median_tpot_ms") or data.get("mean_tpot_ms")
    run = Measured(
        source=opened.path.name,
        arm=None,
        users=None if users is None else integer(users, f"{where}: max_concurrency", 1),
        user=_speed(tpot, f"{where}: median_tpot_ms"),
        total=number(data["output_throughput"], f"{where}: output_throughput"),
        prompt_tokens=_mean(data, "total_input_tokens", completed, where),
        output_tokens=_mean(data, "total_output_tokens", completed, where),
        prompts=completed,
        **more,
    )
    return Runs("vllm bench serve", (run,), _finite_rate(data, where))


def _finite_rate(data: Mapping[str, Any], where: str) -> tuple[str, ...]:
    rate = data.get("request_rate")
    if rate in (None, "inf", float("inf")):
        return ()
    return (
        f"{where}: requests arrived at {rate} a second, so fewer than the maximum concurrency may "
        "have been served "
        "at once; runs at an infinite rate say more.",
    )


def _speed(tpot_ms: Any, where: str) -> float | None:
    if tpot_ms is None:
        return None
    found = number(tpot_ms, where)
    return 1e3 / found if found > 0 else None


def _mean(data: Mapping[str, Any], key: str, completed: int, where: str) -> int | None:
    if data.get(key) is None:
        return None
    return round(number(data[key], f"{where}: {key}") / completed)


def read_serving(opened: Opened, hints: Hints) -> Runs:
    """Lines of SGLang's `bench_serving`, a run each."""
    rows = opened.data if isinstance(opened.data, list) else [opened.data]
    runs = []
    for i, row in enumerate(rows, 1):
        where = f"{opened.path}, row {i}"
        completed = integer(row.get("completed", 0), f"{where}: completed")
        if completed < 1:
            raise FormatError(f"{where}: no request was completed; run the benchmark again")
        users, length = row.get("max_concurrency"), row.get("accept_length")
        runs.append(
            Measured(
                source=f"{opened.path.name}:{i}" if len(rows) > 1 else opened.path.name,
                users=None if users is None else integer(users, f"{where}: max_concurrency", 1),
                user=_speed(row.get("median_tpot_ms") or row.get("mean_tpot_ms"), f"{where}: median_tpot_ms"),
                total=number(row["output_throughput"], f"{where}: output_throughput"),
                prompt_tokens=_mean(row, "total_input_tokens", completed, where),
                output_tokens=_mean(row, "total_output_tokens", completed, where),
                prompts=completed,
                accept_length=None if length is None else number(length, f"{where}: accept_length", 1.0),
            )
        )
    return Runs("SGLang bench_serving", tuple(runs))


def read_table(opened: Opened, hints: Hints) -> Runs:
    """A CSV with a row a run; see `_COLUMNS` for the names its columns may have."""
    columns = {k: next((n for n in names if n in opened.keys), None) for k, names in _COLUMNS.items()}
    count = len(next(iter(opened.data.values()), []))
    runs, left_out = [], 0
    for i in range(count):
        row = {name: values[i] for name, values in opened.data.items()}
        if any(str(row.get(n) or "0").strip().lower() not in ("0", "false") for n in _LEFT_OUT):
            left_out += 1
            continue
        runs.append(_row(opened.path, i, row, columns))
    if not runs:
        raise FormatError(f"{opened.path}: no usable row; every one is clipped")
    notes = (
        (f"{opened.path}: {left_out} rows are clipped or limited by capacity, and left out.",)
        if left_out
        else ()
    )
    return Runs("table", tuple(runs), notes)


def _row(path: Path, i: int, row: Mapping[str, str], columns: Mapping[str, str | None]) -> Measured:
    where = f"{path}, row {i + 1}"

    def text(key: str) -> str | None:
        name = columns[key]
        return None if name is None or row[name].strip().lower() in _NONE else row[name].strip()

    def value(key: str) -> float | None:
        held = text(key)
        if held is None:
            return None
        try:
            return number(float(held), f"{where}: {columns[key]}")
        except ValueError:
            raise FormatError(f"{where}: {columns[key]} is {held!r}; it must be a number") from None

    def whole(key: str) -> int | None:
        held = value(key)
        return None if held is None else integer(held, f"{where}: {columns[key]}")

    arm = row[str(columns["arm"])].strip() if columns["arm"] is not None else None
    return Measured(
        source=f"{path.name}:{i + 1}",
        users=whole("users"),
        arm=arm,
        policy=text("policy"),
        user=value("user") or _speed(value("tpot_ms"), where),
        total=value("total"),
        prompt_tokens=whole("prompt_tokens"),
        output_tokens=whole("output_tokens"),
        prompts=whole("prompts"),
        accept_length=value("accept_length"),
        drafter=text("drafter"),
        text=text("text"),
    )


def _is_table(opened: Opened) -> bool:
    speeds = (*_COLUMNS["user"], *_COLUMNS["total"], *_COLUMNS["tpot_ms"])
    return (
        opened.syntax == "csv"
        and bool(opened.keys & set(_COLUMNS["users"]))
        and bool(opened.keys & set(speeds))
    )


Reader = tuple[Callable[[Opened], bool], Callable[[Opened, Hints], Runs]]
READERS: tuple[Reader, ...] = (
    (lambda o: o.syntax == "json" and o.keys >= SERVE, read_serve),
    (lambda o: o.syntax in ("json", "jsonl") and o.keys >= _SGLANG, read_serving),
    (aiperf.is_summary, aiperf.read_summary),
    (aiperf.is_records, aiperf.read_records),
    (guidellm.recognise, guidellm.read),
    (inference_perf.recognise, inference_perf.read),
    (llmd.recognise, llmd.read),
    (_is_table, read_table),
)
KNOWN = (
    "vllm bench serve, SGLang bench_serving, AIPerf, GuideLLM, inference-perf, llm-d's benchmark "
    "report, a CSV with "
    "columns concurrency, tok_s_user and/or tok_s_total, arm"
)
