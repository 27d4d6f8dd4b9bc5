"""What a run replays: dense and sequential traces as arrays, the order of requests, the ranks they go to."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsched.calibration import Calibration
from specsched.errors import TraceError, WorkloadError
from specsched.profile import StepProfile
from specsched.simulator import Serving, SimResult, simulate
from specsched.simulator.replay import Replay
from specsched.simulator.requests import closed_loop, open_loop
from specsched.simulator.result import LOG_COLUMNS
from specsched.simulator.run import Run
from specsched.trace import Trace, synthesise
from specsched.workload import Workload, assign

STEP = StepProfile.from_dict(
    {"schema": "specsched/profile/1", "name": "step", "verify": {"tokens": [1], "seconds": [0.125]}}
)
LINE = StepProfile.from_dict(
    {
        "schema": "specsched/profile/1",
        "name": "line",
        "verify": {"tokens": [1, 401], "seconds": [0.006, 0.026]},
        "draft": {"requests": [1], "seconds": [0.001], "block_size": 7},
    }
)
BEGUN, SECONDS, RANK, R = range(4)


@st.composite
def dense(draw: st.DrawFn, most_requests: int = 5, whole: bool = False) -> Trace:
    """Requests of their own lengths, prompts, domains and first positions; `whole`: no step overshoots."""
    block = draw(st.integers(1, 4))
    lengths = draw(st.lists(st.integers(1, 12), min_size=1, max_size=most_requests))
    m, n = len(lengths), sum(lengths)
    accepted = np.array(draw(st.lists(st.integers(0, block), min_size=n, max_size=n)))
    if whole:
        left = np.concatenate([np.arange(length)[::-1] for length in lengths])
        accepted = np.minimum(accepted, left)
    logit = draw(st.lists(st.floats(-3, 3, width=32), min_size=n * block, max_size=n * block))
    prompts = draw(st.lists(st.integers(0, 30), min_size=m, max_size=m))
    domains = draw(st.lists(st.sampled_from(["chat", "code", "math"]), min_size=m, max_size=m))
    return Trace.from_arrays(
        request=np.repeat(np.array(draw(st.permutations(range(10, 10 + m)))), lengths),
        position=np.concatenate([np.arange(length) for length in lengths]),
        confidence_logit=np.array(logit).reshape(n, block),
        accepted=accepted,
        prompt_tokens=np.repeat(prompts, lengths),
        domain=np.repeat(domains, lengths).tolist(),
        metadata={"licence": "CC0"},
    )


def rows_of_engine(trace: Trace, k: int) -> list[list[int]]:
    """Row numbers at which an engine that verifies k drafts a step would have stood, request by request."""
    visited = []
    for start, length in zip(trace.starts.tolist(), trace.lengths.tolist(), strict=True):
        at, rows = 0, []
        while at < length:
            rows.append(start + at)
            at += min(k, int(trace.accepted[start + at])) + 1
        visited.append(rows)
    return visited


def log_of(trace: Trace, rows: list[int], first_position: int = 0) -> Trace:
    """A sequential trace of these rows, as an engine's log would hold them."""
    return Trace.from_arrays(
        request=trace.request[rows],
        position=trace.position[rows] + first_position,
        confidence_logit=trace.confidence_logit[rows],
        accepted=trace.accepted[rows],
        prompt_tokens=trace.prompt_tokens[rows],
        domain=[trace.domain_names[code] for code in trace.domain[rows]],
        metadata={"mode": "sequential", "licence": "CC0"},
    )


# -- dense traces ------------------------------------------------------------------------------------------


@given(dense(), st.data())
def test_a_dense_trace_is_replayed_row_by_row(trace: Trace, data: st.DataObject) -> None:
    """Survivals are running products of calibrated confidences; a block cut short forgets what is behind."""
    block = data.draw(st.integers(1, trace.block_size))
    ones = st.lists(st.floats(0.2, 3.0), min_size=trace.block_size, max_size=trace.block_size)
    fit = Calibration(np.array(data.draw(ones)), np.array(data.draw(ones)) - 1.0, "affine")
    for calibration in (None, fit):
        replay = Replay.of(trace, calibration, block)
        t = fit.temperatures if calibration else np.ones(trace.block_size)
        b = fit.shifts if calibration else np.zeros(trace.block_size)
        for row in range(len(trace)):
            survival = 1.0
            for k in range(block):
                x = float(trace.confidence_logit[row, k]) / float(t[k]) + float(b[k])
                survival *= 1.0 / (1.0 + math.exp(-x))
                assert replay.survival[row, k] == pytest.approx(survival, rel=1e-9)
            assert replay.accepted[row] == min(int(trace.accepted[row]), block)
        assert replay.survival.shape == (len(trace), block)
        assert replay.block_size == block
        assert replay.start.tolist() == trace.starts.tolist()
        assert replay.length.tolist() == trace.lengths.tolist()
        assert_same_requests(replay, trace)


