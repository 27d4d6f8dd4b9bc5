"""Intervals of a speed cover what another trace of the same size gives: in the step as in the requests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specsched.profile import StepProfile
from specsched.schedule import make
from specsched.simulator import Serving, SimResult, simulate
from specsched.simulator.noise import speed_noise, student
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


def ran(trace: Trace, policy: str, requests: int) -> SimResult:
    replay = Replay.of(trace)
    run = Run(replay, profile(), Serving(), closed_loop(replay, USERS, requests, 0), requests)
    return run.result(make(policy, block_size=BLOCK), 0, bootstrap=False)


def slow_speed(result: SimResult) -> float:
    """The speed that 95 % of the requests reach."""
    return float(np.sort(result.tps)[int((1 - SHARE) * len(result.tps))])


@pytest.mark.parametrize("policy", ["off", "fixed:3", "lagged:2"])
def test_intervals_of_a_speed_cover_the_population(policy: str) -> None:
    """40 traces of 50 requests: at least 90 % of the intervals hold the speed of 3,000 requests."""
    true = slow_speed(ran(population(1, 3000), policy, 3000))
    covered, resampled = [], []
    for seed in range(40):
        result = ran(population(100 + seed, 50), policy, 300)
        noise = speed_noise(result, profile(), Serving(), USERS, SHARE, seed)
        found = slow_speed(result)
        covered.append(found * noise.slower <= true <= found * noise.faster)
        still = speed_noise(result, profile(attention=False), Serving(), USERS, SHARE, seed)
        resampled.append(found * still.slower <= true <= found * still.faster)
    assert np.mean(covered) >= 0.9
    if policy == "off":
        assert np.mean(resampled) < 0.7, "without the noise of the step it would not"


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
