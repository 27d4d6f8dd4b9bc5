"""What an answer concludes from its loads: which policy, where leads change, warnings, what it leaves out."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from planner_oracle import BLOCK, bootstrap, line, load_passes, promises, varied

from specsched.planner import answer, capacity
from specsched.planner.answer import crossovers
from specsched.planner.capacity import FEWEST_POINTS
from specsched.planner.headline import headline
from specsched.profile import StepProfile
from specsched.schedule import make
from specsched.simulator import simulate

TRACE = varied([24] * 40)
LOADS, REQUESTS = 48, 80


@pytest.fixture(autouse=True)
def few_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "LARGEST", LOADS)


def ask(sla: float, policies: list[str], **more: Any) -> Any:
    options: dict[str, Any] = {"requests": REQUESTS, "calibration": None, "workers": 1, "policies": policies}
    options["prefill"] = "disaggregated"
    trace, profile = more.pop("trace", TRACE), more.pop("profile", line())
    return answer(trace, profile, sla, **(options | more))


def rows(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["policy"]: row for row in document["policies"]}


# -- which policy ------------------------------------------------------------------------------------------


def test_a_lossy_policy_is_never_recommended() -> None:
    document = ask(90.0, ["global", "off", "hindsight"])
    found = rows(document)
    assert found["global"]["capacity"] > found["off"]["capacity"] > 0
    assert {name: row["lossless"] for name, row in found.items()} == {
        "global": False,
        "off": True,
        "hindsight": False,
    }
    assert document["recommended"] == "off"
    assert ask(90.0, ["global"])["recommended"] is None
    sees = varied([24] * 40, confidence_sees_token=True)
    document = ask(90.0, ["off", "lagged:2", "early-stop"], trace=sees)
    assert rows(document)["lagged:2"]["capacity"] > rows(document)["off"]["capacity"]
    assert document["recommended"] == "off"
    assert [row["lossless"] for row in document["policies"]] == [True, False, False]


@pytest.mark.parametrize("names", [["off", "fixed:1", "fixed:4"], ["fixed:4", "fixed:1", "off"]])
def test_most_users_win_and_among_equals_the_highest_throughput(names: list[str]) -> None:
    document = ask(70.0, names)
    found = rows(document)
    assert list(found) == names
    assert found[document["recommended"]]["capacity"] == max(row["capacity"] for row in found.values())
    tie = ask(60.0, names, concurrency=[1, 2])
    level = rows(tie)
    assert {row["capacity"] for row in level.values()} == {2}
    speeds = {name: row["throughput_at_capacity"] for name, row in level.items()}
    assert speeds[tie["recommended"]] == max(speeds.values())
    assert len(set(speeds.values())) == 3


def test_a_policy_is_answered_once() -> None:
    document = ask(70.0, ["off", "fixed", "off", "fixed:4"])
    assert [row["policy"] for row in document["policies"]] == ["off", "fixed:4"]


def test_the_share_asked_for_is_the_share_tried() -> None:
    found = []
    for share in (0.4, 1.0):
        row = rows(ask(95.0, ["fixed:4"], sla_fraction=share))["fixed:4"]
        passing = [
            load_passes(simulate(TRACE, line(), "fixed:4", n, requests=REQUESTS), line(), 95.0, share)
            for n in range(1, LOADS + 1)
        ]
        assert row["capacity"] == passing.index(False)
        found.append(row["capacity"])
    assert found[0] > found[1]


# -- points and figures ------------------------------------------------------------------------------------


@pytest.mark.parametrize("replicas", [1, 2])
def test_points_are_runs_of_their_load(replicas: int) -> None:
    document = ask(90.0, ["fixed:4"], replicas=replicas)
    row = document["policies"][0]
    assert len(row["curve"]) >= FEWEST_POINTS
    for point in row["curve"][:: max(1, len(row["curve"]) // 6)]:
        load = point["concurrency"]
        run = simulate(TRACE, line(), "fixed:4", load, requests=REQUESTS, replicas=replicas)
        for key in ("throughput", "tps_user", "emitted_per_step", "rejected_share", "step_seconds", "steps"):
            assert point[key] == run.summary[key]
        for key in ("verify_tokens_per_request", "tokens_per_pass", "budget_per_pass", "extrapolated_steps"):
            assert point[key] == run.summary[key]
        told = [(traced, fast) for traced, fast, _ in promises(run, 90.0)]
        assert point["share_at_sla"] == pytest.approx(np.mean([fast for _, fast in told]))
        low, high = bootstrap(told, draws=1000)
        assert point["share_interval"][0] <= low + 0.04, "the step is another trace's too: never narrower"
        assert point["share_interval"][1] >= high - 0.04
        assert point["memory_held"] is True
        assert point["priced"] is True
    full = simulate(TRACE, line(), "fixed:4", row["capacity"], requests=REQUESTS, replicas=replicas)
    assert row["at_capacity"] == full.summary
    assert row["throughput_at_capacity"] == full.summary["throughput"]
    best = simulate(TRACE, line(), "hindsight", row["capacity"], requests=REQUESTS, replicas=replicas)
    share = full.summary["throughput"] / best.summary["throughput"]
    assert row["hindsight_share"] == pytest.approx(share, rel=1e-12)


def test_points_say_what_memory_and_prices_allow() -> None:
    """Memory for five users of a fixed context; a table of 8 tokens that goes on flat."""
    curve = ask(1.0, ["off"], context=50, kv_tokens=5 * 51 + 3)["policies"][0]["curve"]
    assert {p["concurrency"]: p["memory_held"] for p in curve if p["concurrency"] in (4, 5, 6)} == {
        4: True,
        5: True,
        6: False,
    }
    assert all(point["priced"] for point in curve)
    flat = line(verify={"tokens": [1, 4], "seconds": [0.01, 0.011], "beyond": "clamp"}, draft=None)
    curve = ask(1.0, ["off"], profile=flat)["policies"][0]["curve"]
    assert {p["concurrency"]: p["priced"] for p in curve if p["concurrency"] <= 6} == {
        load: load <= 4 for load in range(1, 7)
    }
    assert all(point["memory_held"] for point in curve)


# -- where the lead changes --------------------------------------------------------------------------------


def told(name: str, speeds: dict[int, float | None], unpriced: tuple[int, ...] = ()) -> Any:
    """A search that is told its throughput at each load; None: the profile has no cost there."""

    def at(load: int) -> Any:
        speed = speeds[load]
        result = None if speed is None else SimpleNamespace(summary={"throughput": speed})
        return SimpleNamespace(result=result, priced=load not in unpriced)

    question = SimpleNamespace(sees_token=False)
    return SimpleNamespace(policy=make(name, block_size=BLOCK), question=question, at=at)


def test_a_crossover_is_where_another_lossless_policy_leads() -> None:
    off = told("off", {1: 10.0, 2: 20.0, 4: 40.0, 8: 80.0})
    drafts = told("fixed:4", {1: 30.0, 2: 50.0, 4: 60.0, 8: 70.0})
    lossy = told("global", dict.fromkeys((1, 2, 4, 8), 500.0))
    assert crossovers([off, drafts, lossy], [1, 2, 4, 8]) == [
        {"from": "fixed:4", "to": "off", "between": [4, 8], "concurrency": 8}
    ]
    there = told("fixed:1", {1: 20.0, 2: 60.0, 4: 50.0, 8: 10.0})
    assert [(c["from"], c["to"], c["between"]) for c in crossovers([off, drafts, there], [1, 2, 4, 8])] == [
        ("fixed:4", "fixed:1", [1, 2]),
        ("fixed:1", "fixed:4", [2, 4]),
        ("fixed:4", "off", [4, 8]),
    ]


def test_a_lead_of_less_than_a_thousandth_is_none() -> None:
    a = told("fixed:1", {1: 100.0, 2: 100.0, 3: 100.0})
    near = told("fixed:2", {1: 90.0, 2: 100.05, 3: 100.2})
    assert [c["concurrency"] for c in crossovers([a, near], [1, 2, 3])] == [3]


def test_loads_without_a_price_lead_nowhere() -> None:
    a = told("fixed:1", {1: 100.0, 2: 100.0, 3: 100.0, 4: None})
    b = told("fixed:2", {1: 90.0, 2: 500.0, 3: None, 4: None}, unpriced=(2,))
    assert crossovers([a, b], [1, 2, 3, 4]) == []


# -- the sentence ------------------------------------------------------------------------------------------


def concluded(recommended: str | None, **policies: dict[str, Any]) -> str:
    """The sentence of an answer in which each policy carries 40 ~ 44, 42 of them, but for what is given."""
    plain = {"lossless": True, "capacity": 42, "capacity_interval": [40, 44], "binds": "speed"}
    rows = [
        plain
        | {
            "policy": name.replace("_", ":"),
            "at_capacity": {"tps_user": {"p05": 88.0}},
            "throughput_at_capacity": 9.0,
        }
        | changes
        for name, changes in policies.items()
    ]
    said: Any = {"sla_tps": 80.0, "sla_fraction": 0.9, "recommended": recommended, "policies": rows}
    return headline(said)


def test_the_sentence_compares_with_drafting_nothing() -> None:
    off = {"capacity": 20, "capacity_interval": [19, 21]}
    text = concluded("lagged:2", off=off, lagged_2={})
    for part in ("lagged:2 carries 42 users", "40 ~ 44", "80 tokens/s", "90%", "2.10 times", "(20)"):
        assert part in text, part
    assert "without drafting nobody" in concluded("lagged:2", off=off | {"capacity": 0}, lagged_2={})
    assert "may not pay" in concluded(
        "lagged:2", off={"capacity": 39, "capacity_interval": [38, 40]}, lagged_2={}
    )
    assert "may not pay" not in concluded(
        "lagged:2", off={"capacity": 38, "capacity_interval": [37, 39]}, lagged_2={}
    )
    alone = concluded("lagged:2", lagged_2={})
    assert "times" not in alone
    assert "without drafting" not in alone


def test_the_sentence_names_who_is_level() -> None:
    off = {"capacity": 20, "capacity_interval": [19, 21]}
    near, far = {"capacity_interval": [30, 42]}, {"capacity_interval": [30, 41]}
    lossy = {"lossless": False}
    text = concluded("lagged:2", off=off, lagged_2={}, fixed_4=near, fixed_1=far, **{"global": lossy})
    assert "fixed:4 within the noise" in text
    assert "fixed:1" not in text
    assert "global" not in text


def test_the_sentence_says_when_drafting_does_not_pay() -> None:
    text = concluded("off", off={}, fixed_1={"capacity": 30}, fixed_4={"capacity": 35})
    assert "does not pay" in text
    assert "fixed:4 35" in text
    assert "does not pay" not in concluded("off", off={})
    assert "No lossless policy" in concluded(None, off={"capacity": 0})


@pytest.mark.parametrize("binds", ["profile", "ladder"])
def test_a_capacity_at_which_something_else_ends_is_a_least(binds: str) -> None:
    assert "at least 42 users" in concluded("lagged:2", lagged_2={"binds": binds})
    assert "at least" not in concluded("lagged:2", lagged_2={})


# -- warnings, and what is left out ------------------------------------------------------------------------


def warned(policies: list[str], sla: float = 80.0, **more: Any) -> list[str]:
    said = ask(sla, policies, **more)["warnings"]
    assert len(said) == len(set(said)), "each once"
    return said


def has(said: list[str], text: str) -> bool:
    return any(text in warning for warning in said)


def test_warnings_of_the_inputs_and_of_the_runs() -> None:
    said = warned(["off", "global"], profile=line(draft=None), trace=varied([24] * 40, synthetic=True))
    for text in (
        "no draft cost",
        "no attention cost",
        "synthetic",
        "global is not lossless",
        "distinct",
        "raw",
    ):
        assert has(said, text), text
    assert not has(warned(["off"]), "not lossless")
    assert not has(warned(["off"]), "no draft cost")
    assert not has(warned(["off"], calibration="sts"), "uncalibrated")


def test_costs_that_end_beyond_the_capacity_are_told_with_the_load() -> None:
    """Passes of more than 18 tokens lie past the table; of more than 20 have no cost at all."""
    short = line(verify={"tokens": [1, 18], "seconds": [0.01, 0.0134]}, draft=None)
    document = ask(80.0, ["off"], profile=short)
    row = document["policies"][0]
    assert row["capacity"] < 18
    first = min(p["concurrency"] for p in row["curve"] if p["extrapolated_steps"])
    assert has(document["warnings"], f"off from {first} users on is extrapolated")
    within = ask(60.0, ["off"], profile=short)
    assert within["policies"][0]["capacity"] > 18
    assert not has(within["warnings"], "users on is extrapolated"), "that run's own warning says it"
    assert has(within["warnings"], "past the last point")
    ends = line(
        verify={"tokens": [1, 20], "seconds": [0.01, 0.011]},
        capture={"sizes": [1, 20], "limit": 20},
        draft=None,
    )
    document = ask(30.0, ["off", "fixed:4"], profile=ends)
    assert has(document["warnings"], "has no cost for passes that off needs at 21 users")
    assert has(document["warnings"], "has no cost for passes that fixed:4 needs at 5 users")
    assert {row["policy"]: row["binds"] for row in document["policies"]} == {
        "off": "profile",
        "fixed:4": "profile",
    }


def test_what_is_not_modelled_is_said() -> None:
    plain, chunked = ask(60.0, ["off"]), ask(60.0, ["off"], prefill="chunked")
    assert has(plain["not_modelled"], "prefill")
    assert not has(chunked["not_modelled"], "prefill")
    for document in (plain, chunked):
        assert has(document["not_modelled"], "closed loop")


def test_an_answer_says_how_it_was_asked() -> None:
    document = ask(60.0, ["off"], sla_fraction=0.9, seed=5, context=30, kv_reserve=0.2, prefill="chunked")
    settings = document["settings"]
    assert (settings["requests"], settings["seed"]) == (REQUESTS, 5)
    assert (settings["prefill"], settings["context"]) == ("chunked", 30)
    assert (settings["loads"], settings["kv_reserve"]) == ("ladder", 0.2)
    assert ask(60.0, ["off"], concurrency=[3])["settings"]["loads"] == "given"
    assert document["block_size"] == BLOCK
    short = ask(60.0, ["fixed"], block_size=2)
    assert (short["block_size"], short["policies"][0]["policy"]) == (2, "fixed:2")
    assert document["calibration"]["method"] == "none"
    fitted = ask(60.0, ["off"], calibration="sts")
    assert (fitted["calibration"]["fitted_on"], fitted["calibration"]["replayed"]) == (20, 20)


def test_the_policies_of_an_answer_are_one_set_for_all() -> None:
    names = ["off", "fixed:1", f"fixed:{BLOCK}", "threshold:0.3", "early-stop", "lagged:2"]
    document = answer(TRACE, line(), 60.0, requests=20, calibration=None, workers=1, concurrency=[1])
    assert [row["policy"] for row in document["policies"]] == names
    again = answer(TRACE, line(), 60.0, requests=20, calibration=None, workers=4, concurrency=[1])
    assert json.dumps(document) == json.dumps(again)


def test_progress_counts_loads() -> None:
    seen: list[tuple[int, int | None, str]] = []
    document = ask(60.0, ["off", "fixed:2"], progress=lambda *told: seen.append(told))
    done = [count for count, _, _ in seen]
    assert done == sorted(done)
    assert done[-1] >= sum(len(row["curve"]) for row in document["policies"])
    assert {"off", "fixed:2"} <= {name for _, _, name in seen}


def test_a_slower_profile_never_carries_more() -> None:
    """Every second slower by a tenth: fewer users of each policy, or as many."""
    slow = StepProfile.from_dict(
        line().to_dict() | {"verify": {"tokens": [1, 512], "seconds": [0.011, 0.1233]}}
    )
    quick, slower = (rows(ask(75.0, ["off", "fixed:2", "lagged:2"], profile=p)) for p in (line(), slow))
    assert all(slower[name]["capacity"] < quick[name]["capacity"] for name in quick)
