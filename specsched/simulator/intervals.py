"""Intervals that a run's noise leaves: bootstrap over distinct traced requests.

Replays of one traced request share its text, so they are one observation, not many: the bootstrap draws
traced requests, each with all its replays (Efron and Tibshirani 1993, chapter 8: the unit that was sampled).
"""

from __future__ import annotations

import numpy as np

LEVEL = 0.95
RESAMPLES = 400
STREAM = 31  # random stream of this module
FEWEST_REQUESTS = 100  # fewer distinct traced requests than this is said in a warning


def draws(groups: int, seed: int, resamples: int) -> np.ndarray:
    """int[resamples, groups]: how often each traced request is drawn in each resample."""
    rng = np.random.Generator(np.random.Philox(key=np.array([seed, STREAM], dtype=np.uint64)))
    return rng.multinomial(groups, np.full(groups, 1.0 / groups), size=resamples)


def share_bounds(
    passed: np.ndarray, traced: np.ndarray, seed: int, resamples: int = RESAMPLES
) -> list[float]:
    """Interval of the share of replays with `passed` (bool[n])."""
    _, group = np.unique(traced, return_inverse=True)
    hits = np.bincount(group, weights=passed)
    drawn = draws(len(hits), seed, resamples)
    found = ratio_bounds(hits, np.bincount(group).astype(np.float64), drawn)
    assert found is not None  # every resample has a replay
    return found


def resample_weights(traced: np.ndarray, seed: int, resamples: int = RESAMPLES) -> np.ndarray:
    """float64[resamples, n]: how often each of n replays counts when traced requests are drawn again.

    traced int[n]: the traced request of each replay.
    """
    distinct, group = np.unique(traced, return_inverse=True)
    return draws(len(distinct), seed, resamples)[:, group].astype(np.float64)


def bounds(values: np.ndarray) -> list[float] | None:
    """[low, high] of the central 95 % of bootstrap values; NaN resamples are left out, None: all are."""
    values = values[np.isfinite(values)]
    if len(values) == 0:
        return None
    tail = 50.0 * (1.0 - LEVEL)
    low, high = np.percentile(values, [tail, 100.0 - tail])
    return [float(low), float(high)]


def ratio_bounds(numerator: np.ndarray, denominator: np.ndarray, weights: np.ndarray) -> list[float] | None:
    """Interval of Σ numerator / Σ denominator over replays, both float64[n]."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return bounds((weights @ numerator) / (weights @ denominator))


def quantile_bounds(values: np.ndarray, quantile: float, weights: np.ndarray) -> list[float] | None:
    """Interval of the smallest value that more than `quantile` of the replays do not exceed (float64[n])."""
    order = np.argsort(values, kind="stable")
    mass = np.cumsum(weights[:, order], axis=1)
    at = np.argmax(mass > quantile * mass[:, -1:], axis=1)
    return bounds(values[order][at])
