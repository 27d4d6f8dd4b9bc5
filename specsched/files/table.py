"""CSV as columns of text: one header, rows as long as it, comments apart."""

from __future__ import annotations

import csv
import io
import os

from ..errors import SpecschedError, quoted
from .guard import reading


def read_columns(
    path: str | os.PathLike[str], text: str, error: type[SpecschedError]
) -> dict[str, list[str]]:
    """{name: cells, stripped} of a CSV's text, in the order of its header; {} where it has no line.

    Blank lines and those that begin with # are left out. `error` is raised, naming `path` and the row, where
    quotes do not match, a name stands twice, or a row is longer or shorter than the header.
    """
    body = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    with reading(path, error, "CSV"):
        rows = list(csv.reader(io.StringIO("\n".join(body)), skipinitialspace=True))
    if not rows:
        return {}
    header = [name.strip() for name in rows[0]]
    if len(set(header)) != len(header):
        raise error(f"{path}: the header repeats a column ({quoted(', '.join(header), 120)}); rename one")
    for number, row in enumerate(rows[1:], 2):
        if len(row) != len(header):
            raise error(
                f"{path}, row {number}: {len(row)} field{'s' if len(row) != 1 else ''} where the header has "
                f"{len(header)}; truncated file?"
            )
    return {name: [row[i].strip() for row in rows[1:]] for i, name in enumerate(header)}
