"""Least squares with stated assumptions, and what the runs determine of each unknown.

Residuals are (log predicted - log measured) / noise, and (value - assumed) / sd of what is assumed; the
solver is scipy's trust region with bounds. What is *determined* is read off the Jacobian of the data alone:
with each unknown in units of what is assumed of it (its scale where nothing is), a singular value above 1 is
a direction in which the runs say more than was assumed. A direction of which nothing is assumed and nothing
is seen ends the fit with a sentence; what is assumed and not seen keeps its assumption, and says so."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import SpecschedError
from .forward import Forward, Observed, Values, Weighed
from .unknowns import Pull, Unknown

_ROUNDS = 40
_OPEN = 0.5  # a singular value below it: open by more than two scales
_BOUND = 1e-6  # of the scale: a value this near a bound is on it


class Undetermined(SpecschedError):
    """The runs leave open what the fit was asked for, and nothing is assumed of it."""


@dataclass(frozen=True, eq=False)
class Solution:
    """Values by name, their covariance (in the unknowns' own coordinates), and the data's share of each.

    `residual`: float64[n], log predicted / measured. `noise_factor`: by how much the scatter exceeds the
    stated noise (at least 1); the covariance holds it. `seen`: share of the assumed variance that the runs
    removed. `left_out`: float64[cases, most]: log errors of a run's own numbers predicted without it.
    """

    unknowns: Sequence[Unknown]
    values: dict[str, float]
    covariance: np.ndarray
    seen: dict[str, float]
    residual: np.ndarray
    left_out: np.ndarray
    noise_factor: float
    singular: np.ndarray
    steps: list[list[Weighed]]


class Problem:
    """The residuals of a fit and their derivatives. `held`: values of unknowns that are not looked for."""

    def __init__(
        self,
        forward: Forward,
        observed: Sequence[Observed],
        unknowns: Sequence[Unknown],
        pulls: Sequence[Pull],
        held: Values | None = None,
    ) -> None:
        self.held = dict(held or {})
        self.forward, self.observed, self.unknowns = forward, observed, list(unknowns)
        self.measured = np.log([o.value for o in observed])
        self.noise = np.array([o.noise for o in observed])
        names = [u.name for u in self.unknowns]
        rows, targets = [], []
        for i, u in enumerate(self.unknowns):
            if math.isfinite(u.sd):
                row = np.zeros(len(names))
                row[i] = 1.0 / u.sd
                rows.append(row)
                targets.append(u.centre / u.sd)
        for pull in pulls:
            row = np.zeros(len(names))
            for name, weight in pull.weights.items():
                if name in names:
                    row[names.index(name)] += weight / pull.sd
            rows.append(row)
            targets.append(0.0)
        self.assumed = np.array(rows).reshape(len(rows), len(names))
        self.targets = np.array(targets)

    def named(self, x: np.ndarray) -> Values:
        return self.held | {u.name: float(v) for u, v in zip(self.unknowns, x, strict=True)}

    def residuals(self, x: np.ndarray) -> np.ndarray:
        """float64[n + assumptions]."""
        predicted, _ = self.forward.predict(self.named(x), self.observed)
        return np.concatenate([(predicted - self.measured) / self.noise, self.assumed @ x - self.targets])

    def jacobian(self, x: np.ndarray) -> np.ndarray:
        """Forward differences: costs and pauses along the schedules at `x`, texts by their own."""
        base, steps = self.forward.predict(self.named(x), self.observed)
        columns = np.empty((len(self.observed), len(x)))
        for j, u in enumerate(self.unknowns):
            h = u.step if x[j] + u.step <= u.high else -u.step
            moved = x.copy()
            moved[j] += h
            along = None if u.part == "text" else steps
            there, _ = self.forward.predict(self.named(moved), self.observed, along)
            columns[:, j] = (there - base) / h
        return np.vstack([columns / self.noise[:, None], self.assumed])


def solve(problem: Problem) -> Solution:
    """The values nearest to runs and assumptions together; raises Undetermined."""
    from scipy.optimize import least_squares

    unknowns = problem.unknowns
    low, high = np.array([u.low for u in unknowns]), np.array([u.high for u in unknowns])
    scales = np.array([min(u.sd, u.scale) for u in unknowns])
    start = np.array([u.start for u in unknowns])
    margin = 1e-9 * scales
    found = least_squares(
        problem.residuals,
        np.clip(start, low + margin, high - margin),
        problem.jacobian,
        bounds=(low, high),
        x_scale=scales,
        max_nfev=_ROUNDS,
        ftol=1e-5,
        xtol=1e-6,
        gtol=1e-8,
    )
    return _judged(problem, found.x)


def _judged(problem: Problem, x: np.ndarray) -> Solution:
    """What the data say at the solution: determination, covariance, errors of what is left out."""
    unknowns, n = problem.unknowns, len(problem.observed)
    jacobian = problem.jacobian(x)
    predicted, steps = problem.forward.predict(problem.named(x), problem.observed)
    residual = predicted - problem.measured
    data, assumed = jacobian[:n], jacobian[n:]
    units = np.array([u.sd if math.isfinite(u.sd) else u.scale for u in unknowns])
    singular = np.linalg.svd(data * units, compute_uv=False)
    _refuse_undetermined(unknowns, jacobian, x)
    information = jacobian.T @ jacobian
    covariance = np.linalg.pinv(information, hermitian=True)
    weighted = residual / problem.noise
    effective = float(np.trace(data @ covariance @ data.T))
    scatter = float(weighted @ weighted) / max(n - effective, 1.0)
    factor = max(1.0, math.sqrt(scatter))
    covariance = np.linalg.pinv(data.T @ data / factor**2 + assumed.T @ assumed, hermitian=True)
    before = np.linalg.pinv(assumed.T @ assumed + np.diag(1.0 / (100.0 * units) ** 2), hermitian=True)
    seen = {
        u.name: float(np.clip(1.0 - covariance[j, j] / before[j, j], 0.0, 1.0))
        for j, u in enumerate(unknowns)
    }
    return Solution(
        unknowns, dict(problem.named(x)), covariance, seen, residual,
        _left_out(problem, jacobian, residual), factor, singular, steps,
    )  # fmt: skip


def _refuse_undetermined(unknowns: Sequence[Unknown], jacobian: np.ndarray, x: np.ndarray) -> None:
    """Raise where a direction that nothing is assumed of is not seen within the unknowns' scales."""
    scales = np.array([u.scale for u in unknowns])
    free = np.array([min(v - u.low, u.high - v) > _BOUND * u.scale for u, v in zip(unknowns, x, strict=True)])
    flat = np.array([not math.isfinite(u.sd) for u in unknowns])
    if not (flat & free).any():
        return
    kept = np.flatnonzero(free)
    _, values, right = np.linalg.svd(jacobian[:, kept] * scales[kept], full_matrices=True)
    values = np.concatenate([values, np.zeros(len(kept) - len(values))])
    for value, direction in zip(values, right, strict=True):
        if value >= _OPEN:
            continue
        mixed = [unknowns[kept[j]] for j in np.argsort(-np.abs(direction)) if abs(direction[j]) > 0.3]
        if any(not math.isfinite(u.sd) for u in mixed):
            raise Undetermined(_open(mixed))


def _open(mixed: Sequence[Unknown]) -> str:
    names = ", ".join(u.label for u in mixed[:3])
    told = "are not told apart by" if len(mixed) > 1 else "is not seen by"
    drafting = any(u.name.startswith("draft ") for u in mixed)
    remedy = (
        "runs with another number of drafts"
        if drafting
        else "runs with drafting, or at other loads and lengths"
    )
    return (
        f"{names} {told} these runs, and nothing is assumed of them: give a profile to begin with "
        f"(--profile, or --gpu and --model), or {remedy}"
    )


def _left_out(problem: Problem, jacobian: np.ndarray, residual: np.ndarray) -> np.ndarray:
    """float64[n]: log errors of each run's numbers predicted from the others, to first order (one
    Gauss-Newton step of the fit without that run)."""
    n = len(problem.observed)
    cases = np.array([o.case for o in problem.observed])
    weighted = residual / problem.noise
    out = np.empty(n)
    information = jacobian.T @ jacobian
    for case in np.unique(cases):
        rows = np.flatnonzero(cases == case)
        own = jacobian[rows]
        others = information - own.T @ own
        # At the optimum the whole gradient is zero, so without these rows it is minus theirs.
        change = np.linalg.pinv(others, hermitian=True, rcond=1e-12) @ (own.T @ weighted[rows])
        out[rows] = (weighted[rows] + own @ change) * problem.noise[rows]
    return out
