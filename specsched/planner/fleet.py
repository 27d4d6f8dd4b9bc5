"""Fleets put to the trial: so many engines under one list of arrivals and one policy, and whether they hold.

All trials of a plan replay the same arrivals, so that neighbouring fleets differ by an engine alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from ..errors import ProfileError
from ..profile import StepProfile
from ..schedule import Policy
from ..simulator import Serving, SimResult, intervals
from ..simulator.replay import Replay
from ..simulator.requests import Requests, open_loop
from ..simulator.result import reaches
from ..simulator.run import Run
from ..trace import Trace
from ..workload import Workload, prolonged

MOST_ENGINES = 1 << 16
Z95 = 1.96
LONGER, CONFIRMED = 4, 60_000  # times as long as a trial, and most requests, of the run that confirms a fleet


@dataclass(frozen=True)
class Traffic:
    """What every fleet is asked: these arrivals, `share` of the requests at the SLA."""

    trace: Trace
    replay: Replay
    profile: StepProfile
    serving: Serving
    workload: Workload
    sla_tps: float
    ttft_seconds: float | None
    share: float
    seed: int
    least_seconds: float = 0.0  # that arrivals last at any rate, for a fleet to reach its steady state

    @cached_property
    def coming(self) -> Requests:
        return open_loop(self.replay, self.trace, self.workload, self.seed)


@dataclass(frozen=True, eq=False)
class Trial:
    """A fleet of so many engines under the traffic: the share of requests that got what was promised."""

    engines: int
    result: SimResult | None  # None: the profile has no cost for a pass it needs
    share: float
    low: float
    high: float
    slow: float  # shares that failed by speed, and by time to the first token
    late: float
    grows: bool = False  # its backlog does: what it served is a matter of how long the run lasted

    def keeps(self, wanted: float, bound: str = "share") -> bool:
        """Whether the promise is kept for good: by enough requests, without a backlog that grows."""
        return not self.grows and bool(getattr(self, bound) >= wanted)


@dataclass(eq=False)
class Fleet:
    """All fleet sizes tried under one policy."""

    traffic: Traffic
    policy: Policy
    trials: dict[int, Trial] = field(default_factory=dict)
    done: Callable[[], None] = lambda: None

    def at(self, engines: int) -> Trial:
        """The fleet of so many engines; run once."""
        if engines not in self.trials:
            self.trials[engines] = trial(self.traffic, self.policy, engines)
            self.done()
        return self.trials[engines]

    def fewest(self, bound: str = "share") -> int | None:
        """Fewest engines that keep the promise; `bound` "low" or "high": by what noise allows.

        None when a request alone on an engine is too slow, so that no number of them helps.
        """
        wanted = self.traffic.share
        bad, good = 0, 1
        while not self.at(good).keeps(wanted, bound):
            if good >= self.alone():
                return None
            bad, good = good, good * 2
        while good - bad > 1:
            middle = (bad + good) // 2
            if self.at(middle).keeps(wanted, bound):
                good = middle
            else:
                bad = middle
        return good

    def alone(self) -> int:
        """So many engines that nearly every request has one to itself: more cannot help.

        A request that keeps its promise stays no longer than its tokens take at the speed, and what its first
        one may take: of a burst all are there at once, whatever the mean rate.
        """
        w, arrival = self.traffic.workload, self.traffic.coming.arrival
        longest = float(np.max(self.traffic.coming.requests[:, 1])) / self.traffic.sla_tps
        gone = np.searchsorted(arrival, arrival - longest - (self.traffic.ttft_seconds or 0.0))
        together = int(np.max(np.arange(1, len(arrival) + 1) - gone))
        return int(min(MOST_ENGINES, len(w), max(8.0, 8.0 * w.rate * longest, together)))


def demand_noise(traffic: Traffic) -> float:
    """Half the 95 % interval of the mean output length, as a share of it: few traced requests leave it open.

    A fleet's load is the rate times that mean, so an interval of GPUs must hold for both ends of it.
    """
    lengths = traffic.coming.requests[:, 1].astype(np.float64)
    distinct = len(np.unique(traffic.coming.requests[:, 0]))
    return min(0.5, Z95 * float(lengths.std()) / (math.sqrt(distinct) * max(float(lengths.mean()), 1.0)))


def work_noise(traffic: Traffic, held: Trial) -> float:
    """Standard error of a request's mean work, as a share of it: of its length, or of its steps if more so.

    Few traced requests leave open how long the texts are and how much of a draft is accepted.
    """
    assert held.result is not None
    traced, steps = held.result.arrays["traced"], held.result.arrays["steps"].astype(np.float64)
    which, place = np.unique(traced, return_inverse=True)
    each = np.bincount(place, steps) / np.bincount(place)
    of_steps = float(each.std()) / (math.sqrt(len(which)) * max(float(each.mean()), 1.0))
    return min(0.25, max(demand_noise(traffic) / Z95, of_steps))


def at_rate(fleet: Fleet, factor: float) -> Fleet:
    """The same fleet under `factor` times the rate."""
    return Fleet(at(fleet.traffic, fleet.traffic.workload.rate * factor), fleet.policy, done=fleet.done)


def confirmed(fleet: Fleet, engines: int) -> int:
    """The fewest engines, from so many on, that keep the promise in a run several times as long.

    For drawn arrivals, of which there are always more: close to its limit a fleet's backlog grows so slowly
    that a short run keeps the promise and a longer one does not.
    """
    n, traffic = len(fleet.traffic.workload), fleet.traffic
    count = max(n, min(LONGER * n, CONFIRMED))
    longer = Fleet(
        replace(
            traffic, workload=prolonged(traffic.workload, (count - 1) / traffic.workload.rate * (1 - 1e-9))
        ),
        fleet.policy,
        done=fleet.done,
    )
    while not longer.at(engines).keeps(traffic.share):
        if engines >= longer.alone():
            break
        engines += max(1, engines // 50)
    return engines


def at(traffic: Traffic, rate: float) -> Traffic:
    """The same traffic at another rate, lasting as long as a steady state takes."""
    workload = traffic.workload.scaled(rate)
    return replace(traffic, workload=prolonged(workload, traffic.least_seconds))


def trial(traffic: Traffic, policy: Policy, engines: int) -> Trial:
    """Run one fleet."""
    serving = replace(traffic.serving, replicas=engines * traffic.serving.ranks_per_group)
    run = Run(traffic.replay, traffic.profile, serving, traffic.coming, len(traffic.workload))
    try:
        result = run.result(policy, traffic.seed, traffic.trace.confidence_sees_token, bootstrap=False)
    except ProfileError:
        if engines >= MOST_ENGINES:
            raise
        return Trial(engines, None, 0.0, 0.0, 0.0, 1.0, 0.0)
    a = result.arrays
    # A request whose only token came from its prefill has no speed to fall short of.
    slow = ~reaches(result.tps, traffic.sla_tps) & (a["tokens"] > 0)
    late = np.zeros(len(slow), bool)
    if traffic.ttft_seconds is not None:
        late = a["ready_seconds"] - a["arrival_seconds"] > traffic.ttft_seconds
    kept = ~(slow | late)
    low, high = intervals.share_bounds(kept, a["traced"], traffic.seed)
    grows = result.backlog is not None and result.backlog.grows
    return Trial(
        engines, result, float(kept.mean()), low, high, float(slow.mean()), float(late.mean()), grows
    )
