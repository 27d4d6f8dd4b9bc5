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


def linked(requests: np.ndarray, tokens: np.ndarray) -> bool:
    """Whether α and θ can be told apart: every R hangs together with the others by numbers of tokens that
    occur under both.
    """
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    rs, ri = np.unique(requests, return_inverse=True)
    bs, bi = np.unique(tokens, return_inverse=True)
    size = len(rs) + len(bs)
    graph = coo_matrix((np.ones(len(ri)), (ri, len(rs) + bi)), shape=(size, size))
    return bool(connected_components(graph, directed=False)[0] == 1)


def rising(requests: np.ndarray, tokens: np.ndarray, seconds: np.ndarray) -> AdditiveFit:
    """Least squares of relative errors with α and θ that never fall, and a weak pull of θ towards a line.

    For rounds that are not `linked`: where a θ free at every B could be anything, it goes on straight, and
    where rounds of one R show a cliff it stays.
    """
    from scipy.optimize import nnls

    r, b, t, count = cells(requests, tokens, seconds)
    rs, ri = np.unique(r, return_inverse=True)
    bs, bi = np.unique(b, return_inverse=True)
    gaps = np.diff(bs).astype(np.float64)
    steps = (ri[:, None] > np.arange(len(rs) - 1)).astype(np.float64)
    climbs = (bi[:, None] > np.arange(len(gaps))).astype(np.float64)
    design = np.hstack([np.ones((len(t), 1)), steps, climbs])
    weight = np.sqrt(np.minimum(count, 25)) / t
    bends = np.zeros((max(len(gaps) - 1, 0), design.shape[1]))
    for k in range(len(bends)):
        width = (gaps[k] + gaps[k + 1]) / 2.0
        bends[k, len(rs) + k : len(rs) + k + 2] = -width / gaps[k], width / gaps[k + 1]
    pulled = np.vstack([design * weight[:, None], bends * (1e-3 / np.median(t))])
    solved = nnls(pulled, np.concatenate([weight * t, np.zeros(len(bends))]))[0]
    alpha = np.concatenate([[0.0], np.cumsum(solved[1 : len(rs)])])
    theta = solved[0] + np.concatenate([[0.0], np.cumsum(solved[len(rs) :])])
    return AdditiveFit(rs, alpha, bs, np.maximum(theta, 1e-9), design @ solved / t - 1.0)
