"""Sequential temperature scaling: temperatures fitted from left to right on part of a trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import expit

from ..errors import CalibrationError
from ..trace import Trace
from .calibration import METHODS, Calibration
from .metrics import BINS, auc, bin_of, brier, ece, gain_noise, noise_floor, sigmoid, survival

GRID = np.geomspace(0.1, 10.0, 41)
Pair = tuple[float, float]  # temperature, shift
Levels = tuple[np.ndarray, np.ndarray]  # distinct logits, and which of them each row's is


# -- fitting -------------------------------------------------------------------------------------------------


def split_requests(trace: Trace, holdout: float = 0.5, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(fit, held out) request ids, int64 each, ascending: never rows of one request on both sides.

    `holdout` = 0 holds nothing out. Raises CalibrationError where a side would be empty.
    """
    if not 0.0 <= holdout < 1.0:
        raise CalibrationError(f"holdout is {holdout}; it must be at least 0 and below 1")
    ids = np.sort(trace.request_ids)
    held = round(len(ids) * holdout)
    if holdout > 0.0:
        if len(ids) < 2:
            raise CalibrationError(
                f"{trace.where} has 1 request, which cannot be split into a fit and a held-out part; "
                "record more requests, or fit on all of it with holdout=0"
            )
        held = min(max(held, 1), len(ids) - 1)
    order = np.random.Generator(np.random.Philox(seed)).permutation(len(ids))
    return np.sort(ids[order[held:]]), np.sort(ids[order[:held]])


def fit_sts(
    trace: Trace, holdout: float = 0.5, seed: int = 0, method: str = "sts", bins: int = BINS, grid: Any = GRID
) -> Calibration:
    """Fit on 1 - `holdout` of the requests (drawn by `seed`), report on both parts.

    method: "sts" (temperatures) or "affine" (temperature and shift); `grid`: temperatures tried first.
    """
    if method not in METHODS:
        raise CalibrationError(f"method is {method!r}; it must be one of {', '.join(METHODS)}")
    if bins < 2:
        raise CalibrationError(f"bins is {bins}; it must be at least 2")
    grid = np.asarray(grid, dtype=np.float64)
    if grid.ndim != 1 or len(grid) < 2 or not (grid > 0).all() or not (np.diff(grid) > 0).all():
        raise CalibrationError("grid must be two or more rising temperatures above 0")
    fit_ids, held_ids = split_requests(trace, holdout, seed)
    fit = trace.select(fit_ids)
    temperatures, shifts = _fit_positions(fit, method, bins, grid)
    about = {
        "trace": trace.name,
        "drafter": trace.metadata.get("drafter"),
        "target": trace.metadata.get("target"),
        "temperature": trace.metadata.get("temperature"),
        "synthetic": trace.synthetic,
        "seed": seed,
        "holdout": holdout,
        "bins": bins,
    }
    calibration = Calibration(temperatures, shifts, method, {}, fit_ids, held_ids, about)
    held = evaluate(trace.select(held_ids), calibration, bins) if len(held_ids) else None
    calibration.report.update({"fit": evaluate(fit, calibration, bins), "held_out": held})
    return calibration


def evaluate(trace: Trace, calibration: Calibration | None = None, bins: int = BINS) -> dict[str, Any]:
    """Per position: ECE, AUC and Brier score of the survival before and after, and the noise floor.

    {"rows", "requests", "positions": [{"position", "accepted_share", "ece_before", "ece_after",
    "noise_floor", "auc_before", "auc_after", "brier_before", "brier_after"}]}; an AUC is None where only one
    outcome occurs.
    `noise_floor` is the ECE that perfect calibration would show here, correlation within requests included.
    """
    before = survival(sigmoid(trace.confidence_logit))
    after = before if calibration is None else survival(calibration.apply(trace.confidence_logit))
    positions = []
    for k in range(trace.block_size):
        labels = trace.accepted > k
        entry: dict[str, Any] = {
            "position": k + 1,
            "accepted_share": float(labels.mean()),
            "noise_floor": noise_floor(after[:, k], bins, labels=labels, groups=trace.request),
        }
        for name, scores in (("before", before[:, k]), ("after", after[:, k])):
            area = auc(scores, labels)
            entry[f"ece_{name}"] = ece(scores, labels, bins)
            entry[f"auc_{name}"] = None if np.isnan(area) else area
            entry[f"brier_{name}"] = brier(scores, labels)
        positions.append(entry)
    return {"rows": len(trace), "requests": len(trace.request_ids), "positions": positions}


