"""Numbers, grids and paragraphs of text answers."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any

WIDTH = 96
NOTHING = "-"


def count(value: Any) -> str:
    """A whole number with thousands separators; `-` for nothing."""
    return NOTHING if _missing(value) else f"{value:,.0f}"


def decimal(value: Any, digits: int = 1) -> str:
    """A number to `digits` places; `-` for nothing."""
    return NOTHING if _missing(value) else f"{value:,.{digits}f}"


def share(value: Any) -> str:
    """A fraction as a percentage; `-` for nothing."""
    return NOTHING if _missing(value) else f"{100 * value:.0f}%"


def interval(low_high: Any, show: Callable[[Any], str] = count) -> str:
    """`low ~ high`; `-` for nothing."""
    return NOTHING if low_high is None else f"{show(low_high[0])} ~ {show(low_high[1])}"


def _missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and not math.isfinite(value))


def grid(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column is flush left and the others flush right, as wide as their content.

    A header of two lines (`"tokens/s\\nper user"`) is set over the column's last line.
    """
    body = [list(map(str, row)) for row in rows]
    heads = [title.split("\n") for title in header]
    depth = max(map(len, heads))
    lines = [
        [head[i - depth + len(head)] if i >= depth - len(head) else "" for head in heads]
        for i in range(depth)
    ]
    widths = [max(len(line[c]) for line in lines + body) for c in range(len(header))]

    def show(cells: Sequence[str]) -> str:
        first = cells[0].ljust(widths[0])
        return "  ".join(
            [first, *(cell.rjust(w) for cell, w in zip(cells[1:], widths[1:], strict=True))]
        ).rstrip()

    rule = "  ".join("-" * width for width in widths)
    return "\n".join([*map(show, lines), rule, *map(show, body)])


def paragraph(text: str, label: str = "") -> str:
    """Wrapped text behind a label, its further lines indented."""
    return textwrap.fill(
        f"{label}{' '.join(str(text).split())}",
        WIDTH,
        subsequent_indent="  " if label else "",
        break_on_hyphens=False,
    )


def gaps(burstiness: float, recorded: bool) -> str:
    """How arrivals are spaced: drawn ones by their distribution, recorded ones by how varied they are."""
    if recorded:
        return f"recorded arrivals, gaps {burstiness:.2f} times as varied as Poisson's"
    if abs(burstiness - 1.0) < 0.15:
        return "Poisson gaps"
    return f"gaps {burstiness:.2f} times as varied as Poisson's"
