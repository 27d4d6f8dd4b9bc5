"""Parquet read strictly: columns named once, values bounded, every damage told with the file's name."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import SpecschedError
from .footer import values_held
from .guard import reading

if TYPE_CHECKING:
    import pyarrow as pa

MOST_VALUES = 100_000_000  # of all columns together: 0.8 GB of 64-bit numbers
_MOST_PIPED = 1 << 30  # bytes of a pipe, which must be held whole


@contextmanager
def opened(
    path: str | os.PathLike[str], error: type[SpecschedError], most_values: int | None = None
) -> Iterator[Any]:
    """A `pyarrow.parquet.ParquetFile` of a file or pipe, of at most `most_values`; raises `error` naming it.

    The file is opened by Python: Arrow takes no name that is not UTF-8.
    """
    import pyarrow.parquet as pq

    with reading(path, error, "Parquet file"), open(path, "rb") as stream:
        source = stream if stream.seekable() else io.BytesIO(stream.read(_MOST_PIPED))
        parquet = pq.ParquetFile(source)
        if most_values is not None:
            values = max(values_held(source), parquet.metadata.num_rows)
            if values > most_values:
                raise error(
                    f"{path}: {values:,} values, more than the {most_values:,} that are read; give a part"
                )
        names = parquet.schema_arrow.names
        twice = next((name for name in names if names.count(name) > 1), None) if len(names) < 10_000 else "?"
        if twice is not None:
            raise error(f"{path}: column {twice!r} is there twice, or there are too many; rename or drop it")
        yield parquet


def read_parquet(
    path: str | os.PathLike[str],
    error: type[SpecschedError],
    columns: Sequence[str] | None = None,
    most_values: int = MOST_VALUES,
) -> pa.Table:
    """The table (its `columns` where given) of a Parquet file of at most `most_values` values."""
    with opened(path, error, most_values) as parquet:
        # No threads: files are small, and replays run in threads of their own.
        return parquet.read(columns=None if columns is None else list(columns), use_threads=False)


def plain_numbers(values: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """Integers or floats without nulls as a numpy array of their own type.

    Arrow's own way (`to_numpy`) imports pandas wherever that is installed, half a second of every command.
    """
    if hasattr(values, "chunks"):
        parts = [plain_numbers(chunk) for chunk in values.chunks]
        if len(parts) == 1:
            return parts[0]
        return np.concatenate([np.empty(0, values.type.to_pandas_dtype()), *parts])
    kind = np.dtype(values.type.to_pandas_dtype())
    data = values.buffers()[1]
    if len(values) == 0 or data is None:
        return np.empty(0, kind)
    return np.frombuffer(data, kind, len(values), values.offset * kind.itemsize)
