"""The laws of docs/architecture.md, by number, on runs of every kind; closed forms; warm-up; intervals.

Equality with the naive engine is in test_reference_engine.py. Here nothing is simulated a second time: each
law is stated on what a run reports.
"""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest
from engine_cases import Case, cases, policies
from hypothesis import given, settings
from hypothesis import strategies as st

from specsched import schedule
from specsched.errors import WorkloadError
from specsched.profile import StepProfile
from specsched.simulator import SimResult, simulate
from specsched.simulator.result import LOG_COLUMNS
from specsched.trace import Trace
from specsched.workers import map_points
from specsched.workload import Workload, poisson

EXAMPLES = settings.default.max_examples
CASES = {"closed": cases(closed=True, refuses=False), "open": cases(closed=False, refuses=False)}
BEGUN, SECONDS, RANK, R, B, PREFILL, CONTEXT, EMITTED, BUDGET = range(len(LOG_COLUMNS))


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    simulate(flat_trace([1], [0]), constant(1.0), "lagged", 1, requests=1)


def constant(seconds: float, **more: Any) -> StepProfile:
    """Every step takes as long, whatever it does."""
    document = {"schema": "specsched/profile/1", "name": "constant", **more}
    return StepProfile.from_dict(document | {"verify": {"tokens": [1], "seconds": [seconds]}})


def flat_trace(lengths: Any, accepted: Any, block: int = 4, prompt: int = 0) -> Trace:
    """Requests of these lengths; `accepted` one number a request, or one a row."""
    lengths = np.asarray(lengths)
    n = int(lengths.sum())
    rows = np.repeat(accepted, lengths) if len(accepted) == len(lengths) else accepted
    return Trace.from_arrays(
        request=np.repeat(np.arange(len(lengths)), lengths),
        position=np.concatenate([np.arange(length) for length in lengths]),
        confidence_logit=np.ones((n, block)),
        accepted=rows,
        prompt_tokens=prompt,
        metadata={"licence": "CC0"},
    )


@st.composite
def runs(draw: st.DrawFn, kind: str | None = None, **serving: Any) -> tuple[Case, tuple[str, Any], SimResult]:
    """A case, a policy and the run; `serving` overrides what was drawn."""
    case = draw(CASES[kind] if kind else st.one_of(*CASES.values()))
    case.serving |= serving
    policy = draw(st.sampled_from(policies(case.trace.block_size)))
    return case, policy, case.run(policy)


def by_rank(result: SimResult) -> list[np.ndarray]:
    return [result.log[result.log[:, RANK] == r] for r in np.unique(result.log[:, RANK])]


# -- 1 conservation, 2 causality, 3 budget, 4 work-conserving ---------------------------------------------


@settings(max_examples=EXAMPLES)
@given(runs())
def test_law_1_conservation(drawn: tuple[Case, Any, SimResult]) -> None:
    """Injected = finished + running + waiting; Σ emitted = Σ decoded lengths of the finished + begun ones."""
    case, _, result = drawn
    c, a = result.counts, result.arrays
    assert c["injected"] == c["finished"] + c["running"] + c["waiting"], c
    coming = case.coming
    lengths = coming.requests[np.arange(int(c["injected"])) % len(coming.requests), 1]
    unfinished = c["running"] + c["waiting"]
    assert c["emitted"] == result.log[:, EMITTED].sum() + coming.offset.sum()
    if case.workload is None:
        assert unfinished == len(coming.offset), "every user has one request in the house"
        assert (a["tokens"] == result.replay.length[a["traced"]]).all()
        still_to_come = lengths.sum() - c["emitted"]
        assert unfinished <= still_to_come <= unfinished * lengths.max() - c["emitted_by_unfinished"]
    else:
        assert unfinished == c["emitted_by_unfinished"] == 0
        assert c["emitted"] == lengths.sum()
        assert a["tokens"].tolist() == lengths[len(lengths) - len(a["tokens"]) :].tolist()


