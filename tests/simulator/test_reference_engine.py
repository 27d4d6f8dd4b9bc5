"""The jitted engine loop against the naive one, to the last bit: requests, step log and summary."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from engine_cases import Case, cases, policies, rows_expected, rows_of
from hypothesis import given, settings
from hypothesis import strategies as st
from profile_cases import small
from reference_engine import Engine

from specsched.errors import ProfileError
from specsched.profile import StepProfile
from specsched.simulator import SimResult, simulate
from specsched.trace import Trace
from specsched.workload import Workload

EXAMPLES = settings.default.max_examples


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """Compile the loop before hypothesis looks: a failure there is none of an example's."""
    trace = Trace.from_arrays([0], [0], [[0.0]], [0])
    profile = StepProfile.from_dict(small())
    simulate(trace, profile, "lagged", 1, requests=1)


def assert_same(case: Case, policy: tuple[str, Any], by: str = "oracle") -> None:
    try:
        expected = case.expected(policy, by)
    except ProfileError as refusal:
        with pytest.raises(ProfileError, match=re.escape(str(refusal))):
            case.run(policy)
        return
    result = case.run(policy)
    assert rows_of(result) == rows_expected(expected)
    assert [tuple(row) for row in result.log.tolist()] == expected.log
    assert result.counts["kv_peak"] == expected.kv_peak
    assert result.counts["preempted"] == sum(r.preempted for r in expected.everyone)
    assert result.counts["injected"] == len(expected.everyone)
    assert_summary(result, expected)


def assert_summary(result: SimResult, expected: Engine) -> None:
    """Every figure of the summary, from the naive engine's own records."""
    window, summary = expected.window, result.summary
    steps, ranks = window.steps, window.ranks
    total = {k: sum(r[k] for r in ranks) for k in ("requests", "emitted", "kept", "drafts", "prefill")}
    seconds = window.end - window.start
    emitted = total["emitted"]
    if emitted == 0:  # an open loop too short for any step to end within its arrivals
        seconds = max(r.finish or 0.0 for r in expected.measured) - window.start
        emitted = sum(r.emitted for r in expected.measured)
    profile = expected.setup.profile
    off_graph = [s["tokens"] for s in steps if s["tokens"] > (profile.graph_limit or math.inf)]
    deciding = sum(r["requests"] > 0 for r in ranks)
    request_seconds = sum(r["seconds"] * r["requests"] for r in ranks)
    want = {
        "throughput": _ratio(emitted, seconds),
        "emitted_per_step": _ratio(total["emitted"], total["requests"]),
        "verify_tokens_per_request": _ratio(total["requests"] + total["drafts"], total["requests"]),
        "rejected_share": _ratio(total["drafts"] - total["kept"], total["drafts"]),
        "step_seconds": _ratio(sum(s["seconds"] for s in steps), len(steps)),
        "tokens_per_pass": _ratio(total["requests"] + total["drafts"], deciding),
        "budget_per_pass": _ratio(total["drafts"], deciding),
        "concurrency_mean": _ratio(request_seconds, seconds),
        "extrapolated_steps": sum(bool(profile.extrapolates(s["tokens"])) for s in steps),
        "off_graph_steps": len(off_graph),
        "preemptions": window.preemptions,
        "blocked_steps": window.blocked,
        "full_steps": window.full,
        "prefill_tokens": total["prefill"],
        "seconds": seconds,
        "steps": len(steps),
        "requests": len(expected.measured),
        "distinct_requests": len({r.first_traced for r in expected.measured}),
    }
    got = {key: summary[key] for key in want}
    assert got == pytest.approx(want, rel=1e-9, abs=1e-12)
    speeds = sorted(
        r.emitted / (r.finish - r.ready) for r in expected.measured if r.emitted and r.finish > r.ready
    )
    if speeds:
        spread = {"mean": sum(speeds) / len(speeds)}
        for q in (5, 50, 95):
            spread[f"p{q:02}"] = speeds[math.ceil(q * len(speeds) / 100) - 1]
        assert summary["tps_user"] == pytest.approx(spread, rel=1e-9)
    if expected.setup.chunked:
        first = [r.ready - r.arrival for r in expected.measured]
        assert summary["ttft_seconds"]["mean"] == pytest.approx(np.mean(first), rel=1e-9, abs=1e-12)


