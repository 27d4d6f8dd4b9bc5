"""AIPerf (NVIDIA): the summary of a run, and its records, a line a request.

`inter_token_latency` is a request's (latency - first token) / (tokens - 1), so its median is that of a user's
speed. The engine's counters of accepted drafts come with both, where the server sent them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import FormatError
from ..acceptance import Acceptance, from_histogram, whole_blocks
from ..document import Hints
from ..opened import Opened
from ..runs import Measured, Runs
from ..values import integer, mapping, number, numbers
from .figures import all_done, block, rate, same_unit, seconds, speed, value, whole

SUMMARY = frozenset({"request_throughput", "output_token_throughput"})
RECORDS = frozenset({"metadata", "metrics"})
POOLED, ACCEPTED = "pooled_spec_decode_acceptance_histogram", "spec_decode_acceptance"
_MIDDLE = ("p50", "avg")  # a derived metric has `avg` alone
_MOST = 129


def is_summary(opened: Opened) -> bool:
    """Whether it is `profile_export_aiperf.json`: metrics at the top, each with its unit."""
    if opened.syntax != "json" or not opened.keys >= SUMMARY:
        return False
    held = opened.data["output_token_throughput"]
    return isinstance(held, dict) and "unit" in held


def is_records(opened: Opened) -> bool:
    """Whether it is `profile_export.jsonl`."""
    rows = _rows(opened)
    return bool(rows) and opened.keys >= RECORDS and _is_record(rows[0])


def _is_record(row: Any) -> bool:
    about = row.get("metadata") if isinstance(row, dict) else None
    return isinstance(about, dict) and "request_start_ns" in about and "request_end_ns" in about


def _rows(opened: Opened) -> list[Any]:
    return [opened.data] if opened.syntax == "json" else opened.data if opened.syntax == "jsonl" else []


# -- the summary ---------------------------------------------------------------------------------------------


def read_summary(opened: Opened, hints: Hints) -> Runs:
    """One run; refused where it was cancelled or too many requests failed."""
    where, data = str(opened.path), opened.data
    if data.get("was_cancelled"):
        raise FormatError(f"{where}: the run was cancelled (was_cancelled); run the benchmark to its end")

    def metric(name: str) -> Mapping[str, Any] | None:
        return block(data, name, where=where)

    count = value(metric("request_count"), ("avg",), f"{where}: request_count")
    if count is None:
        raise FormatError(f"{where}: no request_count; the file was cut, or is of another version")
    failed = value(metric("error_request_count"), ("avg",), f"{where}: error_request_count")
    notes = all_done(round(count), round(failed or 0.0), where)
    gap = metric("inter_token_latency")
    output = value(metric("output_sequence_length"), ("avg",), f"{where}: output_sequence_length")
    same_unit(
        seconds(metric("request_latency"), ("avg",), f"{where}: request_latency"),
        seconds(metric("time_to_first_token"), ("avg",), f"{where}: time_to_first_token"),
        seconds(gap, ("avg",), f"{where}: inter_token_latency"),
        output,
        where,
    )
    users, more = _load(data.get("input_config"), where)
    found = _counted(data.get(POOLED), f"{where}: {POOLED}")
    run = Measured(
        source=opened.path.name,
        users=users,
        user=speed(seconds(gap, _MIDDLE, f"{where}: inter_token_latency")),
        total=rate(metric("output_token_throughput"), ("avg",), f"{where}: output_token_throughput"),
        prompt_tokens=whole(
            value(metric("input_sequence_length"), ("avg",), f"{where}: input_sequence_length")
        ),
        output_tokens=whole(output),
        prompts=round(count),
        conditional=None if found is None else tuple(found.conditional.tolist()),
        accept_length=None if found is None else found.mean_length,
        silent=found is None,
    )
    return Runs("AIPerf", (run,), tuple(notes + more))


def _load(config: Any, where: str) -> tuple[int | None, list[str]]:
    """(users at once, what is said of them) by the configuration in the file.

    Older versions keep it under `loadgen`, newer ones in `phases`, of which the measured one counts.
    """
    if not isinstance(config, Mapping):
        return None, []
    held = config.get("loadgen")
    if not isinstance(held, Mapping):
        phases = config.get("phases")
        named = (
            list(phases.values())
            if isinstance(phases, Mapping)
            else phases
            if isinstance(phases, list)
            else []
        )
        measured = [p for p in named if isinstance(p, Mapping) and "warm" not in str(p.get("name", ""))]
        if len(measured) != 1:
            return None, [f"{where}: {len(measured)} measured phases in it; which load it is of is not said."]
        held = measured[0]
    users = held.get("concurrency")
    paced = held.get("request_rate", held.get("rate"))
    said = []
    if paced not in (None, "inf") and not isinstance(paced, bool):
        said = [
            f"{where}: requests arrived at {paced} a second, so fewer than the maximum concurrency may "
            "have been "
            "served at once; runs without a rate say more."
        ]
    if isinstance(users, bool) or not isinstance(users, int | float):
        return None, said
    return integer(users, f"{where}: concurrency", 1), said


# -- records -------------------------------------------------------------------------------------------------


def read_records(opened: Opened, hints: Hints) -> Runs:
    """One run from its requests; warm-up is left out, and the load is the most requests at once."""
    where, rows = str(opened.path), _rows(opened)
    done, failed = [], 0
    for i, row in enumerate(rows, 1):
        if not _is_record(row):
            raise FormatError(f"{where}, row {i}: no request_start_ns and request_end_ns in metadata; cut?")
        about = row["metadata"]
        if "warm" in str(about.get("benchmark_phase", "")):
            continue
        if row.get("error") is not None or about.get("was_cancelled"):
            failed += 1
            continue
        done.append((i, row))
    notes = all_done(len(done), failed, where)
    spans = [_span(row["metadata"], f"{where}, row {i}") for i, row in done]
    begun, ended = np.array([s[0] for s in spans]), np.array([s[1] for s in spans])
    gaps, prompts, outputs = [], [], []
    for i, row in done:
        at, metrics = f"{where}, row {i}", mapping(row["metrics"], f"{where}, row {i}: metrics")
        outputs.append(_one(metrics, "output_sequence_length", at) or 0.0)
        prompts.append(_one(metrics, "input_sequence_length", at))
        gap = block(metrics, "inter_token_latency", where=at)
        if gap is not None:
            gaps.append(seconds(gap, ("value",), f"{at}: inter_token_latency"))
    took = float(ended.max() - begun.min()) * 1e-9
    if took <= 0.0 or not sum(outputs):
        raise FormatError(
            f"{where}: {len(done)} requests of {sum(outputs):.0f} tokens in {took:g} s; nothing to fit"
        )
    known = [p for p in prompts if p is not None]
    users = _most_at_once(begun, ended)
    found = _of_requests([row for _, row in done], where)
    run = Measured(
        source=opened.path.name,
        users=users,
        user=speed(float(np.median([g for g in gaps if g is not None]))) if gaps else None,
        total=sum(outputs) / took,
        prompt_tokens=whole(float(np.mean(known))) if known else None,
        output_tokens=whole(float(np.mean(outputs))),
        prompts=len(done),
        conditional=None if found is None else tuple(found.conditional.tolist()),
        accept_length=None if found is None else found.mean_length,
        silent=found is None,
    )
    notes.append(f"{where}: {users} users, the most requests at once in its {len(done)} records.")
    return Runs("AIPerf records", (run,), tuple(notes))


def _one(metrics: Mapping[str, Any], name: str, at: str) -> float | None:
    return value(block(metrics, name, where=at), ("value",), f"{at}: {name}")


def _span(about: Mapping[str, Any], at: str) -> tuple[int, int]:
    begun, ended = (
        integer(about[f"request_{end}_ns"], f"{at}: request_{end}_ns", most=2**63) for end in ("start", "end")
    )
    if ended < begun:
        raise FormatError(f"{at}: request_end_ns lies before request_start_ns; the clock was changed")
    return begun, ended


def _most_at_once(begun: np.ndarray, ended: np.ndarray) -> int:
    """The most intervals that overlap; one that ends as another begins is out of its place."""
    times = np.concatenate([begun, ended])
    change = np.concatenate([np.ones(len(begun), np.int64), -np.ones(len(ended), np.int64)])
    order = np.lexsort((change, times))
    return max(1, int(np.cumsum(change[order]).max()))


# -- accepted drafts -----------------------------------------------------------------------------------------


def has_acceptance(opened: Opened) -> bool:
    """Whether either of the two holds counters of accepted drafts."""
    if is_summary(opened):
        return opened.data.get(POOLED) is not None
    return is_records(opened) and any(
        row.get(ACCEPTED) is not None for row in _rows(opened) if isinstance(row, dict)
    )


def read_acceptance(opened: Opened, hints: Hints) -> tuple[Acceptance, list[str]]:
    """Rates by position: entry j of the histogram counts the steps that accepted exactly j drafts."""
    where = str(opened.path)
    found = (
        _counted(opened.data[POOLED], f"{where}: {POOLED}")
        if is_summary(opened)
        else _of_requests([row for row in _rows(opened) if isinstance(row, dict)], where)
    )
    assert found is not None
    return found, list(found.notes)


def _histogram(given: Any, at: str) -> np.ndarray:
    """float64[n]: entry j the steps that accepted j drafts; keys are numbers as texts."""
    held = mapping(given, at)
    keys = [str(key) for key in held]
    if not keys or not set(keys) <= {str(j) for j in range(_MOST)}:
        raise FormatError(f"{at}: its keys must be numbers of accepted drafts, 0 to {_MOST - 1}")
    counts = np.zeros(max(2, 1 + max(map(int, keys))))
    counts[[int(key) for key in keys]] = numbers(list(held.values()), at, positive=False)
    return counts


def _counted(given: Any, at: str) -> Acceptance | None:
    if given is None:
        return None
    counts = _histogram(given, at)
    notes = (f"{counts.sum():.0f} steps; whether drafts were trimmed is not in a summary: its records say.",)
    return from_histogram(counts, False, "aiperf", notes)


def _of_requests(rows: Sequence[Mapping[str, Any]], where: str) -> Acceptance | None:
    """The histograms of requests added up, checked against their own totals; None without any."""
    held = [(i, row[ACCEPTED]) for i, row in enumerate(rows, 1) if row.get(ACCEPTED) is not None]
    if not held:
        return None
    total, proposed, possible = np.zeros(2), 0.0, 0.0
    for i, given in held:
        at = f"{where}, row {i}: {ACCEPTED}"
        stats = mapping(given, at)
        counts = _histogram(stats.get("acceptance_histogram"), f"{at}.acceptance_histogram")
        _agrees(stats, counts, at)
        block_size = int(number(stats.get("num_spec_tokens") or 0, f"{at}.num_spec_tokens", most=_MOST - 2))
        drafts = number(stats.get("num_draft_tokens") or 0, f"{at}.num_draft_tokens")
        if block_size and drafts:
            proposed, possible = proposed + drafts, possible + counts.sum() * block_size
        size = max(len(counts), 1 + block_size, len(total))
        total = np.pad(total, (0, size - len(total))) + np.pad(counts, (0, size - len(counts)))
    note = whole_blocks(proposed, possible, where)
    return from_histogram(total, False, "aiperf", (f"{len(held)} requests.", *([note] if note else [])))


def _agrees(stats: Mapping[str, Any], counts: np.ndarray, at: str) -> None:
    accepted = float((counts * np.arange(len(counts))).sum())
    pairs: Iterable[tuple[str, float]] = (
        ("num_spec_steps", float(counts.sum())), ("num_accepted_draft_tokens", accepted),
    )  # fmt: skip
    for key, wanted in pairs:
        if stats.get(key) is not None and number(stats[key], f"{at}.{key}") != wanted:
            raise FormatError(
                f"{at}: its histogram gives {key} {wanted:.0f}, the row says {stats[key]}; it "
                "contradicts itself"
            )
