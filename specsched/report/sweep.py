"""What a sweep did, as text: how much of the grid is done, what failed and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .text import count, grid, paragraph

Row = Mapping[str, Any]


def sweep_text(summary: Row) -> str:
    """The summary `specsched/sweep/1` as text."""
    points, failed = summary["points"], summary["failed"]
    first = (
        f"{count(points - failed)} of {count(points)} points of {summary['name']} are done "
        f"({count(summary['already_done'])} were, {count(summary['ran'])} ran now); results: "
        f"{summary['results']}"
    )
    axes = [[name, ", ".join(map(str, values))] for name, values in summary["axes"].items()]
    blocks = [paragraph(first), grid(["axis", "values"], axes)]
    if failed:
        blocks.append(
            paragraph(f"{count(failed)} failed; the command again with --retry-failed repeats them:")
        )
        blocks += [paragraph(_failure(row)) for row in summary["failures"]]
    blocks.append("\n".join(paragraph(text, "warning: ") for text in summary.get("warnings") or []))
    return "\n\n".join(block for block in blocks if block)


def _failure(row: Row) -> str:
    at = f"{row['policy']} on {row['trace']}, {row['profile']}, {row['load']}, seed {row['seed']}"
    return f"{at}: {row['error']}"
