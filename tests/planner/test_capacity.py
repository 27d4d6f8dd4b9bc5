"""Capacity against brute force over all loads: captured sizes, clamped tables, memory, preemption, replicas.

Profiles here are jagged on purpose. Each case first shows that it is about something: that the load it turns
on lies between two rungs of the ladder, that a load passes again beyond the first failure, and so on.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from planner_oracle import BLOCK, bootstrap, line, load_passes, promises, varied

from specsched.errors import ProfileError, WorkloadError
from specsched.planner import answer, capacity
from specsched.planner.capacity import (
    Question,
    Search,
    capacity_of,
    captured_loads,
    curve_loads,
    ladder,
    largest_load,
)
from specsched.profile import StepProfile
from specsched.schedule import make
from specsched.simulator import Serving, SimResult, simulate
from specsched.simulator.replay import Replay
from specsched.simulator.run import Run
from specsched.trace import Trace

LOADS = 48  # every one of them is tried
TRACE = varied([24] * 40)
REQUESTS = 80


@pytest.fixture(autouse=True)
def few_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "LARGEST", LOADS)


def searched(profile: StepProfile, sla: float, policy: str, **more: Any) -> tuple[Search, Any]:
    share, trace = more.pop("share", 0.95), more.pop("trace", TRACE)
    question = Question(Replay.of(trace), profile, Serving(**more), sla, share, REQUESTS, 0)
    search = Search(question, make(policy, block_size=BLOCK))
    return search, capacity_of(search, ladder(question))


def run(profile: StepProfile, policy: str, load: int, **more: Any) -> SimResult | None:
    """One load by `simulate`; None where the profile has no cost for it."""
    try:
        return simulate(more.pop("trace", TRACE), profile, policy, load, requests=REQUESTS, **more)
    except ProfileError:
        return None


def brute(profile: StepProfile, sla: float, policy: str, most: int = LOADS, **more: Any) -> list[bool]:
    """Whether each load 1..most passes."""
    share = more.pop("share", 0.95)
    results = [run(profile, policy, load, **more) for load in range(1, most + 1)]
    return [r is not None and load_passes(r, profile, sla, share) for r in results]


def first_failure(passing: list[bool]) -> int | None:
    return passing.index(False) + 1 if False in passing else None


def captured(
    sizes: list[int], seconds: list[float], eager: dict[str, Any] | None, **more: Any
) -> StepProfile:
    return line(
        verify={"tokens": sizes, "seconds": seconds},
        capture={"sizes": sizes, "limit": sizes[-1]},
        eager=eager,
        draft=None,
        **more,
    )


STAIRS = captured(
    [1, 4, 10, 17, 25, 31, 39, 47],
    [0.008, 0.009, 0.0105, 0.0118, 0.0135, 0.0152, 0.017, 0.019],
    {"tokens": [48, 240], "seconds": [0.03, 0.06]},
)


@pytest.mark.parametrize("policy", ["off", "fixed:1", "fixed:4", "threshold:0.3", "early-stop", "lagged:2"])
@pytest.mark.parametrize("sla", [52.0, 73.0, 90.0])
def test_capacity_on_stairs_equals_brute_force(policy: str, sla: float) -> None:
    """A captured graph costs as much for one token as for all it holds: users stop at a stair's edge."""
    search, found = searched(STAIRS, sla, policy)
    passing = brute(STAIRS, sla, policy)
    assert passing == sorted(passing, reverse=True), "no pockets here"
    assert found["capacity"] == sum(passing)
    assert found["binds"] == ("ladder" if all(passing) else "speed")
    for load, passes in enumerate(passing, start=1):
        assert search.at(load).passes(0.95) is passes


@pytest.mark.parametrize(
    ("sizes", "seconds", "eager", "overhead", "sla", "load"),
    [
        pytest.param(
            [1, 38, 41, 48], [0.009, 0.0095, 0.0095, 0.004], None, 1.4e-4, 66.5, 40, id="at the size"
        ),
        pytest.param(
            [1, 40],
            [0.01, 0.01],
            {"tokens": [41, 42], "seconds": [0.03, 0.01]},
            0.0,
            80.0,
            41,
            id="just above the limit",
        ),
    ],
)
def test_a_failure_between_rungs_is_found_on_either_side_of_a_size(
    sizes: list[int], seconds: list[float], eager: Any, overhead: float, sla: float, load: int
) -> None:
    host = {"requests": [1, LOADS], "seconds": [overhead, LOADS * overhead]} if overhead else None
    profile = captured(sizes, seconds, eager, overhead=host)
    passing = brute(profile, sla, "off")
    assert first_failure(passing) == load
    search, found = searched(profile, sla, "off")
    rungs = ladder(search.question)
    below, above = max(r for r in rungs if r < load), min(r for r in rungs if r > load)
    assert (below, above) == (39, 42)
    assert load not in rungs
    assert passing[below - 1]
    assert passing[above - 1], "fails between two rungs that pass"
    assert found["capacity"] == load - 1


