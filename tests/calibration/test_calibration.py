"""Calibration: oracles of the metrics, known miscalibration recovered, nothing fitted to noise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_cases import made

from specsched.calibration import Calibration, fit_sts, load_calibration
from specsched.calibration.fit import evaluate, split_requests
from specsched.calibration.metrics import auc, brier, ece, noise_floor, reliability, sigmoid, survival
from specsched.errors import CalibrationError
from specsched.trace import Trace, load_trace

SCORES = st.lists(
    st.tuples(st.floats(0.0, 1.0) | st.sampled_from([0.0, 0.05, 0.5, 0.95, 1.0]), st.booleans()),
    min_size=1,
    max_size=60,
)


# -- the oracles: one loop each --------------------------------------------------------------------------


def naive_ece(scores: list[float], labels: list[bool], bins: int) -> float:
    total = 0.0
    for b in range(bins):
        inside = [i for i, s in enumerate(scores) if min(int(s * bins), bins - 1) == b]
        if inside:
            gap = sum(scores[i] for i in inside) / len(inside) - sum(labels[i] for i in inside) / len(inside)
            total += len(inside) / len(scores) * abs(gap)
    return total


def naive_auc(scores: list[float], labels: list[bool]) -> float:
    pairs = [
        (a, b)
        for a, y in zip(scores, labels, strict=True)
        if y
        for b, z in zip(scores, labels, strict=True)
        if not z
    ]
    return sum(1.0 if a > b else 0.5 if a == b else 0.0 for a, b in pairs) / len(pairs)


@given(SCORES, st.integers(1, 30))
def test_ece_is_the_weighted_gap(rows: list[tuple[float, bool]], bins: int) -> None:
    scores, labels = [s for s, _ in rows], [y for _, y in rows]
    assert ece(scores, labels, bins) == pytest.approx(naive_ece(scores, labels, bins), abs=1e-12)


@given(SCORES)
def test_auc_is_the_share_of_pairs_in_order(rows: list[tuple[float, bool]]) -> None:
    scores, labels = [s for s, _ in rows], [y for _, y in rows]
    if len(set(labels)) < 2:
        assert np.isnan(auc(scores, labels))
    else:
        assert auc(scores, labels) == pytest.approx(naive_auc(scores, labels), abs=1e-12)


@given(SCORES)
def test_brier_and_reliability(rows: list[tuple[float, bool]]) -> None:
    scores, labels = [s for s, _ in rows], [y for _, y in rows]
    assert brier(scores, labels) == pytest.approx(sum((s - y) ** 2 for s, y in rows) / len(rows))
    bins = reliability(scores, labels, 10)
    assert bins.count.sum() == len(rows)
    held = bins.count > 0
    gaps = bins.count[held] * np.abs(bins.confidence[held] - bins.acceptance[held])
    assert gaps.sum() / len(rows) == pytest.approx(ece(scores, labels, 10), abs=1e-12)
    assert np.isnan(bins.confidence[~held]).all()


@pytest.mark.parametrize("n", [200, 700, 2800, 20_000])
def test_the_noise_floor_is_the_mean_ece_of_calibrated_scores(n: int) -> None:
    rng = np.random.default_rng(n)
    scores = rng.beta(0.6, 0.8, n)
    drawn = [ece(scores, rng.random(n) < scores) for _ in range(60)]
    assert noise_floor(scores) == pytest.approx(np.mean(drawn), rel=0.12)


def test_the_noise_floor_knows_that_rows_of_a_request_are_no_new_evidence() -> None:
    rng = np.random.default_rng(0)
    scores = rng.random(300)
    labels = rng.random(300) < scores
    groups = np.arange(300)
    alone = noise_floor(scores, labels=labels, groups=groups)
    # The same 300 rows nine times over: 2,700 rows, and not a bit more evidence.
    many = (np.tile(scores, 9), np.tile(labels, 9), np.tile(groups, 9))
    assert noise_floor(many[0]) == pytest.approx(noise_floor(scores) / 3.0, rel=0.2)
    assert noise_floor(many[0], labels=many[1], groups=many[2]) == pytest.approx(alone, rel=0.3)


@pytest.mark.parametrize(
    ("scores", "labels", "message"),
    [
        ([0.5, 1.2], [0, 1], "score 1 is 1.2"),
        ([0.5, float("nan")], [0, 1], "score 1 is nan"),
        ([], [], "one row"),
        ([0.5], [0, 1], "one label per score"),
    ],
)
def test_metrics_refuse_what_is_no_probability(scores: Any, labels: Any, message: str) -> None:
    with pytest.raises(CalibrationError, match=message):
        ece(scores, labels)


# -- fitting ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperatures", [[2.0, 2.0, 2.0], [0.5, 0.5, 0.5], [1.5, 0.7, 2.5]])
def test_known_temperatures_are_recovered(temperatures: list[float]) -> None:
    calibration = fit_sts(made(temperature=temperatures))
    assert calibration.temperatures == pytest.approx(temperatures, rel=0.15)
    assert not calibration.shifts.any()
    for part in ("fit", "held_out"):
        for entry in calibration.report[part]["positions"]:
            assert entry["ece_after"] < entry["ece_before"]
            assert entry["ece_after"] < 2.0 * entry["noise_floor"]


@pytest.mark.parametrize("method", ["sts", "affine"])
def test_calibrated_confidences_are_mostly_left_alone_and_never_made_much_worse(method: str) -> None:
    """One in four or so gains more than the noise of the pair by chance; on other requests it loses
    little then."""
    alone = 0
    for seed in range(5):
        calibration = fit_sts(made(rows=40, seed=seed), method=method)
        alone += sum((calibration.temperatures == 1.0) & (calibration.shifts == 0.0))
        assert np.abs(np.log(calibration.temperatures)).max() < 0.5
        for entry in calibration.report["held_out"]["positions"]:
            assert entry["ece_after"] < entry["ece_before"] + 0.5 * entry["noise_floor"]
    assert alone >= 8


def test_a_shift_needs_the_affine_fit() -> None:
    trace = made(shift=[-0.6, -0.6, -0.6], temperature=1.2)
    sts, affine = fit_sts(trace), fit_sts(trace, method="affine")
    assert affine.shifts == pytest.approx([-0.6, -0.6, -0.6], abs=0.15)
    assert affine.temperatures == pytest.approx([1.2, 1.2, 1.2], rel=0.15)
    for a, s in zip(affine.report["held_out"]["positions"], sts.report["held_out"]["positions"], strict=True):
        assert a["ece_after"] < 2.0 * a["noise_floor"]
        assert s["ece_after"] > 2.0 * a["ece_after"]


@pytest.mark.parametrize("name", ["chat", "math", "code"])
def test_the_recorded_traces_come_calibrated(name: str) -> None:
    """Their confidence head was fitted on text its backbone had not memorised; a fit must not spoil that."""
    for position in fit_sts(load_trace(name)).report["held_out"]["positions"]:
        assert position["ece_before"] < 0.025
        assert position["ece_after"] < 0.025


def test_no_grid_temperature_does_better_on_the_fit_by_more_than_noise() -> None:
    """At each position, with those before it fixed, the grid holds nothing better; or T is 1 and
    the best of the grid gains less than the noise floor."""
    trace = made(temperature=[2.0, 1.2, 0.6], rows=60)
    calibration = fit_sts(trace, holdout=0.0)
    fitted = calibration.apply(trace.confidence_logit)
    for k in range(3):
        prefix = np.prod(fitted[:, :k], axis=1)
        labels = trace.accepted > k
        logit = trace.confidence_logit[:, k].astype(float)
        best = min(ece(prefix * sigmoid(logit / t), labels) for t in np.geomspace(0.1, 10, 41))
        if calibration.temperatures[k] == 1.0:
            floor = noise_floor(prefix * sigmoid(logit), labels=labels, groups=trace.request)
            best += floor
        assert ece(prefix * fitted[:, k], labels) <= best + 1e-12
    assert calibration.temperatures[0] != 1.0


def test_ties_go_to_the_temperature_nearest_one() -> None:
    """Logits of 0 say σ(0) = 0.5 under every temperature."""
    trace = made(rows=50)
    flat = Trace.from_arrays(trace.request, trace.position, np.zeros((len(trace), 3)), trace.accepted)
    assert fit_sts(flat).temperatures.tolist() == [1.0, 1.0, 1.0]


@given(
    st.lists(st.lists(st.floats(-20, 20, width=32), min_size=3, max_size=3), min_size=2, max_size=20),
    st.data(),
)
def test_order_within_a_position_never_changes(logits: list[list[float]], data: st.DataObject) -> None:
    positive = st.floats(0.1, 10)
    calibration = Calibration(
        np.array(data.draw(st.lists(positive, min_size=3, max_size=3))),
        np.array(data.draw(st.lists(st.floats(-3, 3), min_size=3, max_size=3))),
        "affine",
    )
    raw = np.array(logits)
    confidence = calibration.apply(raw)
    assert confidence.dtype == np.float64
    assert ((confidence >= 0) & (confidence <= 1)).all()
    for k in range(3):
        assert (np.diff(confidence[np.argsort(raw[:, k], kind="stable"), k]) >= 0).all()


def test_survival_is_the_running_product_left_to_right() -> None:
    c = np.array([[0.9, 0.8, 0.7]])
    assert survival(c).tolist() == [[0.9, 0.9 * 0.8, 0.9 * 0.8 * 0.7]]


# -- the split -------------------------------------------------------------------------------------------


@given(st.integers(2, 60), st.floats(0.01, 0.99), st.integers(0, 50))
def test_the_split_is_by_request_disjoint_and_whole(requests: int, holdout: float, seed: int) -> None:
    trace = made(rows=2, requests=requests)
    fit, held = split_requests(trace, holdout, seed)
    assert sorted([*fit.tolist(), *held.tolist()]) == trace.request_ids.tolist()
    assert len(fit) >= 1
    assert len(held) >= 1
    assert abs(len(held) - holdout * requests) <= 1
    again = split_requests(trace, holdout, seed)
    assert fit.tolist() == again[0].tolist()


def test_the_split_does_not_depend_on_the_order_of_the_file() -> None:
    trace = made(rows=2, requests=9)
    order = np.r_[10:18, 0:10]
    turned = Trace.from_arrays(
        trace.request[order], trace.position[order], trace.confidence_logit[order], trace.accepted[order]
    )
    assert split_requests(trace)[0].tolist() == split_requests(turned)[0].tolist()


def test_what_is_held_out_does_not_touch_the_fit() -> None:
    trace = made(temperature=2.0, rows=60)
    calibration = fit_sts(trace)
    held = np.isin(trace.request, calibration.held_out_requests)
    spoiled = Trace.from_arrays(
        trace.request,
        trace.position,
        np.where(held[:, None], 0.0, trace.confidence_logit),
        np.where(held, 0, trace.accepted),
    )
    assert fit_sts(spoiled).temperatures.tolist() == calibration.temperatures.tolist()
    assert set(calibration.fit_requests.tolist()).isdisjoint(calibration.held_out_requests.tolist())


def test_the_report_is_that_of_its_part() -> None:
    trace = made(temperature=2.0, rows=40)
    calibration = fit_sts(trace)
    held = trace.select(calibration.held_out_requests)
    assert calibration.report["held_out"] == evaluate(held, calibration)
    entry = calibration.report["held_out"]["positions"][1]
    labels = held.accepted >= 2
    assert entry["ece_before"] == ece(survival(sigmoid(held.confidence_logit))[:, 1], labels)
    assert entry["ece_after"] == ece(survival(calibration.apply(held.confidence_logit))[:, 1], labels)
    assert fit_sts(trace, holdout=0.0).report["held_out"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "isotonic"}, "sts, affine"),
        ({"holdout": 1.0}, "holdout is 1"),
        ({"holdout": -0.1}, "holdout is -0.1"),
        ({"bins": 1}, "bins is 1"),
        ({"grid": [1.0]}, "grid must be"),
        ({"grid": [2.0, 1.0]}, "grid must be"),
    ],
)
def test_fits_that_make_no_sense_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(CalibrationError, match=message):
        fit_sts(made(rows=5, requests=4), **arguments)


def test_one_request_cannot_be_split() -> None:
    with pytest.raises(CalibrationError, match="holdout=0"):
        fit_sts(made(requests=1))


# -- files -----------------------------------------------------------------------------------------------


def test_a_saved_calibration_is_the_same(tmp_path: Path) -> None:
    calibration = fit_sts(made(shift=0.5, rows=40), method="affine")
    path = tmp_path / "c.json"
    calibration.save(path)
    again = load_calibration(path)
    assert again.to_dict() == calibration.to_dict()
    raw = np.random.default_rng(0).normal(size=(5, 3))
    assert np.array_equal(again.apply(raw), calibration.apply(raw))


GOOD = {"schema": "specsched/calibration/1", "method": "sts", "temperatures": [1.0, 2.0]}
REFUSED = [
    ("no schema", {"temperatures": [1.0]}, "schema is None"),
    ("another tool's", GOOD | {"schema": "sglang"}, "specsched convert"),
    ("no temperatures", GOOD | {"temperatures": None}, "temperatures is missing"),
    ("empty", GOOD | {"temperatures": []}, "temperatures is empty"),
    ("zero", GOOD | {"temperatures": [1.0, 0.0]}, r"temperatures\[1\] is 0; it must be above 0"),
    ("negative", GOOD | {"temperatures": [1.0, -2.0]}, r"temperatures\[1\] is -2"),
    ("NaN", GOOD | {"temperatures": [float("nan")]}, r"temperatures\[0\] is nan"),
    ("a text", GOOD | {"temperatures": ["hot"]}, r"temperatures\[0\] is a text"),
    ("unknown method", GOOD | {"method": "isotonic"}, "sts, affine"),
    ("shifts short", GOOD | {"method": "affine", "shifts": [0.1]}, "shifts has 1 entries"),
    ("shifts with sts", GOOD | {"shifts": [0.1, 0.0]}, "affine"),
    ("block size", GOOD | {"block_size": 7}, "block_size is 7"),
    ("a list", [1.0], "JSON object"),
]


@pytest.mark.parametrize(("document", "message"), [pytest.param(d, m, id=i) for i, d, m in REFUSED])
def test_broken_calibrations_are_refused(tmp_path: Path, document: Any, message: str) -> None:
    path = tmp_path / "c.json"
    path.write_text(json.dumps(document))
    with pytest.raises(CalibrationError, match=message) as caught:
        load_calibration(path)
    assert str(path) in str(caught.value)


def test_missing_and_truncated_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match="specsched calibrate"):
        load_calibration(tmp_path / "none.json")
    (tmp_path / "cut.json").write_text('{"schema": "specsched/cal')
    with pytest.raises(CalibrationError, match="truncated"):
        load_calibration(tmp_path / "cut.json")


def test_another_block_size_is_refused() -> None:
    with pytest.raises(CalibrationError, match="2 positions"):
        Calibration(np.ones(2), np.zeros(2)).apply(np.zeros((4, 3)))


def test_auc_of_expected_acceptances_is_that_of_rows_counted_so_often() -> None:
    """Labels 0, 1/4, ..., 1 are four rows each, so many of them accepted: the share of pairs in order."""
    scores = np.array([0.1, 0.1, 0.4, 0.7, 0.7, 0.9])
    quarters = np.array([0, 1, 3, 2, 4, 3])
    rows = [(s, i < q) for s, q in zip(scores, quarters, strict=True) for i in range(4)]
    pairs = [(a, b) for a, yes in rows if yes for b, no in rows if not no]
    expected = sum(1.0 if a > b else 0.5 if a == b else 0.0 for a, b in pairs) / len(pairs)
    assert auc(scores, quarters / 4.0) == pytest.approx(expected, rel=1e-12)
    assert np.isnan(auc(scores, np.ones(6)))
