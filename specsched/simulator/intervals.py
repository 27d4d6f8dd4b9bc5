"""Intervals that a run's noise leaves: bootstrap over distinct traced requests.

Replays of one traced request share its text, so they are one observation, not many: the bootstrap draws
traced requests, each with all its replays (Efron and Tibshirani 1993, chapter 8: the unit that was sampled).
"""

from __future__ import annotations

from functools import cached_property, lru_cache

import numpy as np

from .. import kernels

LEVEL = 0.95
RESAMPLES = 400
STREAM = 31  # random stream of this module
MANY = 512  # traced requests from which on few draws are kept: they take up to 200 MB
FEWEST_REQUESTS = 100  # fewer distinct traced requests than this is said in a warning


def distinct_of(traced: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(distinct, group, count) of traced requests int[n]: as np.unique has them, without its sort.

    distinct int64[groups], rising; group int64[n]: which of them each is; count int64[groups].
    """
    count = np.bincount(traced)
    distinct = np.flatnonzero(count)
    place = np.cumsum(count > 0) - 1
    return distinct, place[traced], count[distinct]


def draws(groups: int, seed: int, resamples: int) -> np.ndarray:
    """int64[resamples, groups], to be read only: how often each traced request is in each resample."""
    kept = _draws if groups <= MANY else _many_draws
    return kept(groups, seed, resamples)


def _drawn(groups: int, seed: int, resamples: int) -> np.ndarray:
    rng = np.random.Generator(np.random.Philox(key=np.array([seed, STREAM], dtype=np.uint64)))
    return rng.multinomial(groups, np.full(groups, 1.0 / groups), size=resamples)


# The loads of an answer come to some dozens of numbers of traced requests, over and over.
_draws, _many_draws = lru_cache(maxsize=64)(_drawn), lru_cache(maxsize=4)(_drawn)


class Resamples:
    """n replays of traced requests, drawn again by the request: sums and quantiles of every resample."""

    def __init__(self, traced: np.ndarray, seed: int, resamples: int = RESAMPLES) -> None:
        """traced int[n]: the traced request of each replay."""
        distinct, self.group, _ = distinct_of(traced)
        self.drawn = draws(len(distinct), seed, resamples)

    @cached_property
    def _real(self) -> np.ndarray:
        return self.drawn.astype(np.float64)

    @cached_property
    def weights(self) -> np.ndarray:
        """float64[resamples, n]: how often each replay counts."""
        return self._real[:, self.group]

    def whole_sums(self, values: np.ndarray) -> np.ndarray:
        """float64[resamples]: Σ values (float64[n], whole numbers: their sums do not hang on the order)."""
        return self._real @ np.bincount(self.group, values, self.drawn.shape[1])

    def sums(self, values: np.ndarray) -> np.ndarray:
        """float64[resamples]: Σ values (float64[n])."""
        out: np.ndarray = self.weights @ values
        return out

    def quantiles(self, values: np.ndarray, *quantiles: float) -> list[np.ndarray]:
        """`resampled_quantiles` of values float64[n]."""
        return resampled_quantiles(values, self.group, self.drawn, *quantiles)


def resampled_quantiles(
    values: np.ndarray, group: np.ndarray, drawn: np.ndarray, *quantiles: float
) -> list[np.ndarray]:
    """For each quantile float64[resamples]: the least value that more than so much of it do not exceed.

    values float64[n], group int64[n]: whose each is; drawn int64[resamples, groups]: see `draws`.
    """
    order = np.argsort(values, kind="stable")
    rising, whose = values[order], np.ascontiguousarray(group[order])
    total = (drawn @ np.bincount(group, minlength=drawn.shape[1])).astype(np.float64)
    found = []
    for quantile in quantiles:
        at = np.empty(len(total), np.int64)
        kernels.first_beyond(whose, drawn, quantile * total, at)
        found.append(rising[at])
    return found


def share_bounds(
    passed: np.ndarray, traced: np.ndarray, seed: int, resamples: int = RESAMPLES
) -> list[float]:
    """Interval of the share of replays with `passed` (bool[n])."""
    drawn = Resamples(traced, seed, resamples)
    found = ratio_bounds(drawn.whole_sums(passed), drawn.whole_sums(np.ones(len(traced))))
    assert found is not None  # every resample has a replay
    return found


def bounds(values: np.ndarray) -> list[float] | None:
    """[low, high] of the central 95 % of bootstrap values; NaN resamples are left out, None: all are."""
    values = values[np.isfinite(values)]
    if len(values) == 0:
        return None
    tail = 50.0 * (1.0 - LEVEL)
    low, high = np.percentile(values, [tail, 100.0 - tail])
    return [float(low), float(high)]


def ratio_bounds(numerator: np.ndarray, denominator: np.ndarray) -> list[float] | None:
    """Interval of numerator / denominator, the sums of every resample."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return bounds(numerator / denominator)