def assert_same_requests(replay: Replay, trace: Trace) -> None:
    """Who each traced request is: id, prompt and domain of its first row."""
    for i, first in enumerate(trace.starts.tolist()):
        assert replay.request_ids[i] == trace.request[first]
        assert replay.prompt_tokens[i] == trace.prompt_tokens[first]
        name = trace.domain_names[int(trace.domain[first])]
        assert replay.domain_names[int(replay.domain[i])] == name


def test_a_block_that_the_trace_does_not_hold_is_refused() -> None:
    trace = Trace.from_arrays([0], [0], [[0.0, 1.0, 2.0]], [1])
    assert [Replay.of(trace, None, block).block_size for block in (1, 3)] == [1, 3]
    for block in (0, 4):
        with pytest.raises(TraceError, match=f"block size {block} cannot be replayed.*give 1 to 3"):
            Replay.of(trace, None, block)


# -- sequential traces: an engine's log --------------------------------------------------------------------


@given(dense(), st.integers(0, 40), st.data())
def test_a_log_is_replayed_in_its_own_rows(trace: Trace, first_position: int, data: st.DataObject) -> None:
    """A row a step; the last step's tokens belong to the request; who starts midway starts in its step."""
    rows = [r for request in rows_of_engine(trace, data.draw(st.integers(1, 4))) for r in request]
    log = log_of(trace, rows, first_position)
    replay = Replay.of(log)
    assert replay.accepted.tolist() == log.accepted.tolist()
    for i, (start, count) in enumerate(zip(log.starts.tolist(), log.lengths.tolist(), strict=True)):
        positions = [int(p) - int(log.position[start]) for p in log.position[start : start + count]]
        tokens = positions[-1] + int(log.accepted[start + count - 1]) + 1
        assert (replay.length[i], replay.start[i], replay.rows[i]) == (tokens, start, count)
        for behind in range(tokens):
            at = max(j for j in range(count) if positions[j] <= behind)
            assert replay.rows_behind(np.array([i]), np.array([behind])).tolist() == [at]
    assert_same_requests(replay, log)


@given(dense(whole=True), st.integers(0, 9))
def test_a_log_replayed_as_it_was_made_is_the_log(trace: Trace, first_position: int) -> None:
    """An engine that verified whole blocks wrote a row a step: replayed so, every step is its row again."""
    k = trace.block_size
    rows = rows_of_engine(trace, k)
    log = log_of(trace, [r for request in rows for r in request], first_position)
    load = Workload("one of each", np.arange(len(rows)) * 100.0)
    told = simulate(log, STEP, f"fixed:{k}", workload=load, warmup=0.0).arrays
    for i in range(len(rows)):
        traced = int(told["traced"][i])
        assert told["tokens"][i] == trace.lengths[traced]
        assert told["steps"][i] == len(rows[traced])
        assert told["accepted"][i] == trace.accepted[rows[traced]].sum()
        assert told["verified"][i] == k * len(rows[traced])


def test_a_log_has_tokens_to_decode_not_rows() -> None:
    """Rows at positions 5, 8 and 9 of one request, the last with two drafts accepted: seven tokens."""
    log = Trace.from_arrays(
        request=[3, 3, 3, 8],
        position=[5, 8, 9, 0],
        confidence_logit=np.arange(8.0).reshape(4, 2),
        accepted=[2, 0, 2, 1],
        prompt_tokens=[7, 7, 7, 2],
        metadata={"mode": "sequential", "licence": "CC0"},
    )
    replay = Replay.of(log)
    assert replay.length.tolist() == [7, 2]
    assert replay.start.tolist() == [0, 3]
    assert replay.rows.tolist() == [3, 1]
    assert replay.accepted.tolist() == [2, 0, 2, 1]
    load = Workload("both", np.array([0.0, 100.0]))
    off = simulate(log, STEP, "off", workload=load, warmup=0.0)
    assert sorted(off.arrays["tokens"].tolist()) == [2, 7]
    assert sorted(off.arrays["steps"].tolist()) == [2, 7]
    assert any("sequential" in said for said in off.warnings), "an approximation, and said to be one"


