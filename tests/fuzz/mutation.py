"""Damage done to files: values of parsed documents, and bytes of any file, each drawn by hypothesis."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

JUNK: list[Any] = [
    None, True, False, -1, 0, 1, 2**31, 2**32 + 20, 2**63, 10**30, 1e308, 1e15, -0.5, 3.5, float("nan"),
    float("inf"), "", "x", "7", "\x00\x1b[31m", "é" * 300, "../../etc/passwd", "<script>alert(1)</script>",
    "=cmd|' /C calc'!A0", "\ud800", "line\nline", [], {}, [1, None], [[1]], {"a": 1}, ["x"] * 200,
]  # fmt: skip
_BITS = [
    b"",
    b"\x00",
    b"\xff\xfe",
    b"\n",
    b"\r",
    b",",
    b'"',
    b"{",
    b"[" * 3000,
    b"9" * 5000,
    b"nan",
    b"1e999",
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place of a parsed document that can be replaced or removed, its root first."""
    yield path
    children = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, child in children:
        yield from places(child, (*path, key))


@st.composite
def documents(draw: st.DrawFn, document: Any) -> bytes:
    """The JSON of a document with one to three places replaced by junk, removed, or named again."""
    damaged = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        every = list(places(damaged))
        path = draw(st.sampled_from(every))
        if not path:
            damaged = draw(st.sampled_from(JUNK)) if draw(st.integers(0, 9)) == 0 else damaged
            continue
        holder = damaged
        for key in path[:-1]:
            holder = holder[key]
        what = draw(st.integers(0, 3))
        if what == 0:
            del holder[path[-1]]
        elif what == 1 and isinstance(holder, dict):
            holder[draw(st.sampled_from(["x", "\x1b]0;t\x07", "k" * 400]))] = holder.pop(path[-1])
        else:
            holder[path[-1]] = copy.deepcopy(draw(st.sampled_from(JUNK)))
    return json.dumps(damaged).encode()


@st.composite
def damaged_bytes(draw: st.DrawFn, raw: bytes) -> bytes:
    """The bytes with one to three of them changed, cut, repeated or filled with something else."""
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(len(raw) - 1, 0)))
        what = draw(st.integers(0, 4))
        if what == 0:
            raw = raw[:at]
        elif what == 1:
            raw = raw[:at] + bytes([draw(st.integers(0, 255))]) + raw[at + 1 :]
        elif what == 2:
            raw = raw[:at] + draw(st.sampled_from(_BITS)) + raw[at + draw(st.integers(0, 4)) :]
        elif what == 3:
            raw = raw[:at] + raw[at : at + draw(st.integers(1, 64))] * 2 + raw[at:]
        else:
            raw = raw[:at] + draw(st.binary(max_size=9)) + raw[at + draw(st.integers(0, 9)) :]
    return raw
