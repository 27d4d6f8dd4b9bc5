"""Capacity at an SLA: exact, by its definition, within memory; what an answer holds; when drafting pays."""

from __future__ import annotations

import itertools
import json
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsched.planner import answer, capacity
from specsched.planner.capacity import Load, Question, Search, capacity_of, ladder
from specsched.profile import StepProfile, load_profile
from specsched.schedule import make
from specsched.simulator import Serving, simulate
from specsched.simulator.replay import Replay
from specsched.trace import Trace, load_trace

RATIO = 1.1
LOADS = 48  # of the small cases: every load is tried


def profile(**changes: Any) -> StepProfile:
    """A pass of B tokens takes 10 ms and 0.2 ms a token; drafting 1 ms."""
    document = {
        "schema": "specsched/profile/1",
        "name": "line",
        "verify": {"tokens": [1, 512], "seconds": [0.01, 0.112]},
        "draft": {"requests": [1], "seconds": [0.001], "block_size": 4},
        "provenance": {"method": "measured"},
    }
    return StepProfile.from_dict({k: v for k, v in (document | changes).items() if v is not None})


@cache
def trace(acceptance: float = 0.75, requests: int = 40, prompt: int = 20) -> Trace:
    """Requests of 24 tokens, each with an acceptance and confidence of its own around `acceptance`."""
    rng = np.random.default_rng(3)
    n, block = 24, 4
    p = (
        np.clip(rng.normal(acceptance, 0.1, (requests, 1, 1)), 0.0, 0.98)
        if acceptance
        else np.zeros((requests, 1, 1))
    )
    kept = np.cumprod(rng.random((requests, n, block)) < p, axis=2).sum(axis=2)
    safe = np.clip(p, 0.02, 0.98)
    logit = np.log(safe / (1 - safe)) + rng.normal(0, 0.7, (requests, n, block))
    return Trace.from_arrays(
        np.repeat(np.arange(requests), n),
        np.tile(np.arange(n), requests),
        logit.reshape(-1, block),
        kept.reshape(-1),
        prompt_tokens=prompt,
        metadata={"licence": "CC0"},
    )


@pytest.fixture
def few_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "LARGEST", LOADS)


def ask(sla: float, **more: Any) -> Any:
    """A small answer, nothing fitted."""
    options: dict[str, Any] = {"requests": 80, "calibration": None, "workers": 1, "prefill": "disaggregated"}
    return answer(more.pop("trace", trace()), more.pop("profile", profile()), sla, **(options | more))


def by_name(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["policy"]: row for row in document["policies"]}


def question(sla: float = 50.0, step: StepProfile | None = None, **serving: Any) -> Question:
    return Question(Replay.of(trace()), step or profile(), Serving(**serving), sla, 0.95, 80, 0)


# -- the definition, on loads that pass and fail as they please --------------------------------------------


class Told(Search):
    """A search that is told which loads pass, by share and by its bounds, instead of running them."""

    def told(self, passing: list[bool]) -> Told:
        self.passing = passing
        return self

    def _run(self, concurrency: int) -> Load:
        passed = float(self.passing[concurrency - 1])
        anything: Any = object()
        return Load(concurrency, anything, passed, passed, passed, True)


@given(st.lists(st.booleans(), min_size=30, max_size=30), st.integers(0, 30))
def test_capacity_is_the_last_load_before_the_first_failure(jagged: list[bool], smooth: int) -> None:
    rungs = [load for load in ladder(question()) if load <= 30]
    assert rungs[0] == 1
    assert all(b <= max(a + 1, a * RATIO) for a, b in itertools.pairwise(rungs))
    for passing in (jagged, [load < smooth for load in range(30)]):
        search = Told(question(), make("off")).told(passing)
        good, failed = search.first_failure(rungs, "share")
        first_rung = next((load for load in rungs if not passing[load - 1]), None)
        if first_rung is None:
            assert failed is None
            assert good == rungs[-1]
            continue
        assert failed == good + 1 <= first_rung, "refined to one request"
        assert good == 0 or passing[good - 1]
        assert not passing[good]
        below = [load for load in rungs if load < first_rung]
        assert good >= (below[-1] if below else 0)
        if passing is not jagged:
            assert good == smooth, "loads that pass up to one and none beyond: exactly that one"
        for load in range(1, 31):
            search.at(load)
        expected = [load for load in range(good + 1, 31) if passing[load - 1]]
        pockets = search.pockets(good, list(range(1, 31)))
        assert [x for a, b in pockets for x in range(a, b + 1)] == expected
        assert all(a > b + 1 for (_, b), (a, _) in itertools.pairwise(pockets))


