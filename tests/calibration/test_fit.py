"""The parts of a fit by their definitions: the tie rule, the noise floor, the logistic start, the split."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from trace_cases import made

from specsched.calibration import Calibration, fit_sts
from specsched.calibration.fit import GRID, _logistic, _Position, evaluate, split_requests
from specsched.calibration.holdout import split_and_calibrate
from specsched.calibration.metrics import auc, brier, ece, gain_noise, noise_floor, sigmoid, survival
from specsched.errors import TraceError
from specsched.trace import Trace

# -- ties --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("candidates", "nearest"),
    [
        ([(0.4, 0.0), (2.0, 0.0)], (2.0, 0.0)),  # a factor 2.5 is farther than a factor 2, though 0.6 < 1
        ([(2.0, 0.0), (0.4, 0.0)], (2.0, 0.0)),
        ([(10.0, 0.0), (0.1, 0.0), (0.9, 0.0), (1.2, 0.0)], (0.9, 0.0)),
        ([(0.5, 0.0), (1.0, 0.0), (3.0, 0.0)], (1.0, 0.0)),
    ],
)
def test_ties_go_to_the_temperature_nearest_one_by_its_factor(
    candidates: list[tuple[float, float]], nearest: tuple[float, float]
) -> None:
    """Logits of 0 are σ(0) = 1/2 under every temperature: all tie."""
    position = _Position(np.zeros(8), np.ones(8), np.arange(8) % 2.0, 20)
    assert position._best(candidates) == (0.0, nearest)


def test_a_better_fit_beats_a_nearer_temperature() -> None:
    position = _Position(np.full(100, 2.0), np.ones(100), (np.arange(100) < 60).astype(float), 20)
    error, (temperature, _) = position._best([(1.0, 0.0), (1.1, 0.0), (5.0, 0.0)])
    assert temperature == 5.0
    assert error == pytest.approx(abs(1 / (1 + math.exp(-0.4)) - 0.6))


def test_shifts_count_as_distance_too() -> None:
    """All scores saturate at 1: a shift of 0.5 is farther from doing nothing than a factor 1.5."""
    position = _Position(np.full(4, 400.0), np.ones(4), np.ones(4), 20)
    assert position._best([(1.0, 0.5), (1.5, 0.0), (1.0, -0.5)])[1] == (1.5, 0.0)


# -- where the optimum lies --------------------------------------------------------------------------------


@pytest.mark.parametrize("true", [0.13, 0.37, 0.8, 1.7, 4.4, 8.5])
def test_the_temperature_found_is_the_best_between_grid_points_too(true: float) -> None:
    """Against a scan forty times as fine as the grid: never worse by more than a tenth of the floor."""
    trace = made(temperature=[true, 1.0, 1.0], rows=60, seed=3)
    logit = trace.confidence_logit[:, 0].astype(float)
    labels = trace.accepted > 0
    found = float(fit_sts(trace, holdout=0.0).temperatures[0])
    at = {t: ece(sigmoid(logit / t), labels) for t in [found, *np.geomspace(0.1, 10.0, 1601)]}
    floor = noise_floor(sigmoid(logit), labels=labels, groups=trace.request)
    assert at[found] <= min(at.values()) + 0.1 * floor
    assert at[found] <= min(ece(sigmoid(logit / t), labels) for t in GRID), "never worse than the grid's best"


def drawn(rng: np.random.Generator, temperature: float, requests: int = 60) -> tuple[np.ndarray, ...]:
    """(logit, labels, request) of rows whose requests differ in ease; calibrated at `temperature`."""
    request = np.repeat(np.arange(requests), 20)
    logit = rng.normal(0.5, 1.0, requests)[request] + rng.normal(0.0, 1.0, len(request))
    return temperature * logit, rng.random(len(logit)) < sigmoid(logit), request


def test_the_noise_of_a_gain_is_its_spread_over_other_requests() -> None:
    """The bootstrap of single draws against the spread over many: on the safe side, by a factor of two or so
    (sums of absolute values); the noise floor of an ECE by itself is above it."""
    rng = np.random.default_rng(5)
    gains = []
    for _ in range(200):
        logit, labels, _ = drawn(rng, 1.3)
        gains.append(ece(sigmoid(logit), labels) - ece(sigmoid(logit / 1.15), labels))
    told, floors = [], []
    for _ in range(10):
        logit, labels, request = drawn(rng, 1.3)
        told.append(gain_noise(sigmoid(logit), sigmoid(logit / 1.15), labels, request))
        floors.append(noise_floor(sigmoid(logit), labels=labels, groups=request))
    assert 0.8 * np.std(gains) < np.mean(told) < 2.2 * np.std(gains)
    assert np.mean(told) < 0.8 * np.mean(floors)
    assert gain_noise(sigmoid(logit), sigmoid(logit / 1.15), labels, np.zeros(len(request))) == float("inf")


def test_a_temperature_is_kept_at_one_where_its_gain_is_within_the_noise_of_the_pair() -> None:
    """Calibrated scores mostly keep it; scores off by less than the noise floor do not."""
    taken = {1.0: 0, 1.35: 0}
    below_the_floor = 0
    for true in taken:
        for seed in range(20):
            logit, labels, request = drawn(np.random.default_rng(seed), true)
            position = _Position(logit, np.ones(len(logit)), labels.astype(float), 20)
            best = position.temperature(GRID)
            gains = position.gains(best, request, lambda rows, p=position: p.part(rows).temperature(GRID))
            taken[true] += gains
            gain = position.ece(1.0) - position.ece(*best)
            floor = noise_floor(sigmoid(logit), labels=labels, groups=request)
            below_the_floor += gains and gain < floor
    assert taken[1.0] <= 10
    assert taken[1.35] >= 14
    assert below_the_floor >= 8, "the old rule would have left these as they are"


@pytest.mark.parametrize("true", [(0.15, 0.0), (0.5, -1.0), (1.0, 0.8), (3.0, 0.3), (8.0, -0.5)])
@pytest.mark.parametrize("scale", [1.0, 6.0])
def test_the_logistic_start_is_the_likeliest(true: tuple[float, float], scale: float) -> None:
    """Against scipy's minimiser, from (1, 0) wherever it lies."""
    rng = np.random.default_rng(7)
    temperature, shift = true
    x = rng.normal(0.5, 1.5, 6000) * scale
    labels = (rng.random(6000) < sigmoid(x / temperature + shift)).astype(float)

    def cost(at: np.ndarray) -> float:
        z = at[0] * np.clip(x, -30, 30) + at[1]
        prior = 0.5e-3 * ((at[0] - 1) ** 2 + at[1] ** 2)
        return float((np.logaddexp(0.0, z) - labels * z).sum() + prior)

    best = minimize(
        cost, [1 / temperature, shift], method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-9}
    )
    found = _logistic(x, labels, 0.1, 10.0)
    wanted = float(np.clip(1 / best.x[0], 0.1, 10.0))
    assert found[0] == pytest.approx(wanted, rel=1e-3)
    if 0.1 < wanted < 10.0:
        assert found[1] == pytest.approx(best.x[1], abs=2e-3)


