"""TensorRT-LLM's tables: the step table (linear, clamped), the exact table v2 (per graph batch), and their
writer.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from ..errors import FormatError
from ..files.output import write_json
from ..profile import StepProfile
from .document import Hints, build, curve, imported
from .export import AdditiveParts
from .opened import Opened
from .values import integer, mapping, need, numbers, same_length, step_seconds, whole

STEP_TABLE = frozenset({"token_counts", "step_time_ms"})
EXACT = frozenset({"schema_version", "cost_tables"})


def read_step_table(opened: Opened, hints: Hints) -> tuple[StepProfile, list[str]]:
    """`token_counts` (R·(L+1)), `step_time_ms`, `fixed_overhead_ms`, `batch_sizes`, `batch_overhead_ms`."""
    where, data = str(opened.path), opened.data
    fixed = numbers([data.get("fixed_overhead_ms") or 0.0], f"{where}: fixed_overhead_ms", positive=False)
    bias = fixed[0] / 1e3
    tokens, ms = _from_one(data, bias, where)
    _refuse_flat(ms, where)
    seconds = ms / 1e3
    overhead = None
    if data.get("batch_sizes"):
        sizes = whole(data["batch_sizes"], f"{where}: batch_sizes")
        extra = numbers(need(data, "batch_overhead_ms", where), f"{where}: batch_overhead_ms", positive=False)
        same_length(where, batch_sizes=sizes, batch_overhead_ms=extra)
        overhead = curve("requests", sizes, extra / 1e3)
    verify = {**curve("tokens", tokens, seconds), "lookup": "linear", "beyond": "clamp"}
    notes = ["Whole steps were timed: the cost of drafting is inside.", *_minimum_note()]
    profile = build(
        opened.path.stem,
        verify,
        imported(where, "trtllm-step-table", "linear, clamped", notes, hints),
        hints,
        bias_seconds=float(bias),
        overhead=overhead,
        scheduler=_scheduler(data, where),
    )
    return profile, notes


def _from_one(data: dict[str, Any], bias: float, where: str) -> tuple[np.ndarray, np.ndarray]:
    """(int64[n] tokens, float64[n] ms). A table may begin at 0 tokens: its owner reads between the points, so
    that one becomes 1 token, a pass being no smaller. Such a table may hold what tokens add to `bias` alone.
    """
    counts = data["token_counts"]
    zero = isinstance(counts, list) and len(counts) > 1 and counts[0] == 0 and not isinstance(counts[0], bool)
    tokens = whole(counts[1:] if zero else counts, f"{where}: token_counts")
    ms = numbers(data["step_time_ms"], f"{where}: step_time_ms", positive=not zero)
    if not zero:
        same_length(where, token_counts=tokens, step_time_ms=ms)
        step_seconds(ms / 1e3, f"{where}: step_time_ms", "ms")
        return tokens, ms
    same_length(where, token_counts=np.append(0, tokens), step_time_ms=ms)
    if ms[0] > ms[1:].max():
        raise FormatError(
            f"{where}: step_time_ms is {ms[0]:g} at 0 tokens, above all others; is that the untrimmed "
            "pass of an exact "
            "table (schema_version 2)? Give its tokens, R * (1 + max_draft_len), instead of 0"
        )
    step_seconds(bias + ms / 1e3, f"{where}: fixed_overhead_ms + step_time_ms", "ms")
    first = float(np.interp(1.0, np.append(0, tokens), ms))
    keep = tokens > 1
    return np.append(1, tokens[keep]), np.append(first, ms[1:][keep])


def _minimum_note() -> list[str]:
    return ["TensorRT-LLM verifies at least one draft per request and only picks captured sizes."]


def _scheduler(data: dict[str, Any], where: str) -> dict[str, float]:
    gain = data.get("minimum_predicted_gain") or 0.0
    return {"minimum_gain": float(numbers([gain], f"{where}: minimum_predicted_gain", positive=False)[0])}


def _refuse_flat(ms: np.ndarray, where: str) -> None:
    if len(ms) < 2 or np.ptp(ms) == 0:
        raise FormatError(
            f"{where}: step_time_ms is flat; TensorRT-LLM refuses such a table and nothing can be scheduled "
            "by it: "
            "profile at two sizes or more"
        )


def read_exact(opened: Opened, hints: Hints) -> tuple[list[StepProfile], list[str]]:
    """Exact v2: one table per graph batch G. All of them, or the one of the hint `graph_batch`.

    Entry 0 of `token_counts` is the untrimmed pass: placed at G·(1 + max_draft_len) when the fingerprint
    has it.
    """
    where, data = str(opened.path), opened.data
    if data["schema_version"] != 2:
        raise FormatError(f"{where}: schema_version {data['schema_version']!r}; this reader knows 2")
    tables = data["cost_tables"]
    if not isinstance(tables, dict) or not tables:
        raise FormatError(f"{where}: cost_tables is empty; expected one table per graph batch")
    chosen = hints.get("graph_batch")
    names = sorted(tables, key=_graph_batch(where)) if chosen is None else [str(int(chosen))]
    if names[0] not in tables:
        raise FormatError(
            f"{where}: no table for graph batch {names[0]}; there are {', '.join(sorted(tables))}"
        )
    notes = [
        "The owner only uses measured budgets; here a budget between two costs what the next measured one "
        "does."
    ]
    return [_exact_table(opened, name, notes, hints) for name in names], notes


def _graph_batch(where: str) -> Any:
    def number(name: str) -> int:
        try:
            return int(name)
        except ValueError:
            raise FormatError(f"{where}: cost_tables key {name!r} is not a graph batch size") from None

    return number


def _exact_table(opened: Opened, name: str, notes: list[str], hints: Hints) -> StepProfile:
    where, table = f"{opened.path}: cost_tables[{name}]", opened.data["cost_tables"][name]
    if not isinstance(table, dict) or not set(table) >= STEP_TABLE:
        raise FormatError(f"{where}: expected token_counts and step_time_ms")
    counts = numbers(table["token_counts"], f"{where}: token_counts", positive=False).tolist()
    ms = numbers(table["step_time_ms"], f"{where}: step_time_ms").tolist()
    same_length(where, token_counts=counts, step_time_ms=ms)
    fingerprint = mapping(opened.data.get("engine_fingerprint") or {}, f"{opened.path}: engine_fingerprint")
    if counts and counts[0] == 0:
        full = integer(fingerprint.get("max_draft_len") or 0, f"{opened.path}: max_draft_len", most=127)
        untrimmed = ms[0]
        counts, ms = counts[1:], ms[1:]
        if full:
            counts, ms = [*counts, int(name) * (1 + full)], [*ms, untrimmed]
    tokens = whole(counts, f"{where}: token_counts")
    seconds = step_seconds(np.array(ms) / 1e3, f"{where}: step_time_ms", "ms")
    verify = {**curve("tokens", tokens, seconds), "lookup": "ceil", "beyond": "clamp"}
    provenance = imported(str(opened.path), "trtllm-exact-v2", "exact budgets only", notes, hints)
    provenance["host"] = fingerprint
    count = integer(fingerprint.get("gpu_count") or 1, f"{opened.path}: gpu_count", 1, 10**6)
    named = {"gpu": fingerprint.get("gpu"), "gpu_count": count, **hints}
    scheduler = _scheduler(opened.data, str(opened.path))
    return build(f"{opened.path.stem}-g{name}", verify, provenance, named, scheduler=scheduler)


def write_step_table(path: str | os.PathLike[str], parts: AdditiveParts, minimum_gain: float) -> None:
    """Write the step table; flat costs are refused, as TensorRT-LLM would refuse the file."""
    _refuse_flat(parts.verify, str(path))
    write_json(
        path,
        {
            "token_counts": [int(v) for v in parts.tokens],
            "step_time_ms": [float(v * 1e3) for v in parts.verify],
            "fixed_overhead_ms": parts.bias * 1e3,
            "batch_sizes": [int(v) for v in parts.requests],
            "batch_overhead_ms": [float(v * 1e3) for v in parts.overhead],
            "minimum_predicted_gain": minimum_gain,
        },
    )
