"""Blocks of a profile document other than its curves, read strictly."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..files.reader import Reader
from .curve import BEYONDS, LOOKUPS, Curve

# Bounds no machine reaches: beyond them the unit or the file is wrong, and sums of costs would lose meaning.
MOST_SECONDS = 3600.0
MOST_TOKENS = 2**31 - 1
MOST_KV_TOKENS = 10**12
MOST_COUNTS = {
    "count": 10**5,
    "tensor": 10**5,
    "data": 10**5,
    "memory_bytes": 10**13,  # of one GPU
    "weight_bytes": 10**15,
    "kv_bytes_per_token": 10**10,
    "max_context": 2**31 - 1,
}


def read_curve(read: Reader, key: str, axis: str, least: int, beyond: str = "slope") -> Curve | None:
    """The curve under `key`, or None; `beyond` is what holds past its end unless the block says otherwise."""
    block = read.block(key)
    if block is None:
        return None
    more = {"verify": ("lookup", "beyond"), "draft": ("block_size", "drafter", "beyond")}.get(
        key, ("beyond",)
    )
    block.only((axis, "seconds", *more))
    # An empty curve means "none": as docs/files.md writes an unused block: {"tokens": [], "seconds": []}.
    if key != "verify" and block.document.get(axis) == [] and block.document.get("seconds") == []:
        return None
    x = block.rising(axis, least, MOST_KV_TOKENS if axis == "kv_tokens" else MOST_TOKENS)
    y = block.numbers("seconds", most=MOST_SECONDS)
    if len(x) != len(y):
        raise block.fail(
            "seconds", f"has {len(y)} entries and {axis} has {len(x)}; each point needs one of both"
        )
    x.setflags(write=False)
    y.setflags(write=False)
    lookup = block.text("lookup", "linear", LOOKUPS) if key == "verify" else "linear"
    return Curve(x, y, lookup, block.text("beyond", beyond, BEYONDS))


def points(curve: Curve, axis: str) -> dict[str, Any]:
    return {axis: curve.x.astype(np.int64).tolist(), "seconds": curve.y.tolist()}


METHODS = ("measured", "composed", "roofline", "imported", "fitted")


def read_capture(read: Reader) -> tuple[np.ndarray | None, int | None]:
    """(captured sizes int64[n], stated limit), or (None, None) where nothing is captured."""
    block = read.block("capture")
    if block is None:
        return None, None
    block.only(("sizes", "limit"))
    if block.document.get("sizes") == []:
        return None, None
    sizes = block.rising("sizes", 1, MOST_TOKENS).astype(np.int64)
    limit = block.integer("limit", int(sizes[-1]), 1, MOST_TOKENS)
    if limit < sizes[0]:
        raise block.fail(
            "limit", f"is {limit}, below the smallest captured size {sizes[0]}; no pass would be captured"
        )
    sizes.setflags(write=False)
    return sizes, limit


def read_counts(read: Reader, key: str, whole: tuple[str, ...]) -> dict[str, Any]:
    """A free-form block whose entries `whole` must be whole numbers where they are given."""
    values = read.mapping(key)
    block = read.block(key)
    for name in whole:
        if block is not None and block.has(name):
            least = 1 if name in ("count", "tensor", "data") else 0
            values[name] = block.integer(name, minimum=least, most=MOST_COUNTS[name])
    return values


def read_provenance(read: Reader) -> dict[str, Any]:
    """The free-form provenance block; its method must be a known one where it is given."""
    block = read.block("provenance")
    if block is not None and block.has("method"):
        block.text("method", choices=METHODS)
    return read.mapping("provenance")
