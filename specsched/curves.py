"""Curves of a step profile: seconds against a size, and how they are read from and written to JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from .reading import Reader

LOOKUPS = ("linear", "floor", "ceil")
BEYONDS = ("slope", "clamp")


@dataclass(frozen=True, eq=False)
class Curve:
    """Seconds against a size: float64[n] each, `x` strictly rising, `y` >= 0.

    Below the first point: the first value. Between points: `lookup`. Past the last point: the slope of the
    last two points, or the last value under `beyond="clamp"`; a curve that *ends* on an inversion is carried
    on flat, because a falling cost extrapolated far enough would be negative.
    """

    x: np.ndarray
    y: np.ndarray
    lookup: str = "linear"
    beyond: str = "slope"

    @cached_property
    def slopes(self) -> np.ndarray:
        """float64[n]: slope of the piece that starts at each point; the last entry holds past the end."""
        inner = np.diff(self.y) / np.diff(self.x)
        last = max(float(inner[-1]), 0.0) if len(inner) and self.beyond == "slope" else 0.0
        return np.append(inner, last)

    def __call__(self, at: Any) -> np.ndarray:
        """Value at each entry of `at` (any shape): y[i] + slopes[i] * (at - x[i]), i the last x[i] <= at."""
        at = np.asarray(at, dtype=np.float64)
        last = len(self.x) - 1
        i = np.clip(np.searchsorted(self.x, at, side="right") - 1, 0, last)
        step = np.maximum(at - self.x[i], 0.0)
        if self.lookup == "linear":
            return self.y[i] + self.slopes[i] * step
        if self.lookup == "floor":
            inside = self.y[i]
        else:
            inside = self.y[np.minimum(np.searchsorted(self.x, at, side="left"), last)]
        return np.where(at > self.x[last], self.y[last] + self.slopes[last] * step, inside)


def read_curve(read: Reader, key: str, axis: str, least: int, beyond: str = "slope") -> Curve | None:
    """The curve under `key`, or None; `beyond` is what holds past its end unless the block says otherwise."""
    block = read.block(key)
    if block is None:
        return None
    more = {"verify": ("lookup", "beyond"), "draft": ("block_size", "drafter", "beyond")}.get(
        key, ("beyond",)
    )
    block.only((axis, "seconds", *more))
    # An empty curve means "none": DESIGN's example of an unused block is {"tokens": [], "seconds": []}.
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


def one_line_lists(value: Any, indent: str = "") -> str:
    """JSON with two-space indent in which a list stays on one line unless it holds objects."""
    inner = indent + "  "
    if isinstance(value, dict) and value:
        items = (f"{inner}{json.dumps(k)}: {one_line_lists(v, inner)}" for k, v in value.items())
        return "{\n" + ",\n".join(items) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(v, dict) for v in value):
        return "[\n" + ",\n".join(inner + json.dumps(v, allow_nan=False) for v in value) + f"\n{indent}]"
    return json.dumps(value, allow_nan=False, ensure_ascii=False)
