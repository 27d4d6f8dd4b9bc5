"""Whether a run under arrivals is steady: the trend of the requests in the system.

The test: the mean number of requests in the system over the last quarter of the arrivals, less that over the
second quarter (the first is warm-up), with the latter raised as the rate rose between them. A served system
keeps its number; one past what it can serve gains, for every request/s too many, one request a second. The
difference counts where it exceeds three standard deviations of the number of requests that arrive between the
two quarters (Poisson's, wider by the burstiness of the arrivals, up to fourfold).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

SIGMAS = 3.0
MOST_BURSTINESS = 4.0
STAYS = 20  # mean stays of a request that arrivals must last for the load to settle


class Backlog(NamedTuple):
    """Requests in the system early (second quarter of the arrivals) and late (last quarter)."""

    early: float
    late: float
    rise: float  # requests
    noise: float  # requests: a rise below this is no trend
    per_second: float  # requests/s by which the backlog grows
    arrivals_seconds: float
    stay_seconds: float  # mean, from arrival to the last token, waiting included

    @property
    def grows(self) -> bool:
        """More arrives than is served: speeds and shares are those of a run of this length."""
        return self.rise > self.noise

    @property
    def short(self) -> bool:
        """The arrivals last less than STAYS stays, so that the load had no time to settle."""
        return self.arrivals_seconds < STAYS * self.stay_seconds


def backlog(arrival: np.ndarray, finish: np.ndarray) -> Backlog:
    """The trend of a whole run, warm-up included: float64[n] seconds each, in order of arrival."""
    first, last = float(arrival[0]), float(arrival[-1])
    span = max(last - first, 1e-12)

    def held(a: float, b: float) -> tuple[float, int]:
        """Mean number in the system over these shares of the span, and the arrivals in them."""
        start, stop = first + a * span, first + b * span
        inside = np.clip(np.minimum(finish, stop) - np.maximum(arrival, start), 0.0, None).sum()
        return float(inside) / (stop - start), int(np.count_nonzero((arrival >= start) & (arrival < stop)))

    (early, came_early), (late, came_late) = held(0.25, 0.5), held(0.75, 1.0)
    between = held(0.375, 0.875)[1]
    expected = early * max(came_late / max(came_early, 1), 1.0)
    gaps = np.diff(arrival)
    mean = float(gaps.mean()) if len(gaps) else 0.0
    varied = float(gaps.std()) / mean if mean > 0 else 1.0
    noise = SIGMAS * min(max(varied, 1.0), MOST_BURSTINESS) * max(between, 1) ** 0.5
    rise = late - expected
    return Backlog(early, late, rise, noise, rise / (span / 2.0), span, float((finish - arrival).mean()))


def steadiness_warnings(found: Backlog, policy: str, what: str = "") -> list[str]:
    """What to say of a run that is no steady state: overload first, by its backlog, else a short run."""
    if found.grows:
        return [
            f"{policy}{what}: more arrives than is served: the requests in the system rise from "
            f"{found.early:.4g} to {found.late:.4g} within the run, by {found.per_second:.3g} a "
            "second: its speeds and shares are those of a run of this length and fall further in a longer one"
        ]
    if found.short:
        return [
            f"{policy}{what}: the arrivals of this run last {found.arrivals_seconds:.3g} s, less than "
            f"{STAYS} times as long as a request stays ({found.stay_seconds:.3g} s): the load has no time to "
            "settle; raise --requests"
        ]
    return []