@pytest.mark.parametrize("policy", ["fixed:1", "fixed:3", "fixed:5", "fixed:7", "lagged:2"])
def test_a_log_emits_what_its_population_does(policy: str) -> None:
    """An engine of fixed:7 logs a trace: within 3 % of the dense one; by position it was up to 14 %."""
    population = synthesise("chat", requests=300, output_tokens=120.0, seed=11)
    log = log_of(population, [r for request in rows_of_engine(population, 7) for r in request])
    told = [simulate(trace, LINE, policy, 40, requests=600).summary for trace in (population, log)]
    dense, logged = (x["emitted_per_step"] for x in told)
    assert logged == pytest.approx(dense, rel=0.03)
    assert told[1]["throughput"] == pytest.approx(told[0]["throughput"], rel=0.04)


def test_more_drafts_verified_emit_more_of_a_log() -> None:
    population = synthesise("chat", requests=100, output_tokens=120.0, seed=12)
    log = log_of(population, [r for request in rows_of_engine(population, 7) for r in request])
    emitted = [
        simulate(log, LINE, f"fixed:{k}", 10, requests=300).summary["emitted_per_step"] for k in (1, 3, 5, 7)
    ]
    assert emitted == sorted(emitted)
    assert emitted[2] < emitted[3] * 0.99


# -- which request comes when ------------------------------------------------------------------------------


def lengths_only(lengths: list[int], prompts: Any = 0) -> Trace:
    n = sum(lengths)
    return Trace.from_arrays(
        request=np.repeat(np.arange(len(lengths)), lengths),
        position=np.concatenate([np.arange(length) for length in lengths]),
        confidence_logit=np.zeros((n, 2)),
        accepted=np.zeros(n, int),
        prompt_tokens=np.repeat(np.broadcast_to(prompts, len(lengths)), lengths),
        metadata={"licence": "CC0"},
    )


@pytest.mark.parametrize(("users", "requests"), [(1, 1), (3, 10), (20, 5), (7, 60)])
def test_a_closed_loop_comes_in_shuffled_passes(users: int, requests: int) -> None:
    lengths, prompts = [1, 3, 5, 9, 20, 4, 7], [0, 10, 20, 30, 40, 50, 60]
    replay = Replay.of(lengths_only(lengths, prompts))
    coming = closed_loop(replay, users, requests, 5)
    traced = coming.requests[:, 0].tolist()
    assert coming.requests[:, 1].tolist() == [lengths[t] for t in traced]
    assert coming.requests[:, 2].tolist() == [prompts[t] for t in traced]
    assert len(traced) % 7 == 0
    passes = [traced[at : at + 7] for at in range(0, len(traced), 7)]
    assert all(sorted(one) == list(range(7)) for one in passes), "each request once a pass"
    assert len({tuple(one) for one in passes}) > 1 or len(passes) == 1, "each pass in an order of its own"
    # First requests, those that fill places while they end, and the measured ones: none is repeated early.
    assert len(traced) >= 2 * users + requests
    assert coming.next_request.tolist() == list(range(7)), "no output is longer than its traced request"
    assert len(coming.arrival) == 0
    again, other = closed_loop(replay, users, requests, 5), closed_loop(replay, users, requests, 6)
    assert again.requests.tolist() == coming.requests.tolist()
    assert again.offset.tolist() == coming.offset.tolist()
    assert other.requests.tolist() != coming.requests.tolist()
    longer = closed_loop(replay, users, 10 * requests, 5).requests[: len(traced)]
    assert longer.tolist() == coming.requests.tolist(), "more requests go on where fewer end"


def test_users_start_anywhere_within_their_first_request() -> None:
    """A uniformly random token of it, from the first to the last, each user its own."""
    replay = Replay.of(lengths_only([10, 40]))
    coming = closed_loop(replay, 4000, 10, 2)
    decode = coming.requests[:4000, 1]
    assert len(coming.offset) == 4000
    for length in (10, 40):
        seen = Counter(coming.offset[decode == length].tolist())
        assert set(seen) == set(range(length)), "never at its end: a token is left to everybody"
        often = np.array([seen[offset] for offset in range(length)]) / sum(seen.values())
        noise = math.sqrt(1 / length * (1 - 1 / length) / sum(seen.values()))
        assert np.abs(often - 1 / length).max() < 4.5 * noise
    halves = coming.offset / decode
    assert abs(np.corrcoef(halves[:-1], halves[1:])[0, 1]) < 0.08, "not one user like the next"
    alike = Replay.of(lengths_only([40, 40, 40]))
    seeds = [closed_loop(alike, 50, 10, seed).offset.tolist() for seed in (0, 1, 2)]
    assert seeds[0] != seeds[1] != seeds[2] != seeds[0]


