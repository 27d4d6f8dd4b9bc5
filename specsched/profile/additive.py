"""The additive cost of a step, from timed steps:

    seconds(B, R, N) = verify(B) + attention(N) + overhead(R)        [+ keeping(R) when drafting]

A pass that keeps features for a drafter takes longer than one of the same size that does not: `keeping` is
that cost.

verify is free at every B measured, so that cliffs and inversions survive (engines that fit their own logs bin
B by 64 first, which erases them); attention is piecewise linear from 0 at N = 0; overhead is free at every R,
pulled weakly towards a straight line where the data leave it open. All are non-negative and minimise the
squared *relative* error. A constant cannot be told from verify's own level and stays there: overhead is 0 at
its cheapest R.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..errors import ProfileError

LEAST = 0.05  # of the fastest pass of a size: no noise may explain all of it by R and N
MOST_COUNTED = 25  # repeats of a pass beyond this tell no more of it: what is left is not their noise
PULL = 0.02  # of a median step: how much a bend of a curve weighs against the relative error of a sample


@dataclass(frozen=True)
class StepFit:
    """`verify` and `eager`: {B: seconds}; attention at `kv_tokens`; at `requests` overhead and `keeping`,
    what passes with drafts take more than passes of the same B, R and N without (0 unless both
    were measured).

    `relative_error` float64[n]: predicted / measured - 1 of every sample.
    """

    verify: dict[int, float]
    eager: dict[int, float]
    kv_tokens: np.ndarray
    attention: np.ndarray
    requests: np.ndarray
    overhead: np.ndarray
    keeping: np.ndarray
    relative_error: np.ndarray


def fit_steps(
    tokens: np.ndarray,
    requests: np.ndarray,
    context_tokens: np.ndarray,
    seconds: np.ndarray,
    eager: np.ndarray | None = None,
    drafting: np.ndarray | None = None,
    counts: np.ndarray | None = None,
) -> StepFit:
    """Fit measured passes.

    int64[n] B, R, N, float64[n] seconds > 0, bool[n] off-graph, bool[n] of steps that draft (None: not told
    apart), int64[n] of how many passes each is the median (None: one weight for all). Raises ProfileError.
    """
    seconds = np.asarray(seconds, dtype=np.float64)
    n = len(seconds)
    if n == 0 or not (np.isfinite(seconds) & (seconds > 0)).all():
        raise ProfileError(
            f"{n} measured steps, of which not all take a finite time above 0; nothing to fit: measure again"
        )
    eager = np.zeros(n, dtype=bool) if eager is None else np.asarray(eager, dtype=bool)
    sizes, at_size = np.unique(np.stack([eager, tokens]).T.astype(np.int64), axis=0, return_inverse=True)
    rs, at_r = np.unique(np.asarray(requests), return_inverse=True)
    knots = _knots(np.asarray(context_tokens, dtype=np.float64))
    scale = float(np.median(seconds))
    at_size = at_size.reshape(-1)
    by_r = np.eye(len(rs))[at_r.reshape(-1)]
    drafting = np.zeros(n, dtype=bool) if drafting is None else np.asarray(drafting, dtype=bool)
    if drafting.all():  # without plain passes their extra cost is no other than verify's
        drafting = np.zeros(n, dtype=bool)
    design = np.hstack(
        [
            np.eye(len(sizes))[at_size],
            _hats(np.asarray(context_tokens, dtype=np.float64), knots)[:, 1:],
            by_r,
            by_r * drafting[:, None],
        ]
    )
    weight = scale / seconds
    if counts is not None:
        weight = weight * np.sqrt(np.minimum(counts, MOST_COUNTED))
    rows = [design * weight[:, None]]
    blank = np.zeros(len(sizes))
    for bend in _bends(knots):
        rows.append(PULL * np.concatenate([blank, bend[1:], np.zeros(2 * len(rs))])[None])
    blank, none = np.zeros(len(sizes) + len(knots) - 1), np.zeros(len(rs))
    for bend in [*_bends(rs.astype(np.float64)), np.eye(len(rs))[0]]:
        rows += [PULL * np.concatenate([blank, *pair])[None] for pair in ((bend, none), (none, bend))]
    stacked = np.concatenate(rows)
    target = np.concatenate([weight * seconds / scale, np.zeros(len(stacked) - n)])
    floor = np.zeros(stacked.shape[1])
    floor[: len(sizes)] = [LEAST * seconds[at_size == i].min() / scale for i in range(len(sizes))]
    solved = (floor + _non_negative(stacked, target - stacked @ floor)) * scale
    predicted = design @ solved
    ends = np.cumsum([len(sizes), len(knots) - 1, len(rs)])
    theta, attention, overhead, keeping = np.split(solved, ends)
    constant = overhead.min()
    theta, overhead = theta + constant, overhead - constant
    cost = {(int(e), int(b)): float(t) for (e, b), t in zip(sizes, theta, strict=True)}
    return StepFit(
        verify={b: t for (e, b), t in cost.items() if not e},
        eager={b: t for (e, b), t in cost.items() if e},
        kv_tokens=knots,
        attention=np.concatenate([[0.0], attention]),
        requests=rs,
        overhead=overhead,
        keeping=keeping,
        relative_error=predicted / seconds - 1.0,
    )


def _non_negative(design: np.ndarray, target: np.ndarray) -> np.ndarray:
    from scipy.optimize import nnls

    solved: np.ndarray = nnls(design, target, maxiter=30 * design.shape[1])[0]
    return solved


def _knots(context_tokens: np.ndarray, most: int = 8) -> np.ndarray:
    """0 and up to `most` points, one for every three N measured, spread evenly over their logarithm."""
    low, high = float(context_tokens.min()), float(context_tokens.max())
    distinct = len(np.unique(context_tokens))
    if high <= 0:
        return np.array([0.0, 1.0])
    inner = np.geomspace(max(low, 1.0), high, min(most, max(distinct // 3, 2)))
    return np.unique(np.concatenate([[0.0], np.round(inner)]))


def _hats(x: np.ndarray, knots: np.ndarray) -> np.ndarray:
    """float64[n, k]: weights of linear interpolation between knots."""
    right = np.clip(np.searchsorted(knots, x, side="left"), 1, len(knots) - 1)
    share = (x - knots[right - 1]) / (knots[right] - knots[right - 1])
    hats = np.zeros((len(x), len(knots)))
    hats[np.arange(len(x)), right - 1] = 1.0 - share
    hats[np.arange(len(x)), right] += share
    return hats


def _bends(x: np.ndarray) -> list[np.ndarray]:
    """Rows that are 0 on a straight line: each point against the line through its neighbours."""
    rows = []
    for i in range(1, len(x) - 1):
        row = np.zeros(len(x))
        share = (x[i] - x[i - 1]) / (x[i + 1] - x[i - 1])
        row[i - 1 : i + 2] = -(1.0 - share), 1.0, -share
        rows.append(row)
    return rows
