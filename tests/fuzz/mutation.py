"""Damage done to files: values of parsed documents, cells of Parquet tables, and bytes of any file.

Every function takes a `random.Random`; hypothesis gives one whose draws it controls and shrinks.
"""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

JUNK: list[Any] = [
    None, True, False, -1, 0, 1, 2, 127, 128, 255, 256, 65536, 2**31 - 1, 2**31, 2**32, 2**32 + 20, 2**63,
    10**30, 1e308, 1e15, 1e-320, -0.5, 3.5, -0.0, float("nan"), float("inf"), "", "x", "7", "\x00\x1b[31m",
    "é" * 300, "../../etc/passwd", "<script>alert(1)</script>", "=cmd|' /C calc'!A0", "$x^{", "{{ 7 * 7 }}",
    "\ud800", "line\nline", "\u202e\x9b", [], {}, [1, None], [[1]], {"a": 1}, ["x"] * 200, [0.5] * 300,
]  # fmt: skip
_BITS = [
    b"", b"\x00", b"\xff\xfe", b"\n", b"\r", b"\r\n", b",", b'"', b"{", b"}", b"[" * 3000, b"9" * 5000,
    b"nan", b"inf", b"1e999", b"-1", b"4294967316", b"1e15", b"\x1b]0;t\x07", b"\xef\xbb\xbf", b"=1+1",
    b"\x80\x04\x95", b"\xff\xff\xff\xff\xff\xff\xff\x7f",
]  # fmt: skip
_KEYS = ["x", "\x1b]0;t\x07", "k" * 400, "name", "../up"]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place of a parsed document that can be replaced or removed, its root first."""
    yield path
    children = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, child in children:
        yield from places(child, (*path, key))


def document(random: Random, whole: Any, times: int) -> Any:
    """A copy with `times` places replaced by junk, scaled, repeated, removed, or named again."""
    damaged = copy.deepcopy(whole)
    for _ in range(times):
        path = random.choice(list(places(damaged)))
        if not path:
            damaged = copy.deepcopy(random.choice(JUNK)) if random.randrange(10) == 0 else damaged
            continue
        holder = damaged
        for key in path[:-1]:
            holder = holder[key]
        key, what = path[-1], random.randrange(6)
        if what == 0:
            del holder[key]
        elif what == 1 and isinstance(holder, dict):
            holder[random.choice(_KEYS)] = holder.pop(key)
        elif what == 2 and isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        elif what == 3 and isinstance(holder[key], int | float) and abs(holder[key]) < 1e300:
            holder[key] = holder[key] * random.choice([-1, 0, 10, 1000, 1e9, 1e-9, 1.5]) + random.choice(
                [0, 1]
            )
        else:
            holder[key] = copy.deepcopy(random.choice(JUNK))
    return damaged


def damaged_bytes(random: Random, raw: bytes, times: int) -> bytes:
    """The bytes with `times` of them changed, cut, repeated or filled with something else."""
    for _ in range(times):
        at = random.randrange(max(len(raw), 1))
        what = random.randrange(5)
        if what == 0:
            raw = raw[:at]
        elif what == 1:
            raw = raw[:at] + bytes([random.randrange(256)]) + raw[at + 1 :]
        elif what == 2:
            raw = raw[:at] + random.choice(_BITS) + raw[at + random.randrange(5) :]
        elif what == 3:
            raw = raw[:at] + raw[at : at + random.randrange(1, 65)] * 2 + raw[at:]
        else:
            some = bytes(random.randrange(256) for _ in range(random.randrange(10)))
            raw = raw[:at] + some + raw[at + random.randrange(10) :]
    return raw


def _table(random: Random, raw: bytes, times: int) -> bytes:
    """A Parquet table with cells replaced, columns lost or of another type, or metadata damaged."""
    table = pq.read_table(io.BytesIO(raw))
    about = dict(table.schema.metadata or {})
    columns = {name: table[name].to_pylist() for name in table.column_names}
    for _ in range(times):
        what = random.randrange(6)
        name = random.choice(list(columns) or ["x"])
        if what == 0:
            columns.pop(name, None)
        elif what == 1:
            columns = {(random.choice(_KEYS) if key == name else key): one for key, one in columns.items()}
        elif what == 2 and about:
            key = random.choice(list(about))
            about[key] = json_of(random, about[key], 1)
        elif columns.get(name):
            cells = columns[name]
            for row in range(len(cells)) if what == 3 else [random.randrange(len(cells))]:
                cells[row] = copy.deepcopy(random.choice(JUNK[:28]) if what < 5 else random.choice(JUNK))
    arrays = {}
    for name, cells in columns.items():
        try:
            arrays[name] = pa.array(cells)
        except (pa.ArrowException, OverflowError, UnicodeError):
            arrays[name] = pa.array([None if cell is None else ascii(cell) for cell in cells])
    stream = io.BytesIO()
    pq.write_table(pa.table(arrays).replace_schema_metadata(about or None), stream)
    return stream.getvalue()


def _arrays(random: Random, raw: bytes, times: int) -> bytes:
    """A numpy archive with arrays lost, of another shape or type, or holding other numbers."""
    with np.load(io.BytesIO(raw)) as archive:
        arrays = {name: archive[name] for name in archive.files}
    for _ in range(times):
        name = random.choice(list(arrays) or ["x"])
        arrays |= {name: _array(random, arrays[name])} if name in arrays else {}
        if random.randrange(5) == 0:
            arrays.pop(name, None)
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def _array(random: Random, array: Any) -> Any:
    array, what = array.copy(), random.randrange(5)
    if what == 0:
        return array[: random.randrange(len(array) + 1)] if array.ndim else array
    if what == 1:
        return np.stack([array, array])
    if array.dtype.kind == "U":
        return array[:0]
    if what == 2 or array.dtype.kind not in "iuf" or not array.size:
        return array.astype(random.choice(["<U3", "f8", "i1", "?", "c16"]), casting="unsafe")
    with np.errstate(all="ignore"):
        junk = random.choice(
            [-1, 2**31 - 1, 1000, 0, -(2**31)] + [float("nan"), 1e38] * (array.dtype.kind == "f")
        )
        array.reshape(-1)[random.randrange(array.size) if what == 3 else slice(None)] = np.array(junk).astype(
            array.dtype
        )
    return array


def _npy(random: Random, raw: bytes) -> bytes:
    stream = io.BytesIO()
    np.save(stream, _array(random, np.load(io.BytesIO(raw))))
    return stream.getvalue()


def _tensors(random: Random, name: str, raw: bytes, times: int) -> bytes:
    """Tensors by name, or what torch saved, with entries replaced, lost, reshaped or of other numbers."""
    import torch
    from safetensors.torch import load, save

    if not name.endswith(".safetensors"):
        saved = document(random, torch.load(io.BytesIO(raw), weights_only=True), times)
        stream = io.BytesIO()
        torch.save(saved, stream)
        return stream.getvalue()
    tensors = load(raw)
    for _ in range(times):
        key = random.choice(list(tensors) or ["x"])
        tensor = tensors.pop(key, torch.zeros(2))
        change = random.choice([
            lambda t: t * 1e38, lambda t: t * float("nan"), lambda t: t.to(torch.int8), lambda t: t[:1],
            lambda t: torch.stack([t, t]), lambda t: t.double(), lambda t: t * 0, lambda t: t * 1e4,
        ])  # fmt: skip
        if random.randrange(5):
            tensors[key if random.randrange(6) else "x"] = change(tensor).contiguous()
    return save(tensors)


def json_of(random: Random, raw: bytes, times: int) -> bytes:
    """JSON (or its lines) damaged by value; other text by its bytes."""
    try:
        return json.dumps(document(random, json.loads(raw), times)).encode()
    except ValueError:
        return damaged_bytes(random, raw, times)


def damaged(random: Random, name: str, raw: bytes, times: int) -> bytes:
    """A file of this name and content with `times` damages, by value or by byte."""
    if random.randrange(2):
        if name.endswith(".json"):
            return json_of(random, raw, times)
        if name.endswith(".jsonl") and raw.strip():
            lines = raw.splitlines()
            at = random.randrange(len(lines))
            lines[at] = json_of(random, lines[at], times)
            return b"\n".join(lines)
        if name.endswith(".parquet"):
            return _table(random, raw, times)
        if name.endswith(".npz"):
            return _arrays(random, raw, times)
        if name.endswith(".npy"):
            return _npy(random, raw)
        if name.endswith((".safetensors", ".pt", ".texts")):
            return _tensors(random, name, raw, times)
    return damaged_bytes(random, raw, times)