def test_the_stagger_shows_in_the_run() -> None:
    """Eight users of one length under steps of one cost: without a stagger all would end at once for ever."""
    result = simulate(lengths_only([40] * 9), STEP, "off", 8, requests=64)
    ends = result.arrays["finish_seconds"]
    assert max(Counter(ends.tolist()).values()) < 8
    assert len(set(ends.tolist())) > len(ends) / 3


def test_an_open_loop_is_the_workload_laid_on_the_trace() -> None:
    trace = lengths_only([1, 3, 5, 9], [10, 20, 30, 40])
    for lengths in ({}, {"output_tokens": np.arange(1, 13), "prompt_tokens": np.arange(12) * 3}):
        load = Workload("load", np.linspace(0.5, 9.0, 12), **lengths)
        coming, laid = open_loop(Replay.of(trace), trace, load, 4), assign(trace, load, 4)
        assert coming.requests[:, 0].tolist() == laid.first.tolist()
        assert coming.requests[:, 1].tolist() == laid.decode_tokens.tolist()
        assert coming.requests[:, 2].tolist() == laid.prompt_tokens.tolist()
        assert coming.next_request.tolist() == laid.next_request.tolist()
        assert coming.arrival.tolist() == load.arrival_seconds.tolist()
        assert len(coming.offset) == 0
        assert list(coming.warnings) == laid.warnings
        if lengths:
            assert coming.requests[:, 1].tolist() == list(range(12)), "the first token came with the prefill"
    empty = Workload("none", np.array([1.0]))
    object.__setattr__(empty, "arrival_seconds", np.empty(0))
    with pytest.raises(WorkloadError, match="no requests"):
        open_loop(Replay.of(trace), trace, empty, 0)


# -- how many users, on which rank -------------------------------------------------------------------------


def test_a_closed_loop_gives_every_user_a_place() -> None:
    """Without `max_running` all users run at once, also more than an engine's default; with it, so many."""
    trace = lengths_only([20] * 5)
    for users, serving, running in ((300, {}, 300), (5, {}, 5), (5, {"max_running": 3}, 3)):
        result = simulate(trace, STEP, "off", users, requests=20, **serving)
        assert result.log[:, R].max() == running
        assert result.summary["concurrency_mean"] == pytest.approx(running)
    ranks = simulate(trace, STEP, "off", 4, requests=40, replicas=3)
    for rank in range(3):
        assert ranks.log[ranks.log[:, RANK] == rank, R].max() == 4, "so many users each"


def test_an_open_loop_runs_256_at_a_time() -> None:
    trace, load = lengths_only([4] * 5), Workload("burst", np.zeros(600))
    result = simulate(trace, STEP, "off", workload=load, warmup=0.0)
    assert result.log[:, R].max() == 256
    few = simulate(trace, STEP, "off", workload=load, warmup=0.0, max_running=100)
    assert few.log[:, R].max() == 100


def test_full_steps_are_those_at_which_somebody_waits_for_a_place() -> None:
    """One place, and requests of four steps: half a second each."""
    trace = lengths_only([4])
    even = Workload("one at a time", np.arange(11) * 1.5)
    assert simulate(trace, STEP, "off", workload=even, warmup=0.0, max_running=1).summary["full_steps"] == 0
    burst = simulate(
        trace, STEP, "off", workload=Workload("b", np.arange(9) * 0.1), warmup=0.0, max_running=1
    )
    # Steps of 1/8 s begin at 0, 1/8, ... up to the last arrival at 0.8 s: seven, one with nobody waiting.
    assert burst.summary["full_steps"] == 6


def ranks_of(result: SimResult, arrivals: np.ndarray) -> list[int]:
    """Rank of each request of arrivals so far apart that each is alone: of the step that begins then."""
    log = result.log
    return [int(log[np.flatnonzero(log[:, BEGUN] == at)[0], RANK]) for at in arrivals]


@pytest.mark.parametrize("seed", range(3))
def test_idle_ranks_tie_and_ties_go_to_the_first(seed: int) -> None:
    """Of two choices the first, of all ranks the lowest; round-robin takes turns whoever is idle."""
    trace, arrivals = lengths_only([4, 5]), np.arange(60) * 10.0
    load = Workload("alone", arrivals)
    options: dict[str, Any] = {"workload": load, "replicas": 5, "warmup": 0.0, "seed": seed}
    coming = open_loop(Replay.of(trace), trace, load, seed)
    serving = Serving(replicas=5, router="two-choices")
    choices = Run(Replay.of(trace), STEP, serving, coming, 60)._world(seed).choices
    told = {
        router: ranks_of(simulate(trace, STEP, "off", router=router, **options), arrivals)
        for router in ("two-choices", "least-outstanding", "round-robin")
    }
    assert told["two-choices"] == choices[:, 0].tolist()
    assert told["two-choices"] != choices[:, 1].tolist()
    assert told["least-outstanding"] == [0] * 60
    assert told["round-robin"] == [i % 5 for i in range(60)]