def test_the_logistic_start_arrives_from_far_away() -> None:
    """Scores that are certain and often wrong: Newton's own first step leaps past all sense."""
    rng = np.random.default_rng(1)
    x = rng.choice([-25.0, 25.0], 4000)
    labels = (rng.random(4000) < np.where(x > 0, 0.7, 0.4)).astype(float)
    temperature, shift = _logistic(x, labels, 0.1, 100.0)
    log_odds = [math.log(p / (1 - p)) for p in (labels[x > 0].mean(), labels[x < 0].mean())]
    assert 25.0 / temperature + shift == pytest.approx(log_odds[0], abs=0.02)
    assert -25.0 / temperature + shift == pytest.approx(log_odds[1], abs=0.02)


@pytest.mark.parametrize(("of_one", "of_other", "fitted"), [(9, 91, False), (91, 9, False), (10, 90, True)])
def test_ten_of_either_outcome_are_needed(of_one: int, of_other: int, fitted: bool) -> None:
    labels = np.r_[np.ones(of_one), np.zeros(of_other)]
    found = _logistic(np.zeros(100) + 0.1, labels, 0.1, 10.0)
    assert (found != (1.0, 0.0)) is fitted


def test_confidences_that_point_the_wrong_way_are_flattened() -> None:
    """A falling slope would turn the order round: the highest temperature stands for it."""
    x = np.linspace(-3, 3, 400)
    labels = (np.random.default_rng(0).random(400) < sigmoid(-x)).astype(float)
    assert _logistic(x, labels, 0.1, 10.0)[0] == 10.0
    assert _logistic(x, 1 - labels, 0.1, 10.0)[0] < 2.0