# -- real runs -------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("few_loads")
@pytest.mark.parametrize("policy", ["off", "fixed:2", "fixed:4", "threshold:0.3", "early-stop", "lagged:2"])
@pytest.mark.parametrize("sla", [55.0, 85.0])
def test_capacity_equals_brute_force(policy: str, sla: float) -> None:
    search = Search(question(sla), make(policy, block_size=4))
    found = capacity_of(search, ladder(search.question))
    passing = [search.at(load).passes(0.95) for load in range(1, LOADS + 1)]
    assert passing == sorted(passing, reverse=True), "no pockets here"
    assert found["capacity"] == sum(passing)
    low, high = found["capacity_interval"]
    assert low <= found["capacity"] <= high
    for bound, end in (("low", low), ("high", high)):
        assert end == 0 or search.at(end).passes(0.95, bound)
        assert end == LOADS or not search.at(end + 1).passes(0.95, bound)
    assert found["binds"] == ("speed" if found["capacity"] < LOADS else "ladder")


@pytest.mark.usefixtures("few_loads")
def test_share_is_that_of_requests_at_the_sla() -> None:
    """What passes is what `simulate` says of the same load: at 0.95 of the requests, not of their mean."""
    row = by_name(ask(60.0, policies=["fixed:2"]))["fixed:2"]
    best = row["capacity"]
    assert 0 < best < LOADS
    for load, passes in ((best, True), (best + 1, False)):
        result = simulate(trace(), profile(), "fixed:2", load, requests=80)
        assert (result.share_at(60.0) >= 0.95) is passes
        assert bool(np.sort(result.tps)[4] >= 60.0) is passes, "the fifth slowest of eighty"
    assert row["throughput_at_capacity"] == row["at_capacity"]["throughput"]
    assert row["at_capacity"] == simulate(trace(), profile(), "fixed:2", best, requests=80).summary


@pytest.mark.usefixtures("few_loads")
def test_pockets_of_a_jagged_profile() -> None:
    """Steps of 10..17 tokens are slow, those beyond fast again: 9 users, and a pocket from 18 on."""
    jagged = {"tokens": [1, 9, 10, 17, 18, 30, 31], "seconds": [0.01, 0.01, 0.02, 0.02, 0.01, 0.01, 0.02]}
    row = by_name(ask(80.0, policies=["off"], profile=profile(verify=jagged)))["off"]
    assert row["capacity"] == 9
    assert row["capacity_interval"] == [9, 9]
    assert row["binds"] == "speed"
    tried = [p["concurrency"] for p in row["curve"] if p["concurrency"] > 9 and p["share_at_sla"] >= 0.95]
    assert [load for a, b in row["pockets"] for load in tried if a <= load <= b] == tried
    assert all(18 <= a <= b <= 30 for a, b in row["pockets"])


@pytest.mark.usefixtures("few_loads")
@pytest.mark.parametrize("tokens", [70, 200, 500])
def test_capacity_never_exceeds_memory(tokens: int) -> None:
    """An SLA everybody reaches: memory binds, every user was held at capacity, and no more would be."""
    memory = {
        "gpu": {"count": 1, "memory_bytes": 1000 + tokens},
        "model": {"weight_bytes": 1000, "kv_bytes_per_token": 1},
    }
    document = ask(1.0, profile=profile(**memory), kv_reserve=0.0)
    for row in document["policies"]:
        assert row["binds"] == "memory"
        # Prompts of 20 tokens and one place beside them: the least a user ever holds.
        assert 1 <= row["capacity"] <= tokens // 21
        at = {p["concurrency"]: p["memory_held"] for p in row["curve"]}
        assert at[row["capacity"]]
        assert not at[row["capacity"] + 1]
    # Users that are all at their longest at once always fit.
    assert by_name(document)["off"]["capacity"] >= tokens // (20 + 24 + 1 + 4) or tokens == 70


@pytest.mark.usefixtures("few_loads")
def test_drafting_that_does_not_pay() -> None:
    document = ask(60.0, trace=trace(0.0))
    rows = by_name(document)
    assert document["recommended"] == "off"
    assert rows["off"]["capacity"] > max(r["capacity"] for name, r in rows.items() if name != "off")
    assert "does not pay" in document["headline"]
    assert all(row["throughput_at_capacity"] >= 0 for row in rows.values())
    paying = ask(60.0)
    assert paying["recommended"] != "off"
    assert by_name(paying)["off"]["capacity"] < by_name(paying)[paying["recommended"]]["capacity"]


@pytest.mark.usefixtures("few_loads")
def test_an_sla_nobody_reaches_is_an_answer() -> None:
    document = ask(1e6)
    assert document["recommended"] is None
    for row in document["policies"]:
        assert row["capacity"] == 0
        assert row["capacity_interval"] == [0, 0]
        assert row["throughput_at_capacity"] == 0.0
        assert len(row["curve"]) >= 6
    assert "No lossless policy" in document["headline"]


