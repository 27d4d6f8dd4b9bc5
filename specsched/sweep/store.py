"""Results of a sweep on disk: a Parquet dataset that grows by whole files.

    OUT/parts/part-*.parquet   rows as they finish; each file appears at once or not at all
    OUT/results.parquet        every row, in the order of the grid: the same bytes however many workers ran

A row is a point's columns, `status` (done, failed: the point itself is wrong, lost: its worker died),
`error`, `warnings`, and the summary of its run, flattened (`tps_user_p05`, `intervals_throughput_low`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..errors import WorkloadError
from ..files.disk import atomic_write

Row = dict[str, Any]


class Store:
    """The dataset of one sweep. `add` keeps rows back for a moment, so that files do not become countless."""

    def __init__(self, folder: Path, patience: float = 1.0) -> None:
        self.folder = folder
        self.parts = folder / "parts"
        self.patience = patience
        self._kept: list[Row] = []
        self._begun = self._flushed = time.monotonic()
        self._written = 0

    def rows(self) -> dict[str, Row]:
        """Rows already on disk by key; a later row of the same point replaces an earlier one."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        found: list[tuple[int, str, Row]] = []
        for part in self.parts.glob("part-*.parquet"):
            try:
                table = pq.read_table(part, use_threads=False)
            except (pa.ArrowInvalid, OSError) as e:
                what = str(e).splitlines()[0]
                raise WorkloadError(
                    f"{part} is broken ({what}); delete it, and its points run again"
                ) from None
            stamp = int(part.stem.rpartition("-")[2], 16) if part.stem.count("-") == 2 else 0
            found += [(stamp, part.name, row) for row in table.to_pylist()]
        found.sort(key=lambda entry: entry[:2])
        return {row["key"]: row for _, _, row in found}

    def add(self, row: Row) -> None:
        """Record a row; it is on disk within `patience` seconds, or a hundredth of the sweep's age."""
        self._kept.append(row)
        now = time.monotonic()
        if now - self._flushed >= max(self.patience, 0.01 * (now - self._begun)):
            self.flush()

    def flush(self) -> None:
        """Write what is kept back as one part."""
        if self._kept:
            name = f"part-{os.getpid()}-{time.time_ns():016x}.parquet"
            write_rows(self.parts / name, self._kept)
            self._kept = []
        self._flushed = time.monotonic()

    def finish(self, rows: Iterable[Row]) -> Path:
        """Write `results.parquet` from rows in the order given."""
        path = self.folder / "results.parquet"
        write_rows(path, list(rows))
        return path


def write_rows(path: Path, rows: list[Row]) -> None:
    """Rows as Parquet, atomically; columns in the order in which they first appear, missing values null."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: _column([row.get(name) for row in rows]) for name in names}
    with atomic_write(path, "wb") as stream:
        pq.write_table(pa.table(columns), stream, compression="zstd")


def _column(values: list[Any]) -> Any:
    """An Arrow column: whole numbers and fractions together become fractions, anything else mixed is text."""
    import pyarrow as pa

    kinds = {type(v) for v in values if v is not None}
    if kinds == {int, float}:
        return pa.array([None if v is None else float(v) for v in values], pa.float64())
    if len(kinds) > 1:
        return pa.array([None if v is None else str(v) for v in values], pa.string())
    if kinds == {list}:
        return pa.array(values, pa.list_(pa.string()))
    return pa.array(values)


def flatten(summary: dict[str, Any], prefix: str = "") -> Row:
    """Nested figures as columns: `tps_user_p05`; a pair becomes `_low` and `_high`."""
    row: Row = {}
    for name, value in summary.items():
        if isinstance(value, dict):
            row |= flatten(value, f"{prefix}{name}_")
        elif isinstance(value, list | tuple) and len(value) == 2:
            row[f"{prefix}{name}_low"], row[f"{prefix}{name}_high"] = map(float, value)
        else:
            row[f"{prefix}{name}"] = value.item() if hasattr(value, "item") else value
    return row