@settings(max_examples=EXAMPLES)
@given(runs())
def test_law_2_causality(drawn: tuple[Case, Any, SimResult]) -> None:
    """No token before its request arrived; the clock never runs back."""
    case, _, result = drawn
    a = result.arrays
    assert (a["ready_seconds"] >= a["arrival_seconds"]).all()
    assert (a["finish_seconds"] >= a["ready_seconds"]).all()
    assert (result.log[:, SECONDS] > 0).all()
    for log in by_rank(result):
        ends = log[:, BEGUN] + log[:, SECONDS]
        assert (log[1:, BEGUN] >= ends[:-1] * (1 - 1e-12)).all()
    if len(result.log):
        ends = result.log[:, BEGUN] + result.log[:, SECONDS]
        assert (ends[1:] >= ends[:-1] * (1 - 1e-12)).all(), "steps are told in the order of their ends"
        served = a["steps"] > 0
        least = a["steps"] * result.log[:, SECONDS].min()
        spent = a["finish_seconds"] - a["ready_seconds"]
        assert (spent[served] >= least[served] * (1 - 1e-9)).all(), "a token in less than a step"
    if case.workload is not None:
        assert a["arrival_seconds"].tolist() == case.coming.arrival[-len(a["steps"]) :].tolist()


@settings(max_examples=EXAMPLES)
@given(runs())
def test_law_3_budget(drawn: tuple[Case, Any, SimResult]) -> None:
    """R <= B <= R(1 + γ), R within the places, prefill within its share, KV in use within capacity."""
    case, policy, result = drawn
    setup, log = case.setup(), result.log
    gamma = 0 if policy[0] == "off" else setup.block
    assert (log[:, R] <= log[:, B]).all()
    assert (log[:, B] <= log[:, R] * (1 + gamma)).all()
    assert (log[:, B] == log[:, R] + log[:, BUDGET]).all()
    assert (log[:, R] <= setup.max_running).all()
    chunks = log[log[:, PREFILL] > 0]
    assert (chunks[:, PREFILL] + chunks[:, R] * (1 + gamma) <= setup.batch_tokens).all()
    assert (log[:, EMITTED] >= log[:, R]).all(), "every request that decodes gains a token a step"
    assert (log[:, EMITTED] <= log[:, B]).all()
    assert result.counts["kv_peak"] <= setup.kv_tokens
    if setup.context is None and setup.kv_tokens < math.inf:
        assert (log[:, CONTEXT] <= setup.kv_tokens).all()


@settings(max_examples=EXAMPLES)
@given(runs("open", replicas=1, ranks_per_group=1, warmup=0.0))
def test_law_4_never_idle_while_a_request_waits(drawn: tuple[Case, Any, SimResult]) -> None:
    """Between two steps with time between them nobody is there, and the later one begins with an arrival."""
    _, _, result = drawn
    a, log = result.arrays, result.log
    arrival, finish = a["arrival_seconds"][a["tokens"] > 0], a["finish_seconds"][a["tokens"] > 0]
    ends = log[:, BEGUN] + log[:, SECONDS]
    for end, begun in zip(ends[:-1], log[1:, BEGUN], strict=True):
        if begun > end * (1 + 1e-12):
            inside = (arrival < begun) & (finish > end * (1 + 1e-12))
            assert not inside.any(), f"idle from {end} to {begun}, {inside.sum()} requests in the house"
            assert begun in a["arrival_seconds"]


@settings(max_examples=EXAMPLES)
@given(runs("open", replicas=1, ranks_per_group=1, warmup=0.0, prefill="disaggregated", kv_tokens=None))
def test_law_4_every_place_is_used(drawn: tuple[Case, Any, SimResult]) -> None:
    """With memory for all, a step decodes as many requests as there are, up to the places."""
    case, _, result = drawn
    a, log = result.arrays, result.log
    decodes = a["tokens"] > 0
    arrival, finish = a["arrival_seconds"][decodes], a["finish_seconds"][decodes]
    for row in log:
        inside = int(((arrival <= row[BEGUN]) & (finish > row[BEGUN])).sum())
        assert row[R] == min(inside, case.setup().max_running)


# -- 5 determinism, 6 paired --------------------------------------------------------------------------------


def fingerprint(result: SimResult) -> bytes:
    arrays = b"".join(result.arrays[key].tobytes() for key in sorted(result.arrays))
    said = json.dumps([result.summary, result.counts, result.warnings], sort_keys=True).encode()
    return arrays + result.log.tobytes() + said