def _fit_positions(trace: Trace, method: str, bins: int, grid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    gamma = trace.block_size
    temperatures, shifts = np.ones(gamma), np.zeros(gamma)
    prefix = np.ones(len(trace))
    for k in range(gamma):
        logit = trace.confidence_logit[:, k].astype(np.float64)
        labels = (trace.accepted > k).astype(np.float64)
        position = _Position(logit, prefix, labels, bins)
        reached = trace.accepted >= k

        def search(rows: np.ndarray, position: _Position = position, reached: np.ndarray = reached) -> Pair:
            part = position.part(rows)
            return part.temperature(grid) if method == "sts" else part.affine(grid, reached[rows])

        best = search(np.ones(len(trace), bool))
        if not position.gains(best, trace.request, search):
            best = (1.0, 0.0)
        temperatures[k], shifts[k] = best
        prefix = prefix * expit(logit / best[0] + best[1])
    return temperatures, shifts


class _Position:
    """The fit at one position: the ECE of prefix * σ(logit / T + b) as a function of (T, b).

    Recorded logits come in few values, so that σ is taken of each value once: `logit` is levels[code].
    """

    def __init__(
        self,
        logit: np.ndarray,
        prefix: np.ndarray,
        labels: np.ndarray,
        bins: int,
        known: Levels | None = None,
    ) -> None:
        self.logit, self.prefix, self.labels, self.bins = logit, prefix, labels, bins
        self.code: np.ndarray
        self.levels, self.code = np.unique(logit, return_inverse=True) if known is None else known

    def ece(self, temperature: float, shift: float = 0.0) -> float:
        scores = self.prefix * np.take(expit(self.levels / temperature + shift), self.code)
        sums = np.bincount(bin_of(scores, self.bins), scores - self.labels, self.bins)
        return float(np.abs(sums).sum()) / len(scores)

    def _best(self, candidates: list[tuple[float, float]]) -> tuple[float, tuple[float, float]]:
        """Smallest ECE; ties go to the candidate nearest to doing nothing."""
        return min(
            ((self.ece(t, b), (t, b)) for t, b in candidates),
            key=lambda found: (found[0], abs(np.log(found[1][0])) + abs(found[1][1])),
        )

    def part(self, rows: np.ndarray) -> _Position:
        """The same position on some of the rows."""
        known = self.levels, self.code[rows]
        return _Position(self.logit[rows], self.prefix[rows], self.labels[rows], self.bins, known)

    def gains(self, best: Pair, requests: np.ndarray, search: Callable[[np.ndarray], Pair]) -> bool:
        """Whether the ECE falls by more than the noise of that difference, on the same rows.

        `search` finds the best pair on some of the rows: what half of the requests choose must gain as much
        on the other half, since the best of many candidates always gains on the rows that chose it."""
        gain = self.ece(1.0) - self.ece(*best)
        if gain <= 0.0:
            return False
        before, after = (self.prefix * expit(self.logit / t + b) for t, b in ((1.0, 0.0), best))
        noise = gain_noise(before, after, self.labels, requests, self.bins)
        if gain <= noise:
            return False
        half = np.unique(requests, return_inverse=True)[1] % 2 == 0
        apart = 0.0
        for rows in (half, ~half):
            other = self.part(~rows)
            apart += float((~rows).mean()) * (other.ece(1.0) - other.ece(*search(rows)))
        return apart > 0.0

    def temperature(self, grid: np.ndarray) -> tuple[float, float]:
        """Best temperature, refined between its grid neighbours."""
        _, (t, _) = self._best([(float(t), 0.0) for t in grid])
        i = int(np.argmin(np.abs(grid - t)))
        low, high = grid[max(i - 1, 0)], grid[min(i + 1, len(grid) - 1)]
        _, best = self._best([(float(x), 0.0) for x in np.geomspace(low, high, len(grid))] + [(t, 0.0)])
        return best

    def affine(self, grid: np.ndarray, reached: np.ndarray) -> tuple[float, float]:
        """Best (T, b) around the logistic fit.

        The ECE has many shallow minima in two dimensions; the likelihood has one, so the search starts there.
        """
        best = _logistic(self.logit[reached], self.labels[reached], float(grid[0]), float(grid[-1]))
        for width_t, width_b in ((0.4, 0.4), (0.1, 0.1), (0.025, 0.025)):
            steps = np.linspace(-1.0, 1.0, 7)
            candidates = [
                (
                    float(np.clip(best[0] * np.exp(width_t * u), grid[0], grid[-1])),
                    float(best[1] + width_b * v),
                )
                for u in steps
                for v in steps
            ]
            _, best = self._best([best, *candidates])
        return best


def _logistic(logit: np.ndarray, labels: np.ndarray, low: float, high: float) -> tuple[float, float]:
    """Maximum-likelihood (T, b) of σ(logit / T + b) on rows that reached the position, by Newton's method.

    A step that lowers the likelihood is halved: from certain scores, whose curvature is nothing, Newton's own
    steps leap to and fro for ever. Neutral where there is too little to fit: fewer than 10 of an outcome. T
    is kept in [low, high].
    """
    if labels.sum() < 10 or (1.0 - labels).sum() < 10:
        return 1.0, 0.0
    x = np.clip(logit, -30.0, 30.0)
    slope, shift = 1.0, 0.0

    def cost(slope: float, shift: float) -> float:
        z = slope * x + shift
        prior = 0.5e-3 * ((slope - 1.0) ** 2 + shift**2)
        return float((np.logaddexp(0.0, z) - labels * z).sum()) + prior

    here = cost(slope, shift)
    for _ in range(50):
        p = expit(slope * x + shift)
        w = p * (1.0 - p)
        residual = labels - p
        gradient = np.array([residual @ x, residual.sum()]) - 1e-3 * np.array([slope - 1.0, shift])
        a, b, d = w @ (x * x) + 1e-3, w @ x, w.sum() + 1e-3
        step = np.array([d * gradient[0] - b * gradient[1], a * gradient[1] - b * gradient[0]]) / (
            a * d - b * b
        )
        while (there := cost(slope + step[0], shift + step[1])) > here * (1.0 + 1e-9):
            step *= 0.5
        here = there
        slope, shift = slope + step[0], shift + step[1]
        if np.abs(step).max() < 1e-8:
            break
    # A negative slope would turn the order of confidences round: the flattest allowed one stands for it.
    temperature = float(np.clip(1.0 / slope, low, high)) if slope > 0 else high
    return temperature, float(shift)
