"""Intervals by what they say they are, each warning where it belongs, how engines are set up."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planner_oracle import BLOCK, line, varied
from profile_cases import small

from specsched.errors import WorkloadError
from specsched.profile import StepProfile
from specsched.simulator import Serving, SimResult, intervals, simulate
from specsched.simulator.serving import kv_capacity
from specsched.workload import Workload

# -- the bootstrap -----------------------------------------------------------------------------------------


def test_bounds_hold_the_central_95_per_cent() -> None:
    low, high = intervals.bounds(np.arange(2001.0)[::-1]) or [math.nan, math.nan]
    assert low == pytest.approx(50.0, abs=1.0)
    assert high == pytest.approx(1950.0, abs=1.0)
    with_gaps = np.concatenate([np.arange(2001.0), [math.nan] * 500, [math.inf] * 20])
    assert intervals.bounds(with_gaps) == [low, high], "what no resample could say is left out"
    assert intervals.bounds(np.array([math.nan, math.nan])) is None
    assert intervals.bounds(np.array([3.0])) == [3.0, 3.0]


@given(st.integers(1, 40), st.integers(1, 5), st.integers(0, 5))
def test_traced_requests_are_drawn_with_all_their_replays(traced: int, replays: int, seed: int) -> None:
    """As many draws as there are traced requests, of each equally often on average; replays move together."""
    ids = np.tile(np.arange(traced) * 7 + 3, replays)
    weights = intervals.Resamples(ids, seed, 200).weights
    assert weights.shape == (200, traced * replays)
    assert (weights.sum(axis=1) == traced * replays).all()
    for which in range(traced):
        mine = weights[:, ids == which * 7 + 3]
        assert (mine == mine[:, :1]).all()
    assert (weights == np.floor(weights)).all()
    if traced >= 10:
        assert np.abs(weights.mean(axis=0) - 1.0).max() < 0.5
        # Poisson-like counts: a request is left out of a resample with probability (1 - 1/n)^n.
        assert (weights == 0).mean() == pytest.approx((1 - 1 / traced) ** traced, abs=0.03)
        assert (weights != intervals.Resamples(ids, seed + 1, 200).weights).any()
    assert (weights == intervals.Resamples(ids, seed, 200).weights).all()


def test_a_share_is_as_uncertain_as_its_traced_requests_are_few() -> None:
    """Half of n requests pass: 0.5 +- 1.96 sqrt(1/4n), however often each is replayed."""
    rng = np.random.default_rng(2)
    for n in (40, 160, 640):
        passed = rng.permutation(np.arange(n) % 2 == 0)
        half = 1.96 * math.sqrt(0.25 / n)
        for replays in (1, 4):
            traced = np.tile(np.arange(n), replays)
            low, high = intervals.share_bounds(np.tile(passed, replays), traced, seed=1)
            assert low == pytest.approx(0.5 - half, abs=0.2 * half)
            assert high == pytest.approx(0.5 + half, abs=0.2 * half)
        other = intervals.share_bounds(passed, np.arange(n), seed=5)
        assert other != [low, high]
        assert other[1] - other[0] == pytest.approx(2 * half, rel=0.2)
    sure = intervals.share_bounds(np.ones(30, bool), np.arange(30), seed=0)
    assert sure == [1.0, 1.0]


def test_a_share_of_replays_weighs_requests_by_their_replays() -> None:
    """A request replayed nine times and one replayed once: shares of replays, not means of shares."""
    passed, traced = np.array([True] * 9 + [False]), np.array([0] * 9 + [1])
    assert intervals.share_bounds(passed, traced, seed=0) == [0.0, 1.0]
    shares = {0.0, 0.9, 1.0}
    for resamples in (1, 2, 3):
        low, high = intervals.share_bounds(passed, traced, seed=3, resamples=resamples)
        if resamples == 1:
            assert low == high
            assert low in shares


def test_ratios_are_of_sums() -> None:
    rng = np.random.default_rng(4)
    a, b = rng.integers(1, 20, 300).astype(float), rng.integers(5, 9, 300).astype(float)
    drawn = intervals.Resamples(np.arange(300), 0)
    low, high = intervals.ratio_bounds(drawn.whole_sums(a), drawn.sums(b)) or (0, 0)
    assert (drawn.whole_sums(a) == drawn.sums(a)).all(), "whole numbers add up alike in any order"
    ratio = a.sum() / b.sum()
    spread = 1.96 * np.std(a - ratio * b) / b.mean() / math.sqrt(300)
    assert low == pytest.approx(ratio - spread, abs=0.2 * spread)
    assert high == pytest.approx(ratio + spread, abs=0.2 * spread)
    assert intervals.ratio_bounds(np.ones(9), np.zeros(9)) is None


@given(
    st.lists(st.tuples(st.sampled_from([1.0, 2.0, 2.5, 7.0]), st.integers(0, 3)), min_size=1, max_size=8),
    st.sampled_from([0.05, 0.5, 0.9]),
)
def test_a_quantile_is_the_least_that_more_than_so_many_do_not_exceed(
    rows: list[tuple[float, int]], quantile: float
) -> None:
    values, counts = [v for v, _ in rows], [n for _, n in rows]
    counts[0] += 1
    drawn = sorted(v for v, n in zip(values, counts, strict=True) for _ in range(n))
    wanted = next(v for v in drawn if sum(x <= v for x in drawn) > quantile * len(drawn))
    told = intervals.resampled_quantiles(
        np.array(values), np.arange(len(values)), np.array([counts]), quantile, 0.0
    )
    assert [list(of) for of in told] == [[wanted], [drawn[0]]]


def test_the_intervals_of_a_run_are_those_of_its_requests() -> None:
    """Each figure's interval, from the requests' own table, drawn again in plain Python."""
    trace = varied([20, 30, 40] * 20, 0.7)
    result = simulate(trace, line(), "threshold:0.5", 6, requests=120)
    a = {name: values.astype(float) for name, values in result.arrays.items()}
    span = a["finish_seconds"] - a["ready_seconds"]
    speed = a["tokens"] / span
    held = a["finish_seconds"] - a["arrival_seconds"]
    pairs = {
        "emitted_per_step": (a["tokens"], a["steps"]),
        "verify_tokens_per_request": (a["steps"] + a["verified"], a["steps"]),
        "rejected_share": (a["verified"] - a["accepted"], a["verified"]),
        "mean": (speed, np.ones(120)),
        "throughput": (a["tokens"], held),
    }
    rng = np.random.default_rng(11)
    ids = np.unique(a["traced"])
    drawn: dict[str, list[float]] = {name: [] for name in [*pairs, "p05", "p50"]}
    for _ in range(2000):
        counts = np.bincount(rng.integers(0, len(ids), len(ids)), minlength=len(ids))
        weight = counts[np.searchsorted(ids, a["traced"])]
        for name, (top, bottom) in pairs.items():
            drawn[name].append((weight @ top) / (weight @ bottom))
        again = np.sort(np.repeat(speed, weight))
        for name, q in (("p05", 0.05), ("p50", 0.5)):
            drawn[name].append(again[int(q * len(again))])
    summary = result.summary
    told = summary["intervals"] | summary["intervals"]["tps_user"]
    scale = summary["throughput"] / (a["tokens"].sum() / held.sum())
    for name, values in drawn.items():
        low, high = np.quantile(values, [0.025, 0.975]) * (scale if name == "throughput" else 1.0)
        wide = high - low
        assert told[name][0] == pytest.approx(low, abs=0.2 * wide), name
        assert told[name][1] == pytest.approx(high, abs=0.2 * wide), name
    low, high = told["throughput"]
    assert low < summary["throughput"] < high
    open_loop = simulate(trace, line(), "off", workload=Workload("w", np.arange(40.0))).summary
    assert "throughput" not in open_loop["intervals"], "what arrives is served: its rate is given"


# -- warnings ----------------------------------------------------------------------------------------------

TRACE = varied([20] * 100)
WHOLE: dict[str, Any] = {
    "draft": {"requests": [1, 32], "seconds": [0.001, 0.002], "block_size": BLOCK},
    "attention": {"kv_tokens": [0, 1000], "seconds": [0.0, 0.001]},
    "overhead": {"requests": [1, 32], "seconds": [0.001, 0.005]},
    "sync_seconds": 0.0002,
    "gpu": {"count": 1, "memory_bytes": 100_000},
    "model": {"weight_bytes": 1000, "kv_bytes_per_token": 1},
}


def told(policy: str = "off", profile: StepProfile | None = None, trace: Any = TRACE) -> list[str]:
    """Warnings of a run in which every traced request comes."""
    step = line(**WHOLE) if profile is None else profile
    return simulate(trace, step, policy, 4, requests=200).warnings


def test_a_whole_profile_and_trace_leave_nothing_to_warn_of() -> None:
    for policy in ("off", "fixed:4", "lagged:2", "early-stop", "threshold:0.3"):
        assert told(policy) == []


@pytest.mark.parametrize(
    ("changes", "policy", "text"),
    [
        ({"draft": None}, "off", "no draft cost"),
        ({"attention": None}, "off", "no attention cost"),
        ({"overhead": None}, "off", "no host time"),
        ({"provenance": {"method": "composed"}}, "off", "no host time"),
        ({"provenance": {"method": "composed"}}, "off", "composed"),
        ({"provenance": {"method": "roofline"}}, "off", "roofline"),
        ({"draft": {"requests": [1], "seconds": [0.001], "block_size": 7}}, "off", "for blocks of 7"),
        ({"sync_seconds": 0.0}, "early-stop", "sync_seconds 0"),
        ({"sync_seconds": 0.0}, "threshold:0.3", "sync_seconds 0"),
        ({"gpu": {"count": 1}}, "off", "does not say its memory"),
        ({}, "global", "global is not lossless"),
        ({"verify": {"tokens": [1, 2], "seconds": [0.01, 0.011]}}, "off", "past the last point"),
    ],
)
def test_each_doubt_is_told(changes: dict[str, Any], policy: str, text: str) -> None:
    said = told(policy, line(**(WHOLE | changes)))
    assert sum(text in warning for warning in said) == 1, said


@pytest.mark.parametrize(
    ("changes", "policy", "text"),
    [
        ({"provenance": {"method": "composed"}, "bias_seconds": 0.002}, "off", "no host time"),
        ({"sync_seconds": 0.0}, "lagged:2", "sync_seconds"),
        ({"draft": {"requests": [1], "seconds": [0.001]}}, "off", "blocks of"),
    ],
)
def test_no_doubt_no_warning(changes: dict[str, Any], policy: str, text: str) -> None:
    assert not any(text in warning for warning in told(policy, line(**(WHOLE | changes))))


def test_the_share_of_extrapolated_steps_is_told() -> None:
    """Half the tokens past the end: the warning says the very share of the summary."""
    profile = line(**(WHOLE | {"verify": {"tokens": [1, 9], "seconds": [0.01, 0.011]}}))
    result = simulate(TRACE, profile, "threshold:0.6", 4, requests=200)
    share = result.summary["extrapolated_steps"] / result.summary["steps"]
    assert 0.05 < share < 0.95
    assert any(f"{share:.1%} of steps" in warning for warning in result.warnings)


def test_few_distinct_requests_make_rough_intervals() -> None:
    for requests, rough in ((99, True), (100, False)):
        said = told(trace=varied([20] * requests))
        assert any("distinct traced requests" in warning for warning in said) is rough
        if rough:
            assert any("only 99 distinct" in warning for warning in said)


def test_warnings_of_the_trace_and_of_the_arrivals_are_handed_on() -> None:
    load = Workload("w", np.arange(200) * 1.0, output_tokens=np.full(200, 60), metadata={"warnings": ["x y"]})
    synthetic = varied([20] * 100, synthetic=True, confidence_sees_token=True)
    said = simulate(synthetic, line(**WHOLE), "lagged:2", workload=load, warmup=0.0).warnings
    for text in ("synthetic", "x y", "longer than the traced request", "lagged:2 is not lossless"):
        assert any(text in warning for warning in said), text
    assert not any("off is not lossless" in warning for warning in told("off", trace=synthetic))


# -- losslessness, serving, memory -------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "reader"), [("off", False), ("fixed:2", False), ("lagged:1", True)])
def test_lossless_has_a_hypothesis(policy: str, reader: bool) -> None:
    sees = varied([20] * 5, confidence_sees_token=True)
    assert simulate(TRACE, line(), policy, 1, requests=2).lossless
    assert simulate(sees, line(), policy, 1, requests=2).lossless is not reader
    assert not simulate(TRACE, line(), "global", 1, requests=2).lossless


@pytest.mark.parametrize(
    ("field", "bad", "good"),
    [
        ("prefill", "piped", "chunked"),
        ("router", "random", "two-choices"),
        ("max_running", 0, 1),
        ("batch_tokens", 0, 1),
        ("kv_tokens", 0, 1),
        ("replicas", 0, 1),
        ("ranks_per_group", 0, 1),
        ("replicas", True, 2),
        ("replicas", 1.0, np.int64(3)),
        ("context", -1, 0),
        ("graph_bytes", -1, 0),
        ("kv_reserve", 1.0, 0.0),
        ("kv_reserve", -0.1, 0.99),
        ("warmup", 1.0, 0.0),
    ],
)
def test_servings_that_cannot_be_run_are_refused(field: str, bad: Any, good: Any) -> None:
    with pytest.raises(WorkloadError, match=field):
        Serving(**{field: bad})
    assert getattr(Serving(**{field: good}), field) == good


def test_replicas_step_in_whole_groups() -> None:
    assert Serving(replicas=6, ranks_per_group=3).replicas == 6
    for replicas, group in ((4, 3), (7, 2), (1, 2)):
        with pytest.raises(WorkloadError, match=f"{replicas} replicas cannot step in groups of {group}"):
            Serving(replicas=replicas, ranks_per_group=group)


def test_memory_for_context_is_what_weights_and_graphs_leave() -> None:
    """2 GPUs of 1000 bytes, weights of 800, 10 bytes a token, five graphs."""
    profile = StepProfile.from_dict(small())
    for reserve, graph_bytes, tokens in (
        (0.0, 0, 120),
        (0.0, 3, 118),
        (0.1, 0, 100),
        (0.5, 0, 20),
        (0.5, 90, 0),
    ):
        serving = Serving(kv_reserve=reserve, graph_bytes=graph_bytes)
        assert kv_capacity(profile, serving) == tokens
    assert kv_capacity(profile, Serving(kv_tokens=7)) == 7
    assert kv_capacity(profile, Serving()) == 100, "a tenth is kept free"
    unknown = StepProfile.from_dict(small(gpu=None))
    assert kv_capacity(unknown, Serving(graph_bytes=5)) > 10**9


def test_a_loaded_drafter_takes_its_weights_and_its_own_kv() -> None:
    """2 GPUs of 1000 bytes, a target of 800; a drafter of 150 bytes and 5 bytes a token beside its 10."""
    document = small()
    document["draft"] |= {"weight_bytes": 150, "kv_bytes_per_token": 5}
    profile = StepProfile.from_dict(document)
    assert StepProfile.from_dict(profile.to_dict()).draft_weight_bytes == 150
    for reserve, graph_bytes, tokens in ((0.0, 0, 1050 // 15), (0.1, 0, 850 // 15), (0.0, 3, 70 - 1)):
        serving = Serving(kv_reserve=reserve, graph_bytes=graph_bytes)
        assert kv_capacity(profile, serving, drafting=True) == tokens
    assert kv_capacity(profile, Serving(kv_reserve=0.0)) == 120, "without a drafter all is the target's"
    assert kv_capacity(profile, Serving(kv_tokens=7), drafting=True) == 7
    del document["draft"]["weight_bytes"], document["draft"]["kv_bytes_per_token"]
    unknown = StepProfile.from_dict(document)
    assert not unknown.knows_drafter_memory
    assert kv_capacity(unknown, Serving(), drafting=True) == kv_capacity(unknown, Serving())


@pytest.mark.parametrize("policy", ["off", "fixed:1", "lagged:2"])
def test_only_runs_that_draft_give_kv_memory_to_a_drafter(policy: str) -> None:
    """Law 3 with the drafter's share: KV in use stays within what the loaded drafter leaves."""
    draft = {"requests": [1], "seconds": [0.001], "block_size": BLOCK}
    profile = line(
        gpu={"count": 1, "memory_bytes": 4000},
        model={"weight_bytes": 400, "kv_bytes_per_token": 10},
        draft=draft | {"weight_bytes": 0, "kv_bytes_per_token": 10},
    )
    trace = varied([20] * 12)
    half = kv_capacity(profile, Serving(), drafting=True)
    assert 2 * half == kv_capacity(profile, Serving())
    result = simulate(trace, profile, policy, concurrency=12, requests=60, context=30)
    peak = result.counts["kv_peak"]
    assert peak <= half if policy != "off" else peak > half