def test_only_rows_that_reached_a_position_teach_it() -> None:
    """Position 2 is conditional on position 1: rows rejected there say nothing of it."""
    rng = np.random.default_rng(5)
    n = 12_000
    logit = rng.normal(0.3, 1.2, (n, 2))
    first = rng.random(n) < sigmoid(logit[:, 0])
    second = rng.random(n) < sigmoid(logit[:, 1] / 0.3 - 1.6)
    trace = Trace.from_arrays(
        np.repeat(np.arange(100), n // 100),
        np.tile(np.arange(n // 100), 100),
        logit,
        np.where(first, 1 + second, 0),
    )
    found = fit_sts(trace, holdout=0.0, method="affine")
    assert found.temperatures[1] == pytest.approx(0.3, rel=0.25)
    assert found.shifts[1] == pytest.approx(-1.6, abs=0.4)


def test_the_affine_fit_looks_around_in_both_directions() -> None:
    """Never a greater ECE than at the likeliest (T, b), nor at its neighbours in T, in b, or in both."""
    for seed in range(4):
        trace = made(temperature=1.8, shift=0.5, rows=12, seed=seed)
        logit, labels = trace.confidence_logit[:, 0].astype(float), (trace.accepted > 0).astype(float)
        position = _Position(logit, np.ones(len(trace)), labels, 20)
        found = position.ece(*position.affine(GRID, np.ones(len(trace), bool)))
        t, b = _logistic(logit, labels, 0.1, 10.0)
        steps = np.linspace(-0.4, 0.4, 7)
        around = [position.ece(t * math.exp(u), b + v) for u in steps for v in steps]
        assert found <= min(around) + 1e-12
        only_t = min(position.ece(t * math.exp(u), b) for u in steps)
        assert found < only_t or seed, "here a shift gains"


# -- noise floor and report --------------------------------------------------------------------------------


def naive_floor(scores: list[float], labels: list[bool], groups: list[int], bins: int) -> float:
    """Bin by bin: the larger of what independent labels leave and of what the groups' own sums show."""
    total = 0.0
    for b in range(bins):
        inside = [i for i, s in enumerate(scores) if min(int(s * bins), bins - 1) == b]
        if not inside:
            continue
        variance = sum(scores[i] * (1 - scores[i]) for i in inside)
        alone = min(math.sqrt(2 / math.pi * variance), 2 * variance)
        mean = sum(labels[i] - scores[i] for i in inside) / len(inside)
        sums: dict[int, float] = {}
        for i in inside:
            sums[groups[i]] = sums.get(groups[i], 0.0) + labels[i] - scores[i] - mean
        m = len(sums)
        between = math.sqrt(2 / math.pi * sum(x * x for x in sums.values()) * m / (m - 1)) if m >= 5 else 0.0
        total += max(alone, between)
    return total / len(scores)


ROWS = st.tuples(st.floats(0, 1) | st.sampled_from([0.0, 0.5, 0.52, 1.0]), st.booleans(), st.integers(0, 8))


@given(st.lists(ROWS, min_size=1, max_size=60), st.integers(1, 6))
def test_the_noise_floor_by_its_definition(rows: list[tuple[float, bool, int]], bins: int) -> None:
    scores, labels, groups = ([row[i] for row in rows] for i in range(3))
    told = noise_floor(scores, bins, labels=labels, groups=groups)
    assert told == pytest.approx(naive_floor(scores, labels, groups, bins), abs=1e-12)
    alone = noise_floor(scores, bins)
    assert alone == pytest.approx(naive_floor(scores, labels, [0] * len(rows), bins), abs=1e-12)


@pytest.mark.parametrize(("groups", "counted"), [(4, False), (5, True)])
def test_five_groups_say_something_of_their_spread(groups: int, counted: bool) -> None:
    """Rows of a request all alike: as uncertain as the requests are few."""
    scores, labels = np.full(20 * groups, 0.5), np.repeat(np.arange(groups) % 2, 20)
    told = noise_floor(scores, 1, labels=labels, groups=np.repeat(np.arange(groups), 20))
    assert (told > noise_floor(scores, 1)) is counted


def test_the_report_is_of_the_calibrated_scores() -> None:
    """Every figure of every position, from survivals before and after; the floor is that of the latter."""
    trace = made(temperature=[2.5, 0.5, 1.5], rows=30)
    calibration = fit_sts(trace)
    for part, ids in (("fit", calibration.fit_requests), ("held_out", calibration.held_out_requests)):
        rows = trace.select(ids)
        report = calibration.report[part]
        assert (report["rows"], report["requests"]) == (len(rows), len(ids))
        before = survival(sigmoid(rows.confidence_logit))
        after = survival(calibration.apply(rows.confidence_logit))
        for k, entry in enumerate(report["positions"]):
            labels = rows.accepted >= k + 1
            assert entry["position"] == k + 1
            assert entry["accepted_share"] == labels.mean()
            floor = noise_floor(after[:, k], labels=labels, groups=rows.request)
            assert (
                entry["noise_floor"] == floor != noise_floor(before[:, k], labels=labels, groups=rows.request)
            )
            for name, scores in (("before", before[:, k]), ("after", after[:, k])):
                assert entry[f"ece_{name}"] == ece(scores, labels)
                assert entry[f"auc_{name}"] == auc(scores, labels)
                assert entry[f"brier_{name}"] == brier(scores, labels)
    raw = evaluate(trace)
    for entry in raw["positions"]:
        assert entry["ece_before"] == entry["ece_after"]


def test_a_report_of_bins_is_of_those_bins() -> None:
    trace = made(temperature=2.0, rows=20)
    calibration = fit_sts(trace, bins=7)
    entry = calibration.report["held_out"]["positions"][0]
    held = trace.select(calibration.held_out_requests)
    assert entry["ece_before"] == ece(sigmoid(held.confidence_logit[:, 0]), held.accepted > 0, 7)
    assert entry["ece_before"] != ece(sigmoid(held.confidence_logit[:, 0]), held.accepted > 0)
    assert calibration.about["bins"] == 7


# -- the split, and what is replayed -----------------------------------------------------------------------


def test_another_seed_is_another_split_of_the_same_size() -> None:
    trace = made(rows=2, requests=40)
    splits = [split_requests(trace, 0.25, seed) for seed in range(4)]
    assert len({tuple(held.tolist()) for _, held in splits}) == 4
    assert all((len(fit), len(held)) == (30, 10) for fit, held in splits)
    assert all((np.diff(ids) > 0).all() for pair in splits for ids in pair)
    assert [len(ids) for ids in split_requests(trace, 0.0)] == [40, 0]


@pytest.mark.parametrize("method", ["sts", "affine"])
def test_what_is_replayed_was_not_fitted_on(method: str) -> None:
    trace = made(temperature=2.0, shift=0.6, rows=20, requests=60)
    for seed in (0, 3):
        part, calibration, note = split_and_calibrate(trace, method, seed)
        wanted = fit_sts(trace, holdout=0.5, seed=seed, method=method)
        assert calibration is not None
        assert calibration.to_dict() == wanted.to_dict()
        assert sorted(part.request_ids.tolist()) == wanted.held_out_requests.tolist()
        assert note == {
            "method": method,
            "fitted_on": 30,
            "replayed": 30,
            "temperatures": wanted.temperatures.tolist(),
        }


def test_a_given_calibration_is_applied_to_everything(tmp_path: Any) -> None:
    trace = made(rows=5, requests=10)
    given = Calibration(np.array([2.0, 1.5, 0.5]), np.zeros(3))
    given.save(tmp_path / "c.json")
    for calibration in (given, str(tmp_path / "c.json")):
        part, applied, note = split_and_calibrate(trace, calibration)
        assert part is trace
        assert applied is not None
        assert applied.temperatures.tolist() == [2.0, 1.5, 0.5]
        assert note == {"method": "sts", "fitted_on": None, "replayed": 10, "temperatures": [2.0, 1.5, 0.5]}
    for nothing in (None, "none"):
        part, applied, note = split_and_calibrate(trace, nothing)
        assert part is trace
        assert applied is None
        assert note == {"method": "none", "fitted_on": 0, "replayed": 10}
    with pytest.raises(TraceError, match="one request cannot be split"):
        split_and_calibrate(made(rows=5, requests=1), "sts")


def test_applying_divides_by_the_temperature_and_adds_the_shift() -> None:
    calibration = Calibration(np.array([2.0, 0.5]), np.array([0.3, -1.0]), "affine")
    told = calibration.apply([[1.0, 1.0], [-4.0, 0.0]])
    wanted = [[0.5 + 0.3, 2.0 - 1.0], [-2.0 + 0.3, -1.0]]
    assert told == pytest.approx(1 / (1 + np.exp(-np.array(wanted))), rel=1e-12)
    again = Calibration.from_dict(calibration.to_dict() | {"fit_requests": [4, 9], "held_out_requests": [2]})
    assert again.fit_requests.tolist() == [4, 9]
    assert again.held_out_requests.tolist() == [2]
    assert again.shifts.tolist() == [0.3, -1.0]
