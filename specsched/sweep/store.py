"""Results of a sweep on disk: a Parquet dataset that grows by whole files.

    OUT/parts/part-*.parquet   rows as they finish; each file appears at once or not at all, and its name
                               holds the checksum of its bytes: a damaged one is told, its points run again
    OUT/lock                   held by the sweep that writes here: a second one is refused
    OUT/results.parquet        every row, in the order of the grid: the same bytes however many workers ran

A row is a point's columns, `status` (done, failed: the point itself is wrong, lost: its worker died),
`error`, `warnings`, and the summary of its run, flattened (`tps_user_p05`, `intervals_throughput_low`).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import os
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ..errors import WorkloadError
from ..files.guard import reading
from ..files.output import atomic_write
from ..files.parquet import read_parquet

Row = dict[str, Any]
# part-PID-TIME(-CHECKSUM).parquet: parts of earlier versions have no checksum.
_NAME = re.compile(r"part-\d+-(?P<time>[0-9a-f]{2,16})(?:-(?P<checksum>[0-9a-f]{32}))?\.parquet")


class Store:
    """The dataset of one sweep. `add` keeps rows back for a moment, so that files do not become countless."""

    def __init__(self, folder: Path, patience: float = 1.0) -> None:
        self.folder = folder
        self.parts = folder / "parts"
        self.patience = patience
        self.warnings: list[str] = []
        self._kept: list[Row] = []
        self._begun = self._flushed = time.monotonic()
        self._written = 0

    def refuse_inputs(self, inputs: Iterable[Path]) -> None:
        """Raise WorkloadError where a file that the sweep reads stands where it would write."""
        written = [self.folder / "results.parquet", self.folder / "lock", *self.parts.glob("*")]
        for given in inputs:
            for path in written:
                if path.exists() and given.exists() and path.samefile(given):
                    raise WorkloadError(f"{given} is the input; give another --out")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for this process; raises WorkloadError while another sweep does.

        The lock goes with the process that holds it, however that ends.
        """
        path = self.folder / "lock"
        self._refuse_foreign(path)
        try:
            self.parts.mkdir(parents=True, exist_ok=True)
            stream = path.open("a+")
        except OSError as e:
            raise WorkloadError(f"cannot write {path}: {e.strerror or e}; choose another --out") from None
        with stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                stream.seek(0)
                holder = stream.read(200).strip() or "unknown"
                raise WorkloadError(
                    f"another sweep ({holder}) is writing to {self.folder}; wait for it or give another --out"
                ) from None
            except OSError:  # a file system without locks: nothing can be told apart there
                yield
                return
            stream.truncate(0)
            stream.write(f"process {os.getpid()} on {os.uname().nodename}\n")
            stream.flush()
            yield

    def _refuse_foreign(self, lock: Path) -> None:
        """Leave what another made under the names of a sweep's files."""
        for name in (self.folder, self.parts):
            if name.exists() and not name.is_dir():
                raise WorkloadError(f"{name} is a file; give another --out")
        results = self.folder / "results.parquet"
        if results.exists() and not lock.exists() and not any(self.parts.glob("part-*.parquet")):
            raise WorkloadError(f"{results} is not of a sweep and would be lost; give another --out")
        if lock.exists() and (not lock.is_file() or lock.stat().st_size > 400):
            raise WorkloadError(f"{lock} is not the lock of a sweep; give another --out")
        if lock.exists() and lock.stat().st_size and not lock.read_bytes().startswith(b"process "):
            raise WorkloadError(f"{lock} is not the lock of a sweep; give another --out")

    def rows(self) -> dict[str, Row]:
        """Rows already on disk by key; a later row of the same point replaces an earlier one.

        A part whose bytes are not those that were written is set aside, and `warnings` say so.
        """
        found: list[tuple[int, str, Row]] = []
        for part in sorted(self.parts.glob("part-*.parquet")):
            name = _NAME.fullmatch(part.name)
            if name is None:
                raise WorkloadError(f"{part} is not a part of a sweep; move it elsewhere")
            raw = part.read_bytes()
            if name["checksum"] is not None and _checksum(raw) != name["checksum"]:
                part.rename(part.with_suffix(".damaged"))
                self.warnings.append(
                    f"{part} is damaged (its checksum differs): set aside as {part.stem}.damaged, its points "
                    "run again"
                )
                continue
            found += [(int(name["time"], 16), part.name, row) for row in _table(part)]
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
            raw = _as_parquet(self._kept)
            name = f"part-{os.getpid()}-{time.time_ns():016x}-{_checksum(raw)}.parquet"
            with atomic_write(self.parts / name, "wb", own=True) as stream:
                stream.write(raw)
            self._kept = []
        self._flushed = time.monotonic()

    def finish(self, rows: Iterable[Row]) -> Path:
        """Write `results.parquet` from rows in the order given."""
        path = self.folder / "results.parquet"
        write_rows(path, list(rows))
        return path


def _checksum(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()[:32]


def _table(part: Path) -> list[Row]:
    try:
        with reading(part, WorkloadError, "part of a sweep"):
            rows: list[Row] = read_parquet(part, WorkloadError).to_pylist()
    except WorkloadError as e:
        raise WorkloadError(f"{e}, or delete it, and its points run again") from None
    if any(not isinstance(row.get("key"), str) or "status" not in row for row in rows):
        raise WorkloadError(f"{part} is not a part of a sweep (no columns key, status); move it elsewhere")
    return rows


def write_rows(path: Path, rows: list[Row]) -> None:
    """Rows as Parquet, atomically; columns in the order in which they first appear, missing values null."""
    with atomic_write(path, "wb", own=True) as stream:
        stream.write(_as_parquet(rows))


def _as_parquet(rows: list[Row]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: _column([row.get(name) for row in rows]) for name in names}
    stream = io.BytesIO()
    pq.write_table(pa.table(columns), stream, compression="zstd")
    return stream.getvalue()


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
