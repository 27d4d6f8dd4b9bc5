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
from ..schedule import Policy
from ..simulator import SimResult
from ..simulator.limits import judged
from ..simulator.noise import Heavier, speed_noise
from ..simulator.run import Run
from ..workload import prolonged
from .stable import Service, service
from .traffic import Traffic

MOST_ENGINES = 1 << 16
LONGER, CONFIRMED = 4, 60_000  # times as long as a trial, and most requests, of the run that confirms a fleet


@dataclass(frozen=True, eq=False)
class Trial:
    """A fleet of so many engines under the traffic: the share of requests that got what was promised."""

    engines: int
    result: SimResult | None  # None: the profile has no cost for a pass it needs
    share: float
    missed: dict[str, float]  # shares that failed by "speed", "ttft", "itl", "e2e"
    grows: bool = False  # its backlog does: what it served is a matter of how long the run lasted
    apart_kept: bool = True  # limits with shares of their own are

    def keeps(self, wanted: float) -> bool:
        """Whether the promise is kept for good: by enough requests, without a backlog that grows."""
        return not self.grows and self.apart_kept and self.share >= wanted

    def users(self, ranks_per_group: int) -> float:
        """Requests that a rank decodes at once, on average."""
        if self.result is None:
            return 0.0
        out: float = self.result.summary["concurrency_mean"] / (self.engines * ranks_per_group)
        return out


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

    @cached_property
    def service(self) -> Service:
        """What one engine serves for good, and at the promised speed."""
        return service(self.traffic, self.policy)

    @property
    def least(self) -> int:
        """With fewer engines the backlog grows for ever, however well a run of some length looks."""
        rate, most = self.traffic.workload.rate, self.service.most
        return max(1, math.ceil(min(rate / most, MOST_ENGINES) - 1e-9)) if most > 0.0 else 1

    def keeps(self, engines: int) -> bool:
        """Whether so many keep the promise for good."""
        return engines >= self.least and self.at(engines).keeps(self.traffic.share)

    def fewest(self, start: int | None = None) -> int | None:
        """Fewest engines that keep the promise, searched from `start` on, or from what one engine serves.

        None when a request alone on an engine is too slow, so that no number of them helps.
        """
        promised = self.service.promised
        rate = self.traffic.workload.rate
        guess = math.ceil(min(rate / promised, MOST_ENGINES)) if promised > 0.0 else self.least
        good = min(max(start or guess, self.least), max(self.alone(), 1))
        bad, stride = 0, max(1, good // 16)
        if self.keeps(good):
            while good > 1 and self.keeps(max(1, good - stride)):
                good, stride = max(1, good - stride), 2 * stride
            bad = max(1, good - stride) if good > 1 else 0
        else:
            while not self.keeps(good):
                if good >= self.alone():
                    return None
                bad, good, stride = good, good + stride, 2 * stride
        while good - bad > 1:
            middle = (bad + good) // 2
            if self.keeps(middle):
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
        gone = np.searchsorted(arrival, arrival - longest - (self.traffic.limits.ttft_seconds or 0.0))
        together = int(np.max(np.arange(1, len(arrival) + 1) - gone))
        return int(min(MOST_ENGINES, len(w), max(8.0, 8.0 * w.rate * longest, together)))


def under(fleet: Fleet, change: Heavier, sign: float) -> Fleet:
    """The same fleet under a heavier trace (sign 1) or a lighter one (-1).

    More work per request is a higher rate. A step that is longer by a factor is a clock that runs slower by
    it: the same run at a rate, a speed and limits on times that are stricter by the factor.
    """
    traffic = at(fleet.traffic, fleet.traffic.workload.rate * math.exp(sign * (change.work + change.step)))
    traffic = replace(
        traffic,
        sla_tps=traffic.sla_tps * math.exp(sign * (change.step + change.slow)),
        limits=traffic.limits.stretched(math.exp(sign * change.step)),
    )
    other = Fleet(traffic, fleet.policy, done=fleet.done)
    other.service = fleet.service  # of the engine, whatever is asked of it
    return other


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
        return Trial(engines, None, 0.0, {"speed": 1.0})
    found = judged(result, traffic.sla_tps, traffic.limits)
    grows = result.backlog is not None and result.backlog.grows
    missed = {name: float(each.mean()) for name, each in (found.missed | found.apart).items()}
    return Trial(engines, result, found.share, missed, grows, found.apart_kept)


def share_interval(traffic: Traffic, found: Trial) -> list[float]:
    """Interval of the share of requests that a fleet keeps its promise to, at this rate."""
    if found.result is None:
        return [0.0, 0.0]
    users = found.users(traffic.serving.ranks_per_group)
    noise = speed_noise(found.result, traffic.profile, traffic.serving, users, traffic.share, traffic.seed)
    factors = (noise.slower, noise.faster)
    return [judged(found.result, traffic.sla_tps, traffic.limits, factor).share for factor in factors]
