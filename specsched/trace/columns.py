"""Columns of a trace file: from Arrow to plain numpy arrays, refusing what is not a number with its row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import TraceError
from ..files.parquet import plain_numbers
from ..files.reader import kind_of
from ..files.strict import parse_json

if TYPE_CHECKING:
    import pyarrow as pa


def metadata_of(table: pa.Table, where: str) -> dict[str, Any]:
    raw = (table.schema.metadata or {}).get(b"specsched")
    if raw is None and {"key", "status", "error"} <= set(table.column_names):
        raise TraceError(
            f"{where} is the result of a sweep, a row a point, no trace; any reader of Parquet opens it, and "
            "report.html beside it has its map"
        )
    if raw is None:
        raise TraceError(
            f"{where} is Parquet but no trace: its schema metadata has no `specsched` entry; "
            "if it is another tool's log, `specsched convert` reads it"
        )
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as e:
        raise TraceError(
            f"{where}: the `specsched` metadata is not UTF-8 (byte {e.start}); write the file again"
        ) from None
    metadata = parse_json(text, f"{where}: the `specsched` metadata", TraceError)
    if not isinstance(metadata, dict):
        raise TraceError(f"{where}: the `specsched` metadata must be a JSON object, got {kind_of(metadata)}")
    return metadata


def whole_numbers(values: Any, n: int, name: str, where: str) -> np.ndarray:
    """C-contiguous int64[n]; numbers that are not whole are refused with their row."""
    array = np.asarray(values)
    if array.dtype.kind not in "iuf":
        raise TraceError(f"{where}: {name} holds {array.dtype} values; it must hold whole numbers")
    if array.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            bad = ~(array == np.floor(array)) | ~np.isfinite(array)
        if bad.any():
            row = int(np.argmax(bad))
            raise TraceError(f"{where}, row {row}: {name} is {array[row]}; it must be a whole number")
    if array.dtype.kind in "uf":
        bad = np.abs(array) >= 2**53 if array.dtype.kind == "f" else array > 2**53
        if bad.any():
            row = int(np.argmax(bad))
            raise TraceError(f"{where}, row {row}: {name} is {array[row]}; it must be below 2**53")
    if array.shape != (n,):
        raise TraceError(f"{where}: {name} has shape {array.shape}; confidence_logit has {n} rows")
    return np.ascontiguousarray(array, dtype=np.int64)


def numbers(table: pa.Table, name: str, where: str) -> np.ndarray:
    import pyarrow as pa

    kind = table.schema.field(name).type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise TraceError(f"{where}: column {name} has type {kind}; it must hold numbers")
    return plain_numbers(table[name])


def logits(column: pa.ChunkedArray, where: str) -> np.ndarray:
    """float32[n, γ] from a list column; variable-size lists are taken when all have the same length."""
    import pyarrow as pa

    kind = column.type
    is_list = pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not is_list or not pa.types.is_floating(kind.value_type):
        raise TraceError(f"{where}: confidence_logit has type {kind}; expected a fixed-size list of float32")
    flat = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if pa.types.is_fixed_size_list(kind):
        gamma = kind.list_size
        values = flat.values.slice(flat.offset * gamma, len(flat) * gamma)
    else:
        sizes = flat.value_lengths().to_numpy(zero_copy_only=False)
        gamma = int(sizes[0]) if len(sizes) else 0
        if (sizes != gamma).any():
            row = int(np.argmax(sizes != gamma))
            raise TraceError(f"{where}, row {row}: {sizes[row]} confidences; the rows before it have {gamma}")
        values = flat.flatten()
    if values.null_count:
        row = int(np.argmax(values.is_null().to_numpy(zero_copy_only=False))) // max(gamma, 1)
        raise TraceError(
            f"{where}, row {row}: confidence_logit holds a null; every draft position needs a number"
        )
    array = plain_numbers(values).astype(np.float32, copy=False)
    return np.ascontiguousarray(array.reshape(len(flat), gamma))


def domains(column: pa.ChunkedArray, where: str) -> tuple[np.ndarray, tuple[str, ...]]:
    import pyarrow as pa

    kind = column.type
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (pa.types.is_string(value) or pa.types.is_large_string(value)):
        raise TraceError(f"{where}: domain has type {kind}; expected texts")
    encoded = (column if pa.types.is_dictionary(kind) else column.dictionary_encode()).unify_dictionaries()
    if not encoded.num_chunks:
        return np.zeros(0, np.int64), ()
    codes = np.concatenate([plain_numbers(c.indices) for c in encoded.chunks]).astype(np.int64)
    names = encoded.chunk(0).dictionary.to_pylist()
    if not all(isinstance(name, str) for name in names) or (len(codes) and not codes.min() >= 0):
        raise TraceError(f"{where}: domain holds a null; every row needs a text")
    return codes, tuple(names)