@settings(max_examples=EXAMPLES // 3)
@given(st.lists(runs(), min_size=4, max_size=4))
def test_law_5_determinism(drawn: list[tuple[Case, Any, SimResult]]) -> None:
    """The same bytes again, on one thread or several at once."""
    first = [fingerprint(result) for _, _, result in drawn]
    for workers in (1, 3):
        again = map_points(lambda run: fingerprint(run[0].run(run[1])), drawn, workers)
        assert again == first


@settings(max_examples=EXAMPLES // 2)
@given(case=CASES["open"])
def test_law_6_paired_open(case: Case) -> None:
    """No policy changes which requests come, when, how long they are, or what they would accept.

    What `fixed` and `off` do with a request depends on its own text alone: neither profile, memory, prefill,
    places, replicas nor router can change its steps, and the other requests cannot either.
    """
    seen = set()
    for policy in policies(case.trace.block_size):
        a = case.run(policy).arrays
        seen.add(b"".join(a[key].tobytes() for key in ("traced", "arrival_seconds", "tokens")))
    assert len(seen) == 1
    bare = Case(case.trace, constant(1.0), {"warmup": case.serving["warmup"]}, workload=case.workload)
    bare.seed = case.seed
    for policy in (("off", None), ("fixed", 1), ("fixed", case.trace.block_size)):
        a, b = case.run(policy).arrays, bare.run(policy).arrays
        for key in ("tokens", "steps", "verified", "accepted"):
            assert a[key].tolist() == b[key].tolist()


@settings(max_examples=EXAMPLES // 2)
@given(case=CASES["closed"])
def test_law_6_paired_closed(case: Case) -> None:
    """The n-th request admitted is the same under every policy: measured ones are a window of one list."""
    case.serving |= {"replicas": 1, "ranks_per_group": 1}
    order = np.resize(case.coming.requests[:, 0], 3 * len(case.coming.requests)).tolist()
    for policy in policies(case.trace.block_size):
        traced = case.run(policy).arrays["traced"].tolist()
        starts = range(case.users or 0, len(order) - len(traced))
        assert any(order[at : at + len(traced)] == traced for at in starts)


@settings(max_examples=EXAMPLES)
@given(case=CASES["open"], policy=st.sampled_from([("lagged", 2), ("early-stop", None), ("fixed", 1)]))
def test_preemption_loses_no_token(case: Case, policy: tuple[str, Any]) -> None:
    """Under memory pressure every request still decodes its whole length; Σ emitted counts no token twice."""
    longest = int(case.coming.requests[:, 1:].sum(axis=1).max())
    case.serving |= {"context": None, "kv_tokens": longest + 1 + case.trace.block_size, "warmup": 0.0}
    result = case.run(policy)
    assert result.arrays["tokens"].tolist() == case.coming.requests[:, 1].tolist()
    assert result.counts["emitted"] == case.coming.requests[:, 1].sum()
    assert result.arrays["preemptions"].sum() == result.counts["preempted"]


def test_preemption_happens() -> None:
    """The law above is about something: here requests are preempted, and recomputed by prefill."""
    trace, load = flat_trace([40] * 4, [1] * 4, prompt=10), Workload("burst", np.zeros(8))
    result = simulate(trace, constant(1.0), "fixed:2", workload=load, kv_tokens=120, warmup=0.0)
    assert result.counts["preempted"] > 3
    assert (result.arrays["tokens"] == 40).all()
    assert result.log[:, PREFILL].sum() > 0
    free = simulate(trace, constant(1.0), "fixed:2", workload=load, warmup=0.0)
    assert free.log[:, PREFILL].sum() == free.counts["preempted"] == 0


def test_what_never_fits_is_refused_with_the_numbers() -> None:
    trace = flat_trace([40], [1], prompt=10)
    with pytest.raises(WorkloadError, match=r"needs 55 KV tokens.*holds 54"):
        simulate(trace, constant(1.0), "fixed:2", 1, requests=1, kv_tokens=54)
    assert simulate(trace, constant(1.0), "fixed:2", 1, requests=1, kv_tokens=55).arrays["tokens"] == [40]


# -- 7 Little's law, throughput, closed forms ---------------------------------------------------------------


@settings(max_examples=EXAMPLES)
@given(runs("open", warmup=0.0))
def test_law_7_little_open(drawn: tuple[Case, Any, SimResult]) -> None:
    """∫ requests in the house dt = Σ time each spends in it."""
    a, c = drawn[2].arrays, drawn[2].counts
    spent = float((a["finish_seconds"] - a["arrival_seconds"]).sum())
    assert c["in_system_area"] == pytest.approx(spent, rel=1e-9, abs=1e-9)


@settings(max_examples=EXAMPLES)
@given(runs("closed"))
def test_law_7_little_closed(drawn: tuple[Case, Any, SimResult]) -> None:
    """A closed loop always holds its users: L is their number, all the time."""
    case, _, result = drawn
    users = len(case.coming.offset)
    area = users * result.counts["last_change"]
    assert result.counts["in_system_area"] == pytest.approx(area, rel=1e-9)


@settings(max_examples=EXAMPLES)
@given(runs("closed", replicas=1, ranks_per_group=1))
def test_law_7_throughput_closed(drawn: tuple[Case, Any, SimResult]) -> None:
    """Throughput = Σ emitted / time, over the steps since the window opened; drain is never in it."""
    _, _, result = drawn
    s, log = result.summary, result.log
    steps = log[len(log) - s["steps"] :]
    assert s["seconds"] == pytest.approx(log[-1, BEGUN] + log[-1, SECONDS] - steps[0, BEGUN], rel=1e-9)
    assert s["throughput"] == pytest.approx(steps[:, EMITTED].sum() / steps[:, SECONDS].sum(), rel=1e-9)
    assert (result.arrays["arrival_seconds"] >= 0).all()
    assert result.arrays["finish_seconds"].max() == log[-1, BEGUN] + log[-1, SECONDS]


@pytest.mark.parametrize("users", [1, 3, 17])
@pytest.mark.parametrize(("k", "accepted"), [(1, 4), (2, 2), (4, 3), (3, 0)])
def test_constant_cost_and_acceptance(users: int, k: int, accepted: int) -> None:
    """Requests of n tokens take ⌈n / (min(k, a) + 1)⌉ steps, each; throughput is that of all users."""
    gain, n, seconds = min(k, accepted) + 1, 29, 0.125  # sums of eighths are exact
    result = simulate(flat_trace([n] * 5, [accepted] * 5), constant(seconds), f"fixed:{k}", users, 100)
    steps = math.ceil(n / gain)
    assert (result.arrays["steps"] == steps).all()
    assert (result.tps == n / (steps * seconds)).all()
    s = result.summary
    assert s["concurrency_mean"] == pytest.approx(users, rel=1e-12)
    assert s["verify_tokens_per_request"] == 1 + k
    assert s["rejected_share"] == pytest.approx((k - min(k, accepted)) / k, rel=1e-12)
    # Whole requests but for the edges of the window, at most one of each user.
    whole = users * n / (steps * seconds)
    assert s["throughput"] == pytest.approx(whole, rel=2 * users * n / (100 * n))
    off = simulate(flat_trace([n] * 5, [accepted] * 5), constant(seconds), "off", users, 100)
    assert off.summary["throughput"] == users / seconds


def test_a_policy_object_brings_its_own_minimum_gain() -> None:
    """Tokens cost much: trimming gains a lot, but not the hundredfold that this policy asks for."""
    profile = StepProfile.from_dict(
        {
            "schema": "specsched/profile/1",
            "name": "dear",
            "verify": {"tokens": [1, 100], "seconds": [0.001, 0.1], "beyond": "slope"},
        }
    )
    trace = flat_trace([29] * 5, [2] * 5)
    trims = simulate(trace, profile, schedule.Lagged(1), 2, 40)
    stays = simulate(trace, profile, schedule.Lagged(1, minimum_gain=100.0), 2, 40)
    assert trims.summary["verify_tokens_per_request"] < 4
    assert stays.summary["verify_tokens_per_request"] == 5
    # The other way round: a profile that asks for the hundredfold, and a policy that says 0.
    greedy = dataclasses.replace(profile, minimum_gain=100.0)
    asks = simulate(trace, greedy, schedule.Lagged(1), 2, 40)
    own = simulate(trace, greedy, schedule.Lagged(1, minimum_gain=0.0), 2, 40)
    assert asks.summary["verify_tokens_per_request"] == 5
    assert own.summary == trims.summary


def test_a_policy_of_ones_own_is_planned_not_ignored() -> None:
    class Mine(schedule.Lagged):
        def plan(self, confidence, sps=None, ids=None, accepted=None):  # type: ignore[no-untyped-def]
            return super().plan(confidence, sps, ids, accepted) * 0

    result = simulate(flat_trace([29] * 5, [2] * 5), constant(0.01), Mine(1), 2, 40)
    assert result.summary["budget_per_pass"] == 0.0
    assert result.lossless is None


@pytest.mark.parametrize("p", [0.3, 0.7, 0.9])
def test_bernoulli_acceptance(p: float) -> None:
    """fixed:k emits (1 - p^(k+1)) / (1 - p) tokens a step."""
    n, block = 60_000, 6
    accepted = np.cumprod(np.random.default_rng(5).random((n, block)) < p, axis=1).sum(axis=1)
    trace = flat_trace([n // 20] * 20, accepted, block=block)
    for k in range(1, block + 1):
        result = simulate(trace, constant(1.0), f"fixed:{k}", 4, requests=40)
        expected = (1 - p ** (k + 1)) / (1 - p)
        # 40 requests of 3000 tokens: some 20 000 steps, and the last one of a request is cut.
        noise = k / math.sqrt(60_000 / expected) + k * expected / 3000
        assert result.summary["emitted_per_step"] == pytest.approx(expected, abs=2 * noise)
        shorter = simulate(trace, constant(1.0), f"fixed:{k}", 4, requests=40, block_size=k)
        assert shorter.summary["emitted_per_step"] == result.summary["emitted_per_step"]


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_m_d_1_waiting_time(load: float) -> None:
    """One place, Poisson arrivals, requests of D seconds each: the mean wait is ρD / 2(1 - ρ)."""
    n, step = 4, 0.25
    seconds = n * step
    workload = poisson(load / seconds, requests=100_000, seed=11)
    result = simulate(
        flat_trace([n], [0]), constant(step), "off", workload=workload, max_running=1, warmup=0.0
    )
    wait = result.arrays["finish_seconds"] - result.arrays["arrival_seconds"] - seconds
    assert wait.min() >= -1e-6
    assert wait.mean() == pytest.approx(load * seconds / (2 * (1 - load)), rel=0.04)
    assert (wait < 1e-6).mean() == pytest.approx(1 - load, abs=0.01), "an arrival finds it idle: 1 - ρ"
    busy = result.summary["concurrency_mean"]
    assert busy == pytest.approx(load, rel=0.02)
    assert result.summary["throughput"] == pytest.approx(n * load / seconds, rel=0.02)


# -- warm-up and the measured window -------------------------------------------------------------------------


@settings(max_examples=EXAMPLES)
@given(runs("closed", replicas=1, ranks_per_group=1))
def test_closed_window_opens_when_the_first_requests_have_ended(drawn: tuple[Case, Any, SimResult]) -> None:
    """Nothing measured was there before every user's staggered first request ended."""
    case, _, result = drawn
    log, s = result.log, result.summary
    opened = log[len(log) - s["steps"], BEGUN]
    first = case.coming.offset
    left = case.coming.requests[: len(first), 1] - first
    assert log[: len(log) - s["steps"], EMITTED].sum() >= left.sum()
    if case.setup().max_running >= (case.users or 0) and case.setup().kv_tokens == math.inf:
        assert result.arrays["arrival_seconds"].min() == opened, "the last to end makes room for the first"


def test_measuring_by_admission_has_no_length_bias() -> None:
    """Short and long requests, as many of both: whole passes measure each traced request equally often."""
    lengths = [1, 2, 3, 200, 300]
    result = simulate(flat_trace(lengths, [0] * 5), constant(1.0), "off", 8, requests=500)
    often = np.bincount(result.arrays["traced"], minlength=5)
    assert abs(often - 100).max() <= 1
    # All are in the house all the time, until the last measured one has ended: no drain in the throughput.
    assert result.summary["throughput"] == 8.0
    assert result.summary["concurrency_mean"] == 8.0


def test_open_window_leaves_out_warm_up_and_drain() -> None:
    trace, n = flat_trace([10], [0]), 200
    workload = Workload("even", np.arange(n) * 1.0)
    result = simulate(trace, constant(0.5), "off", workload=workload, warmup=0.25)
    assert len(result.arrays["tokens"]) == 150
    assert result.arrays["arrival_seconds"][0] == 50.0
    assert result.summary["seconds"] == 149.0
    # Ten tokens a second come in and go out; two steps a second with five requests in each.
    assert result.summary["throughput"] == pytest.approx(10.0, rel=1e-3)
    assert result.summary["concurrency_mean"] == pytest.approx(5.0, rel=1e-2)


def test_time_to_first_token_of_chunked_prefill() -> None:
    """A prompt of 25 tokens in chunks of 10 takes three steps; a recomputed one is not counted again."""
    trace = flat_trace([4], [0], prompt=25)
    load = Workload("one at a time", np.array([0.0, 100.0, 200.0]))
    serving = {"workload": load, "prefill": "chunked", "batch_tokens": 10, "warmup": 0.0}
    result = simulate(trace, constant(1.0), "off", **serving)
    assert result.summary["ttft_seconds"] == dict.fromkeys(("mean", "p50", "p95", "p99"), 3.0)
    assert result.tps.tolist() == [1.0, 1.0, 1.0]
    assert result.log[:, PREFILL].tolist() == [10, 10, 5, 0, 0, 0, 0] * 3
    assert result.log[:7, CONTEXT].tolist() == [0, 10, 20, 25, 26, 27, 28]
    assert "ttft_seconds" not in simulate(trace, constant(1.0), "off", 1, requests=1).summary


def test_requests_whose_only_token_came_with_the_prefill() -> None:
    """output_tokens = 1 decodes nothing: done when prefilled, no step where prefill is elsewhere."""
    load = Workload("ones", np.arange(5.0), output_tokens=np.ones(5))
    trace = flat_trace([4], [0], prompt=6)
    result = simulate(trace, constant(0.1), "lagged", workload=load, warmup=0.0)
    assert result.arrays["finish_seconds"].tolist() == load.arrival_seconds.tolist()
    assert len(result.log) == 0
    assert result.summary["throughput"] == 0.0
    assert result.summary["tps_user"] == {}
    chunked = simulate(trace, constant(0.1), "lagged", workload=load, warmup=0.0, prefill="chunked")
    assert chunked.arrays["finish_seconds"] == pytest.approx(load.arrival_seconds + 0.1)
    assert chunked.arrays["ready_seconds"].tolist() == chunked.arrays["finish_seconds"].tolist()


# -- memory: is more always better? -----------------------------------------------------------------------


def finished_by(finish: np.ndarray, times: np.ndarray) -> np.ndarray:
    return np.searchsorted(np.sort(finish), times, side="right")


@st.composite
def bursts(draw: st.DrawFn) -> tuple[Trace, Workload, int]:
    """Lengths and arrivals in whole steps of one second; memory for the longest request alone."""
    lengths = draw(st.lists(st.integers(1, 12), min_size=2, max_size=6))
    prompts = np.array(draw(st.lists(st.integers(0, 10), min_size=len(lengths), max_size=len(lengths))))
    gaps = draw(st.lists(st.integers(0, 4), min_size=len(lengths), max_size=len(lengths)))
    load = Workload("burst", np.cumsum(gaps) * 1.0, prompts, np.array(lengths) + 1)
    return flat_trace([12], [0]), load, int(max(prompts + lengths)) + 1 + 4


@settings(max_examples=EXAMPLES)
@given(bursts(), st.integers(0, 40))
def test_enough_memory_never_finishes_fewer(drawn: tuple[Trace, Workload, int], more: int) -> None:
    """Steps of one cost: at no time has an engine with memory for all finished fewer than one with less."""
    trace, load, least = drawn
    run = {"workload": load, "warmup": 0.0}
    tight = simulate(trace, constant(1.0), "off", kv_tokens=least + more, **run)
    free = simulate(trace, constant(1.0), "off", **run)
    times = tight.arrays["finish_seconds"]
    assert (
        finished_by(free.arrays["finish_seconds"], times)
        >= finished_by(tight.arrays["finish_seconds"], times)
    ).all()


def ends(load: Workload, step: StepProfile, kv_tokens: int | None) -> list[float]:
    run = {"workload": load, "warmup": 0.0, "kv_tokens": kv_tokens}
    return sorted(simulate(flat_trace([12], [0]), step, "off", **run).arrays["finish_seconds"].tolist())


def test_more_memory_can_finish_fewer_for_a_while() -> None:
    """The known anomaly, and why: memory for both users lets the second in beside the first.

    Steps of two requests take longer than those of one, so the first ends later than it would have alone, and
    at that time fewer have finished. Both are done sooner for it.
    """
    sharing = StepProfile.from_dict(
        {
            "schema": "specsched/profile/1",
            "name": "sharing",
            "verify": {"tokens": [1, 2], "seconds": [1.0, 1.5]},
        }
    )
    load = Workload("two", np.array([0.0, 1.0]), np.array([10, 10]), np.array([8, 7]))
    alone, together = ends(load, sharing, 22), ends(load, sharing, None)
    assert alone == [7.0, 13.0]
    assert together[0] > alone[0]
    assert together[1] < alone[1]


def test_more_memory_can_preempt_more() -> None:
    """The other way: one token more admits a request that is then preempted, and recomputed for a step.

    Steps all cost the same here, so nothing but the order of admissions differs.
    """
    load = Workload("four", np.array([3.0, 3.0, 5.0, 6.0]), np.array([6, 2, 2, 3]), np.array([5, 8, 4, 4]))
    less, more = ends(load, constant(1.0), 15), ends(load, constant(1.0), 16)
    assert any(a < b for a, b in zip(less, more, strict=True))
    free = ends(load, constant(1.0), None)
    assert all(a <= min(b, c) for a, b, c in zip(free, less, more, strict=True))


# -- intervals ----------------------------------------------------------------------------------------------


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    """95 % bootstrap intervals from 100 requests of a population of 1000, sixty times."""
    rng = np.random.default_rng(1)
    m, block, draws = 1000, 4, 60
    lengths, p = rng.integers(5, 60, m), rng.beta(6, 2, m)
    row = np.repeat(np.arange(m), lengths)
    kept = np.cumprod(rng.random((len(row), block)) < p[row][:, None], axis=1).sum(axis=1)
    logit = np.log(p / (1 - p))[row][:, None] + rng.normal(0, 1, (len(row), block))
    position = np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    population = Trace.from_arrays(row, position, logit, kept)
    step = StepProfile.from_dict(
        {
            "schema": "specsched/profile/1",
            "name": "line",
            "verify": {"tokens": [1, 64], "seconds": [0.01, 0.05]},
        }
    )

    def figures(summary: dict[str, Any]) -> dict[str, Any]:
        return {k: v for k, v in summary.items() if k != "tps_user"} | summary["tps_user"]

    truth = figures(simulate(population, step, "threshold:0.3", 4, requests=2 * m).summary)
    keys = ["throughput", "emitted_per_step", "verify_tokens_per_request", "rejected_share"]
    keys += ["mean", "p05", "p50"]
    bounds: dict[str, list[Any]] = {key: [] for key in keys}
    seen: dict[str, list[float]] = {key: [] for key in keys}
    for seed in range(draws):
        part = population.select(rng.choice(m, 100, replace=False))
        summary = simulate(part, step, "threshold:0.3", 4, requests=200, seed=seed).summary
        said, measured = figures(summary["intervals"]), figures(summary)
        for key in keys:
            bounds[key].append(said[key])
            seen[key].append(measured[key])
    for key in keys:
        low, high = np.array(bounds[key]).T
        covered = ((low <= truth[key]) & (truth[key] <= high)).mean()
        assert 0.85 <= covered <= 1.0, (key, covered)
        wide = (high - low).mean() / (2 * 1.96 * np.std(seen[key]))
        # Throughput's interval also holds what another trace does to the length of a step.
        assert 0.7 < wide < (2.2 if key == "throughput" else 1.6), (key, wide)
