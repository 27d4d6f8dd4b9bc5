"""An additive cost T(R, B) = α(R) + θ(B) from rounds that engines logged: no B is merged with another."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..profile.additive import fit_steps


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
    """`fit_steps` over the (R, B) medians: α bends only where the data makes it, θ is free at every B."""
    r, b, t, count = cells(requests, tokens, seconds)
    fit = fit_steps(b, r, np.zeros(len(t)), t, counts=count)
    sizes = np.array(sorted(fit.verify), dtype=np.int64)
    theta = np.array([fit.verify[size] for size in sizes.tolist()])
    return AdditiveFit(fit.requests, fit.overhead, sizes, theta, fit.relative_error)


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
