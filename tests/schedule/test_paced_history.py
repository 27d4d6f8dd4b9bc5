"""`sla` and `history`: their plans against the oracles, what they do for whom, and calls out of turn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st
from planner_oracle import BLOCK, line, varied
from test_bypass import histories

from specsched import schedule
from specsched.errors import PolicyError
from specsched.simulator import simulate
from specsched.trace import Trace


@given(histories(), st.integers(1, 3), st.data())
def test_sla_agrees_with_the_oracle(steps: Any, lag: int, data: st.DataObject) -> None:
    policy, past = schedule.Paced(10.0, lag, margin=0.3, least=0.05), []
    for ids, rows, _, sps, _ in steps:
        speeds = [data.draw(st.sampled_from([0.0, 5.0, 10.0, 11.0, 12.9, 50.0])) for _ in ids]
        past.append((ids, rows))
        policy.pace(speeds)
        weight = reference.weights(speeds, 10.0, 0.3, 0.05)
        assert policy.plan(rows, sps, ids=ids).tolist() == reference.paced(past, sps.tolist(), lag, weight)


@given(histories(), st.sampled_from([1, 4, 32]), st.sampled_from([0.0, 0.2]))
def test_history_agrees_with_the_oracle(steps: Any, memory: int, gain: float) -> None:
    policy, oracle = schedule.History(memory, gain), reference.History(memory, len(steps[0][1][0]))
    for ids, rows, accepted, sps, _ in steps:
        lengths = policy.plan(rows, sps, ids=ids).tolist()
        assert lengths == oracle.plan(ids, sps.tolist(), gain)
        kept = [min(n, k) for n, k in zip(lengths, accepted, strict=True)]
        policy.settle(kept)
        oracle.settle(ids, lengths, kept)


@given(histories(), st.sampled_from([0.1, 1e6]))
def test_where_all_are_behind_or_all_ahead_sla_plans_what_lagged_plans(steps: Any, speed: float) -> None:
    """Equal weights: a power of two, so that rounding is the same."""
    equal, lagged = schedule.Paced(10.0, 2, least=0.25), schedule.Lagged(2)
    for ids, rows, _, sps, _ in steps:
        equal.pace([speed] * len(ids))
        assert equal.plan(rows, sps, ids=ids).tolist() == lagged.plan(rows, sps, ids=ids).tolist()


def test_sla_verifies_for_those_behind() -> None:
    policy = schedule.Paced(100.0, 1)
    confidence, sps = np.full((2, 3), 0.8), 1.0 / (1.0 + 0.3 * np.arange(9))
    policy.pace([50.0, 200.0])
    assert policy.plan(confidence, sps, ids=[1, 2]).tolist() == [3, 3], "the first step: whole blocks"
    policy.pace([50.0, 200.0])
    behind, ahead = policy.plan(confidence, sps, ids=[1, 2]).tolist()
    assert behind > ahead == 0


def test_history_learns_who_accepts() -> None:
    """Two requests without a confidence: one accepts all, one nothing; soon only the first is verified."""
    policy = schedule.History(16)
    none, sps = np.zeros((2, 3)), 1.0 / (1.0 + 0.3 * np.arange(9))
    for _ in range(30):
        lengths = policy.plan(none, sps, ids=[7, 8])
        policy.settle([int(lengths[0]), 0])
    assert lengths.tolist() == [3, 0]


def test_history_serves_more_than_any_fixed_length_where_requests_differ() -> None:
    rng = np.random.default_rng(0)
    rows = 40 * 60
    easy = np.repeat(rng.random(60) < 0.5, 40)
    trace = Trace.from_arrays(
        request=np.repeat(np.arange(60), 40),
        position=np.tile(np.arange(40), 60),
        confidence_logit=np.zeros((rows, BLOCK)),
        accepted=np.where(easy, BLOCK, 0),
        metadata={"licence": "CC0"},
    )
    steep = line(verify={"tokens": [1, 512], "seconds": [0.01, 0.5]})
    names = ["off", "history:16", *(f"fixed:{k}" for k in range(1, BLOCK + 1))]
    speed = {n: simulate(trace, steep, n, 12, requests=120).summary["throughput"] for n in names}
    assert max(speed, key=lambda n: speed[n]) == "history:16", speed


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: schedule.make("sla"), "as in sla:80"),
        (lambda: schedule.make("sla:0"), "S of policy sla"),
        (lambda: schedule.make("sla:fast"), "is not a number"),
        (lambda: schedule.make("history:0"), "h of policy history is 0"),
        (lambda: schedule.make("sla:8").plan([[0.5]], np.ones(3)), r"the speed of none; call pace\(\)"),
        (lambda: schedule.make("sla:8").pace([-1.0]), "tokens/s >= 0"),
        (lambda: schedule.make("history").settle([1]), "without a plan"),
    ],
)
def test_what_cannot_be_is_refused(call: Any, says: str) -> None:
    with pytest.raises(PolicyError, match=says):
        call()


def test_history_needs_to_know_what_became_of_its_plan() -> None:
    policy = schedule.History()
    policy.plan([[0.5]], np.ones(3), ids=[1])
    with pytest.raises(PolicyError, match=r"settle\(\) was not told"):
        policy.plan([[0.5]], np.ones(3), ids=[1])


def test_lagged_budgets_fill_what_is_padded_and_stop_at_the_limit() -> None:
    """Captured sizes and no eager curve: a pass that drafts ends on one of them, prefill chunks included.

    Padding is paid for anyway, so within a captured size every draft raises Θ: the argmax fills it.
    """
    sizes = [8, 16, 24, 40, 64]
    profile = line(
        capture={"sizes": sizes, "limit": 64},
        verify={"tokens": [1, 64], "seconds": [0.01, 0.03]},
        prefill={"tokens": [1, 64], "seconds": [0.001, 0.01]},
    )
    for prefill in ("disaggregated", "chunked"):
        result = simulate(
            varied([30] * 40),
            profile,
            "lagged:2",
            10,
            requests=80,
            log_steps=1 << 14,
            prefill=prefill,
            batch_tokens=64,
        )
        steps = result.steps[10:]
        total = steps["tokens"] + steps["prefill_tokens"]
        assert total.max() <= 64
        # Nothing is left to fill with where whole blocks are verified, or only prefill is in the pass.
        partial = (steps["budget"] > 0) & (steps["budget"] < steps["requests"] * BLOCK)
        assert partial.sum() > 20
        assert total[partial].isin(sizes).all()
