"""doublewordai/inference-lab: step tables (CSV) and calibration banks (two Parquet files joined on the
round).

In its step table `num_draft_tokens` is the verify width of one request, the anchor included: 1 is plain
decode.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..errors import FormatError
from ..files.guard import reading
from ..files.reader import kind_of
from ..profile import StepProfile
from ..trace import Trace
from .acceptance import Acceptance, from_histogram
from .document import Hints, build, curve, imported
from .fit import additive
from .opened import Opened, open_file
from .rows import RowBuilder
from .values import numbers, step_seconds, whole

STEP_TABLE = frozenset({"batch_size", "num_draft_tokens", "step_seconds"})
ROUND = ("model", "speculator", "config", "category", "prompt_idx", "turn", "round_idx")
BANK = frozenset({*ROUND, "accept", "acc0"})
SCORES = frozenset({*ROUND, "conf0"})


def read_step_table(opened: Opened, hints: Hints) -> tuple[StepProfile, list[str]]:
    """`batch_size, num_draft_tokens, step_seconds`: B = batch · width, fitted as overhead(R) + verify(B)."""
    where = str(opened.path)
    requests = whole(opened.data["batch_size"], f"{where}: batch_size", rising=False)
    width = whole(opened.data["num_draft_tokens"], f"{where}: num_draft_tokens", rising=False)
    seconds = numbers(opened.data["step_seconds"], f"{where}: step_seconds")
    step_seconds(seconds, f"{where}: step_seconds")
    fit = additive(requests, requests * width, seconds)
    if len(fit.tokens) < 2:
        raise FormatError(f"{where}: one token batch size only; measure a grid of batch sizes and widths")
    notes = [
        "num_draft_tokens counts the anchor (1 is plain decode).",
        "The owner reads the nearest batch size at the exact width; here the grid is fitted as overhead(R) + "
        "verify(B), "
        "linear between points.",
    ]
    verify = {**curve("tokens", fit.tokens, fit.theta), "lookup": "linear", "beyond": "clamp"}
    samples = [
        {"requests": int(r), "tokens": int(r * w), "seconds": float(s)}
        for r, w, s in zip(requests, width, seconds, strict=True)
    ]
    profile = build(
        opened.path.stem,
        verify,
        imported(where, "inference-lab-steps", "nearest batch size, exact width", notes, hints),
        hints,
        overhead=curve("requests", fit.requests, fit.overhead) if len(fit.requests) > 1 else None,
        fit=fit.report(),
        samples=samples,
    )
    return profile, notes


def read_bank(opened: Opened, hints: Hints) -> tuple[Trace | Acceptance, list[str]]:
    """`acceptance.parquet`, with `speculator.parquet` beside it (or the hint `scores`) a sequential trace,
    else per-position acceptance. Several models, speculators or configs need a hint `select`, a dict of those
    columns."""
    rows = _select(opened, hints)
    depth = sum(1 for name in opened.keys if name.startswith("acc") and name[3:].isdigit())
    order = sorted(range(len(rows["accept"])), key=lambda i: tuple(_sortable(rows[c][i]) for c in ROUND))
    accepted = whole_or_zero(rows["accept"], f"{opened.path}: accept", depth)
    _check_flags(rows, accepted, depth, opened)
    scores_path = hints.get("scores") or opened.path.with_name("speculator.parquet")
    if not Path(scores_path).is_file():
        counts = np.bincount(accepted, minlength=depth + 1)
        notes = ["No speculator.parquet beside it: acceptance by position, without confidences."]
        return from_histogram(counts, _undrafted(rows, depth), "inference-lab", tuple(notes)), notes
    with reading(scores_path, FormatError):
        scores = _scores(open_file(scores_path), depth)
    builder = RowBuilder(depth)
    for i in order:
        key = tuple(rows[c][i] for c in ROUND)
        if key not in scores:
            raise FormatError(f"{scores_path}: no scores for round {dict(zip(ROUND, key, strict=True))}")
        name = "/".join(str(v) for v in key[:-1])
        builder.add(name, scores[key], int(accepted[i]), None, str(opened.path), str(rows["category"][i]))
    notes = ["Scores are the drafted token's own probability: adaptive policies on them are not lossless."]
    metadata = {
        "drafter": _only(rows["speculator"]),
        "target": _only(rows["model"]),
        "confidence_sees_token": True,
        "provenance": {"source": str(opened.path), "format": "inference-lab bank"},
    }
    return builder.trace(metadata, [], hints, str(opened.path)), notes


def read_scores_alone(opened: Opened, hints: Hints) -> tuple[Trace, list[str]]:
    """`speculator.parquet` says nothing of acceptance: always a `FormatError` that names the other file."""
    raise FormatError(
        f"{opened.path} holds scores without acceptances; convert the acceptance.parquet beside it"
    )


def _select(opened: Opened, hints: Hints) -> dict[str, list[Any]]:
    rows = opened.table()
    _refuse_nested(rows, opened)
    chosen = dict(hints.get("select") or {})
    keep = [i for i in range(len(rows["accept"])) if all(rows[c][i] == v for c, v in chosen.items())]
    rows = {name: [values[i] for i in keep] for name, values in rows.items()}
    if not keep:
        raise FormatError(f"{opened.path}: no rounds" + (f" with {chosen}" if chosen else ""))
    for column in ("model", "speculator", "config"):
        values = sorted({str(v) for v in rows[column]})
        if len(values) > 1:
            raise FormatError(
                f"{opened.path}: several values of {column} ({', '.join(values[:6])}); a trace has one: "
                f"give select={{'{column}': ...}}"
            )
    return rows


def _refuse_nested(table: dict[str, list[Any]], opened: Opened) -> None:
    """The columns that name a round must hold texts and numbers."""
    for column in ROUND:
        for i, value in enumerate(table[column]):
            if value is not None and not isinstance(value, str | int | float):
                raise FormatError(
                    f"{opened.path}, row {i + 1}: {column} is {kind_of(value)}; it must be a text or a number"
                )


def _sortable(value: Any) -> tuple[int, Any]:
    return (0, value) if isinstance(value, int | float) else (1, str(value))


def _only(values: list[Any]) -> str:
    return str(values[0])


def whole_or_zero(values: list[Any], where: str, most: int) -> np.ndarray:
    """int64[n] counts in 0..most; raises `FormatError` with the row."""
    out = numbers(values, where, positive=False)
    bad = np.flatnonzero((out != np.floor(out)) | (out > most))
    if bad.size:
        raise FormatError(f"{where}, row {bad[0] + 1}: {values[bad[0]]!r} is not a count in 0..{most}")
    return out.astype(np.int64)


def _check_flags(rows: dict[str, list[Any]], accepted: np.ndarray, depth: int, opened: Opened) -> None:
    """`accept` must be the run of ones at the front of acc0, acc1, ...: else it counts the bonus, or
    something else.
    """
    for i, count in enumerate(accepted):
        run = 0
        while run < depth and rows[f"acc{run}"][i] == 1:
            run += 1
        if run != count:
            raise FormatError(
                f"{opened.path}, row {i + 1}: accept is {count}, but acc0.. begins with {run} ones; accept "
                "must not "
                "count the bonus token"
            )


def _undrafted(rows: dict[str, list[Any]], depth: int) -> bool:
    """True when some position was never drafted although all before it were accepted."""
    return any(
        rows[f"acc{k}"][i] is None and all(rows[f"acc{j}"][i] == 1 for j in range(k))
        for i in range(len(rows["accept"]))
        for k in range(depth)
    )


def _scores(opened: Opened, depth: int) -> dict[tuple[Any, ...], list[float | None]]:
    if not opened.keys >= SCORES:
        raise FormatError(
            f"{opened.path}: no score bank; expected {', '.join(sorted(SCORES))}, seen {opened.seen}"
        )
    table = opened.table()
    _refuse_nested(table, opened)
    names = [f"conf{k}" for k in range(depth) if f"conf{k}" in table]
    return {
        tuple(table[c][i] for c in ROUND): [table[name][i] for name in names]
        for i in range(len(table["round_idx"]))
    }
