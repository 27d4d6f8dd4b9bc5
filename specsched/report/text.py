"""Numbers, grids and paragraphs of text answers."""

from __future__ import annotations

import math
import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any

WIDTH = 96
NOTHING = "-"


def width() -> int:
    """Columns for text: those of the terminal that stdout goes to, at most WIDTH; WIDTH where it is none."""
    return min(WIDTH, _columns() or WIDTH)


def _columns() -> int | None:
    try:
        return max(os.get_terminal_size(sys.stdout.fileno()).columns, 40) if sys.stdout.isatty() else None
    except (AttributeError, OSError, ValueError):  # no stdout, a stream without a descriptor
        return None


def count(value: Any) -> str:
    """A whole number with thousands separators; `-` for nothing."""
    return NOTHING if _missing(value) else f"{value:,.0f}"


def decimal(value: Any, digits: int = 1) -> str:
    """A number to `digits` places; `-` for nothing."""
    return NOTHING if _missing(value) else f"{value:,.{digits}f}"


def share(value: Any) -> str:
    """A fraction as a percentage; `-` for nothing."""
    return NOTHING if _missing(value) else f"{100 * value:.0f}%"


def proved(lossless: bool | None) -> str:
    """Whether a policy is lossless, as a cell."""
    return "not proved" if lossless is None else "yes" if lossless else "NO"


def interval(low_high: Any, show: Callable[[Any], str] = count) -> str:
    """`low ~ high`; `-` for nothing."""
    return NOTHING if low_high is None else f"{show(low_high[0])} ~ {show(low_high[1])}"


def _missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and not math.isfinite(value))


def grid(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column is flush left and the others flush right, as wide as their content.

    A header of two lines (`"tokens/s\\nper user"`) is set over the column's last line. A table wider than the
    terminal goes on below itself, its first column repeated.
    """
    body = [list(map(str, row)) for row in rows]
    heads = [title.split("\n") for title in header]
    depth = max(map(len, heads))
    lines = [
        [head[i - depth + len(head)] if i >= depth - len(head) else "" for head in heads]
        for i in range(depth)
    ]
    widths = [max(len(line[c]) for line in lines + body) for c in range(len(header))]
    parts = [_part([lines, body], widths, columns) for columns in _fitting(widths, _columns())]
    return "\n\n".join(parts)


def _fitting(widths: Sequence[int], columns: int | None) -> list[list[int]]:
    """The columns of each part of a table; all in one where there is no terminal."""
    parts, used = [[0]], widths[0]
    for c, wide in enumerate(widths[1:], 1):
        if columns is not None and used + 2 + wide > columns and len(parts[-1]) > 1:
            parts.append([0])
            used = widths[0]
        parts[-1].append(c)
        used += 2 + wide
    return parts


def _part(blocks: list[list[list[str]]], widths: Sequence[int], columns: Sequence[int]) -> str:
    def show(cells: Sequence[str]) -> str:
        first, *others = columns
        return "  ".join(
            [cells[first].ljust(widths[first]), *(cells[c].rjust(widths[c]) for c in others)]
        ).rstrip()

    rule = "  ".join("-" * widths[c] for c in columns)
    return "\n".join([*map(show, blocks[0]), rule, *map(show, blocks[1])])


def paragraph(text: str, label: str = "") -> str:
    """Wrapped text behind a label, its further lines indented."""
    return textwrap.fill(
        f"{label}{' '.join(str(text).split())}",
        width(),
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
