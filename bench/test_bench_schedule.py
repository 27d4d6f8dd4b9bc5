"""What a plan costs, as ratios within one run: to sorting the same numbers, to plain numpy, to other sizes.

    python -m pytest bench/test_bench_schedule.py -s

Ratios are of least times of short batches that take turns, after a warm-up, so that a busy machine slows
both sides alike. The goals are those of the project. A machine where numpy sorts without vector instructions
passes them with ease, one with AVX-512 (where they were set) just so.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest

from specsched import schedule

REQUESTS, BLOCK = 256, 7
PLAN_TO_SORT = 1.5
LAGGED_TO_SORT = 2.0  # a lagged step is two plans: the budget of the past and the top of the present
JAGGED = 1.3  # what costs with real inversions may add: bounds must look at every size
NUMPY_TO_PLAN = 5.0
GROWTH = 1.5  # how much faster than R log R a plan's time may grow from 256 to 4096 requests
NOISE = 1.1
BATCH, ROUNDS = 20, 200


def least_times(calls: dict[str, Callable[[], object]], batch: int = BATCH) -> dict[str, float]:
    """Seconds a call: the least of many batches that take turns."""
    for call in calls.values():
        for _ in range(3):
            call()  # compiles, fills caches and the history of `lagged`
    least = dict.fromkeys(calls, np.inf)
    for _ in range(ROUNDS):
        for name, call in calls.items():
            begun = time.perf_counter()
            for _ in range(batch):
                call()
            least[name] = min(least[name], (time.perf_counter() - begun) / batch)
    return least


def confidences(kind: str, requests: int = REQUESTS) -> np.ndarray:
    rng = np.random.default_rng(0)
    shape = (requests, BLOCK)
    if kind == "uniform":
        return rng.random(shape)
    if kind == "skewed":
        return rng.beta(4, 1, shape)
    if kind == "two humps":
        return np.where(rng.random(shape) < 0.7, 1 - 0.1 * rng.random(shape) ** 4, rng.random(shape))
    return np.full(shape, 0.8)


def costs(kind: str, requests: int = REQUESTS) -> np.ndarray:
    tokens = np.arange(requests * (1 + BLOCK) + 1) * (REQUESTS / requests)
    seconds = 1 + 0.001 * (tokens if kind == "rising" else np.ceil(tokens / 128) * 128)
    if kind == "jagged":
        seconds *= 1 + 0.02 * np.random.default_rng(1).random(tokens.size)
    return 1 / seconds


def straightforward(confidence: np.ndarray, sps: np.ndarray) -> np.ndarray:
    """The plan as one would first write it in numpy."""
    requests, block = confidence.shape
    survival = np.cumprod(confidence, axis=1).ravel()
    order = np.argsort(-survival, kind="stable")
    expected = requests + np.cumsum(survival[order])
    best = int(np.argmax(expected * sps[requests + 1 : requests + 1 + survival.size])) + 1
    return np.bincount(order[:best] // block, minlength=requests)


def report(title: str, **numbers: float) -> None:
    print(f"\n{title}: " + ", ".join(f"{name} {value:.2f}" for name, value in numbers.items()), end="")


@pytest.mark.parametrize("curve", ["rising", "stairs", "jagged"])
@pytest.mark.parametrize("kind", ["uniform", "skewed", "two humps"])
def test_a_plan_against_sorting_and_against_numpy(benchmark, kind, curve):
    confidence, sps = confidences(kind), costs(curve)
    flat = np.cumprod(confidence, axis=1).ravel()
    everything, lagged, lagged_by_id = schedule.Global(), schedule.Lagged(2), schedule.Lagged(2)
    ids = np.arange(REQUESTS)
    seconds = least_times(
        {
            "np.sort": lambda: np.sort(flat),
            "early-stop": lambda: schedule.early_stop(confidence, sps),
            "global": lambda: everything.plan(confidence, sps),
            "lagged": lambda: lagged.plan(confidence, sps),
            "lagged with ids": lambda: lagged_by_id.plan(confidence, sps, ids=ids),
            "plain numpy": lambda: straightforward(confidence, sps),
        }
    )
    benchmark.pedantic(schedule.early_stop, (confidence, sps), rounds=50, iterations=20, warmup_rounds=2)
    ratios = {name: s / seconds["np.sort"] for name, s in seconds.items() if name != "np.sort"}
    benchmark.extra_info |= ratios
    report(f"{kind}, {curve}: times np.sort ({seconds['np.sort'] * 1e6:.1f} µs)", **ratios)
    leeway = NOISE * (JAGGED if curve == "jagged" else 1)
    assert max(ratios["early-stop"], ratios["global"]) <= PLAN_TO_SORT * leeway
    assert max(ratios["lagged"], ratios["lagged with ids"]) <= LAGGED_TO_SORT * leeway
    assert (
        ratios["plain numpy"] / max(r for name, r in ratios.items() if name != "plain numpy") >= NUMPY_TO_PLAN
    )


@pytest.mark.parametrize("kind", ["uniform", "skewed", "ties"])
def test_growth_is_no_worse_than_r_log_r(benchmark, kind):
    sizes = [64, 256, 1024, 4096]
    steps = {r: (confidences(kind, r), costs("stairs", r)) for r in sizes}
    plans = {name: {r: schedule.make(name) for r in sizes} for name in ("early-stop", "global", "lagged:2")}
    worst = {}
    for name, policies in plans.items():
        calls = {str(r): lambda p=policies[r], s=steps[r]: p.plan(*s) for r in sizes}
        seconds = least_times(calls, batch=3)
        work = {r: r * np.log(r) for r in sizes}
        worst[name] = (seconds["4096"] / seconds["256"]) / (work[4096] / work[256])
    benchmark.pedantic(plans["lagged:2"][4096].plan, steps[4096], rounds=20, iterations=3, warmup_rounds=2)
    benchmark.extra_info |= worst
    report(f"{kind}: growth from 256 to 4096 requests over R log R", **worst)
    assert max(worst.values()) <= GROWTH


def test_a_plan_with_arrivals_every_step(benchmark):
    """Somebody leaves and somebody comes at every step: the history is matched by id and tallied again."""
    sps, rng = costs("stairs"), np.random.default_rng(0)
    confidence = confidences("skewed")
    ids = np.arange(REQUESTS)
    policy, calm = schedule.Lagged(2), schedule.Lagged(2)

    def step():
        ids[rng.integers(REQUESTS)] = ids.max() + 1
        return policy.plan(confidence, sps, ids=ids)

    seconds = least_times(
        {
            "moving": step,
            "calm": lambda: calm.plan(confidence, sps),
            "ids": lambda: (rng.integers(REQUESTS), ids.max()),
        }
    )
    benchmark.pedantic(step, rounds=50, iterations=20, warmup_rounds=2)
    ratio = (seconds["moving"] - seconds["ids"]) / seconds["calm"]
    benchmark.extra_info["moving to calm"] = ratio
    report("lagged with an arrival a step, to the same without", ratio=ratio)
    assert ratio <= 3.0