@pytest.mark.parametrize(
    ("fast", "slow"),
    [
        pytest.param([0.004, 0.004], [0.0117, 0.0117], id="below has speed to spare, above has not"),
        pytest.param([0.0117, 0.0117], [0.004, 0.004], id="above has speed to spare, below has not"),
    ],
)
def test_sizes_are_tried_unless_both_rungs_have_speed_to_spare(fast: list[float], slow: list[float]) -> None:
    """Graphs of 1..40 tokens, one slow graph of 41, graphs of 42 and more: 41 users fail, 39 and 42 pass."""
    profile = captured([1, 40, 41, 42, 48], [*fast, 0.02, *slow], None)
    passing = brute(profile, 80.0, "off")
    assert first_failure(passing) == 41
    assert passing[41]
    search, found = searched(profile, 80.0, "off")
    spare = [search._spare(load) for load in (39, 42)]
    assert sorted(spare) == [False, True]
    assert found["capacity"] == 40


def test_speed_to_spare_is_a_quarter_more_for_as_many_requests() -> None:
    """Steps of one cost: every request runs at 1 / cost, within rounding."""
    for seconds, expected in ((0.0099, True), (0.0101, False)):
        profile = captured([1, LOADS], [seconds, seconds], None)
        search, _ = searched(profile, 80.0, "off")
        assert search._spare(10) is expected
    # Two kinds of users, one in ten of them without accepted drafts: 95 % have no speed to spare, 85 % have.
    mixed = varied([24] * 40, 0.6)
    profile = captured([1, 400], [0.0099, 0.0099], None)
    for share, expected in ((0.05, True), (1.0, False)):
        search, _ = searched(profile, 160.0, "fixed:4", share=share, trace=mixed)
        speed = search.at(10).result
        assert speed is not None
        assert search._spare(10) is bool(np.mean(speed.tps >= 1.25 * 160.0) >= share) is expected


