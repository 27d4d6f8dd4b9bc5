"""Cost of a step: an oracle in exact arithmetic, and laws."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from profile_cases import SMALL, naive_seconds, profiles, small

from specsched.errors import ProfileError
from specsched.profile import StepProfile


@given(
    profiles(),
    st.integers(1, 700),
    st.integers(0, 500),
    st.integers(0, 900),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=400, deadline=None)
@example(SMALL, 16, 2, 0, True, False)
@example(SMALL, 17, 2, 0, True, True)
def test_seconds_is_section_4(
    d: dict[str, Any], tokens: int, requests: int, context: int, draft: bool, sync: bool
) -> None:
    profile = StepProfile.from_dict(d)
    expected = naive_seconds(d, tokens, requests, context, draft, sync)
    if expected is None:
        with pytest.raises(ProfileError, match="no eager curve"):
            profile.seconds(tokens, requests, context, draft, sync)
        assert profile.sps(requests, context, tokens, draft=draft, sync=sync)[tokens] == 0.0
        return
    assert profile.seconds(tokens, requests, context, draft, sync) == pytest.approx(
        float(expected), rel=1e-12
    )


def test_the_oracle_can_fail() -> None:
    d = small()
    wrong = naive_seconds(small(capture=None), 3, 2, 100, True, False)
    right = naive_seconds(d, 3, 2, 100, True, False)
    assert wrong != right
    assert StepProfile.from_dict(d).seconds(3, 2, 100) == pytest.approx(float(right), rel=1e-12)


@given(profiles(), st.integers(1, 40), st.integers(0, 900), st.integers(0, 60), st.booleans(), st.booleans())
def test_tables_sps_and_seconds_agree_to_the_last_bit(
    d: dict[str, Any], requests: int, context: int, prefill: int, draft: bool, sync: bool
) -> None:
    profile = StepProfile.from_dict(d)
    most = 8 * requests
    tables = profile.tables(most + prefill, requests)
    sps = profile.sps(requests, context, most, prefill, draft, sync)
    assert sps.shape == (most + 1,)
    assert sps.dtype == np.float64
    i = max(int(np.searchsorted(tables.attention_x, context, side="right")) - 1, 0)
    attention = float(tables.attention_y[i])
    if context > tables.attention_x[i]:
        attention = attention + float(tables.attention_slope[i]) * (context - float(tables.attention_x[i]))
    base = (tables.bias + attention) + float(tables.overhead[requests])
    if draft:
        base = base + float(tables.draft[requests])
    if sync:
        base = base + tables.sync
    for b in (0, 1, requests, most // 2, most):
        tokens = max(b + prefill, 1)
        if tokens > tables.refused_above:
            assert math.isnan(tables.verify[tokens])
            assert sps[b] == 0.0
            continue
        seconds = base + float(tables.verify[tokens])
        if draft and tables.enabling_fraction > 0.0:
            seconds = seconds / (1.0 - tables.enabling_fraction)
        assert seconds == profile.seconds(tokens, requests, context, draft, sync)
        assert sps[b] == 1.0 / seconds


@given(profiles())
def test_tables_carry_what_the_engine_extends(d: dict[str, Any]) -> None:
    """Two points or more, and the slope of the last two is the slope past the end, whoever computes it."""
    t = StepProfile.from_dict(d).tables(10, 10)
    assert len(t.attention_x) >= 2
    assert len(t.attention_x) == len(t.attention_y) == len(t.attention_slope)
    last = (t.attention_y[-1] - t.attention_y[-2]) / (t.attention_x[-1] - t.attention_x[-2])
    assert last == t.attention_slope[-1] >= 0.0
    assert t.draft[0] == 0.0
    assert all(a.flags.c_contiguous for a in t if isinstance(a, np.ndarray))


@given(profiles(), st.integers(1, 700))
def test_padding_goes_up_to_the_next_size_and_never_across_the_limit(d: dict[str, Any], tokens: int) -> None:
    profile = StepProfile.from_dict(d)
    padded = int(profile.pad(tokens))
    limit = profile.graph_limit
    assert padded >= tokens
    if limit is None or tokens > limit:
        assert padded == tokens
    else:
        assert padded <= limit
        assert padded in profile.capture_sizes
        assert not any(tokens <= s < padded for s in profile.capture_sizes)


@pytest.mark.parametrize(
    ("lookup", "expected"),
    [
        ("linear", [2, 2, 3, 4, 5, 6, 7, 8]),
        ("floor", [2, 2, 2, 4, 4, 6, 7, 8]),
        ("ceil", [2, 2, 4, 4, 6, 6, 7, 8]),
    ],
)
def test_points_are_read_exactly_and_between_them_as_the_owner_does(lookup: str, expected: list[int]) -> None:
    verify = {"tokens": [2, 4, 6, 7, 8], "seconds": [2.0, 4.0, 6.0, 7.0, 8.0], "lookup": lookup}
    profile = StepProfile.from_dict(small(verify=verify, capture=None, eager=None))
    assert profile.verify_seconds(np.arange(1, 9)).tolist() == expected


def test_the_eager_curve_is_never_blended_across_the_limit() -> None:
    profile = StepProfile.from_dict(small())
    at, above = profile.verify_seconds(np.array([16, 17]))
    assert at == pytest.approx(0.006 + (0.02 - 0.006) * 8 / 56)
    assert above == 0.05
    # A change of the eager curve changes nothing on the graph, and the other way round.
    other = StepProfile.from_dict(small(eager={"tokens": [17], "seconds": [9.0]}))
    tokens = np.arange(1, 40)
    same = other.verify_seconds(tokens) == profile.verify_seconds(tokens)
    assert same[:16].all()
    assert not same[16:].any()


def test_extrapolation_is_counted_past_the_last_point_of_the_curve_read() -> None:
    free = StepProfile.from_dict(small(capture=None, eager=None))
    assert free.extrapolates(np.array([1, 64, 65])).tolist() == [False, False, True]
    graphs = StepProfile.from_dict(small())
    assert graphs.extrapolates(np.array([16, 17, 256, 257])).tolist() == [False, False, False, True]
    assert graphs.tables(300, 4).extrapolated.sum() == 44
    padded_past = small(verify={"tokens": [1, 12], "seconds": [0.01, 0.02]})
    assert StepProfile.from_dict(padded_past).extrapolates(np.array([8, 9])).tolist() == [False, True]


def test_a_curve_that_ends_on_an_inversion_is_carried_on_flat() -> None:
    falling = {"tokens": [1, 10, 20], "seconds": [0.01, 0.03, 0.02]}
    profile = StepProfile.from_dict(small(verify=falling, capture=None, eager=None))
    assert profile.verify_seconds(np.array([15, 20, 1000])).tolist() == pytest.approx([0.025, 0.02, 0.02])


def test_clamp_holds_the_last_value_of_the_owners_curves() -> None:
    verify = SMALL["verify"] | {"beyond": "clamp"}
    profile = StepProfile.from_dict(small(verify=verify, capture=None, eager=None))
    assert float(profile.verify_seconds(10_000)) == 0.02
    assert float(profile.overhead(10_000)) == 0.005
    own = StepProfile.from_dict(small(verify=verify, overhead=SMALL["overhead"] | {"beyond": "slope"}))
    assert float(own.overhead(10_000)) > 0.005
    assert StepProfile.from_dict(own.to_dict()).to_dict() == own.to_dict()


def test_enabling_fraction_is_paid_only_by_steps_that_draft() -> None:
    profile = StepProfile.from_dict(small(scheduler={"enabling_fraction": 0.2}))
    plain = StepProfile.from_dict(small())
    assert profile.seconds(4, 2, 10, draft=False) == plain.seconds(4, 2, 10, draft=False)
    assert profile.seconds(4, 2, 10) == pytest.approx(plain.seconds(4, 2, 10) / 0.8)


def test_kv_capacity_by_hand() -> None:
    profile = StepProfile.from_dict(small())
    assert profile.kv_capacity_tokens(0.0) == (2 * 1000 - 800) // 10
    assert profile.kv_capacity_tokens() == 100
    assert (
        StepProfile.from_dict(
            small(model={"weight_bytes": 5000, "kv_bytes_per_token": 10})
        ).kv_capacity_tokens()
        == 0
    )
    assert StepProfile.from_dict(small(gpu={"count": 2})).kv_capacity_tokens() is None
    with pytest.raises(ProfileError, match="reserve"):
        profile.kv_capacity_tokens(1.0)
