"""What a fit looks for: each unknown with its scale, its bounds and what is assumed of it before any run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

FLAT = math.inf


@dataclass(frozen=True)
class Unknown:
    """One number to find. `centre`, `sd`: what is assumed of it, sd infinite where nothing is.

    `scale`: a change that would be large; an unknown that the runs leave open by more is not determined.
    `step`: of finite differences. `part`: cost, text or client. `show`: the value as a person reads it, in
    `unit`; `basis`: where the assumption comes from.
    """

    name: str
    label: str
    part: str
    start: float
    scale: float
    step: float
    low: float = -math.inf
    high: float = math.inf
    centre: float = 0.0
    sd: float = FLAT
    unit: str = ""
    basis: str = "nothing is assumed of it"
    show: Callable[[float], float] = float

    @property
    def assumed(self) -> float:
        """What it is taken to be before any run; where nothing is assumed, where the search begins."""
        return self.centre if math.isfinite(self.sd) else self.start


@dataclass(frozen=True)
class Pull:
    """A weak assumption about several unknowns together: Σ weight · value is 0, give or take `sd`."""

    weights: dict[str, float]
    sd: float


def factor(name: str, label: str, sd: float, basis: str, part: str = "cost") -> Unknown:
    """A factor on something known beforehand, as its logarithm: 1, give or take exp(sd)."""
    return Unknown(
        name, label, part, 0.0, 1.0, 1e-3, -3.0, 3.0, 0.0, sd, "×", basis, lambda x: float(np.exp(x))
    )


def seconds(name: str, label: str, start: float, scale: float, part: str = "cost") -> Unknown:
    """A time of at least 0 of which nothing is assumed."""
    return Unknown(
        name, label, part, start, scale, 1e-3 * scale, 0.0, math.inf, unit="ms", show=lambda x: 1e3 * x
    )


def log_seconds(
    name: str, label: str, start: float, sd: float = FLAT, basis: str = "nothing is assumed of it"
) -> Unknown:
    """A time above 0 as its logarithm."""
    at = math.log(start)
    return Unknown(
        name, label, "cost", at, 1.0, 1e-3, at - 8.0, at + 5.0, at, sd, "ms", basis,
        lambda x: 1e3 * float(np.exp(x)),
    )  # fmt: skip
