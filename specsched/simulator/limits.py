"""What a request is promised, and whether it got it: a speed, and limits on its times.

A request is good when it keeps all that is promised at once; goodput counts good requests alone (DistServe,
OSDI 2024, section 2). A limit with a share of its own is a promise apart: of all requests that share keeps
it, good or not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ..documents.shared import Goodput
from ..errors import WorkloadError
from .result import ROUNDING, SimResult, reaches

NAMES = ("ttft", "itl", "e2e")


@dataclass(frozen=True)
class Limits:
    """Limits on a request's times in seconds; None: no such limit.

    ttft_seconds : from its arrival to its first token: the wait for a place, and its prefill.
    itl_seconds : longest time between two deliveries of its tokens. A step delivers all its tokens at once.
    e2e_seconds : from its arrival to its last token.
    shares : {"ttft" | "itl" | "e2e": share}, for limits that so many of the requests must keep, whatever else
        they keep. Other limits, and the speed, are kept together.
    """

    ttft_seconds: float | None = None
    itl_seconds: float | None = None
    e2e_seconds: float | None = None
    shares: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises WorkloadError for limits that nobody could mean."""
        for name, seconds in self.given.items():
            if not (math.isfinite(seconds) and seconds > 0):
                raise WorkloadError(f"{name}_seconds is {seconds}; it must be a positive number of seconds")
        for name, share in self.shares.items():
            if name not in self.given:
                known = ", ".join(self.given) or "none is given"
                raise WorkloadError(f"a share for {name!r}, which has no limit; limits: {known}")
            if not 0.0 < share <= 1.0:
                raise WorkloadError(f"the share of {name} is {share}; it lies above 0 and up to 1")

    @property
    def given(self) -> dict[str, float]:
        """{name: seconds} of the limits there are."""
        seconds = {name: getattr(self, f"{name}_seconds") for name in NAMES}
        return {name: value for name, value in seconds.items() if value is not None}

    def __bool__(self) -> bool:
        return bool(self.given)

    def stretched(self, factor: float) -> Limits:
        """The same promise on a clock that runs `factor` times as slow: all limits so much shorter."""
        ttft, itl, e2e = (
            None if value is None else value / factor
            for value in (self.ttft_seconds, self.itl_seconds, self.e2e_seconds)
        )
        return Limits(ttft, itl, e2e, self.shares)

    def document(self) -> dict[str, Any]:
        """As documents state them."""
        return {
            **{f"{name}_seconds": getattr(self, f"{name}_seconds") for name in NAMES},
            "shares": dict(self.shares),
        }


NO_LIMITS = Limits()


class Judged(NamedTuple):
    """Which of n requests missed what: bool[n] by the name of the promise ("speed", "ttft", ...)."""

    missed: dict[str, np.ndarray]  # promises that count together
    apart: dict[str, np.ndarray]  # limits with a share of their own
    shares: Mapping[str, float]

    @property
    def good(self) -> np.ndarray:
        """bool[n]: keeps all that counts together."""
        kept: np.ndarray = self.rest & ~self.missed["speed"]
        return kept

    @property
    def share(self) -> float:
        """Of good requests."""
        return float(self.good.mean())

    @property
    def rest(self) -> np.ndarray:
        """bool[n]: keeps all that counts together but the speed."""
        kept = np.ones_like(self.missed["speed"])
        for name, missed in self.missed.items():
            kept &= ~missed | (name == "speed")
        return kept

    @property
    def apart_kept(self) -> bool:
        """Whether every limit with a share of its own is kept by that share."""
        return all(float((~missed).mean()) >= self.shares[name] for name, missed in self.apart.items())

    def failing(self, wanted: float) -> str:
        """The promise that keeps the requests from the wanted share: the one most often missed."""
        if self.share >= wanted:
            for name, missed in self.apart.items():
                if float((~missed).mean()) < self.shares[name]:
                    return name
        return max(self.missed, key=lambda name: float(self.missed[name].mean()))


def judged(
    result: SimResult, sla_tps: float | None, limits: Limits = NO_LIMITS, factor: float = 1.0
) -> Judged:
    """Every measured request against the promise, were all of them `factor` times as fast.

    Who decodes nothing, because its only token came with its prefill, has no speed to fall short of.
    """
    a = result.arrays
    slow = np.zeros(len(a["tokens"]), bool)
    if sla_tps is not None:
        slow = ~reaches(result.tps * factor, sla_tps) & (a["tokens"] > 0)
    times = {
        "ttft": a["ready_seconds"] - a["arrival_seconds"],
        "itl": a["longest_gap_seconds"],
        "e2e": a["finish_seconds"] - a["arrival_seconds"],
    }
    missed, apart = {"speed": slow}, dict[str, np.ndarray]()
    for name, seconds in limits.given.items():
        late = times[name] > seconds * factor * (1.0 + ROUNDING)
        (apart if name in limits.shares else missed)[name] = late
    return Judged(missed, apart, limits.shares)


def goodput(result: SimResult, found: Judged) -> Goodput | None:
    """Good requests and their tokens per second; None where nothing was decoded.

    Of the run's throughput as many tokens as good requests have of all measured ones.
    """
    tokens = result.arrays["tokens"].astype(np.float64)
    if not tokens.sum() > 0.0:
        return None
    good, each = found.good, result.summary["throughput"] / float(tokens.sum())
    kept = {name: float((~missed).mean()) for name, missed in (found.missed | found.apart).items()}
    return {
        "share": found.share,
        "requests_per_second": each * float(good.sum()),
        "tokens_per_second": each * float(tokens[good].sum()),
        "shares": kept,
    }
