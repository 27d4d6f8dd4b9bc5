"""How good confidences are: expected calibration error with its noise floor, AUC, Brier score, reliability.

Everywhere `scores` are float[n] in [0, 1] (usually the survival at one position) and `labels` bool[n]
("accepted >= k").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit

from ..errors import CalibrationError

BINS = 20
RESAMPLES = 200


@dataclass(frozen=True, eq=False)
class Reliability:
    """A reliability diagram: one entry per bin of [0, 1]; empty bins have count 0 and NaN means."""

    edges: np.ndarray  # float64[bins + 1]
    count: np.ndarray  # int64[bins]
    confidence: np.ndarray  # float64[bins]: mean score
    acceptance: np.ndarray  # float64[bins]: mean label


def sigmoid(logits: Any) -> np.ndarray:
    """float64, shape of `logits`: the confidences of uncalibrated scores."""
    out: np.ndarray = expit(np.asarray(logits, dtype=np.float64))
    return out


def survival(confidence: Any) -> np.ndarray:
    """float64[n, γ]: running product of confidences, left to right (a_{r,k})."""
    return np.cumprod(np.asarray(confidence, dtype=np.float64), axis=1)


def bin_of(scores: np.ndarray, bins: int = BINS) -> np.ndarray:
    """int64[n]: equal-width bin of each score; 1 falls into the last bin."""
    return np.minimum((scores * bins).astype(np.int64), bins - 1)


def ece(scores: Any, labels: Any, bins: int = BINS) -> float:
    """Expected calibration error: sum over bins of (share of rows) x |mean score - mean label|."""
    scores, labels = _pair(scores, labels)
    return float(np.abs(np.bincount(bin_of(scores, bins), scores - labels, bins)).sum()) / len(scores)


def noise_floor(scores: Any, bins: int = BINS, *, labels: Any = None, groups: Any = None) -> float:
    """Expected ECE of *perfectly* calibrated scores with this spread and this many rows.

    In bin b the summed residual of independent labels has variance V_b = Σ s(1 - s), so E|residual| is about
    sqrt(2 V_b / π), and never above Σ 2 s(1 - s). With `labels` and `groups` (request of each row) the
    variance is the larger of that and the one between groups: neighbouring anchors of a request are not
    independent, and a floor that ignores it is too low.
    """
    scores = _scores(scores)
    where = bin_of(scores, bins)
    independent = np.bincount(where, scores * (1.0 - scores), bins)
    deviation = np.minimum(np.sqrt(2.0 / np.pi * independent), 2.0 * independent)
    if labels is not None and groups is not None:
        scores, labels = _pair(scores, labels)
        deviation = np.maximum(deviation, _between_groups(scores, labels, np.asarray(groups), where, bins))
    return float(deviation.sum()) / len(scores)


def gain_noise(before: Any, after: Any, labels: Any, groups: Any, bins: int = BINS, seed: int = 0) -> float:
    """Standard deviation of ECE(before) - ECE(after), both of the same rows: bootstrap over groups
    (requests).

    The two share rows and labels, so most of the noise of each cancels: far less than either's own floor.
    float64[n] scores before and after, `groups` the request of each row; infinite where there is one group.
    """
    (before, labels), (after, _) = _pair(before, labels), _pair(after, labels)
    _, code = np.unique(np.asarray(groups), return_inverse=True)
    m = int(code.max()) + 1
    if m < 2:
        return float("inf")
    sums = []
    for scores in (before, after):
        at = code * bins + bin_of(scores, bins)
        sums.append(np.bincount(at, scores - labels, m * bins).reshape(m, bins))
    rows = np.bincount(code, minlength=m)
    weights = np.random.Generator(np.random.Philox(seed)).multinomial(m, np.full(m, 1.0 / m), RESAMPLES)
    held = np.maximum(weights @ rows, 1)
    gains = (np.abs(weights @ sums[0]).sum(axis=1) - np.abs(weights @ sums[1]).sum(axis=1)) / held
    return float(gains.std(ddof=1))


def _between_groups(
    scores: np.ndarray, labels: np.ndarray, groups: np.ndarray, where: np.ndarray, bins: int
) -> np.ndarray:
    """float64[bins]: E|summed residual| from the spread of the groups' own sums, the bin's mean taken out."""
    _, code = np.unique(groups, return_inverse=True)
    m = int(code.max()) + 1
    count = np.bincount(where, minlength=bins)
    residual = labels - scores
    mean = np.bincount(where, residual, bins) / np.maximum(count, 1)
    sums = np.bincount(code * bins + where, residual - mean[where], m * bins).reshape(m, bins)
    present = np.bincount(code * bins + where, minlength=m * bins).reshape(m, bins) > 0
    # Few groups in a bin say too little about their spread: below five the independent value stands.
    inside = present.sum(axis=0)
    variance = (sums**2).sum(axis=0) * inside / np.maximum(inside - 1, 1)
    return np.where(inside >= 5, np.sqrt(2.0 / np.pi * variance), 0.0)


def auc(scores: Any, labels: Any) -> float:
    """Probability that an accepted row scores above a rejected one, ties half; NaN with one class only.

    A label between 0 and 1 is an expected acceptance: the row counts as so much accepted, the rest rejected.
    """
    scores, labels = _pair(scores, labels)
    accepted, rejected = float(labels.sum()), float((1.0 - labels).sum())
    if not accepted > 0.0 or not rejected > 0.0:
        return float("nan")
    _, value = np.unique(scores, return_inverse=True)
    up, down = np.bincount(value, labels), np.bincount(value, 1.0 - labels)
    below = np.cumsum(down) - down
    return float((up * (below + down / 2.0)).sum() / (accepted * rejected))


def brier(scores: Any, labels: Any) -> float:
    """Mean squared difference between score and label."""
    scores, labels = _pair(scores, labels)
    return float(np.mean((scores - labels) ** 2))


def reliability(scores: Any, labels: Any, bins: int = BINS) -> Reliability:
    """Mean score and mean label per equal-width bin."""
    scores, labels = _pair(scores, labels)
    where = bin_of(scores, bins)
    count = np.bincount(where, minlength=bins)
    with np.errstate(invalid="ignore"):
        confidence = np.bincount(where, scores, bins) / count
        acceptance = np.bincount(where, labels, bins) / count
    return Reliability(np.linspace(0.0, 1.0, bins + 1), count, confidence, acceptance)


def _scores(scores: Any) -> np.ndarray:
    scores = np.asarray(scores, dtype=np.float64)
    if scores.ndim != 1 or not len(scores):
        raise CalibrationError(f"scores have shape {scores.shape}; expected one row or more in one dimension")
    if not ((scores >= 0.0) & (scores <= 1.0)).all():
        row = int(np.argmin((scores >= 0.0) & (scores <= 1.0)))
        raise CalibrationError(f"score {row} is {scores[row]}; scores are probabilities in [0, 1]")
    out: np.ndarray = scores
    return out


def _pair(scores: Any, labels: Any) -> tuple[np.ndarray, np.ndarray]:
    scores, labels = _scores(scores), np.asarray(labels, dtype=np.float64)
    if labels.shape != scores.shape:
        raise CalibrationError(
            f"{len(scores)} scores but labels of shape {labels.shape}; one label per score"
        )
    return scores, labels
