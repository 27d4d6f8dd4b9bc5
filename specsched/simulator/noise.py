"""How much faster or slower a user would be with another trace of the same size.

The speed that a share of the requests reaches hangs on two things that a trace is a sample of: which requests
are slow, and how long a step lasts (the contexts it reads, the tokens it verifies). The first is resampled
(`quantile_sd`). The second is the same for all requests, so that no resampling of their speeds shows it: its
spread follows from each traced request's share in the mean step (the delta method on a ratio of sums), its
skewness included (Hall 1992, section 3.9: the interval of a mean of skewed data), for a few long requests
carry most of the context.

A run repeats its few traced requests in shuffled passes, so that with fewer of them than users every moment
holds the same mixture. Users who come by chance do not: what that hides of the spread of the step is added on
the slow side.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from scipy.special import stdtrit

from ..profile import StepProfile
from . import intervals
from .replay import Replay
from .result import SimResult
from .serving import Serving

RESAMPLES = 200
MOST_REPLAYS = 20_000  # beyond so many the noise is the trace's, and every n-th replay shows it
AROUND = 2.0  # factor either way within which survivals are counted: confidences may come in few values
PREFILL_SPAN = 2048  # tokens over which the price of a prefill token is taken


@dataclass(frozen=True)
class SpeedNoise:
    """Factors on the speed that another trace may give: log-distances, both at least 0."""

    slow: float
    fast: float
    held: float  # relative half-width of the mean KV that a user holds

    @property
    def slower(self) -> float:
        return float(np.exp(-self.slow))

    @property
    def faster(self) -> float:
        return float(np.exp(self.fast))


NO_NOISE = SpeedNoise(0.0, 0.0, 0.0)


def student(traced: int, level: float = intervals.LEVEL) -> float:
    """Half-width in standard deviations of a nominal interval of this level from so many traced requests.

    Student's t, and 1 + 1 / sqrt(n) of it: bootstrapped deviations of a tail's quantile are too small by
    about that in the coverage experiment.
    """
    if traced < 2:
        return float("inf")
    widened = float(np.sqrt(traced / (traced - 1.0))) * (1.0 + 1.0 / float(np.sqrt(traced)))
    return float(stdtrit(traced - 1, 0.5 + level / 2.0)) * widened


def speed_noise(
    result: SimResult, profile: StepProfile, serving: Serving, users: float, share: float, seed: int
) -> SpeedNoise:
    """The noise of the speed that `share` of the requests reach with `users` on each engine."""
    a = result.arrays
    distinct, group, count = intervals.distinct_of(a["traced"])
    n = len(distinct)
    speed = result.tps
    known = np.isfinite(speed) & (speed > 0)
    if n < 2 or not known.any():
        return NO_NOISE
    wide = student(n)
    ranked = wide * quantile_sd(np.log(speed[known]), group[known], n, 1.0 - share, seed)
    mean = _Means.of(result.replay, a, distinct, group, count, serving)
    influence, contexts = mean.step_influence(profile, result, users)
    sd = float(influence.std(ddof=1)) / np.sqrt(n)
    lean = _lean(influence, wide)
    hidden = contexts * np.sqrt(min(1.0, users / n) / users)
    spread = float(np.log(speed[known]).std())
    tail = NormalDist().inv_cdf(min(max(share, 0.5), 0.999))
    slow = float(np.hypot(sd * (wide + lean), ranked)) + tail * float(np.hypot(spread, hidden) - spread)
    return SpeedNoise(slow, float(np.hypot(sd * wide, ranked)), wide * mean.held_sd())


def widened(
    intervals_of: dict[str, Any],
    result: SimResult,
    profile: StepProfile,
    serving: Serving,
    weighs_costs: bool,
) -> dict[str, Any]:
    """The intervals of a summary with the noise of the step in them.

    Resampling the requests of a run leaves its steps as long as they were; throughput and the speed of a user
    go inversely with a step, which another trace makes longer or shorter, and a policy that weighs costs
    verifies more drafts in a longer one.
    """
    a = result.arrays
    distinct, group, count = intervals.distinct_of(a["traced"])
    n = len(distinct)
    users = result.summary["concurrency_mean"] / serving.replicas
    if n < 2 or not users > 0:
        return intervals_of
    mean = _Means.of(result.replay, a, distinct, group, count, serving)
    influence = mean.step_influence(profile, result, users)[0]
    wide = student(n)
    fast = wide * float(influence.std(ddof=1)) / float(np.sqrt(n))
    slow = fast * (1.0 + _lean(influence, wide) / wide)
    out = {**intervals_of, "tps_user": dict(intervals_of["tps_user"])}
    for where, of in ((out, result.summary), (out["tps_user"], result.summary["tps_user"])):
        for key in ("throughput", "mean", "p05", "p50"):
            if where.get(key) is not None and of[key] > 0:
                low, high = (min(max(x, 1e-300), 1e300) / of[key] for x in where[key])
                below, above = max(-float(np.log(low)), 0.0), max(float(np.log(high)), 0.0)
                where[key] = [
                    of[key] * float(np.exp(-np.hypot(below, slow))),
                    of[key] * float(np.exp(np.hypot(above, fast))),
                ]
    if weighs_costs:
        for key, sd in mean.budget_sd(result, influence).items():
            low, high = out.get(key) or (result.summary[key],) * 2
            half, least = wide * sd, 1.0 if key == "verify_tokens_per_request" else 0.0
            most = 1.0 if key == "rejected_share" else float("inf")
            value = result.summary[key]
            out[key] = [max(min(low, value - half), least), min(max(high, value + half), most)]
    return out


@dataclass(frozen=True)
class Heavier:
    """What another trace of the same size may ask of a fleet, as log-factors of at least 0.

    Heavy requests bring more work, make every step longer, and more of them are slow, all at once: the three
    are the parts of one deviation in the direction that costs most engines.
    """

    work: float  # steps a request takes
    step: float  # seconds of a step
    slow: float  # the speed that the share reaches, beside what longer steps do to it


def fleet_noise(
    result: SimResult,
    profile: StepProfile,
    serving: Serving,
    users: float,
    share: float,
    seed: int,
    *,
    own_lengths: bool,
    level: float,
) -> tuple[Heavier, Heavier]:
    """(heavier, lighter) traces at the two ends of a central interval of this level, from a run of a fleet.

    users: requests that an engine decodes at once. own_lengths: the workload gives the output lengths, so
    that a trace decides how many steps a token takes and not how many tokens a request has.
    """
    a = result.arrays
    distinct, group, count = intervals.distinct_of(a["traced"])
    n = len(distinct)
    speed = result.tps
    known = np.isfinite(speed) & (speed > 0)
    if n < 2 or not known.any():
        return Heavier(0.0, 0.0, 0.0), Heavier(0.0, 0.0, 0.0)
    mean = _Means.of(result.replay, a, distinct, group, count, serving)
    work = mean.work_influence(own_lengths)
    step = mean.step_influence(profile, result, users)[0]
    ranked = quantile_sd(np.log(speed[known]), group[known], n, 1.0 - share, seed)
    both = work + step
    deviation = float(np.hypot(both.std(ddof=1) / np.sqrt(n), ranked))
    if not deviation > 0.0:
        return Heavier(0.0, 0.0, 0.0), Heavier(0.0, 0.0, 0.0)
    parts = [max(float((x * both).mean()) / n, 0.0) / deviation for x in (work, step)]
    parts.append(ranked * ranked / deviation)
    wide = student(n, level)
    heavy = wide + _lean(both, wide)
    return Heavier(*(heavy * part for part in parts)), Heavier(*(wide * part for part in parts))


def _lean(influence: np.ndarray, wide: float) -> float:
    """Standard deviations by which a mean of skewed data lies further above its estimate than below.

    Hall's correction for a long upper tail.
    """
    sd = float(influence.std())
    if not sd > 0.0:
        return 0.0
    skew = float(((influence - influence.mean()) ** 3).mean()) / sd**3
    return max(skew, 0.0) * (1.0 + 2.0 * wide * wide) / (6.0 * float(np.sqrt(len(influence))))


def quantile_sd(values: np.ndarray, group: np.ndarray, groups: int, quantile: float, seed: int) -> float:
    """Standard deviation of a quantile of values float64[k], when their `groups` groups are drawn again."""
    if len(values) > MOST_REPLAYS:
        pick = np.linspace(0, len(values) - 1, MOST_REPLAYS).astype(np.int64)
        values, group = values[pick], group[pick]
    drawn = intervals.draws(groups, seed, RESAMPLES)
    return float(intervals.resampled_quantiles(values, group, drawn, quantile)[0].std())


@dataclass(frozen=True)
class _Means:
    """Per traced request, float64[n]: means over its replays."""

    tokens: np.ndarray  # decoded
    steps: np.ndarray
    verified: np.ndarray  # drafts
    accepted: np.ndarray
    context: np.ndarray  # tokens read in a step, on average over its steps
    prefilled: np.ndarray  # prompt tokens that join the steps

    @classmethod
    def of(
        cls,
        replay: Replay,
        arrays: dict[str, np.ndarray],
        distinct: np.ndarray,
        group: np.ndarray,
        count: np.ndarray,
        serving: Serving,
    ) -> _Means:
        def mean(name: str) -> np.ndarray:
            out: np.ndarray = np.bincount(group, weights=arrays[name].astype(np.float64)) / count
            return out

        prompt = replay.prompt_tokens[distinct].astype(np.float64)
        fixed = serving.context
        context = prompt + mean("tokens") / 2.0 if fixed is None else np.full(len(distinct), float(fixed))
        chunked = prompt if serving.prefill == "chunked" else np.zeros(len(distinct))
        return cls(mean("tokens"), mean("steps"), mean("verified"), mean("accepted"), context, chunked)

    def work_influence(self, own_lengths: bool) -> np.ndarray:
        """float64[n]: on the log of the steps that a request takes, or a token where lengths are given."""
        out: np.ndarray = self.steps / self.steps.mean() - 1.0
        return out - (self.tokens / self.tokens.mean() - 1.0) if own_lengths else out

    def _influence(self, total: np.ndarray) -> np.ndarray:
        """Of each request on the ratio Σ total / Σ steps; its mean is 0."""
        steps = self.steps
        out: np.ndarray = len(steps) * (total - total.sum() / steps.sum() * steps) / steps.sum()
        return out

    def step_influence(
        self, profile: StepProfile, result: SimResult, users: float
    ) -> tuple[np.ndarray, float]:
        """(float64[n]: influence on the log of the mean step, log-spread of a step by one user's context)."""
        seconds = result.summary["step_seconds"]
        tokens = result.summary["tokens_per_pass"]
        if not seconds > 0:
            return np.zeros(len(self.steps)), 0.0
        mean = float((self.steps * self.context).sum() / self.steps.sum())
        read = _attention_slope(profile, users * mean) * users / seconds
        verify = _verify_slope(profile, tokens) * users / seconds
        prefill = prefill_token_seconds(profile, tokens) * users / seconds if self.prefilled.any() else 0.0
        influence = (
            read * self._influence(self.steps * self.context)
            + verify * self._influence(self.steps + self.verified)
            + prefill * self._influence(self.prefilled)
        )
        variance = float((self.steps * (self.context - mean) ** 2).sum() / self.steps.sum())
        return influence, read * float(np.sqrt(variance))

    def budget_sd(self, result: SimResult, step: np.ndarray) -> dict[str, float]:
        """Standard deviations of what a policy that weighs costs verifies, emits and has rejected in a step.

        It verifies drafts down to the survival at which one more is not worth its time, and that falls as
        steps (`step`: influence on their log) grow longer beside what they emit: the number of drafts follows
        by how many survivals lie around it.
        """
        total = self.steps.sum()
        verified, accepted = self.verified.sum() / total, self.accepted.sum() / total
        emitted = self.tokens.sum() / total
        rows = result.replay.survival[:: max(1, len(result.replay.survival) // MOST_REPLAYS)]
        values = rows.reshape(-1)
        place = max(len(values) - 1 - int(verified * len(rows)), 0)  # of the last verified, rising
        least = float(np.partition(values, place)[place])
        near = [float((values >= least * factor).sum()) / len(rows) for factor in (1 / AROUND, AROUND)]
        density = (near[0] - near[1]) / (2.0 * float(np.log(AROUND)))
        of_tokens, of_verified = self._influence(self.tokens), self._influence(self.verified)
        more = density * (step - of_tokens / emitted)
        found = {
            "verify_tokens_per_request": of_verified + more,
            "emitted_per_step": of_tokens + least * more,
        }
        if verified > 0.0:
            accepts = self._influence(self.accepted) + least * more
            found["rejected_share"] = (accepted * (of_verified + more) / verified - accepts) / verified
        return {key: float(x.std(ddof=1)) / float(np.sqrt(len(x))) for key, x in found.items()}

    def held_sd(self) -> float:
        """Relative standard deviation of the mean context held."""
        mean = float((self.steps * self.context).sum() / self.steps.sum())
        n = len(self.steps)
        influence = self._influence(self.steps * self.context)
        return float(influence.std(ddof=1)) / np.sqrt(n) / mean if mean > 0 else 0.0


def _attention_slope(profile: StepProfile, context: float) -> float:
    """Seconds that a context token more costs, around a pass that reads so many."""
    if profile.attention is None or context <= 0:
        return 0.0
    ends = profile.attention(np.array([0.9 * context, 1.1 * context]))
    return max(float(ends[1] - ends[0]), 0.0) / (0.2 * context)


def _verify_slope(profile: StepProfile, tokens: float) -> float:
    """Seconds that a token more costs, fitted over passes of 0.85 to 1.15 times as many: across paddings."""
    reach = max(4.0, 0.15 * tokens)
    sizes = np.arange(max(1, int(tokens - reach)), int(tokens + reach) + 1)
    costs = profile.verify_seconds(sizes)
    sizes, costs = sizes[np.isfinite(costs)], costs[np.isfinite(costs)]
    if len(sizes) < 2:
        return 0.0
    return max(float(np.polyfit(sizes, costs, 1)[0]), 0.0)


def prefill_token_seconds(profile: StepProfile, tokens: float) -> float:
    """Seconds that a prefill token adds to a pass of so many."""
    first = max(1, int(tokens))
    costs = profile.verify_seconds(np.array([first, first + PREFILL_SPAN]))
    return max(float(costs[1] - costs[0]), 0.0) / PREFILL_SPAN if np.isfinite(costs).all() else 0.0
