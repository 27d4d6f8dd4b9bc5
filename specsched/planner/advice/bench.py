"""One load, replayed under any setup of the engine: figures, and differences of two setups.

Every setup replays the same requests, so that a difference carries no noise of the text. What is left is that
the trace is a sample: traced requests are drawn again, each with its replays in both runs (a paired
bootstrap), around the difference that was simulated.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from ...documents.advice import Worth
from ...errors import ProfileError, WorkloadError
from ...profile import StepProfile
from ...profile.curve import Curve
from ...schedule import Policy
from ...simulator import SimResult
from ...simulator.intervals import RESAMPLES, bounds, draws, resampled_quantiles
from ...simulator.requests import Requests, closed_loop, open_loop
from ...simulator.run import Run
from ...workload import Workload
from ..capacity import reached_by
from ..inputs import Inputs

THROUGHPUT = "output tokens/s of the engine"
USER_SPEED = "output tokens/s of a user, the wait for a place included"
SLOW_USER = "output tokens/s that the promised share of users reaches"
SHARE = "share of requests at the SLA"
CAPACITY = "users at the SLA"
LOG = 4096  # steps of arrivals kept, to see how many requests came together


@dataclass(frozen=True)
class Setup:
    """What an engine is told: a policy, its captured sizes in tokens, its most requests at once."""

    policy: Policy
    sizes: tuple[int, ...] | None = None  # None: as the profile has them
    seqs: int | None = None  # None: no limit but memory

    @property
    def key(self) -> tuple[str, tuple[int, ...] | None, int | None]:
        return self.policy.name, self.sizes, self.seqs


@dataclass(eq=False)
class Bench:
    """Runs of one question, each once: a closed loop of users, or arrivals."""

    given: Inputs
    requests: int
    seed: int
    share: float
    workload: Workload | None = None
    promised: bool = False  # users are compared by the speed of the slow ones
    done: dict[tuple[object, ...], SimResult | None] = field(default_factory=dict)

    def run(self, setup: Setup, users: int) -> SimResult | None:
        """The run of a setup at so many users (of arrivals: whatever comes); None where it has no cost.

        Nor does it where a request does not fit.
        """
        key = (*setup.key, None if self.workload is not None else users)
        if key not in self.done:
            self.done[key] = self._run(setup, users)
        return self.done[key]

    def _run(self, setup: Setup, users: int) -> SimResult | None:
        given, serving = self.given, self.given.serving
        if setup.seqs is not None:
            serving = replace(serving, max_running=setup.seqs)
        coming = self._coming(users)
        measured = self.requests if self.workload is None else len(coming.arrival)
        try:
            profile = profile_with(given.profile, setup.sizes)
            log = LOG if self.workload is not None else 0
            run = Run(given.replay, profile, serving, coming, measured, log)
            return run.result(setup.policy, self.seed, given.sees_token)
        except (ProfileError, WorkloadError):
            return None

    def _coming(self, users: int) -> Requests:
        if self.workload is None:
            return closed_loop(self.given.replay, users, self.requests, self.seed)
        return open_loop(self.given.replay, self.given.part, self.workload, self.seed)

    @property
    def measure(self) -> str:
        """What setups are compared by."""
        if self.workload is not None:
            return USER_SPEED
        return SLOW_USER if self.promised else THROUGHPUT

    def score(self, result: SimResult | None) -> float:
        """The figure of a run that setups are compared by; 0 where there is none, or arrivals pile up."""
        if result is None or (result.backlog is not None and result.backlog.grows):
            return 0.0
        if self.workload is not None:
            return user_speed(result)
        return self.keeps(result) if self.promised else float(result.summary["throughput"])

    def keeps(self, result: SimResult | None) -> float:
        """tokens/s that the asked share of the requests reach."""
        return reached_by(result.tps, self.share) if result is not None else 0.0

    def worth(self, one: Setup, other: Setup, users: int) -> Worth:
        """What `one` is worth against `other` at so many users."""
        a, b = self.run(one, users), self.run(other, users)
        mine, theirs = self.score(a), self.score(b)
        interval = None
        if a is not None and b is not None and mine > 0.0 and theirs > 0.0:
            ratios = slow_ratios if self.promised and self.workload is None else speed_ratios
            interval = around(mine / theirs, ratios(a, b, self.seed, self.share))
        return worth_of(self.measure, mine, theirs, interval)


def worth_of(measure: str, one: float, other: float, interval: list[float] | None = None) -> Worth:
    """The entry of two figures and the interval of their relative difference."""
    return {
        "measure": measure,
        "recommended": one,
        "default": other,
        "relative": one / other - 1.0 if other > 0.0 else None,
        "interval": interval,
    }


def around(ratio: float, ratios: np.ndarray | None) -> list[float] | None:
    """95 % of the relative difference: the spread of resampled ratios, centred on the simulated one."""
    if ratios is None or not np.isfinite(ratios).any():
        return None
    return bounds(ratio * ratios / np.nanmedian(ratios) - 1.0)


def speed_ratios(one: SimResult, other: SimResult, seed: int, share: float) -> np.ndarray | None:
    """float64[resamples]: ratio of tokens over time, the same traced requests drawn for both."""
    sums = [_by_request(result) for result in (one, other)]
    both = (sums[0][0] > 0) & (sums[1][0] > 0)
    if both.sum() < 2:
        return None
    drawn = draws(int(both.sum()), seed, RESAMPLES).astype(np.float64)
    speed = [(drawn @ tokens[both]) / (drawn @ seconds[both]) for tokens, seconds in sums]
    found: np.ndarray = speed[0] / speed[1]
    return found


def slow_ratios(one: SimResult, other: SimResult, seed: int, share: float) -> np.ndarray | None:
    """float64[resamples]: ratio of the speeds that `share` reaches, the same requests drawn for both."""
    both = np.intersect1d(one.arrays["traced"], other.arrays["traced"])
    if len(both) < 2:
        return None
    drawn, speeds = draws(len(both), seed, RESAMPLES), []
    for result in (one, other):
        known = np.isin(result.arrays["traced"], both) & np.isfinite(result.tps)
        group = np.searchsorted(both, result.arrays["traced"][known])
        speeds.append(resampled_quantiles(result.tps[known], group, drawn, 1.0 - share)[0])
    with np.errstate(divide="ignore", invalid="ignore"):
        found: np.ndarray = speeds[0] / speeds[1]
    return found


def user_speed(result: SimResult) -> float:
    """Tokens of all measured requests over the time from arrival to last token."""
    tokens, seconds = _by_request(result)
    return float(tokens.sum() / seconds.sum()) if seconds.sum() > 0 else 0.0


def _by_request(result: SimResult) -> tuple[np.ndarray, np.ndarray]:
    """(tokens, seconds), each float64[traced requests]: from arrival on where there are arrivals."""
    a, n = result.arrays, len(result.replay.request_ids)
    since = a["arrival_seconds"] if result.backlog is not None else a["ready_seconds"]
    seconds = a["finish_seconds"] - since
    known = np.isfinite(seconds) & (seconds > 0)
    traced = a["traced"][known].astype(np.int64)
    return np.bincount(traced, a["tokens"][known], n), np.bincount(traced, seconds[known], n)


def profile_with(profile: StepProfile, sizes: tuple[int, ...] | None) -> StepProfile:
    """The profile with these captured sizes (tokens, rising); None leaves its own.

    Passes that the profile captures and these sizes do not are priced as off the graph: as captured, and the
    jump that the profile has at its own limit on top, assumed to be as large there.
    """
    limit = profile.graph_limit
    if sizes is None or limit is None:
        return profile
    eager = profile.eager
    if eager is not None and sizes[-1] < limit:
        between = np.arange(sizes[-1] + 1, limit + 1)
        jump = max(float(eager(limit + 1)) - float(profile.verify(limit)), 0.0)
        x = np.concatenate([between, eager.x[eager.x > limit]]).astype(np.float64)
        y = np.concatenate([profile.verify(between) + jump, eager.y[eager.x > limit]])
        eager = Curve(x, y, eager.lookup, eager.beyond)
    captured = np.array(sizes, dtype=np.int64)
    return replace(profile, capture_sizes=captured, capture_limit=sizes[-1], eager=eager)
