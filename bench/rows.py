"""A row of the table: what was measured, against what, and the goal. Lower is better throughout."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

Calls = dict[str, Callable[[], object]]


@dataclass(frozen=True)
class Row:
    """Seconds (or bytes) of ours and of a floor or peer that ran in the same minutes, taking turns."""

    key: str  # what a later run is compared by
    what: str
    ours: float
    floor: float
    unit: str  # s or bytes
    against: str  # what the floor is
    goal: str
    met: bool

    @property
    def ratio(self) -> float:
        return self.ours / self.floor

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": self.ratio}


def least(
    calls: Calls, rounds: int, batch: int = 1, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Seconds a call: the least of `rounds` batches that take turns, after a call of each to warm up."""
    for call in calls.values():
        call()
    found = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            begun = clock()
            for _ in range(batch):
                call()
            found[name] = min(found[name], (clock() - begun) / batch)
    return found


def shown(value: float, unit: str) -> str:
    """A time or a size as people say it."""
    if unit == "bytes":
        return f"{value / 1e6:.0f} MB"
    for scale, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= scale:
            return f"{value / scale:.3g} {name}"
    return f"{value / 1e-9:.3g} ns"
