"""How many users one engine carries at a promised speed, under one policy.

A load passes when the asked share of its requests reaches the SLA and KV memory held every user, but for a
hundredth of the steps (a longest wait would grow with the length of the run). Capacity is the last load
before the first failure on a ladder of loads, refined to one user by bisection; loads that pass again beyond
it are pockets. Every load replays the same requests, so that neighbouring loads differ by the load and little
else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, cast

import numpy as np

from ..documents.answer import Binds, Capacity
from ..errors import ProfileError
from ..profile import StepProfile
from ..profile.tables import NO_LIMIT, ProfileTables
from ..schedule import Policy
from ..simulator import Serving, SimResult
from ..simulator.limits import NO_LIMITS, Limits, judged
from ..simulator.noise import NO_NOISE, SpeedNoise, speed_noise
from ..simulator.replay import Replay
from ..simulator.requests import Requests, closed_loop
from ..simulator.result import reaches
from ..simulator.run import Run
from ..simulator.serving import kv_capacity

Promise = Literal["speed", "ttft", "itl", "e2e"]
RATIO = 1.1  # of neighbouring rungs of the ladder, at most
LARGEST = 1024  # loads are tried up to here unless memory ends before
FEWEST_POINTS = 6  # of a curve, even at capacity 0
MOST_BEYOND = 0.01  # share of steps past the end of a clamped table, up to which its answer stands
MOST_BLOCKED = 0.01  # share of steps in which a user waited for KV memory, up to which it held all
STEP_CHANGE = 0.1  # by which a step's cost is changed to see how steep the answer is
TO_SPARE = 1.25  # between rungs that reach the SLA this many times over, captured sizes are not looked at


@dataclass(frozen=True)
class Question:
    """What is asked of every load: `share` of the requests at `sla_tps` tokens/s or faster, within limits."""

    replay: Replay
    profile: StepProfile
    serving: Serving
    sla_tps: float
    share: float
    requests: int
    seed: int
    sees_token: bool = False
    limits: Limits = NO_LIMITS
    _coming: dict[int, Requests] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def tables(self) -> ProfileTables:
        """Costs of every pass up to LARGEST users, the same for all loads and policies."""
        most = LARGEST * (1 + self.replay.block_size) + self.serving.batch_tokens
        return self.profile.tables(most, LARGEST)

    def run(self, concurrency: int) -> Run:
        """The load of so many users on each engine: every policy is given the same requests."""
        coming = self._coming.get(concurrency)
        if coming is None:
            users = concurrency * self.serving.replicas
            coming = self._coming[concurrency] = closed_loop(self.replay, users, self.requests, self.seed)
        return Run(self.replay, self.profile, self.serving, coming, self.requests, tables=self.tables)


@dataclass(frozen=True, eq=False)
class Load:
    """One load under one policy: its result, and the share of good requests with its interval."""

    concurrency: int
    result: SimResult | None  # None: the profile has no cost for the passes it needs
    share: float
    low: float
    high: float
    held: bool  # KV memory held every user, but for MOST_BLOCKED of the steps
    keeps: float = 0.0  # the highest SLA that it keeps: tokens/s which the asked share of the requests reach
    priced: bool = True  # False: steps past the end of a table that goes on flat there
    noise: SpeedNoise = NO_NOISE
    apart: frozenset[str] = frozenset(("share", "low", "high"))  # where limits with own shares are kept
    failing: Promise = "speed"  # what its requests miss most often

    def passes(self, wanted: float, bound: str = "share") -> bool:
        """`bound` "low" or "high": what noise allows instead of what was seen."""
        return self.usable and bound in self.apart and getattr(self, bound) >= wanted

    def passes_at(self, sla_tps: float) -> bool:
        """Whether it passes at another SLA than the one asked for."""
        return self.usable and self.limits_kept and bool(reaches(np.asarray(self.keeps), sla_tps))

    @property
    def limits_kept(self) -> bool:
        """Limits with shares of their own are."""
        return "share" in self.apart

    @property
    def usable(self) -> bool:
        """KV memory holds it and the profile prices it."""
        return self.held and self.priced and self.result is not None


@dataclass(eq=False)
class Search:
    """All loads tried under one policy, and what they say."""

    question: Question
    policy: Policy
    loads: dict[int, Load] = field(default_factory=dict)
    done: Callable[[int], None] = lambda load: None

    def at(self, concurrency: int) -> Load:
        """The load of so many users; run once."""
        if concurrency not in self.loads:
            self.loads[concurrency] = self._run(concurrency)
            self.done(concurrency)
        return self.loads[concurrency]

    def _run(self, concurrency: int) -> Load:
        q = self.question
        try:
            result = q.run(concurrency).result(self.policy, q.seed, q.sees_token, bootstrap=False)
        except ProfileError:
            if concurrency == 1:
                raise
            return Load(concurrency, None, 0.0, 0.0, 0.0, True)
        speed = result.tps
        noise = speed_noise(result, q.profile, q.serving, concurrency, q.share, q.seed)
        factors = {"share": 1.0, "low": noise.slower, "high": noise.faster}
        found = {bound: judged(result, q.sla_tps, q.limits, factor) for bound, factor in factors.items()}
        steps = max(result.summary["steps"] * q.serving.replicas, 1)
        waited = result.summary["blocked_steps"] + result.summary["preemptions"]
        held = waited <= MOST_BLOCKED * steps
        keeps = reached_by(np.where(found["share"].rest, speed, 0.0), q.share)
        beyond = result.summary["extrapolated_steps"] / max(result.summary["steps"], 1)
        priced = beyond <= MOST_BEYOND or not clamps(q.profile)
        share, low, high = (found[bound].share for bound in factors)
        apart = frozenset(bound for bound, each in found.items() if each.apart_kept)
        failing = cast(Promise, found["share"].failing(q.share))
        return Load(concurrency, result, share, low, high, held, keeps, priced, noise, apart, failing)

    def _path(self, rungs: list[int], sla_tps: float) -> Iterator[int]:
        """The rungs, and between them the loads on either side of captured sizes.

        Where both rungs have speed to spare the loads between them are left out: their steps cost no more
        than the upper rung's, but for the inversions that a table may have, and those are far smaller.
        """
        sizes = captured_loads(self.question, self.policy)
        below = 0
        for rung in rungs:
            inside = [load for load in sizes if below < load < rung]
            if inside and not (below and self._spare(below, sla_tps) and self._spare(rung, sla_tps)):
                yield from inside
            yield rung
            below = rung

    def _spare(self, load: int, sla_tps: float | None = None) -> bool:
        sla = self.question.sla_tps if sla_tps is None else sla_tps
        found = self.at(load)
        return found.held and found.limits_kept and found.keeps >= TO_SPARE * sla

    def first_failure(
        self,
        rungs: list[int],
        bound: str = "share",
        passes: Callable[[Load], bool] | None = None,
        near: float = 0.0,
        sla_tps: float | None = None,
    ) -> tuple[int, int | None]:
        """(last load that passes, first that fails) by `bound`, to one user; None: nothing failed.

        passes: asked of a load instead of `bound`. near: as close as this share of the load will do.
        sla_tps: the SLA that `passes` is about, where it is another one.

        The page of a report follows the same path over the loads that were run (report/assets/capacity.js).
        """
        wanted, good = self.question.share, 0
        ask = passes or (lambda load: load.passes(wanted, bound))
        for rung in self._path(rungs, self.question.sla_tps if sla_tps is None else sla_tps):
            if ask(self.at(rung)):
                good = rung
                continue
            bad = rung
            while bad - good > max(1.0, near * good):
                middle = (good + bad) // 2
                if ask(self.at(middle)):
                    good = middle
                else:
                    bad = middle
            return good, bad
        return good, None

    def at_sla(self, rungs: list[int], sla_tps: float) -> int:
        """The capacity at another SLA, exactly as an answer for it finds it."""
        return self.first_failure(rungs, passes=lambda load: load.passes_at(sla_tps), sla_tps=sla_tps)[0]

    def at_step_cost(self, rungs: list[int], factor: float) -> int:
        """The capacity were every step `factor` times as long, to 2 %.

        In a closed loop that only stretches the clock: it is the capacity at `factor` times the SLA, and with
        limits so much shorter.
        """
        q = self.question
        limits = q.limits.stretched(factor)

        def passes(load: Load) -> bool:
            if not load.usable or load.result is None:
                return False
            found = judged(load.result, q.sla_tps * factor, limits)
            return found.share >= q.share and found.apart_kept

        return self.first_failure(rungs, passes=passes, near=0.02)[0]

    def pockets(self, capacity: int, loads: list[int]) -> list[list[int]]:
        """[first, last] of every run of `loads` beyond the first failure that pass again."""
        found: list[list[int]] = []
        before_passed = True
        for load in loads:
            passed = self.at(load).passes(self.question.share)
            if load > capacity and passed:
                if before_passed and found:
                    found[-1][1] = load
                elif not before_passed:
                    found.append([load, load])
            before_passed = passed
        return found

    def binds(self, failed: int | None) -> Binds:
        """What ends the capacity: a promise, memory, profile (its cost ends) or ladder (nothing failed)."""
        if failed is None:
            return "ladder"
        load = self.at(failed)
        if load.result is None or not load.priced:
            return "profile"
        return load.failing if load.held else "memory"


def reached_by(speed: np.ndarray, share: float) -> float:
    """The greatest of the speeds (tokens/s, float64[n]) that `share` of them reach; NaN reaches none."""
    falling = np.sort(np.nan_to_num(speed, nan=0.0, posinf=np.finfo(np.float64).max))[::-1]
    n = len(falling)
    if not n:
        return 0.0
    # The shares themselves are compared, as `passes` compares them: a product could round the other way.
    enough = np.flatnonzero(np.arange(1, n + 1) / n >= share)
    return float(falling[enough[0]])


def clamps(profile: StepProfile) -> bool:
    """Whether the profile goes on flat past its last point, as some engines read their own tables.

    Their schedulers may; a clock that does makes any number of users free. Capacity ends there instead.
    """
    return "clamp" in (profile.verify.beyond, profile.eager.beyond if profile.eager is not None else "")


def ladder(question: Question) -> list[int]:
    """Loads to try, rising from 1: each at most 1.1 times the one before, or one more."""
    largest = largest_load(question)
    loads = [1]
    while loads[-1] < largest:
        loads.append(min(largest, max(loads[-1] + 1, int(loads[-1] * RATIO))))
    return loads


def captured_loads(question: Question, policy: Policy) -> list[int]:
    """Loads on either side of a captured size, where a step's cost jumps.

    A policy that verifies k tokens of every request fills a captured size S at S / (1 + k) users; one that
    chooses fills it at the latest there with k = γ.
    """
    sizes, limit = question.profile.capture_sizes, question.profile.graph_limit
    if sizes is None or limit is None:
        return []
    block = question.replay.block_size
    width = policy.pass_width(block)
    users = {int(size) // width + above for size in sizes[sizes <= limit] for above in (0, 1)}
    return sorted(load for load in users if 1 <= load <= largest_load(question))


def largest_load(question: Question) -> int:
    """No load beyond this can be held: one token of context each would already overflow KV memory."""
    tokens = kv_capacity(question.profile, question.serving)
    if tokens == NO_LIMIT:
        return LARGEST
    fixed = question.serving.context
    least = int(fixed if fixed is not None else question.replay.prompt_tokens.min()) + 1
    return max(1, min(LARGEST, tokens // least + 1))


def curve_loads(question: Question, capacity: int) -> list[int]:
    """Loads of the plotted curve, common to all policies: rungs to twice the largest capacity, 6 or more."""
    top = max(FEWEST_POINTS, min(largest_load(question), 2 * capacity))
    return sorted({*(rung for rung in ladder(question) if rung <= top), top})


def interval_of(search: Search, rungs: list[int]) -> tuple[int, int]:
    """[low, high] of the capacity: what the noise of the trace leaves."""
    low, low_failed = search.first_failure(rungs, "low")
    high, high_failed = search.first_failure(rungs, "high")
    # What memory ends moves with the mean KV of a user: another trace's users hold more, or less, of it.
    if low and low_failed is not None and not search.at(low_failed).held:
        low = max(1, int(low * np.exp(-search.at(low).noise.held)))
    if high and high_failed is not None and not search.at(high_failed).held:
        high = min(LARGEST, int(np.ceil(high * np.exp(search.at(high).noise.held))))
    return low, high


def capacity_of(search: Search, rungs: list[int]) -> Capacity:
    """Capacity, its interval and what binds it, as the answer states them."""
    good, bad = search.first_failure(rungs, "share")
    low, high = interval_of(search, rungs)
    engine_gpus = search.question.profile.gpus
    more, less = (search.at_step_cost(rungs, 1.0 + change) for change in (STEP_CHANGE, -STEP_CHANGE))
    # Of loads that this policy alone gives, so that what it is compared with changes no pocket.
    loads = sorted({*search.loads, *curve_loads(search.question, good)})
    return {
        "capacity": good,
        "capacity_interval": [low, high],
        "capacity_per_gpu": good / engine_gpus,
        "binds": search.binds(bad),
        "capacity_if_steps": {"costlier": more, "cheaper": less, "by": STEP_CHANGE},
        "pockets": search.pockets(good, loads),
    }