def test_loads_beside_captured_sizes() -> None:
    """A size S is full at S / (1 + k) users who verify k, at S / (1 + γ) where the policy chooses."""
    question = Question(Replay.of(TRACE), STAIRS, Serving(), 60.0, 0.95, REQUESTS, 0)
    sizes = [1, 4, 10, 17, 25, 31, 39, 47]
    for policy, width in (("off", 1), ("fixed:1", 2), ("fixed:4", 5), ("lagged:2", 5), ("threshold:0.3", 5)):
        wanted = {users for s in sizes for users in (s // width, s // width + 1) if 1 <= users <= LOADS}
        assert captured_loads(question, make(policy, block_size=BLOCK)) == sorted(wanted)
    beyond = line(
        verify={"tokens": [1, 8, 16], "seconds": [0.01, 0.01, 0.01]},
        capture={"sizes": [1, 8, 16], "limit": 8},
    )
    assert captured_loads(replace(question, profile=beyond), make("off")) == [1, 2, 8, 9], "limit 8"
    assert captured_loads(replace(question, profile=line()), make("off")) == []


# -- tables that end -----------------------------------------------------------------------------------------

FLAT = {"tokens": [1, 20], "seconds": [0.008, 0.0085], "beyond": "clamp"}


@pytest.mark.parametrize(
    "profile",
    [
        pytest.param(line(verify=FLAT, draft=None), id="verify"),
        pytest.param(
            captured(
                [1, 8], [0.008, 0.008], {"tokens": [9, 20], "seconds": [0.0081, 0.0085], "beyond": "clamp"}
            ),
            id="eager",
        ),
    ],
)
@pytest.mark.parametrize("policy", ["off", "fixed:1", "threshold:0.6"])
def test_a_table_that_goes_on_flat_ends_the_capacity(profile: StepProfile, policy: str) -> None:
    """20 tokens are priced: users beyond would be free, at any speed."""
    passing = brute(profile, 60.0, policy)
    failed = first_failure(passing)
    assert failed is not None
    _, found = searched(profile, 60.0, policy)
    assert found["capacity"] == failed - 1
    assert found["binds"] == "profile"
    if policy == "off":
        assert found["capacity"] == 20
    slope = {"tokens": [1, 20], "seconds": [0.008, 0.0085]}
    _, free = searched(line(verify=slope, draft=None), 60.0, policy)
    assert free["capacity"] > found["capacity"], "a table that goes on with its slope prices what is beyond"


def test_one_step_in_a_hundred_may_lie_past_a_flat_end() -> None:
    """Loads at which between 1 % and 20 % of the steps do: none of them is carried."""
    profile, sla = line(verify=FLAT | {"tokens": [1, 30]}, draft=None), 20.0
    search, found = searched(profile, sla, "threshold:0.6")
    shares = {}
    for load in range(1, 20):
        result = run(profile, "threshold:0.6", load)
        assert result is not None
        shares[load] = result.summary["extrapolated_steps"] / result.summary["steps"]
        assert search.at(load).priced is (shares[load] <= 0.01)
    assert any(0.0 < share <= 0.01 for share in shares.values()), shares
    between = [load for load, share in shares.items() if 0.01 < share <= 0.2]
    assert between
    assert found["capacity"] == min(between) - 1


def test_passes_without_a_cost_end_the_capacity() -> None:
    """Above the capture limit there is no eager curve: 40 tokens are the most, 8 users of fixed:4."""
    profile = captured([1, 20, 40], [0.008, 0.0085, 0.009], None)
    _, found = searched(profile, 30.0, "fixed:4")
    assert (found["capacity"], found["binds"]) == (8, "profile")
    with pytest.raises(ProfileError):
        searched(captured([1, 4], [0.008, 0.0085], None), 30.0, "fixed:4")


# -- memory --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["off", "fixed:2", "lagged:2"])
@pytest.mark.parametrize("users", [2, 7, 12])
def test_memory_to_the_exact_token(policy: str, users: int) -> None:
    """A user holds its context, one place more, and room for a block where one is drafted."""
    context = 50
    each = context + 1 + (0 if policy == "off" else BLOCK)
    for tokens, expected in ((users * each, users), ((users + 1) * each - 1, users)):
        _, found = searched(line(), 1.0, policy, context=context, kv_tokens=tokens)
        assert found["capacity"] == expected
        assert found["capacity_interval"] == [expected, expected]
        assert found["binds"] == "memory"


@pytest.mark.parametrize("reserve", [0.0, 0.5])
@pytest.mark.parametrize("graph_bytes", [0, 90])
def test_memory_of_the_profile_to_the_exact_token(reserve: float, graph_bytes: int) -> None:
    """Bytes of all GPUs but the reserve, less the weights and every captured graph, in whole tokens."""
    weights, token_bytes, gpus, context, users = 5000, 8, 2, 50, 9
    tokens = users * (context + 1) + math.ceil(3 * graph_bytes / token_bytes)
    memory = round((weights + tokens * token_bytes) / gpus / (1 - reserve))
    for less, expected in ((0, users), (1, users - 1)):
        profile = line(
            gpu={"count": gpus, "memory_bytes": memory - less},
            model={"weight_bytes": weights, "kv_bytes_per_token": token_bytes},
            verify={"tokens": [1, 64, 256], "seconds": [0.01, 0.02, 0.03]},
            capture={"sizes": [1, 64, 256], "limit": 256},
        )
        serving = {"context": context, "kv_reserve": reserve, "graph_bytes": graph_bytes}
        _, found = searched(profile, 1.0, "off", **serving)
        assert found["capacity"] == expected
        assert found["binds"] == "memory"
        assert found["capacity_per_gpu"] == expected / gpus


@pytest.mark.parametrize("tokens", [130, 260, 391])
@pytest.mark.parametrize("policy", ["off", "fixed:4"])
def test_users_that_grow_are_preempted_beyond_capacity(tokens: int, policy: str) -> None:
    """Brute force where users hold more with every token: no load counts with many waits."""
    passing = brute(line(), 1.0, policy, most=24, kv_tokens=tokens)
    failed = first_failure(passing)
    assert failed is not None
    assert failed > 1
    _, found = searched(line(), 1.0, policy, kv_tokens=tokens)
    assert found["capacity"] == failed - 1
    assert found["binds"] == "memory"


@pytest.mark.parametrize("spread", [2, 60])
def test_what_memory_ends_may_be_more_or_less_with_another_trace(spread: int) -> None:
    """Users of one length would hold as much in any trace; the more lengths differ, the wider both ways."""
    lengths = np.linspace(80 - spread, 80 + spread, 40).astype(int)
    _, found = searched(line(), 1.0, "off", trace=varied(lengths), kv_tokens=1200)
    assert found["binds"] == "memory"
    low, high = found["capacity_interval"]
    assert low <= found["capacity"] <= high
    if spread > 50:
        assert low < found["capacity"] < high


@pytest.mark.parametrize(("preempted", "blocked"), [(5, 0), (0, 5), (3, 2), (2, 2), (0, 0)])
def test_a_user_that_waited_for_memory_or_gave_it_back_was_not_held(
    preempted: int, blocked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Run.result

    def result(*args: Any, **more: Any) -> SimResult:
        found = told(*args, **more)
        return replace(
            found, summary=found.summary | {"preemptions": preempted, "blocked_steps": blocked, "steps": 400}
        )

    monkeypatch.setattr(Run, "result", result)
    search, _ = searched(line(), 1.0, "off")
    assert search.at(3).held is search.at(3).passes(0.95) is (preempted + blocked <= 4), "1 % of the steps"


def test_a_load_of_memory_is_bound_by_it_and_a_slow_one_by_speed() -> None:
    """The load that fails says why: here memory for 6 users, and speed for more than that or for fewer."""
    for sla, binds in ((1.0, "memory"), (94.0, "speed")):
        search, found = searched(line(), sla, "off", context=50, kv_tokens=6 * 51)
        assert found["binds"] == binds
        assert search.binds(None) == "ladder"


# -- replicas, rungs, curves, intervals ----------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["off", "lagged:2"])
@pytest.mark.parametrize("replicas", [2, 3])
def test_capacity_is_that_of_each_replica(policy: str, replicas: int) -> None:
    passing = brute(STAIRS, 75.0, policy, most=30, replicas=replicas)
    _, found = searched(STAIRS, 75.0, policy, replicas=replicas)
    assert found["capacity"] == (first_failure(passing) or 31) - 1 < 30
    grouped = brute(STAIRS, 75.0, policy, most=30, replicas=replicas, ranks_per_group=replicas)
    _, found = searched(STAIRS, 75.0, policy, replicas=replicas, ranks_per_group=replicas)
    assert found["capacity"] == (first_failure(grouped) or 31) - 1


def test_the_interval_is_that_of_the_bounds_of_the_share() -> None:
    """Low ~ high of a load: the share when traced requests are drawn again."""
    for policy, sla in (("off", 70.0), ("fixed:4", 140.0), ("lagged:2", 120.0)):
        search, found = searched(line(), sla, policy)
        for load in (max(found["capacity"], 1), found["capacity"] + 2):
            result = run(line(), policy, load)
            assert result is not None
            low, high = bootstrap([(traced, fast) for traced, fast, _ in promises(result, sla)])
            assert search.at(load).low <= low + 0.025, "the step is another trace's too: never narrower"
            assert search.at(load).high >= high - 0.025
            assert search.at(load).share == pytest.approx(np.mean([x for _, x, _ in promises(result, sla)]))
        low, high = found["capacity_interval"]
        assert low <= found["capacity"] <= high


@pytest.mark.parametrize(
    ("policy", "sla"), [("fixed:4", 110.0), ("lagged:2", 120.0), ("threshold:0.3", 95.0)]
)
def test_the_interval_of_users_is_what_noise_of_the_shares_allows(policy: str, sla: float) -> None:
    """From the last load that surely keeps the promise, by the share drawn again, to the last that may."""
    _, found = searched(line(), sla, policy)
    ends = []
    for which in (0, 1):
        sure, maybe = 0, 0
        for load in range(1, LOADS):
            result = run(line(), policy, load)
            assert result is not None
            bound = bootstrap([(t, fast) for t, fast, _ in promises(result, sla)], draws=1000)[which]
            sure = load if bound >= 0.96 and sure == load - 1 else sure
            maybe = load if bound >= 0.94 and maybe == load - 1 else maybe
            if maybe < load:
                break
        ends.append((sure, maybe))
    low, high = found["capacity_interval"]
    assert low <= ends[0][1]
    assert high >= ends[1][0]
    assert low < found["capacity"] < high or ends[0][1] < ends[1][0], "wide enough to tell its ends apart"


@pytest.mark.parametrize("users", [1, 10, 20, 30])
def test_rungs_end_where_memory_surely_does(users: int) -> None:
    """A user holds its context, or its prompt, and one place: the first load that cannot be held is tried."""
    prompts = np.repeat([30, 9, 14, 22], [24, 24, 24, 24])
    mixed = Trace.from_arrays(
        *(np.repeat(np.arange(4), 24), np.tile(np.arange(24), 4), np.zeros((96, 4)), np.zeros(96, int)),
        prompt_tokens=prompts,
    )
    for serving, least in (({"context": 12}, 13), ({}, 10)):
        for tokens in (users * least, (users + 1) * least - 1):
            question = Question(
                Replay.of(mixed), line(), Serving(kv_tokens=tokens, **serving), 1.0, 0.95, REQUESTS, 0
            )
            assert largest_load(question) == ladder(question)[-1] == users + 1
    unlimited = Question(Replay.of(TRACE), line(), Serving(), 1.0, 0.95, REQUESTS, 0)
    assert largest_load(unlimited) == ladder(unlimited)[-1] == LOADS


def test_pockets_are_loads_beyond_capacity_that_pass() -> None:
    """Not those below it, and not those at speed whose users memory did not hold."""
    search, _ = searched(line(), 70.0, "off")
    fails = {5, 21, 22, 30}
    for load in range(1, 41):
        search.loads[load] = replace(
            search.at(3), concurrency=load, share=float(load not in fails), held=True
        )
    loads = list(range(1, 41))
    assert search.pockets(20, loads) == [[23, 29], [31, 40]]
    for load in range(23, 27):
        search.loads[load] = replace(search.loads[load], held=False)
    assert search.pockets(20, loads) == [[27, 29], [31, 40]]
    assert search.pockets(40, loads) == []


@pytest.mark.parametrize("most", [0, 1, 5, 20, LOADS])
def test_curves_run_to_twice_the_capacity(most: int) -> None:
    question = Question(Replay.of(TRACE), line(), Serving(), 1.0, 0.95, REQUESTS, 0)
    loads = curve_loads(question, most)
    assert loads[:6] == [1, 2, 3, 4, 5, 6]
    assert loads == sorted(set(loads))
    assert loads[-1] == max(6, min(2 * most, LOADS))


# -- loads that are given ------------------------------------------------------------------------------------


def given(sla: float, loads: list[int], **more: Any) -> Any:
    options: dict[str, Any] = {"requests": REQUESTS, "calibration": None, "workers": 1, "policies": ["off"]}
    options["prefill"] = "disaggregated"
    profile = more.pop("profile", line())
    return answer(TRACE, profile, sla, concurrency=loads, **(options | more))["policies"][0]


def test_given_loads_are_the_only_ones_tried() -> None:
    """Capacity is the last of them before the first that fails; nothing between them was tried."""
    passing = brute(line(), 70.0, "off", most=40)
    failed = first_failure(passing)
    assert failed is not None
    loads = [failed + 5, 1, failed - 2, failed + 1, failed - 2]
    row = given(70.0, loads)
    assert row["capacity"] == failed - 2
    assert row["capacity_interval"] == [failed - 2, failed]
    assert row["binds"] == "speed"
    assert [point["concurrency"] for point in row["curve"]] == sorted(set(loads))
    free = given(70.0, [1, 2, 3], profile=line(gpu={"count": 2}))
    assert (free["capacity"], free["capacity_interval"], free["binds"]) == (3, [3, 3], "ladder")
    assert free["capacity_per_gpu"] == 1.5
    none = given(70.0, [failed + 1])
    assert (none["capacity"], none["capacity_interval"]) == (0, [0, failed])


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"sla_tps": 0.0}, "SLA is 0"),
        ({"sla_tps": float("inf")}, "SLA is inf"),
        ({"sla_fraction": 0.0}, "fraction is 0"),
        ({"sla_fraction": 1.5}, "fraction is 1.5"),
        ({"requests": 19}, "19 measured requests"),
        ({"concurrency": []}, "empty"),
        ({"concurrency": [4, 0]}, "concurrency 0"),
        ({"concurrency": [1_000_001]}, "concurrency 1000001"),
    ],
)
def test_questions_that_make_no_sense_are_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        answer(TRACE, line(), **({"sla_tps": 60.0, "calibration": None} | more))
    edge = {"sla_fraction": 1.0, "requests": 20, "concurrency": [1], "policies": ["off"]}
    assert answer(TRACE, line(), 60.0, calibration=None, **edge)["policies"][0]["capacity"] == 1