def _ratio(a: float, b: float) -> float:
    return a / b if b else 0.0


@settings(max_examples=EXAMPLES)
@given(case=cases(closed=True), data=st.data())
def test_closed_loop(case: Case, data: st.DataObject) -> None:
    for policy in data.draw(st.permutations(policies(case.trace.block_size)))[:4]:
        assert_same(case, policy)


@settings(max_examples=EXAMPLES)
@given(case=cases(closed=False), data=st.data())
def test_open_loop(case: Case, data: st.DataObject) -> None:
    for policy in data.draw(st.permutations(policies(case.trace.block_size)))[:4]:
        assert_same(case, policy)


@settings(max_examples=EXAMPLES // 2)
@given(case=cases(), data=st.data())
def test_loop_plans_what_schedule_plans(case: Case, data: st.DataObject) -> None:
    """An engine that calls `schedule` every step, with ids, serves what the loop replays."""
    for policy in data.draw(st.permutations(policies(case.trace.block_size)))[:3]:
        assert_same(case, policy, by="schedule")


@pytest.mark.parametrize("kept", [2, 3, 5, 8])
def test_log_of_a_long_run_is_every_nth_step(kept: int) -> None:
    trace = Trace.from_arrays(np.zeros(60, int), np.arange(60), np.zeros((60, 2)), np.arange(60) % 3)
    profile = StepProfile.from_dict(small(gpu=None, model=None))
    full = simulate(trace, profile, "fixed:2", 3, requests=6).log
    part = simulate(trace, profile, "fixed:2", 3, requests=6, log_steps=kept)
    assert part.log.tolist() == full[:: part.log_stride].tolist()
    assert kept // 2 <= len(part.log) <= kept < len(full)


def test_ranks_that_admit_out_of_turn() -> None:
    """Places for one user of four: a busy rank admits late what another rank's later requests overtook.

    Measured are the first admitted after warm-up. Counting by order of coming once waited for ever for
    requests that had come and gone before the window opened.
    """
    lengths = np.array([1, 30, 1, 1, 2, 40])
    request, n = np.repeat(np.arange(6), lengths), int(lengths.sum())
    position = np.concatenate([np.arange(length) for length in lengths])
    trace = Trace.from_arrays(request, position, np.zeros((n, 2)), np.zeros(n, int))
    profile = StepProfile.from_dict(small(gpu=None, model=None))
    for seed in range(8):
        serving = {"replicas": 3, "max_running": 1}
        assert_same(Case(trace, profile, serving, users=4, requests=9, seed=seed), ("fixed", 2))


def test_a_preempted_request_brings_what_it_planned_with() -> None:
    """`lagged` asks for the survivals of n plans ago, whether or not a request was preempted since."""
    n = 24
    trace = Trace.from_arrays(
        np.repeat(np.arange(4), n),
        np.tile(np.arange(n), 4),
        np.sin(np.arange(8 * n)).reshape(4 * n, 2) * 4,
        np.arange(4 * n) % 3,
        prompt_tokens=5,
    )
    profile = StepProfile.from_dict(small(verify={"tokens": [1, 64], "seconds": [0.001, 0.064]}))
    workload = Workload("burst", np.zeros(8))
    preempted = 0.0
    for kv in range(40, 90, 5):
        case = Case(trace, profile, {"kv_tokens": kv}, workload=workload)
        for lag in (2, 4, 7):
            assert_same(case, ("lagged", lag))
            preempted += case.run(("lagged", lag)).counts["preempted"]
    assert preempted > 20
