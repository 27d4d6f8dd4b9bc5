"""Columns of text files as arrays: CSV, JSON lines and flat Parquet in blocks, every bad cell named.

Cells are read as text and converted here, so that an error can say which row and column it is in.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import WorkloadError, plain, quoted
from ..files.reader import kind_of
from ..files.strict import parse_json

_BLOCK_BYTES = 8 << 20
MOST_LINE = 32 << 20  # bytes; a request's line has a hundred
MOST_TOKENS = 2**31 - 1  # of one request: the engine loop counts in 32 bits
LATEST = 1e11  # seconds: three thousand years; later arrivals are in another unit


class Layout(NamedTuple):
    """One public format: the names of its columns and the unit of its clock (date, or seconds per unit)."""

    name: str
    arrival: str
    seconds_per_unit: float | None
    prompt: str
    output: str
    lengths_required: bool


def open_bytes(file: Path) -> Any:
    return gzip.open(file, "rb") if file.name.lower().endswith(".gz") else open(file, "rb")


def csv_blocks(file: Path, layout: Layout, found: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Blocks of {role: array}; every cell is read as text, so that a bad one can be named."""
    import pyarrow as pa
    from pyarrow import csv as pacsv

    row = 0
    try:
        with open_bytes(file) as raw, pa.PythonFile(raw, mode="r") as stream:
            reader = pacsv.open_csv(
                stream,
                read_options=pacsv.ReadOptions(block_size=_BLOCK_BYTES, use_threads=False),
                convert_options=pacsv.ConvertOptions(
                    include_columns=list(found.values()),
                    column_types={name: pa.string() for name in found.values()},
                ),
            )
            for batch in reader:
                text = {role: batch.column(i) for i, role in enumerate(found)}
                yield _parse(file, layout, found, text, row)
                row += batch.num_rows
    except pa.ArrowInvalid as e:
        raise WorkloadError(
            f"{file}: {plain(str(e).splitlines()[0], 120)}; every row needs the header's columns"
        ) from None
    except (OSError, EOFError) as e:
        raise WorkloadError(f"cannot read {file}: {e}; is it complete?") from None


def json_list(file: Path) -> tuple[list[str], list[bytes]]:
    """(columns, the rows as JSON lines in blocks) of a file that is one JSON list of objects."""
    try:
        with open_bytes(file) as stream:
            text = stream.read().decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError) as e:
        raise WorkloadError(f"cannot read {file}: {e}; is it complete?") from None
    rows = parse_json(text, str(file), WorkloadError, finite=False)
    if not isinstance(rows, list) or not rows:
        raise WorkloadError(f"{file} holds an empty list; nothing to serve")
    for at, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise WorkloadError(
                f"{file}, row {at}: is {type(row).__name__}, not an object; write a list of objects"
            )
    lines = [
        b"\n".join(json.dumps(r).encode() for r in rows[i : i + 50_000]) for i in range(0, len(rows), 50_000)
    ]
    return list(rows[0]), lines


def json_blocks(
    file: Path, layout: Layout, found: dict[str, str], lines: list[bytes] | None = None
) -> Iterator[dict[str, Any]]:
    """Blocks of {role: array} of JSON lines: those of the file, or `lines` in blocks of their own."""
    import pyarrow as pa
    from pyarrow import json as pajson

    kinds = {role: pa.string() if role == "domain" else pa.float64() for role in found}
    schema = pa.schema([(name, kinds[role]) for role, name in found.items()])
    row = 0
    for chunk in lines if lines is not None else _whole_lines(file):
        try:
            table = pajson.read_json(
                pa.BufferReader(chunk),
                read_options=pajson.ReadOptions(use_threads=False, block_size=len(chunk) + 1),
                parse_options=pajson.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
            )
        except pa.ArrowInvalid as e:
            raise WorkloadError(f"{file}, {_bad_json(chunk, row, found, str(e))}") from None
        cells = {role: table.column(name).combine_chunks() for role, name in found.items()}
        for role, values in cells.items():
            if values.null_count:
                at = row + values.is_null().to_pylist().index(True) + 1
                raise WorkloadError(f"{file}, row {at}: {found[role]} is missing; every row needs one")
        yield _parse(file, layout, found, cells, row)
        row += table.num_rows


def _whole_lines(file: Path) -> Iterator[bytes]:
    rest = b""
    try:
        with open_bytes(file) as stream:
            while block := stream.read(_BLOCK_BYTES):
                head, newline, tail = (rest + block).rpartition(b"\n")
                if newline:
                    if head.strip():
                        yield head + newline
                    rest = tail
                else:
                    rest = tail
                if len(rest) > MOST_LINE:
                    raise _whole_lines_too_long(file)
    except (OSError, EOFError) as e:
        raise WorkloadError(f"cannot read {file}: {e}; is it complete?") from None
    if rest.strip():
        yield rest


