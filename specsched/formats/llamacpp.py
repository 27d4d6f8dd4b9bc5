"""llama.cpp's speculation dump (JSON lines): per drafted position the probability `p` and the label `acc`.

Two spellings are read: one object per step with its positions under `pos`, and one object per position with
`i`
(0 begins a new step). `p` is the draft's probability of the drafted token itself, so the trace is marked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..errors import FormatError
from ..trace import Trace
from .document import Hints
from .opened import Opened
from .rows import RowBuilder
from .values import integer, need, number, records


def recognise(opened: Opened) -> bool:
    rows = opened.data if opened.syntax == "jsonl" else [opened.data] if opened.syntax == "json" else []
    if not rows or not isinstance(rows[0], dict):
        return False
    return isinstance(rows[0].get("pos"), list) or {"p", "acc"} <= set(rows[0])


def read(opened: Opened, hints: Hints) -> tuple[Trace, list[str]]:
    """A sequential trace, one request per `seq` slot (slots are reused by llama.cpp: requests may be
    joined).
    """
    where = str(opened.path)
    rows = opened.data if isinstance(opened.data, list) else [opened.data]
    steps = list(_steps(rows, where))
    depth = max((len(scores) for _, scores, _ in steps), default=0)
    if not depth:
        raise FormatError(f"{where}: no drafted positions; dump a run with speculation on")
    builder, short = RowBuilder(depth), 0
    for name, scores, flags in steps:
        accepted = next((i for i, flag in enumerate(flags) if not flag), len(flags))
        if any(flags[accepted:]):
            raise FormatError(
                f"{where}: a position after a rejected one is accepted (seq {name}); not a chain"
            )
        short += accepted == len(flags) < depth
        builder.add(name, scores, accepted, None, where)
    notes = ["Scores are the drafted token's own probability: adaptive policies on them are not lossless."]
    slots = len({name for name, _, _ in steps})
    notes.append(
        f"The dump names slots, not requests: all requests of a slot are joined to one ({slots} in all), so "
        "lengths are those of slots."
    )
    warnings = []
    if short:
        warnings.append(
            f"Censored: {short} of {len(steps)} blocks stopped early (p_min) and were fully accepted; "
            "acceptance there is "
            "a lower bound."
        )
    metadata = {
        "confidence_sees_token": True,
        "censored_rows": short,
        "provenance": {"source": where, "format": "llama.cpp speculation dump"},
    }
    return builder.trace(metadata, warnings, hints, where), [*notes, *warnings]


def _steps(rows: list[dict[str, Any]], where: str) -> Iterator[tuple[str, list[float], list[bool]]]:
    """(request, scores, labels) of every step."""
    if "pos" in rows[0]:
        for line, row in enumerate(rows, 1):
            at = f"{where}, row {line}"
            yield str(row.get("seq", 0)), *_columns(records(row.get("pos") or [], f"{at}: pos"), at)
        return
    block: list[dict[str, Any]] = []
    for line, row in enumerate(rows, 1):
        if "i" not in row and "step" not in row:
            raise FormatError(
                f"{where}, row {line}: neither `i` nor `step`: nothing says where a block begins"
            )
        new = row["i"] == 0 if "i" in row else bool(block) and row["step"] != block[-1].get("step")
        if new and block:
            yield str(block[0].get("seq", 0)), *_columns(block, f"{where}, row {line}")
            block = []
        block.append(row)
    if block:
        yield str(block[0].get("seq", 0)), *_columns(block, where)


def _columns(positions: list[dict[str, Any]], where: str) -> tuple[list[float], list[bool]]:
    scores, flags = [], []
    for position in positions:
        scores.append(number(need(position, "p", where), f"{where}: p"))
        flag = need(position, "acc", where)
        flags.append(flag if isinstance(flag, bool) else bool(integer(flag, f"{where}: acc", 0, 1)))
    return scores, flags
