"""Blocks of a profile document other than its curves, read strictly."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..files.reader import Reader
from .curve import BEYONDS, LOOKUPS, Curve


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
    x, y = block.rising(axis, least), block.numbers("seconds")
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


METHODS = ("measured", "composed", "roofline", "imported")


def read_capture(read: Reader) -> tuple[np.ndarray | None, int | None]:
    """(captured sizes int64[n], stated limit), or (None, None) where nothing is captured."""
    block = read.block("capture")
    if block is None:
        return None, None
    block.only(("sizes", "limit"))
    if block.document.get("sizes") == []:
        return None, None
    sizes = block.rising("sizes", 1).astype(np.int64)
    limit = block.integer("limit", int(sizes[-1]), 1)
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
            values[name] = block.integer(name, minimum=1 if name in ("count", "tensor", "data") else 0)
    return values


def read_provenance(read: Reader) -> dict[str, Any]:
    """The free-form provenance block; its method must be a known one where it is given."""
    block = read.block("provenance")
    if block is not None and block.has("method"):
        block.text("method", choices=METHODS)
    return read.mapping("provenance")
