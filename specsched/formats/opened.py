"""One foreign file, opened once: what kind of text it is, what is in it, and how to say so in an error.

Readers of the owner modules get an `Opened`; they look at its keys or columns, never at the file's name,
because a name proves nothing about a table that people copy by hand.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import FormatError, plain
from ..files.guard import reading
from ..files.parquet import read_parquet
from ..files.reader import kind_of
from ..files.strict import parse_json, read_bytes
from ..files.table import read_columns
from ..files.yaml_text import is_yaml, parse_yaml

FloatArray = np.ndarray
_HEADER = re.compile(r"\s*[A-Za-z_][\w.:-]*\s*(,\s*[A-Za-z_][\w.:-]*\s*)+")
# A decode step of any engine on any GPU lies well inside this: outside, the unit is wrong.
MOST_VALUES = 10_000_000  # of a foreign table, which is read as Python objects
SHORTEST_STEP, LONGEST_STEP = 20e-6, 2.0


@dataclass(frozen=True)
class Opened:
    """A file's content by its syntax.

    `syntax`: "json", "yaml", "jsonl", "csv", "parquet" or "text". `data`: the parsed JSON or YAML value; a
    list of objects for jsonl; a dict of column name to list of strings for csv; nothing for parquet (see
    `columns`); the text itself for text. `keys`: top-level keys, keys common to all jsonl rows, or column
    names.
    """

    path: Path
    syntax: str
    data: Any
    keys: frozenset[str]
    metadata: dict[str, str] = field(default_factory=dict)
    comments: tuple[str, ...] = ()

    @property
    def seen(self) -> str:
        """What a person would be shown of the file: its syntax and its first keys."""
        names = [plain(name, 40) for name in sorted(self.keys)]
        shown = ", ".join(names[:12]) + (f", ... ({len(names)} in all)" if len(names) > 12 else "")
        what = {"csv": "columns", "parquet": "columns", "jsonl": "keys common to all rows"}.get(
            self.syntax, "keys"
        )
        return f"{self.syntax} with {what} {shown}" if names else f"{self.syntax} without any keys"

    def table(self, columns: Iterable[str] | None = None) -> dict[str, list[Any]]:
        """Columns of a Parquet file as Python lists (None where null); raises `FormatError` when broken."""
        chosen = None if columns is None else list(columns)
        with reading(self.path, FormatError, "Parquet file"):
            out: dict[str, list[Any]] = read_parquet(self.path, FormatError, chosen, MOST_VALUES).to_pydict()
        return out


def open_file(path: str | os.PathLike[str]) -> Opened:
    """Open a file by its content: Parquet by its magic bytes, then JSON, JSON lines, YAML, CSV, plain text.

    Raises `FormatError` when the file is missing, empty, or JSON or YAML that ends too early.
    """
    path = Path(path)
    raw = read_bytes(path, FormatError)
    if not raw.strip():
        raise FormatError(f"{path} is empty; write or fetch the file again")
    if raw[:4] == b"PAR1":
        return _open_parquet(path, raw)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FormatError(f"{path} is neither Parquet nor UTF-8 text (byte {error.start})") from None
    if text.lstrip()[0] in "{[":
        return _open_json(path, text)
    return _open_yaml(path, text) if is_yaml(text) else _open_lines(path, text)


def _open_parquet(path: Path, raw: bytes) -> Opened:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with reading(path, FormatError, "Parquet file"):
        schema = pq.read_schema(pa.BufferReader(raw))
        pairs = (schema.metadata or {}).items()
        metadata = {k.decode("utf-8", "replace"): v.decode("utf-8", "replace") for k, v in pairs}
        return Opened(path, "parquet", None, frozenset(schema.names), metadata)


def _open_json(path: Path, text: str) -> Opened:
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].lstrip().startswith("{") and _is_json(lines[0]):
        rows = []
        for number, line in enumerate(lines, 1):
            row = parse_json(line, f"{path}, row {number}", FormatError, finite=False)
            if not isinstance(row, dict):
                raise FormatError(f"{path}, row {number}: expected an object, found {kind_of(row)}")
            rows.append(row)
        return Opened(path, "jsonl", rows, frozenset(set.intersection(*(set(r) for r in rows))))
    data = parse_json(text, str(path), FormatError, finite=False)
    if isinstance(data, dict):
        return Opened(path, "json", data, frozenset(map(str, data)))
    if isinstance(data, list) and data and all(isinstance(row, dict) for row in data):
        # A list of objects reads like JSON lines.
        return Opened(path, "jsonl", data, frozenset(set.intersection(*(set(r) for r in data))))
    return Opened(path, "json", data, frozenset())


def _open_yaml(path: Path, text: str) -> Opened:
    data = parse_yaml(text, str(path), FormatError)
    return Opened(path, "yaml", data, frozenset(map(str, data)) if isinstance(data, dict) else frozenset())


def _is_json(line: str) -> bool:
    try:
        parse_json(line, "", FormatError, finite=False)
    except FormatError:
        return False
    return True


def _open_lines(path: Path, text: str) -> Opened:
    comments = tuple(line.strip() for line in text.splitlines() if line.startswith("#"))
    body = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    # Prose has commas too: a header is a row of bare names.
    if not body or not _HEADER.fullmatch(body[0].strip()):
        return Opened(path, "text", text, frozenset(), comments=comments)
    columns = read_columns(path, text, FormatError)
    return Opened(path, "csv", columns, frozenset(columns), comments=comments)
