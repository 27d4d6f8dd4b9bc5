"""What SGLang keeps of acceptance: `meta_info` of responses, and the lines of `bench_serving`."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import FormatError
from ..acceptance import Acceptance, from_histogram, from_mean_length
from ..document import Hints
from ..opened import Opened
from ..values import integer, number, numbers

HISTOGRAM = "spec_accept_histogram"
SERVING = frozenset({"backend", "accept_length"})


def meta(row: Any) -> dict[str, Any] | None:
    """The `meta_info` of one response if it says something of speculation, or None."""
    found = row.get("meta_info") if isinstance(row, dict) else None
    return found if isinstance(found, dict) and any(str(k).startswith("spec_") for k in found) else None


def is_meta(opened: Opened) -> bool:
    rows = opened.data if opened.syntax == "jsonl" else [opened.data] if opened.syntax == "json" else []
    return any(meta(row) for row in rows)


def read_meta(opened: Opened, hints: Hints) -> tuple[Acceptance, list[str]]:
    """Responses with `spec_accept_histogram` (entry j: steps that accepted j drafts), added up.

    Checked against each response's own counters. Raises FormatError where they disagree, or where a
    response has no histogram: its rates by position cannot be known.
    """
    where = str(opened.path)
    rows = opened.data if isinstance(opened.data, list) else [opened.data]
    total, count = np.zeros(2), 0
    for i, row in enumerate(rows, 1):
        found = meta(row)
        if found is None:
            continue
        at = f"{where}, row {i}"
        if found.get(HISTOGRAM) is None:
            raise FormatError(
                f"{at}: meta_info has no {HISTOGRAM}; without it only the mean length is known: give that as "
                "--acceptance length:MEAN:BLOCK"
            )
        counts = numbers(found[HISTOGRAM], f"{at}: {HISTOGRAM}", positive=False, at_least=2)
        accepted = float((counts * np.arange(len(counts))).sum())
        for key, value in (("spec_verify_ct", counts.sum()), ("spec_accept_token_num", accepted)):
            if found.get(key) is not None and integer(found[key], f"{at}: {key}") != value:
                raise FormatError(
                    f"{at}: {HISTOGRAM} gives {key} {value:.0f}, the row says {found[key]}; "
                    "the row contradicts itself"
                )
        if len(counts) > 129:
            raise FormatError(f"{at}: {len(counts)} entries in {HISTOGRAM}; no engine drafts that much")
        total = np.pad(total, (0, max(0, len(counts) - len(total))))
        total[: len(counts)] += counts
        count += 1
    notes = [f"{count} responses."]
    return from_histogram(total, False, "sglang-meta", tuple(notes)), notes


def read_serving(opened: Opened, hints: Hints) -> tuple[Acceptance, list[str]]:
    """`bench_serving` lines: they hold the mean accepted length alone, so the block size is a hint.

    Lines are weighted by their output tokens. Needs the hint `block_size`; the rates are then a stated
    shape of one parameter (`from_mean_length`), not measured by position.
    """
    where = str(opened.path)
    rows = opened.data if isinstance(opened.data, list) else [opened.data]
    steps = tokens = 0.0
    for i, row in enumerate(rows, 1):
        if row.get("accept_length") is None:
            continue
        length = number(row["accept_length"], f"{where}, row {i}: accept_length", 1.0)
        made = number(row.get("total_output_tokens") or 1, f"{where}, row {i}: total_output_tokens")
        steps, tokens = steps + made / length, tokens + made
    if steps <= 0:
        raise FormatError(f"{where}: accept_length is null: the run drafted nothing")
    length = tokens / steps
    if hints.get("block_size") is None:
        raise FormatError(
            f"{where}: bench_serving holds the mean length {length:.3g} alone, not the block size; give "
            f"--hint block_size=K, or --acceptance length:{length:.3g}:K"
        )
    found = from_mean_length(length, int(hints["block_size"]), "sglang-bench-serving", where)
    return found, list(found.notes)
