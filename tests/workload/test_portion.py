"""The busiest window of a long workload, and runs made long enough."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsched.workload import Workload, gamma_burst, parse_arrivals, poisson, portion, prolonged
from specsched.workload.portion import busiest


@given(st.lists(st.floats(0.0, 100.0), min_size=1, max_size=30), st.floats(0.5, 60.0), st.integers(0, 9))
def test_the_busiest_window_asks_for_most_of_all_windows(
    times: list[float], seconds: float, seed: int
) -> None:
    """By trying every start; output tokens weigh, not requests."""
    at = np.sort(np.array(times))
    tokens = np.random.default_rng(seed).integers(1, 50, len(at))
    first, last = busiest(Workload("w", at, output_tokens=tokens), seconds)
    end = seconds * (1 - 1e-9)
    asked = [sum(int(k) for t, k in zip(at, tokens, strict=True) if a <= t <= a + end) for a in at]
    assert int(tokens[first:last].sum()) == max(asked)
    assert at[last - 1] - at[first] <= seconds


def test_a_long_file_gives_its_busiest_window_with_its_share() -> None:
    """A quiet day of 1 request/s with a tenfold ten minutes in its 20th hour."""
    quiet = np.arange(0.0, 86_400.0, 1.0)
    burst = 19 * 3600.0 + np.arange(0.0, 600.0, 0.1)
    day = Workload("day", np.sort(np.concatenate([quiet, burst])))
    found = portion(day, least_seconds=60.0, most=4000)
    assert found.document is not None
    assert len(found.workload) <= 4000
    assert found.document["rate"] == pytest.approx(11.0, rel=0.01)
    assert 19 <= found.document["window_start_seconds"] / 3600 <= 19.2
    assert found.document["share"] == pytest.approx(len(found.workload) / len(day))
    assert found.workload.arrival_seconds[0] == 0.0
    assert "busiest window" in found.warnings[0]
    assert "19 hours in" in found.warnings[0]


def test_a_window_lasts_at_least_as_long_as_asked_and_short_files_stay_whole() -> None:
    even = Workload("even", np.arange(0.0, 1000.0, 0.01))
    found = portion(even, least_seconds=100.0, most=500)
    assert found.document is not None
    assert len(found.workload) == pytest.approx(10_000, abs=2)
    whole = portion(even, least_seconds=1.0, most=len(even))
    assert whole.workload is even
    assert whole.document is None
    assert not whole.warnings


def test_drawn_arrivals_are_drawn_on_at_their_rate() -> None:
    short = parse_arrivals("gamma:8:3", requests=100, seed=4)
    assert short is not None
    long = prolonged(short, 100.0)
    assert long.rate == pytest.approx(8.0, rel=1e-9)
    assert long.arrival_seconds[-1] - long.arrival_seconds[0] >= 100.0 * (1 - 1e-6)
    assert len(np.unique(np.diff(long.arrival_seconds))) > 0.9 * len(long), "gaps are not repeated"
    assert not long.warnings
    assert prolonged(long, 50.0) is long


def test_recorded_arrivals_are_repeated_at_their_rate_and_it_is_said() -> None:
    at = np.cumsum(np.random.default_rng(2).exponential(0.1, 50))
    file = Workload("file", at, output_tokens=np.arange(1, 51))
    long = prolonged(file, 40.0)
    assert long.rate == pytest.approx(file.rate, rel=1e-9)
    assert len(long) % 50 == 0
    np.testing.assert_array_equal(long.output_tokens, np.tile(np.arange(1, 51), len(long) // 50))
    np.testing.assert_allclose(np.diff(long.arrival_seconds)[:49], np.diff(at))
    assert any("repeated" in said for said in long.warnings)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("spec", ["gamma:8:20", "gamma:8:0.5", "poisson:8"])
def test_arrivals_run_at_the_rate_they_name(spec: str, seed: int) -> None:
    workload = parse_arrivals(spec, requests=600, seed=seed)
    assert workload is not None
    assert workload.rate == pytest.approx(8.0, rel=1e-9)
    cv = float(spec.split(":")[2]) if spec.startswith("gamma") else 1.0
    drawn = gamma_burst(8.0, cv, requests=600, seed=seed)
    assert workload.burstiness == pytest.approx(drawn.burstiness, rel=1e-6)


def test_what_is_recorded_and_what_is_drawn() -> None:
    assert not poisson(2.0, requests=30).recorded
    assert not poisson(2.0, requests=30).scaled(3.0).recorded
    assert Workload("w", np.arange(5.0)).recorded
