"""What a sweep did, as text: how much of the grid is done, what failed and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .text import count, decimal, grid, paragraph, share

_MOST_ROWS = 60
HEADS = {
    "throughput": "tokens/s",
    "tps_user_p50": "per user\np50",
    "tps_user_p05": "\np05",
    "emitted_per_step": "emitted\nper step",
    "share_at_sla": "at the\nSLA",
}

Row = Mapping[str, Any]


def sweep_text(summary: Row) -> str:
    """The summary `specsched/sweep/1` as text."""
    failed = summary["failed"]
    first = f"{headline(summary)[:-1]}; results: {summary['results']}"
    axes = [[name, ", ".join(map(str, values))] for name, values in summary["axes"].items()]
    blocks = [paragraph(first), grid(["axis", "values"], axes), *_table(summary.get("table") or [])]
    if failed:
        blocks.append(
            paragraph(f"{count(failed)} failed; the command again with --retry-failed repeats them:")
        )
        blocks += [paragraph(failure(row)) for row in summary["failures"]]
    blocks.append("\n".join(paragraph(text, "warning: ") for text in summary.get("warnings") or []))
    return "\n\n".join(block for block in blocks if block)


def headline(summary: Row) -> str:
    """How much of the grid is done, in a sentence."""
    points, failed = summary["points"], summary["failed"]
    return (
        f"{count(points - failed)} of {count(points)} points of {summary['name']} are done "
        f"({count(summary['already_done'])} before, {count(summary['ran'])} ran now)."
    )


def table_rows(rows: list[Row]) -> tuple[list[str], list[list[str]]]:
    """Header and cells: what varies, and the figures."""
    names = [name for name in rows[0] if name not in (*HEADS, "points", "done")]
    figures = [name for name in HEADS if any(name in row for row in rows)]
    body = []
    for row in rows:
        shown = [share(row.get(n)) if n == "share_at_sla" else decimal(row.get(n)) for n in figures]
        body.append([*(str(row[n]) for n in names), f"{row['done']} of {row['points']}", *shown])
    return [*names, "points\ndone", *(HEADS[n] for n in figures)], body


def _table(rows: list[Row]) -> list[str]:
    """The figures of every setting, the first of them where there are many."""
    if not rows:
        return []
    text = [grid(*table_rows(rows[:_MOST_ROWS]))]
    if len(rows) > _MOST_ROWS:
        text.append(f"{count(len(rows) - _MOST_ROWS)} more rows; all of them are in the results.")
    return text


def failure(row: Row) -> str:
    """One point that failed, and why."""
    at = f"{row['policy']} on {row['trace']}, {row['profile']}, {row['load']}, seed {row['seed']}"
    return f"{at}: {row['error']}"
