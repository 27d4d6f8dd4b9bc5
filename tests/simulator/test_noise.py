"""Intervals of a speed cover what another trace of the same size gives: in the step as in the requests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specsched.profile import StepProfile
from specsched.schedule import make
from specsched.simulator import Serving, SimResult, simulate
from specsched.simulator.intervals import distinct_of
from specsched.simulator.noise import _Means, speed_noise, student
from specsched.simulator.replay import Replay
from specsched.simulator.requests import closed_loop
from specsched.simulator.run import Run
from specsched.trace import Trace

BLOCK, USERS, SHARE = 3, 12, 0.95


def profile(attention: bool = True) -> StepProfile:
    """5 ms a pass, 0.05 ms a token, and 1 ms a thousand tokens of context."""
    document: dict[str, Any] = {
        "schema": "specsched/profile/1",
        "name": "reads",
        "verify": {"tokens": [1, 401], "seconds": [0.005, 0.025]},
        "draft": {"requests": [1], "seconds": [0.001], "block_size": BLOCK},
        "provenance": {"method": "measured"},
    }
    if attention:
        document["attention"] = {"kv_tokens": [0, 1_000_000], "seconds": [0.0, 1.0]}
    return StepProfile.from_dict(document)


def population(seed: int, requests: int) -> Trace:
    """Short easy requests, and one in four with a long prompt whose drafts are mostly rejected."""
    rng = np.random.default_rng(seed)
    hard = rng.random(requests) < 0.25
    lengths = np.maximum(rng.lognormal(3.2, 0.4, requests), 8).astype(int)
    prompts = np.where(hard, 2000, 100) + rng.integers(0, 200, requests)
    p = np.repeat(np.where(hard, 0.45, 0.8), lengths)[:, None]
    accepted = np.cumprod(rng.random((len(p), BLOCK)) < p, axis=1).sum(axis=1)
    return Trace.from_arrays(
        request=np.repeat(np.arange(requests), lengths),
        position=np.concatenate([np.arange(n) for n in lengths]),
        confidence_logit=np.log(p / (1 - p)) + np.zeros((1, BLOCK)),
        accepted=accepted,
        prompt_tokens=np.repeat(prompts, lengths),
        metadata={"licence": "CC0"},
    )


def ran(trace: Trace, policy: str, requests: int, bootstrap: bool = False) -> SimResult:
    replay = Replay.of(trace)
    run = Run(replay, profile(), Serving(), closed_loop(replay, USERS, requests, 0), requests)
    return run.result(make(policy, block_size=BLOCK), 0, bootstrap=bootstrap)


def slow_speed(result: SimResult) -> float:
    """The speed that 95 % of the requests reach."""
    return float(np.sort(result.tps)[int((1 - SHARE) * len(result.tps))])


FIGURES = ("throughput", "emitted_per_step", "verify_tokens_per_request", "rejected_share")
WIDEST = 2.0  # times the spread of the estimates: no interval of a run of many is wider


@pytest.mark.parametrize("policy", ["off", "fixed:3", "lagged:2"])
def test_intervals_cover_the_population_and_are_no_wider_than_that_takes(policy: str) -> None:
    """40 traces of 50 requests, some of them long and hard: nine of ten intervals hold what 3,000 give.

    Of the speed that 95 % reach, which decides capacity, and of every figure of a summary.
    """
    whole = ran(population(1, 3000), policy, 3000)
    true = slow_speed(whole)
    covered, still_covered, widths, found = [], [], [], []
    figures: dict[str, list[tuple[float, list[float]]]] = {name: [] for name in FIGURES}
    for seed in range(40):
        result = ran(population(100 + seed, 50), policy, 300, bootstrap=True)
        noise = speed_noise(result, profile(), Serving(), USERS, SHARE, seed)
        found.append(slow_speed(result))
        covered.append(found[-1] * noise.slower <= true <= found[-1] * noise.faster)
        widths.append(noise.slow + noise.fast)
        still = speed_noise(result, profile(attention=False), Serving(), USERS, SHARE, seed)
        still_covered.append(found[-1] * still.slower <= true <= found[-1] * still.faster)
        for name, seen in figures.items():
            seen.append((result.summary[name], result.summary["intervals"][name]))
    assert np.mean(covered) >= 0.9
    assert np.mean(widths) <= WIDEST * 2 * 1.96 * np.log(found).std()
    if policy == "off":
        assert np.mean(still_covered) < 0.7, "without the noise of the step it would not"
    for name, seen in figures.items():
        values = np.array([value for value, _ in seen])
        if values.std() < 1e-9:
            continue  # a policy that verifies so many drafts of every request
        truth = whole.summary[name]
        assert np.mean([low <= truth <= high for _, (low, high) in seen]) >= 0.85, name
        width = float(np.mean([high - low for _, (low, high) in seen]))
        assert width <= WIDEST * 2 * 1.96 * values.std(), name


def test_one_request_has_no_noise_and_few_have_much() -> None:
    assert student(1) == float("inf")
    assert student(10) > student(100) > student(10_000) == pytest.approx(1.96, rel=0.02)


def test_equal_requests_have_no_noise() -> None:
    same = population(1, 60)
    fixed = ran(same, "off", 200)
    noise = speed_noise(fixed, profile(attention=False), Serving(context=100), USERS, SHARE, 0)
    assert noise.held == pytest.approx(0.0, abs=1e-12)


def test_a_step_of_exactly_the_promised_speed_keeps_it() -> None:
    """10 ms a step, one token each: 100 tokens/s, whatever rounding adding up the steps does."""
    flat = StepProfile.from_dict(
        {
            "schema": "specsched/profile/1",
            "name": "flat",
            "verify": {"tokens": [1, 4096], "seconds": [0.01, 0.01]},
            "provenance": {"method": "measured"},
        }
    )
    result = simulate(population(2, 50), flat, "off", 7, requests=200)
    assert result.share_at(100.0) == 1.0
    assert result.share_at(100.001) == 0.0


def step_spread(long_are_easy: bool) -> float:
    """Spread of what requests do to a step: half are verified whole, and half have long prompts."""
    easy = np.arange(40) % 2 == 0
    p = np.repeat(np.where(easy, 0.95, 0.05), 24)[:, None]
    trace = Trace.from_arrays(
        request=np.repeat(np.arange(40), 24),
        position=np.tile(np.arange(24), 40),
        confidence_logit=np.log(p / (1 - p)) + np.zeros((1, BLOCK)),
        accepted=np.where(p[:, 0] > 0.5, BLOCK, 0),
        prompt_tokens=np.repeat(np.where(easy == long_are_easy, 250, 100), 24),
        metadata={"licence": "CC0"},
    )
    result = ran(trace, "threshold:0.5", 400)
    means = _Means.of(result.replay, result.arrays, *distinct_of(result.arrays["traced"]), Serving())
    return float(means.step_influence(profile(), result, USERS)[0].std())


def test_what_lengthens_a_step_adds_up_where_the_same_requests_do_it_and_cancels_where_others_do() -> None:
    """150 tokens more of context read cost what three drafts cost to verify, at 12 users 1.8 ms each."""
    assert step_spread(True) > 0.1
    assert step_spread(False) == pytest.approx(0.0, abs=1e-6)
