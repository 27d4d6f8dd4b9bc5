"""Curves of a step profile: seconds against a size, and how they are read from and written to JSON."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

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
            out: np.ndarray = self.y[i] + self.slopes[i] * step
            return out
        if self.lookup == "floor":
            inside = self.y[i]
        else:
            inside = self.y[np.minimum(np.searchsorted(self.x, at, side="left"), last)]
        found: np.ndarray = np.where(at > self.x[last], self.y[last] + self.slopes[last] * step, inside)
        return found
