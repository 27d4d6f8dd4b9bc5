"""Hypothesis strategies of the scheduler: confidences and costs; ties, zeros, staircases and extremes."""

from __future__ import annotations

import numpy as np
import reference
from hypothesis import strategies as st

_TIES = st.sampled_from([0.0, 0.25, 0.5, 0.5, 0.9, 1.0, 1.0])
_NEAR_ONE = st.floats(1.0 - 1e-4, 1.0)
_TINY = st.sampled_from([5e-324, 1e-310, 1e-200, 1e-100, 1e-16, 0.5, 1.0, -0.0])
_ANY = st.floats(0.0, 1.0)
_KINDS = [_TIES, _NEAR_ONE, _TINY, _ANY, st.one_of(_TIES, _ANY)]


@st.composite
def confidences(draw, max_requests=6, max_block=5, min_requests=1):
    """float64[R, γ]: ties, zeros, ones, near ones, subnormals, anything; at times one value throughout."""
    requests = draw(st.integers(min_requests, max_requests))
    block = draw(st.integers(1, max_block))
    value = draw(st.sampled_from(_KINDS))
    if draw(st.integers(0, 7)) == 0:
        return np.full((requests, block), draw(value))
    rows = draw(
        st.lists(st.lists(value, min_size=block, max_size=block), min_size=requests, max_size=requests)
    )
    return np.array(rows, np.float64).reshape(requests, block)


@st.composite
def many_confidences(draw, max_requests=300, max_block=8):
    """float64[R, γ] of larger batches, from a seed: uniform, skewed, two humps, crowded, few values."""
    requests, block = draw(st.integers(20, max_requests)), draw(st.integers(2, max_block))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = (requests, block)
    kind = draw(st.integers(0, 5))
    if kind == 0:
        return rng.random(shape)
    if kind == 1:
        return rng.beta(4, 1, shape)
    if kind == 2:
        return np.where(rng.random(shape) < 0.7, 1 - 0.1 * rng.random(shape) ** 4, rng.random(shape))
    if kind == 3:
        return 1 - rng.random(shape) * 10.0 ** -draw(st.integers(2, 15))
    if kind == 4:
        return rng.choice([0.0, 0.3, 0.5, 0.7, 1.0], shape)
    return 10.0 ** -rng.integers(0, 200, shape) * rng.random(shape)


def _plateau(confidence, size, tilt, start):
    """Costs at which Θ(k) climbs for `start` admissions, then by `tilt` units in the last place each.

    On the plateau rounding decides, so every sum must have been made in the one right order.
    """
    survival = reference.survivals(confidence.tolist())
    requests = len(confidence)
    expected = float(requests)
    sps = np.full(size, 1e-3)
    order = reference.admission_order(survival)
    for k in range(len(order) + 1):
        if k > 0:
            r, position = order[k - 1]
            expected += survival[r][position]
        climb = 0.5 + 0.5 * k / start if k < start else 1.0 + k * tilt * 2.0**-52
        sps[requests + k] = climb / expected
    return sps


@st.composite
def costs(draw, confidence):
    """sps float64[R(1 + γ) + 1 or more] of `confidence`: smooth, flat, stairs, cliffs, plateaus, extremes."""
    size = len(confidence) + confidence.size + 1 + draw(st.integers(0, 3))
    tokens = np.arange(size)
    kind = draw(st.integers(0, 8))
    if kind == 0:
        return 1.0 / (draw(st.floats(1e-3, 1e3)) + draw(st.floats(0.0, 10.0)) * tokens)
    if kind == 1:
        return np.full(size, draw(st.floats(1e-3, 1e3)))
    if kind == 2:
        step = draw(st.integers(1, 9))
        return 1.0 / (1.0 + draw(st.floats(0.0, 2.0)) * np.ceil(tokens / step))
    if kind == 3:
        return np.where(tokens <= draw(st.integers(0, size)), 1.0, draw(st.sampled_from([0.0, 0.2, 0.999])))
    if kind == 4:
        start = draw(st.integers(0, confidence.size))
        return _plateau(confidence, size, draw(st.sampled_from([-1, 0, 1, 2, 3])), start)
    if kind == 5:
        return 1.0 / np.maximum(1, tokens)
    if kind == 6:
        return draw(st.sampled_from([5e-324, 1e-300, 1e290])) * (1.0 + (tokens % 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    steps = rng.random(size)
    return steps if kind == 7 else np.sort(steps)[::-1].copy()


@st.composite
def plateaus(draw):
    """(confidence, sps) of larger batches where Θ is level but for rounding behind some admissions."""
    confidence = draw(many_confidences())
    start, tilt = draw(st.integers(1, confidence.size)), draw(st.sampled_from([0, 1, 2, 3]))
    return confidence, _plateau(confidence, len(confidence) + confidence.size + 1, tilt, start)


@st.composite
def problems(draw, many=False, **limits):
    """(confidence, sps) of one step."""
    confidence = draw(many_confidences() if many else confidences(**limits))
    return confidence, draw(costs(confidence))