def _bad_json(chunk: bytes, row: int, found: dict[str, str], otherwise: str) -> str:
    """The first line of a chunk that is not an object with numbers in the columns we read."""
    lines = (line for line in chunk.split(b"\n") if line.strip())
    for at, line in enumerate(lines, start=row + 1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as e:
            return f"row {at}: is no JSON object ({plain(str(e), 80)}); the file may be cut short"
        if not isinstance(record, dict):
            return f"row {at}: is {kind_of(record)}, not an object; write one object per line"
        for role, name in found.items():
            value = record.get(name)
            wanted = str if role == "domain" else (int, float)
            if not isinstance(value, wanted) or isinstance(value, bool):
                return f"row {at}: {name} {quoted(value)} is no {'text' if role == 'domain' else 'number'}"
    return f"rows from {row + 1}: {plain(otherwise.splitlines()[0], 120)}"


def _parse(
    file: Path, layout: Layout, found: dict[str, str], cells: dict[str, Any], row: int
) -> dict[str, Any]:
    """Arrow columns of one block as {role: numpy array}; `row` rows came before this block."""
    import pyarrow as pa

    block: dict[str, Any] = {}
    for role, column in cells.items():
        name = found[role]
        if role == "domain":
            encoded = column.dictionary_encode()
            names = [value.strip() for value in encoded.dictionary.to_pylist()]
            block[role] = (encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), names)
        elif role == "arrival" and layout.seconds_per_unit is None:
            if not pa.types.is_string(column.type):
                raise WorkloadError(
                    f"{file}, row {row + 1}: {name} is not a date such as 2023-11-16 18:17:03.97"
                )
            block[role] = _dates(file, name, column, row)
        else:
            values = _numbers(file, name, column, row, whole=role != "arrival")
            refuse(file, name, row, values, values < 0, "is negative")
            block[role] = values
    return block


def _numbers(file: Path, name: str, column: Any, row: int, whole: bool) -> NDArray[Any]:
    import pyarrow as pa
    import pyarrow.compute as pc

    values = None
    if pa.types.is_string(column.type):
        column = pc.utf8_trim_whitespace(column)
        try:
            values = column.cast(pa.int64() if whole else pa.float64()).to_numpy(zero_copy_only=False)
        except pa.ArrowInvalid:
            column = _floats(file, name, column, row)
    if values is None:
        values = np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float64)
    if not whole:
        refuse(file, name, row, values, ~np.isfinite(values), "is not a finite time")
    elif values.dtype != np.int64:
        refuse(file, name, row, values, ~(np.abs(values) < 2**53), "is not a token count")
        refuse(file, name, row, values, values != np.floor(values), "is not a whole number of tokens")
        values = values.astype(np.int64)
    if whole:
        why = f"is not a token count: more than the {MOST_TOKENS} of 32 bits"
        refuse(file, name, row, values, values > MOST_TOKENS, why)
    return values


def _floats(file: Path, name: str, column: Any, row: int) -> Any:
    """Text that is not all whole numbers, as floats; names the first cell that is not a number at all."""
    import pyarrow as pa

    try:
        return column.cast(pa.float64())
    except pa.ArrowInvalid:
        cells = column.to_pylist()
        bad = next((i for i, text in enumerate(cells) if not _is_number(text)), 0)
        raise WorkloadError(
            f"{file}, row {row + bad + 1}: {name} {quoted(cells[bad])} is not a number"
        ) from None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text.isascii() and "_" not in text


def _dates(file: Path, name: str, column: Any, row: int) -> NDArray[np.int64]:
    """Nanoseconds since 1970 of ISO 8601 dates, with a zone (2024 trace) or without (2023)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = pc.utf8_trim_whitespace(column)
    for zone in (None, "UTC"):
        try:
            moments = column.cast(pa.timestamp("ns", tz=zone)).cast(pa.int64())
            return np.asarray(moments.to_numpy(zero_copy_only=False), np.int64)
        except pa.ArrowInvalid:
            continue
    cells = column.to_pylist()
    zone = "UTC" if cells[0][-6:-5] in ("+", "-") or cells[0].endswith("Z") else None
    for at, text in enumerate(cells, start=row + 1):
        try:
            pa.scalar(text).cast(pa.timestamp("ns", tz=zone))
        except pa.ArrowInvalid:
            raise WorkloadError(
                f"{file}, row {at}: {name} {quoted(text)} is not a date such as 2023-11-16 18:17:03.97 "
                "(all with a zone, or all without)"
            ) from None
    raise AssertionError("a date refused in bulk was accepted alone")


def refuse(file: Path, name: str, row: int, values: NDArray[Any], bad: NDArray[np.bool_], why: str) -> None:
    if bad.any():
        at = int(np.argmax(bad))
        raise WorkloadError(f"{file}, row {row + at + 1}: {name} {values[at]} {why}")


def _whole_lines_too_long(file: Path) -> WorkloadError:
    return WorkloadError(f"{file}: a line of more than {MOST_LINE >> 20} MB; is it one request a line?")


def parquet_blocks(file: Path, parquet: Any, layout: Layout) -> Iterator[dict[str, Any]]:
    import pyarrow as pa

    found = {
        role: name
        for role, name in (
            ("arrival", "arrival_seconds"),
            ("prompt", "prompt_tokens"),
            ("output", "output_tokens"),
            ("domain", "domain"),
        )
        if name in parquet.schema_arrow.names
    }
    row = 0
    for batch in parquet.iter_batches(columns=list(found.values())):
        cells = {}
        for role, name in found.items():
            column = batch.column(name)
            if column.null_count:
                at = row + column.is_null().to_pylist().index(True) + 1
                raise WorkloadError(f"{file}, row {at}: {name} is missing; every row needs one")
            cells[role] = column.cast(pa.string() if role == "domain" else pa.float64())
        yield _parse(file, layout, found, cells, row)
        row += batch.num_rows
