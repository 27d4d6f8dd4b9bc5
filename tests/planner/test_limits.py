"""A promise of several limits: judged request by request in plain Python, every load and fleet tried."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from planner_oracle import fleet_of, line, varied

from specsched.errors import WorkloadError
from specsched.planner import answer, capacity, plan, runs
from specsched.profile import StepProfile
from specsched.simulator import Limits, SimResult, simulate
from specsched.simulator.limits import goodput, judged
from specsched.workload import Workload, parse_arrivals, poisson

LOADS, REQUESTS, SHARE = 40, 80, 0.9  # times of steps are whole fifths of a ms; limits lie between
TRACE = varied(np.resize([12, 24, 36], 40), prompt=60)
CHUNKED: dict[str, Any] = {"prefill": "chunked", "batch_tokens": 256}
NAMES = ("ttft", "itl", "e2e")


@pytest.fixture(autouse=True)
def few_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "LARGEST", LOADS)


def told(result: SimResult) -> list[dict[str, float]]:
    """Of each request its speed and its times, from the rows that users see."""
    rows = result.requests.to_dict("records")
    out = []
    for row in rows:
        spent = row["finish_seconds"] - row["ready_seconds"]
        out.append(
            {
                "speed": row["tokens"] / spent if row["tokens"] else float("inf"),
                "tokens": row["tokens"],
                "ttft": row["ready_seconds"] - row["arrival_seconds"],
                "itl": row["longest_gap_seconds"],
                "e2e": row["finish_seconds"] - row["arrival_seconds"],
            }
        )
    return out


def kept(row: dict[str, float], sla: float, **limits: float) -> bool:
    return row["speed"] >= sla and all(row[name] <= most for name, most in limits.items())


def share(result: SimResult, sla: float, **limits: float) -> float:
    rows = told(result)
    return sum(kept(row, sla, **limits) for row in rows) / len(rows)


def stated(shares: dict[str, float] | None = None, **limits: float) -> Limits:
    return Limits(**{f"{name}_seconds": value for name, value in limits.items()}, shares=shares or {})


def middle(result: SimResult) -> dict[str, float]:
    """Limits that some requests keep and some miss."""
    rows = told(result)
    return {name: float(np.median([row[name] for row in rows])) + 1e-7 for name in NAMES}


def some_run(**more: Any) -> SimResult:
    load = poisson(30.0, requests=300, seed=2)
    return simulate(TRACE, line(), "lagged:2", workload=load, **{**CHUNKED, "max_running": 6, **more})


# -- requests ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sla", [20.0, 80.0])
def test_good_requests_are_those_that_keep_everything(sla: float) -> None:
    result = some_run()
    limits, rows = middle(result), told(result)
    for names in itertools.chain.from_iterable(itertools.combinations(NAMES, n) for n in range(4)):
        chosen = {name: limits[name] for name in names}
        found = judged(result, sla, stated(**chosen))
        good = [kept(row, sla, **chosen) for row in rows]
        assert found.good.tolist() == good
        assert found.share == sum(good) / len(good)
        assert set(found.missed) == {"speed", *names}
        assert not found.apart
        served = goodput(result, found)
        assert served is not None
        tokens = sum(row["tokens"] for row in rows)
        kept_tokens = sum(row["tokens"] for row, yes in zip(rows, good, strict=True) if yes)
        throughput = result.summary["throughput"]
        assert served["tokens_per_second"] == pytest.approx(throughput * kept_tokens / tokens)
        assert served["requests_per_second"] == pytest.approx(throughput * sum(good) / tokens)
        for name in names:
            alone = sum(row[name] <= limits[name] for row in rows) / len(rows)
            assert served["shares"][name] == alone
            assert served["share"] <= alone, "together at most each alone"
    assert 0.0 < judged(result, sla, stated(**limits)).share < 1.0, "the limits decide something"


def test_a_looser_limit_never_loses_a_request() -> None:
    result = some_run()
    for name in NAMES:
        limits = middle(result)
        before = judged(result, 30.0, stated(**limits)).good
        looser = judged(result, 30.0, stated(**{**limits, name: 1.3 * limits[name]})).good
        assert (before <= looser).all()
        assert looser.sum() > before.sum() or name != "e2e"


def test_a_limit_with_a_share_of_its_own_is_apart() -> None:
    """500@0.99: it makes no request bad, and is kept or missed by that share of all of them."""
    result = some_run()
    limits, rows = middle(result), told(result)
    alone = sum(row["ttft"] <= limits["ttft"] for row in rows) / len(rows)
    for wanted, yes in ((alone, True), (alone + 1e-6, False)):
        found = judged(result, 30.0, stated({"ttft": wanted}, **limits))
        assert found.good.tolist() == [kept(r, 30.0, itl=limits["itl"], e2e=limits["e2e"]) for r in rows]
        assert found.apart_kept is yes
        assert found.failing(0.0) == ("ttft" if not yes else found.failing(2.0))


def test_a_longer_step_is_a_clock_that_runs_slower() -> None:
    """`stretched`: twice the seconds of every step give twice every time, in a closed loop."""
    fast = simulate(TRACE, line(), "fixed:2", 6, REQUESTS, **CHUNKED)
    document = line().to_dict()
    slow_profile = StepProfile.from_dict(
        document
        | {
            "verify": document["verify"] | {"seconds": [2 * s for s in document["verify"]["seconds"]]},
            "draft": document["draft"] | {"seconds": [2 * s for s in document["draft"]["seconds"]]},
        }
    )
    slow = simulate(TRACE, slow_profile, "fixed:2", 6, REQUESTS, **CHUNKED)
    limits = stated(**middle(slow))
    one = judged(fast, 2 * 40.0, limits.stretched(2.0))
    other = judged(slow, 40.0, limits)
    assert one.good.tolist() == other.good.tolist()
    assert 0 < one.good.sum() < len(one.good)


def test_the_speed_without_the_wait_stands_beside_that_with_it() -> None:
    """From a request's own rows; prefilled prompts wait before their speed begins, prefilled ones within."""
    for prefill in ("chunked", "disaggregated"):
        result = some_run(prefill=prefill, max_running=3)
        rows = result.requests
        start = np.maximum(rows["ready_seconds"], rows["started_seconds"])
        wait = rows["started_seconds"] - rows["arrival_seconds"]
        served = rows["finish_seconds"] - start
        without, with_it = rows["tokens"] / served, rows["tokens"] / (served + wait)
        s = result.summary
        assert s["tps_user_without_wait"]["mean"] == pytest.approx(without.mean())
        assert s["tps_user_with_wait"]["mean"] == pytest.approx(with_it.mean())
        assert s["wait_seconds"]["p99"] == np.sort(wait)[-(-99 * len(wait) // 100) - 1] > 0.0
        within = "with_wait" if prefill == "disaggregated" else "without_wait"
        assert s["tps_user"]["mean"] == pytest.approx(s[f"tps_user_{within}"]["mean"])
        assert s["tps_user_with_wait"]["p50"] < s["tps_user_without_wait"]["p50"]


# -- loads of one engine -----------------------------------------------------------------------------------


def brute(sla: float, policy: str, shares: dict[str, float], **limits: float) -> int:
    """The last load before the first of all that misses the promise."""
    together = {name: value for name, value in limits.items() if name not in shares}
    for load in range(1, LOADS + 1):
        result = simulate(TRACE, line(), policy, load, requests=REQUESTS, **CHUNKED)
        apart = all(share(result, 0.0, **{name: limits[name]}) >= shares[name] for name in shares)
        if share(result, sla, **together) < SHARE or not apart:
            return load - 1
    return LOADS


PROMISES: list[tuple[str, dict[str, float], dict[str, float]]] = [
    ("speed", {}, {}),
    ("ttft", {"ttft": 0.0503}, {}),
    ("itl", {"itl": 0.05}, {}),
    ("e2e", {"e2e": 0.6}, {}),
    ("ttft", {"ttft": 0.0503, "itl": 0.0703, "e2e": 1.3003}, {}),
    ("itl", {"itl": 0.03}, {"itl": 0.5}),
    ("e2e", {"e2e": 0.7, "ttft": 0.3}, {"e2e": 0.99}),
]


@pytest.mark.parametrize(("binds", "limits", "shares"), PROMISES)
def test_a_capacity_keeps_every_limit(binds: str, limits: dict[str, float], shares: dict[str, float]) -> None:
    """`answer` against every load; what binds is what the first failing load misses most."""
    sla = 30.0
    document = answer(
        TRACE,
        line(),
        sla,
        policies=["off", "fixed:2"],
        sla_fraction=SHARE,
        limits=stated(shares, **limits),
        requests=REQUESTS,
        calibration=None,
        workers=1,
        **CHUNKED,
    )
    for row in document["policies"]:
        assert row["capacity"] == brute(sla, row["policy"], shares, **limits)
        for point in row["curve"]:
            result = simulate(TRACE, line(), row["policy"], point["concurrency"], REQUESTS, **CHUNKED)
            together = {name: value for name, value in limits.items() if name not in shares}
            assert point["share_at_sla"] == share(result, sla, **together)
            low, high = point["share_interval"]
            assert low <= point["share_at_sla"] <= high
        if row["capacity"]:
            held = simulate(TRACE, line(), row["policy"], row["capacity"], REQUESTS, **CHUNKED)
            served = goodput(held, judged(held, sla, stated(shares, **limits)))
            assert row["goodput"] == served
    assert document["policies"][0]["binds"] == binds
    assert document["limits"] == stated(shares, **limits).document()


def test_limits_together_carry_no_more_than_each_alone_and_looser_ones_no_fewer() -> None:
    def users(**limits: float) -> int:
        options: dict[str, Any] = {"policies": ["fixed:2"], "requests": REQUESTS, "calibration": None}
        document = answer(
            TRACE, line(), 30.0, limits=stated(**limits), sla_fraction=SHARE, workers=1, **options, **CHUNKED
        )
        return document["policies"][0]["capacity"]

    limits = {"ttft": 0.06, "itl": 0.05, "e2e": 0.5}
    together = users(**limits)
    for name, value in limits.items():
        assert together <= users(**{name: value}) <= users()
        assert together <= users(**(limits | {name: 2 * value}))
    assert 0 < together < users()


def test_a_dearer_step_is_read_off_the_same_runs() -> None:
    """`capacity_if_steps`: the capacity under a profile whose every cost is 10 % more, to 2 %."""
    limits = stated(ttft=0.12, e2e=0.5)
    options: dict[str, Any] = {"policies": ["fixed:2"], "requests": REQUESTS, "calibration": None}
    options |= {"sla_fraction": SHARE, "limits": limits, "workers": 1}
    row = answer(TRACE, line(), 40.0, **options, **CHUNKED)["policies"][0]
    for key, factor in (("costlier", 1.1), ("cheaper", 0.9)):
        scaled = line(
            verify={"tokens": [1, 512], "seconds": [0.01 * factor, 0.1122 * factor]},
            draft={"requests": [1], "seconds": [0.001 * factor], "block_size": 4},
        )
        right = answer(TRACE, scaled, 40.0, **options, **CHUNKED)["policies"][0]["capacity"]
        assert abs(row["capacity_if_steps"][key] - right) <= max(1, 0.02 * right)


# -- arrivals and fleets -----------------------------------------------------------------------------------


def test_runs_over_arrivals_count_good_requests() -> None:
    limits = {"ttft": 0.0603, "e2e": 0.5003}
    document = runs(
        TRACE,
        line(),
        ["off", "lagged:2"],
        arrivals="poisson:20",
        sla_tps=50.0,
        limits=stated(**limits),
        requests=2000,
        calibration=None,
        max_running=8,
        **CHUNKED,
    )
    load = parse_arrivals("poisson:20", requests=2000, seed=0)
    assert document["arrivals_requests"] == 2000
    for row in document["runs"]:
        result = simulate(TRACE, line(), row["policy"], workload=load, max_running=8, **CHUNKED)
        assert row["share_at_sla"] == share(result, 50.0, **limits)
        assert row["goodput"] == goodput(result, judged(result, 50.0, stated(**limits)))
    assert document["runs"][0]["share_at_sla"] not in (0.0, 1.0)
    limited = runs(TRACE, line(), ["off"], concurrency=[4], limits=stated(e2e=0.4), calibration=None)
    assert 0.0 < limited["runs"][0]["share_at_sla"] < 1.0, "limits alone, without a speed"


FLEETS: list[tuple[dict[str, float], dict[str, float]]] = [
    ({"e2e": 0.25}, {}),
    ({"itl": 0.0235}, {}),
    ({"ttft": 0.034, "e2e": 0.6}, {}),
    ({"ttft": 0.03, "e2e": 0.6}, {"ttft": 0.7}),
]


@pytest.mark.parametrize(("limits", "shares"), FLEETS)
def test_a_fleet_keeps_every_limit(limits: dict[str, float], shares: dict[str, float]) -> None:
    """The fewest engines of a plan against all fleets, request by request."""
    load = Workload("drawn", poisson(40.0, requests=400, seed=5).arrival_seconds)
    serving: dict[str, Any] = {**CHUNKED, "max_running": 8, "router": "round-robin"}
    together = {name: value for name, value in limits.items() if name not in shares}

    def keeps(engines: int) -> bool:
        result = fleet_of(engines, TRACE, line(), "fixed:2", load, **serving)
        apart = all(share(result, 0.0, **{name: limits[name]}) >= shares[name] for name in shares)
        return share(result, 40.0, **together) >= SHARE and apart

    passing = [keeps(n) for n in range(1, 13)]
    assert passing == sorted(passing)
    document = plan(
        TRACE,
        line(),
        40.0,
        workload=load,
        limits=stated(shares, **limits),
        fraction=SHARE,
        policies=["fixed:2"],
        calibration=None,
        marginal=False,
        **serving,
    )
    row = document["policies"][0]
    assert row["engines_fewest"] == passing.index(True) + 1 > 1
    assert row["goodput"] is not None
    assert row["goodput"]["share"] >= SHARE


def test_a_prefill_that_costs_nothing_makes_the_first_token_doubtful() -> None:
    """A table that goes on flat past its end prices no prompt: what it says of the first token is told so."""
    flat = line(verify={"tokens": [1, 64], "seconds": [0.01, 0.0226], "beyond": "clamp"})
    options: dict[str, Any] = {"policies": ["off"], "concurrency": [2], "calibration": None, "requests": 40}
    for profile, doubtful in ((flat, True), (line(), False)):
        for limits in (stated(ttft=0.5), stated(e2e=0.5)):
            document = answer(TRACE, profile, 40.0, limits=limits, workers=1, **options)
            told = any("times to the first token are too short" in w for w in document["warnings"])
            assert told == (doubtful and limits.ttft_seconds is not None)


# -- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("ask", [answer, plan, runs])
def test_a_time_to_first_token_needs_prefill(ask: Any) -> None:
    more: dict[str, Any] = {"rate": 5.0} if ask is plan else {"concurrency": [2]}
    words = (TRACE, line()) if ask is runs else (TRACE, line(), 40.0)
    for prefill in ("disaggregated", "free", "none"):
        with pytest.raises(WorkloadError, match="prefill in the engine"):
            ask(*words, policies=["off"], limits=stated(ttft=0.1), prefill=prefill, calibration=None, **more)
    found = ask(*words, policies=["off"], limits=stated(ttft=9.0), calibration=None, requests=40, **more)
    assert (found.get("prefill") or found["settings"]["prefill"]) == "chunked"


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"ttft_seconds": 0.0}, "ttft_seconds is 0.0"),
        ({"e2e_seconds": float("nan")}, "e2e_seconds is nan"),
        ({"itl_seconds": -1.0}, "itl_seconds is -1.0"),
        ({"shares": {"ttft": 0.9}}, "'ttft', which has no limit; limits: none is given"),
        ({"e2e_seconds": 1.0, "shares": {"e2e": 0.0}}, "the share of e2e is 0.0"),
        ({"e2e_seconds": 1.0, "shares": {"e2e": 1.5}}, "the share of e2e is 1.5"),
    ],
)
def test_limits_that_nobody_means_are_refused(limits: dict[str, Any], said: str) -> None:
    with pytest.raises(WorkloadError, match=said):
        Limits(**limits)


def test_nothing_promised_is_nothing_limited() -> None:
    assert not Limits()
    assert Limits(e2e_seconds=1.0)
    assert Limits().document() == {f"{name}_seconds": None for name in NAMES} | {"shares": {}}
