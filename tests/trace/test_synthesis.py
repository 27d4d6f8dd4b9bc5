"""Synthetic traces: what was asked for comes out, and confidences tell nothing that they may not know."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specsched.calibration.metrics import auc, ece, noise_floor, sigmoid, survival
from specsched.errors import TraceError
from specsched.inspection import conditional_acceptance
from specsched.trace import Trace, synthesise
from specsched.trace.synthesis import walk

HONEST = {"temperature": 1.0, "shift": 0.0}


def naive_walk(trace: Trace) -> list[int]:
    """Rows visited when every step verifies the whole block."""
    visited = []
    for start, length in zip(trace.starts.tolist(), trace.lengths.tolist(), strict=True):
        t = 0
        while t < length:
            visited.append(start + t)
            t += int(trace.accepted[start + t]) + 1
    return visited


@given(
    st.lists(st.floats(0.05, 0.97), min_size=1, max_size=8),
    st.integers(0, 5),
    st.sampled_from(["walk", "dense"]),
)
@settings(max_examples=25)
def test_acceptance_asked_for_comes_out(acceptance: list[float], seed: int, along: str) -> None:
    trace = synthesise(acceptance, requests=40, output_tokens=120, seed=seed, along=along)
    visited = naive_walk(trace)
    assert np.flatnonzero(walk(trace.lengths, trace.accepted)).tolist() == visited
    accepted = trace.accepted[visited] if along == "walk" else trace.accepted
    got = conditional_acceptance(accepted, len(acceptance))
    for k, p in enumerate(acceptance):
        reached = int((accepted >= k).sum())
        # Dense rates are solved exactly; the walk is a fixed point, met within the sampling error.
        slack = 1.0 / max(reached, 1) if along == "dense" else 3.0 / max(reached, 1) ** 0.5
        if reached:
            assert abs((got[k] or 0.0) - p) <= slack


@pytest.mark.parametrize("wanted", [0.65, 0.75, 0.85])
def test_auc_asked_for_comes_out(wanted: float) -> None:
    trace = synthesise([0.7, 0.7, 0.7], auc=wanted, along="dense", **HONEST)
    confidence = sigmoid(trace.confidence_logit)
    for k in range(3):
        reached = trace.accepted >= k
        assert auc(confidence[reached, k], trace.accepted[reached] > k) == pytest.approx(wanted, abs=0.012)


@pytest.mark.parametrize("wanted", [0.02, 0.08, 0.15])
def test_ece_asked_for_comes_out_overconfident(wanted: float) -> None:
    trace = synthesise([0.7, 0.75, 0.8], ece=wanted)
    scores = survival(sigmoid(trace.confidence_logit))
    for k in range(3):
        labels = trace.accepted > k
        assert ece(scores[:, k], labels) == pytest.approx(wanted, abs=0.003)
        assert scores[:, k].mean() > labels.mean()


def test_a_reliability_curve_asked_for_comes_out() -> None:
    points = [(0.1, 0.05), (0.5, 0.3), (0.8, 0.7), (0.95, 0.9)]
    trace = synthesise([0.6], reliability=points, requests=400, skew=0.0)
    confidence = sigmoid(trace.confidence_logit[:, 0])
    for c, p in points[1:]:
        near = np.abs(confidence - c) < 0.02
        assert (trace.accepted[near] > 0).mean() == pytest.approx(p, abs=0.06)


def worst_residual(confidence: np.ndarray, accepted: np.ndarray) -> float:
    """Largest |mean of accepted - c_k| over halves of the rows that reached k, split by any confidence.

    In standard errors of independent rows. Confidences that know no more than they may leave none.
    """
    worst = 0.0
    for k in range(confidence.shape[1]):
        reached = accepted >= k
        residual = (accepted[reached] > k) - confidence[reached, k]
        for other in range(confidence.shape[1]):
            column = confidence[reached, other]
            high = column > np.median(column)
            for part in (residual[high], residual[~high]):
                worst = max(worst, abs(part.mean()) / part.std() * len(part) ** 0.5)
    return worst


def test_honest_confidences_are_calibrated_and_no_confidence_of_a_row_knows_more() -> None:
    trace = synthesise([0.7, 0.7, 0.7, 0.7], requests=400, along="dense", **HONEST)
    confidence = sigmoid(trace.confidence_logit)
    scores = survival(confidence)
    for k in range(4):
        labels = trace.accepted > k
        floor = noise_floor(scores[:, k], labels=labels, groups=trace.request)
        assert ece(scores[:, k], labels) < 2.0 * floor
    # Rows of a request are correlated, so more than the usual 3 standard errors are normal.
    assert worst_residual(confidence, trace.accepted) < 8.0
    # A planted leak: position 3 knows a little of whether position 2 was accepted.
    leaking = trace.confidence_logit.copy()
    leaking[:, 2] += 0.5 * (trace.accepted > 1)
    assert worst_residual(sigmoid(leaking), trace.accepted) > 16.0


def test_the_calibration_check_can_fail() -> None:
    trace = synthesise([0.7, 0.7], requests=400, along="dense", temperature=1.0, shift=0.5)
    scores = survival(sigmoid(trace.confidence_logit))
    floor = noise_floor(scores[:, 0], labels=trace.accepted > 0, groups=trace.request)
    assert ece(scores[:, 0], trace.accepted > 0) > 2.0 * floor


def lag(trace: Trace, d: int) -> tuple[np.ndarray, np.ndarray]:
    i = np.flatnonzero(trace.request[d:] == trace.request[:-d])
    return i, i + d


def test_neighbouring_anchors_are_correlated_as_recorded_ones_are() -> None:
    trace = synthesise("chat", requests=200, **HONEST)
    logit = trace.confidence_logit[:, 0]

    def at(d: int) -> float:
        i, j = lag(trace, d)
        return float(np.corrcoef(logit[i], logit[j])[0, 1])

    assert 0.3 < at(1) < 0.7
    assert at(1) > at(3) > at(10) > at(40) > 0.0
    i, j = lag(trace, 1)
    both = trace.accepted[i] >= 1
    # Row t at position 2 and row t + 1 at position 1 look at the same token.
    same = np.corrcoef(trace.accepted[i][both] >= 2, trace.accepted[j][both] >= 1)[0, 1]
    assert 0.4 < same < 0.8


def test_correlation_can_be_switched_off() -> None:
    settings = {"request_share": 0.0, "local_share": 0.0, "row_noise": 1.0, "surprise_share": 0.0}
    trace = synthesise([0.7, 0.7], requests=100, **settings, **HONEST)
    i, j = lag(trace, 1)
    assert abs(np.corrcoef(trace.confidence_logit[i, 0], trace.confidence_logit[j, 0])[0, 1]) < 0.03
    assert abs(np.corrcoef(trace.accepted[i] > 0, trace.accepted[j] > 0)[0, 1]) < 0.03


def test_the_same_seed_gives_the_same_rows_and_another_one_others() -> None:
    first, again, other = (synthesise("code", requests=30, seed=s) for s in (4, 4, 5))
    assert np.array_equal(first.confidence_logit, again.confidence_logit)
    assert np.array_equal(first.accepted, again.accepted)
    assert len(first) != len(other) or not np.array_equal(first.accepted, other.accepted)


def test_a_request_does_not_depend_on_how_many_follow() -> None:
    few, many = (synthesise([0.6], requests=m, seed=3) for m in (20, 60))
    assert np.array_equal(few.lengths, many.lengths[:20])
    # Only the level m_k is solved on all rows: within the shared requests the logits differ by a constant.
    n = len(few)
    stretched = many.confidence_logit[:n, 0] - few.confidence_logit[:, 0]
    assert stretched.std() < 0.02


def test_lengths_given_are_kept() -> None:
    trace = synthesise([0.5], requests=3, output_tokens=[4, 9, 2], prompt_tokens=[1, 2, 3])
    assert trace.lengths.tolist() == [4, 9, 2]
    assert trace.prompt_tokens[trace.starts].tolist() == [1, 2, 3]
    assert synthesise([0.5], requests=3, output_tokens=7, length_spread=0).lengths.tolist() == [7, 7, 7]


@pytest.mark.parametrize("acceptance", [[0.0, 0.5], [1.0, 1.0], [0.5, 0.0, 0.5]])
def test_certain_positions_can_be_drawn(acceptance: list[float]) -> None:
    trace = synthesise(acceptance, requests=20, **HONEST)
    got = conditional_acceptance(trace.accepted[walk(trace.lengths, trace.accepted)], len(acceptance))
    for p, q in zip(acceptance, got, strict=True):
        if p in (0.0, 1.0) and q is not None:
            assert q == p


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"acceptance": []}, "acceptance is empty"),
        ({"acceptance": [0.5, 1.2]}, "acceptance"),
        ({"acceptance": [0.5, float("nan")]}, "acceptance"),
        ({"acceptance": "poetry"}, "name math, code, chat"),
        ({"acceptance": 0.5}, "one number per draft position"),
        ({"requests": 0}, "requests is 0"),
        ({"output_tokens": -3}, "output_tokens is -3"),
        ({"output_tokens": [1, 2]}, "output_tokens has 2 entries for 320 requests"),
        ({"auc": 0.4}, "auc is 0.4"),
        ({"auc": [0.7, 0.7, 0.7]}, "auc has shape"),
        ({"ece": -0.1}, "ece is -0.1"),
        ({"temperature": "hot"}, "temperature is 'hot'"),
        ({"reliability": [(0.5, 0.4)]}, "two or more"),
        ({"reliability": [(0.1, 0.4), (0.5, 0.2)]}, "both rising"),
        ({"reliability": [(0.1, 0.1), (0.5, 0.2)], "ece": 0.1}, "not both"),
        ({"request_share": 0.7, "local_share": 0.7}, "exceeds 1"),
        ({"along": "road"}, "walk or dense"),
        ({"seed": -1}, "seed is -1"),
        ({"sharpness": 2}, "no setting 'sharpness'"),
    ],
)
def test_settings_that_cannot_be_drawn_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        synthesise(**({"acceptance": [0.5, 0.5]} | arguments))


def test_an_ece_beyond_what_the_rates_allow_is_refused_with_the_most() -> None:
    """Certain of everything, confidences err by the share rejected: 5 % at an acceptance of 0.95."""
    with pytest.raises(TraceError, match=r"[45]\.\d% is the most at position 1.*ask for at most 0\.0[45]"):
        synthesise([0.95, 0.95], ece=0.3, requests=100)
    synthesise([0.95], ece=0.04, requests=100)
    synthesise([0.95])  # the default's error is a figure of the paper, reached as far as it goes