@pytest.mark.usefixtures("few_loads")
def test_answer_holds_what_it_must() -> None:
    document = ask(60.0, sla_fraction=0.9)
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert set(document) >= {"schema", "sla_tps", "sla_fraction", "profile", "trace", "gpus_per_engine"}
    assert set(document) >= {"recommended", "warnings", "policies"}
    assert document["schema"] == "specsched/answer/1"
    assert (document["sla_tps"], document["sla_fraction"]) == (60.0, 0.9)
    names = ["off", "fixed:1", "fixed:4", "threshold:0.3", "early-stop", "lagged:2"]
    assert [row["policy"] for row in document["policies"]] == names
    for row in document["policies"]:
        assert set(row) >= {"policy", "lossless", "capacity", "capacity_interval", "capacity_per_gpu"}
        assert set(row) >= {"binds", "pockets", "throughput_at_capacity", "curve"}
        assert row["lossless"] is True
        assert len(row["curve"]) >= 6
        loads = [point["concurrency"] for point in row["curve"]]
        assert loads == sorted(set(loads))
        for point in row["curve"]:
            assert set(point["tps_user"]) >= {"mean", "p05", "p50"}
            assert set(point) >= {"throughput", "emitted_per_step", "verify_tokens_per_request"}
            assert 0.0 <= point["rejected_share"] <= 1.0
    text = " ".join(document["warnings"])
    assert "40 distinct traced requests" in text
    assert "raw, uncalibrated" in text


@pytest.mark.usefixtures("few_loads")
def test_answer_does_not_depend_on_workers() -> None:
    one, many = (json.dumps(ask(60.0, workers=workers, calibration="sts")) for workers in (1, 4))
    assert one == many
    assert json.dumps(ask(60.0, seed=1, calibration="sts")) != one


@pytest.mark.usefixtures("few_loads")
def test_gpus_of_an_engine_share_its_capacity() -> None:
    one, two = (
        by_name(ask(60.0, policies=["off"], profile=profile(gpu={"count": n})))["off"] for n in (1, 2)
    )
    assert one["capacity"] == two["capacity"] == 2 * two["capacity_per_gpu"]


@pytest.mark.usefixtures("few_loads")
def test_hindsight_and_crossovers_agree_with_the_curves() -> None:
    document = ask(40.0, policies=["off", "fixed:1", "fixed:4", "lagged:2", "global"])
    rows = by_name(document)
    for name, row in rows.items():
        best = simulate(trace(), profile(), "hindsight", row["capacity"], requests=80).summary["throughput"]
        assert row["hindsight_share"] == row["throughput_at_capacity"] / best, name
    speed = {
        name: {p["concurrency"]: p["throughput"] for p in row["curve"]}
        for name, row in rows.items()
        if row["lossless"]
    }
    assert "global" not in speed
    assert document["crossovers"], "few users: draft; many: do not"
    leader = None
    for cross in document["crossovers"]:
        before, at = cross["between"]
        assert leader in (None, cross["from"])
        leader = cross["to"]
        assert at == cross["concurrency"] > before
        assert speed[leader][at] == max(of[at] for of in speed.values())
        assert speed[cross["from"]][at] < speed[leader][at] * (1 - 1e-3)
        assert speed[cross["from"]][before] >= max(of[before] for of in speed.values()) * (1 - 1e-3)


# -- what the policies are for ------------------------------------------------------------------------------


def test_lagged_is_at_or_above_every_fixed_k() -> None:
    """Production-like trace, bundled H100: within the noise of a run (one per cent) at every load."""
    chat, h100 = load_trace("qwen3-4b-chat"), load_profile("h100-sxm_qwen3-8b_bf16_tp1")
    for users in (4, 32, 96, 200):

        def throughput(policy: str, users: int = users) -> float:
            return float(simulate(chat, h100, policy, users, requests=400, log_steps=0).summary["throughput"])

        lagged = throughput("lagged:2")
        fixed = {k: throughput(f"fixed:{k}") for k in range(1, chat.block_size + 1)}
        assert lagged >= 0.99 * max(fixed.values()), (users, lagged, fixed)
        assert lagged > throughput("off")


def test_early_stop_is_trapped_on_stairs() -> None:
    """Padded sizes 8 and 40: with eight users the first draft costs a stair, and all others are free.

    Early stop sees the first admission lower Θ and ends; a lagged budget looks over the whole stair.
    """
    stairs = profile(
        verify={"tokens": [1, 8, 40], "seconds": [0.005, 0.01, 0.012]},
        capture={"sizes": [1, 8, 40], "limit": 40},
        eager={"tokens": [41], "seconds": [0.1]},
        draft=None,
    )
    stop = simulate(trace(0.9), stairs, "early-stop", 8, requests=80).summary
    lagged = simulate(trace(0.9), stairs, "lagged:2", 8, requests=80).summary
    whole = simulate(trace(0.9), stairs, "fixed:4", 8, requests=80).summary
    assert stop["verify_tokens_per_request"] == 1.0
    assert lagged["verify_tokens_per_request"] > 4.9
    assert lagged["throughput"] > 2 * stop["throughput"]
    assert lagged["throughput"] >= 0.99 * whole["throughput"]
    flat = profile(verify={"tokens": [1, 40], "seconds": [0.005, 0.012]}, draft=None)
    stop, lagged = (simulate(trace(0.9), flat, p, 8, requests=80).summary for p in ("early-stop", "lagged:2"))
    assert stop["throughput"] == pytest.approx(lagged["throughput"], rel=0.02), "no stairs, no trap"
