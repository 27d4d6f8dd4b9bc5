"""An additive cost T(R, B) = α(R) + θ(B) from scattered measurements, with θ free at every B measured.

Engines that fit their own logs bin B by 64 first, which erases the cliffs a scheduler must know; here no B is
ever merged with another.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class AdditiveFit:
    """`overhead` float64[nR] ≥ 0 at `requests`, `theta` float64[nB] > 0 at `tokens`; relative errors of the
    cells.
    """

    requests: np.ndarray
    overhead: np.ndarray
    tokens: np.ndarray
    theta: np.ndarray
    relative_error: np.ndarray

    def report(self) -> dict[str, float | int]:
        """The profile schema's `fit` block."""
        worst = np.abs(self.relative_error)
        return {
            "median_relative_error": float(np.median(worst)),
            "p90_relative_error": float(np.quantile(worst, 0.9)),
            "samples": len(worst),
        }


def cells(requests: np.ndarray, tokens: np.ndarray, seconds: np.ndarray) -> tuple[np.ndarray, ...]:
    """Median seconds and count of each measured (R, B): int64[n], int64[n], float64[n], int64[n]."""
    pairs, inverse = np.unique(np.stack([requests, tokens], axis=1), axis=0, return_inverse=True)
    inverse = inverse.reshape(-1)
    median = np.array([np.median(seconds[inverse == i]) for i in range(len(pairs))])
    return pairs[:, 0], pairs[:, 1], median, np.bincount(inverse, minlength=len(pairs))


def additive(requests: np.ndarray, tokens: np.ndarray, seconds: np.ndarray) -> AdditiveFit:
    """Least squares of relative errors over the (R, B) medians.

    α bends only where the data makes it (a weak pull towards a line through the origin keeps it defined where
    no B was measured under two R); θ is free, so cliffs and inversions survive. α is shifted to be 0 at the
    cheapest R, the rest is θ's.
    """
    r, b, t, count = cells(requests, tokens, seconds)
    rs, ri = np.unique(r, return_inverse=True)
    bs, bi = np.unique(b, return_inverse=True)
    n, weight = len(t), np.sqrt(np.minimum(count, 25)) / t
    design = np.zeros((n, len(rs) + len(bs)))
    design[np.arange(n), ri] = weight
    design[np.arange(n), len(rs) + bi] = weight
    rows, targets = [design], [weight * t]
    pull = 1e-3 / np.median(t)
    for row in _bend_rows(rs):
        rows.append(np.concatenate([row, np.zeros(len(bs))])[None] * pull)
        targets.append(np.zeros(1))
    first = np.zeros((1, design.shape[1]))
    first[0, 0] = pull
    rows.append(first)
    targets.append(np.zeros(1))
    solution = np.linalg.lstsq(np.concatenate(rows), np.concatenate(targets), rcond=None)[0]
    alpha, theta = solution[: len(rs)], solution[len(rs) :]
    # α may only be raised as far as θ can pay for it: a curve of seconds must stay above 0.
    shift = min(-alpha.min(), theta.min() - 1e-9)
    alpha, theta = np.maximum(alpha + shift, 0.0), theta - shift
    predicted = alpha[ri] + theta[bi]
    return AdditiveFit(rs, alpha, bs, theta, predicted / t - 1.0)


def _bend_rows(x: np.ndarray) -> list[np.ndarray]:
    """Second differences of a curve at the points `x`, scaled by the distance: 0 for a straight line."""
    rows = []
    for i in range(1, len(x) - 1):
        row = np.zeros(len(x))
        left, right = 1.0 / (x[i] - x[i - 1]), 1.0 / (x[i + 1] - x[i])
        row[i - 1], row[i], row[i + 1] = left, -left - right, right
        rows.append(row * (x[i + 1] - x[i - 1]) / 2)
    if len(x) == 2:
        # Two sizes only: nothing bends, so the pull is on their difference.
        rows.append(np.array([-1.0, 1.0]))
    return rows