def test_shares_count_requests_at_the_promise_too() -> None:
    """Two of four at exactly 8 tokens/s; who decoded nothing has no speed."""
    result = simulate(varied([8] * 4), line(verify={"tokens": [1], "seconds": [0.125]}), "off", 1, requests=4)
    assert result.tps.tolist() == [8.0] * 4
    assert (result.share_at(8.0), result.share_at(8.0 * (1 + 1e-6))) == (1.0, 0.0)
    arrays = result.arrays | {"finish_seconds": result.arrays["finish_seconds"].copy()}
    arrays["finish_seconds"][:2] += 1.0
    assert replace(result, arrays=arrays).share_at(8.0) == 0.5
    none = {**result.arrays, "tokens": np.zeros(4), "finish_seconds": result.arrays["ready_seconds"]}
    empty: SimResult = replace(result, arrays=none)
    assert math.isnan(empty.share_at(8.0))


@pytest.mark.parametrize("requests", [20, 37, 60, 101])
def test_the_slow_end_is_what_95_per_cent_reach_and_the_fast_end_what_95_per_cent_do_not_exceed(
    requests: int,
) -> None:
    result = simulate(varied(np.arange(5, 65)), line(), "threshold:0.3", 6, requests=requests)
    speed, spread = result.tps, result.summary["tps_user"]
    assert len(np.unique(speed)) > 15, "nearly all distinct: one place up or down shows"
    reached = [v for v in speed if np.count_nonzero(speed >= v) * 100 >= 95 * len(speed)]
    assert spread["p05"] == max(reached)
    bounded = [v for v in speed if np.count_nonzero(speed <= v) * 100 >= 95 * len(speed)]
    assert spread["p95"] == min(bounded)
    assert result.share_at(spread["p05"]) >= 0.95


def test_a_step_as_fast_as_promised_is_not_failed_by_rounding() -> None:
    """Steps of 10 ms add up to a little more than they should; at SLA 100 every request is on time."""
    steady = line(verify={"tokens": [1, 64], "seconds": [0.01, 0.01]})
    result = simulate(varied([50] * 20), steady, "off", 3, requests=20)
    assert result.share_at(100.0) == 1.0
    assert result.share_at(100.0 * (1.0 + 1e-6)) == 0.0