def test_two_choices_are_drawn_evenly_and_apart() -> None:
    trace = lengths_only([4])
    load = Workload("many", np.arange(6000.0))
    coming = open_loop(Replay.of(trace), trace, load, 0)
    drawn = []
    for seed in (0, 1):
        serving = Serving(replicas=3, router="two-choices")
        drawn.append(Run(Replay.of(trace), STEP, serving, coming, 6000)._world(seed).choices)
    pairs = np.bincount(drawn[0][:, 0] * 3 + drawn[0][:, 1], minlength=9) / 6000
    assert np.abs(pairs - 1 / 9).max() < 4.5 * math.sqrt(8 / 81 / 6000)
    assert drawn[0].tolist() != drawn[1].tolist()


def test_the_less_loaded_of_two_choices_and_of_all() -> None:
    """Requests that never end before the last has come: each goes where fewer are, by the choice it has."""
    trace, n, ranks = lengths_only([400]), 40, 4
    load = Workload("pile", np.arange(n) * 0.25)
    for router in ("two-choices", "least-outstanding"):
        serving = Serving(replicas=ranks, router=router)
        coming = open_loop(Replay.of(trace), trace, load, 7)
        choices = Run(Replay.of(trace), STEP, serving, coming, n)._world(7).choices
        held = [0] * ranks
        for i in range(n):
            if router == "two-choices":
                a, b = choices[i].tolist()
                held[b if held[b] < held[a] else a] += 1
            else:
                held[held.index(min(held))] += 1
        result = simulate(
            trace, STEP, "off", workload=load, seed=7, replicas=ranks, router=router, warmup=0.0
        )
        most = [int(result.log[result.log[:, RANK] == rank, R].max()) for rank in range(ranks)]
        assert most == held


# -- the tables of a result --------------------------------------------------------------------------------


def test_tables_of_a_result() -> None:
    """One row a request and one a step, under the names that are documented."""
    trace = Trace.from_arrays(
        request=[5, 5, 9, 9, 9],
        position=[0, 1, 0, 1, 2],
        confidence_logit=np.zeros((5, 2)),
        accepted=[1, 0, 0, 2, 0],
        prompt_tokens=[4, 4, 6, 6, 6],
        domain=["chat", "chat", "code", "code", "code"],
        metadata={"licence": "CC0"},
    )
    load = Workload("three", np.array([0.0, 5.0, 10.0]))
    serving: dict[str, Any] = {"workload": load, "warmup": 0.0, "prefill": "chunked", "batch_tokens": 8}
    result = simulate(trace, STEP, "fixed:2", **serving)
    table = result.requests
    ids, lengths, domains = {5: 2, 9: 3}, {5: 1, 9: 2}, {5: "chat", 9: "code"}
    assert len(table) == 3
    for _, row in table.iterrows():
        assert row["tokens"] == ids[row["request"]]
        assert row["steps"] == lengths[row["request"]]
        assert row["domain"] == domains[row["request"]]
        assert row["ttft_seconds"] == row["ready_seconds"] - row["arrival_seconds"] == STEP.verify.y[0]
        assert row["tps"] == row["tokens"] / (row["finish_seconds"] - row["ready_seconds"])
    assert set(table["request"]) == {5, 9}
    steps = result.steps
    assert list(steps.columns) == list(LOG_COLUMNS)
    assert steps["prefill_tokens"].sum() == sum({5: 4, 9: 6}[r] for r in table["request"])
    assert (steps["tokens"] == steps["requests"] + steps["budget"]).all()
    assert steps["emitted"].sum() == table["tokens"].sum()
    assert (steps["seconds"] == 0.125).all()
    assert steps["begun_seconds"].iloc[0] == 0.0
    assert (steps["rank"] == 0).all()
    assert steps["context_tokens"].iloc[1] == {5: 4, 9: 6}[table["request"].iloc[0]]
    speeds = sorted(table["tps"])
    assert result.share_at(speeds[0]) == 1.0
    assert result.share_at(speeds[-1] * 1.001) == 0.0
    assert result.share_at((speeds[0] + speeds[-1]) / 2) == pytest.approx(
        np.mean(np.array(speeds) > speeds[0])
    )
