"""The planning rules as plain functions: confidences and costs in, verification lengths out."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import kernels
from . import checks

# -- functions -------------------------------------------------------------------------------------------


def survival(confidence: ArrayLike) -> NDArray[np.float64]:
    """Survival float64[R, γ]: running products of `confidence` [R, γ], left to right.

    Raises PolicyError naming request and position when a confidence is NaN or outside [0, 1].
    """
    c = checks.confidences(confidence)
    out = np.empty(c.shape)
    status = kernels.take_confidence(c, out)
    if status < 0:
        checks.refuse(status, c)
    return out


def early_stop(confidence: ArrayLike, sps: ArrayLike) -> NDArray[np.int32]:
    """Algorithm 1: admit by falling survival, stop at the first admission that does not raise Θ. Lossless.

    confidence [R, γ] in [0, 1]; sps [> R(1 + γ)], entry B the steps per second at B tokens. Returns int32[R].
    Raises PolicyError for confidences or costs that are none, or too short an `sps`.

    It takes no minimum gain: a comparison with verifying everything reads confidences behind the position
    being admitted, which would bias the text.
    """
    c = checks.confidences(confidence)
    s = checks.costs(sps, c)
    lengths = np.empty(c.shape[0], np.int32)
    status = kernels.plan_early_stop(c, s, lengths, *checks.work(c.size))
    if status < 0:
        checks.refuse(status, c, s)
    return lengths


def best_budget(confidence: ArrayLike, sps: ArrayLike, minimum_gain: float = 0.0) -> int:
    """First k at which Θ(k) = (R + sum of the k largest survivals) · sps[R + k] is greatest (section 5.2).

    With `minimum_gain` g > 0 all candidates are kept unless Θ(k) exceeds (1 + g) times theirs. Survival 0 is
    no candidate. Raises PolicyError as `early_stop` does. Biased if used on the confidences it then trims:
    see `Lagged`.
    """
    c = checks.confidences(confidence)
    s = checks.costs(sps, c)
    budget = kernels.plan_budget(c, s, checks.gain(minimum_gain) or 0.0, *checks.work(c.size))
    if budget < 0:
        checks.refuse(budget, c, s)
    return int(budget)


def top_k(confidence: ArrayLike, k: int) -> NDArray[np.int32]:
    """The first k candidates of the admission order (all of them if there are fewer), as int32[R].

    Survival falling, then position rising, then request rising; survival 0 is no candidate.
    """
    c = checks.confidences(confidence)
    lengths = np.empty(c.shape[0], np.int32)
    budget = min(checks.whole_number(k, "the budget k", 0), c.size)
    status = kernels.plan_top_k(c, budget, lengths, *checks.work(c.size))
    if status < 0:
        checks.refuse(status, c)
    return lengths


def threshold(confidence: ArrayLike, theta: float) -> NDArray[np.int32]:
    """Extend every request while its survival is at least `theta`, in [0, 1]. Returns int32[R]."""
    c = checks.confidences(confidence)
    lengths = np.empty(c.shape[0], np.int32)
    least = checks.real_number(theta, "θ of policy threshold", 0.0, 1.0)
    status = kernels.plan_threshold(c, least, lengths, checks.work(c.size).survival)
    if status < 0:
        checks.refuse(status, c)
    return lengths
