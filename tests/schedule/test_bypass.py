"""`bypass`: the plans of `lagged` while drafting pays, plain steps while it does not, probes in between."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st
from planner_oracle import BLOCK, line, varied

from specsched import schedule
from specsched.errors import PolicyError
from specsched.simulator import SimResult, simulate
from specsched.trace import Trace

LEVELS = st.sampled_from([0.0, 0.3, 0.5, 0.5, 0.9, 1.0])


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[list[int], Any, list[int], Any, float]]:
    """A few steps of one engine: ids, confidences, acceptances, costs, and the speed of a plain step."""
    block, steps = draw(st.integers(1, 3)), []
    for _ in range(draw(st.integers(1, 14))):
        ids = draw(st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True))
        rows = [[draw(LEVELS) for _ in range(block)] for _ in ids]
        accepted = [draw(st.integers(0, block)) for _ in ids]
        slope = draw(st.sampled_from([0.02, 0.2, 1.0]))
        sps = 1.0 / (1.0 + slope * np.arange(len(ids) * (1 + block) + 1))
        steps.append((ids, rows, accepted, sps, draw(st.sampled_from([0.9, 1.1, 1.6]))))
    return steps


@given(histories(), st.integers(1, 3), st.sampled_from([0.0, 0.1]))
def test_bypass_agrees_with_the_oracle(steps: Any, lag: int, gain: float) -> None:
    setting = {"window": 24, "least": 2, "gain": gain, "share": 0.5, "rows": 2}
    policy, oracle = schedule.Bypass(lag, **setting), reference.Bypass(lag, **setting)
    for ids, rows, accepted, sps, faster in steps:
        requests, block = len(ids), len(rows[0])
        idle = float(sps[requests]) * faster
        drafted = policy.drafting(requests, block, sps, idle).tolist()
        assert drafted == oracle.drafting(requests, block, sps.tolist(), idle)
        lengths = policy.plan(rows, sps, ids=ids).tolist()
        assert lengths == oracle.plan(ids, rows, sps.tolist(), drafted, 0.0)
        policy.settle([min(n, k) for n, k in zip(lengths, accepted, strict=True)])
        oracle.settle(rows, drafted, lengths, accepted)


def simulated(policy: Any, profile: Any, trace: Trace | None = None, users: int = 12) -> SimResult:
    trace = varied([40] * 60) if trace is None else trace
    return simulate(trace, profile, policy, users, requests=100, log_steps=1 << 16)


def test_where_drafting_is_free_it_is_lagged_to_the_last_bit() -> None:
    free = line(draft=None)
    stops, never = simulated("bypass:2", free), simulated("lagged:2", free)
    assert stops.log.tobytes() == never.log.tobytes()
    assert stops.summary["throughput"] == never.summary["throughput"]


def test_where_drafting_never_pays_only_probes_are_lost() -> None:
    """A step of 12 requests takes 12.2 ms; a probe 30 ms for drafting and 9.6 ms for 48 drafts more."""
    dear = line(draft={"requests": [1], "seconds": [0.03], "block_size": BLOCK})
    stops, off = simulated(schedule.Bypass(2, share=0.08), dear), simulated("off", dear)
    assert 1.0 - 0.08 < stops.summary["throughput"] / off.summary["throughput"] < 1.0
    late = stops.steps[stops.steps["begun_seconds"] > 60 * 0.0122]
    probes = late[late["budget"] > 0]
    assert len(probes) > 3
    between = math.ceil((0.03 + 0.0096) / 0.0122 / 0.08)
    assert np.diff(probes.index).tolist() == [between] * (len(probes) - 1)
    assert (probes["budget"] == 12 * BLOCK).all(), "12 requests are fewer than a probe takes"
    plain = late[late["budget"] == 0]["seconds"].median()
    assert plain == pytest.approx(off.steps["seconds"].median(), rel=1e-9), (
        "a plain step costs what off costs"
    )


def test_it_believes_what_was_accepted_not_what_was_promised() -> None:
    """Confidences of 0.99 of which nothing is accepted: `lagged` drafts on, `bypass` stops."""
    lies = Trace.from_arrays(
        request=np.repeat(np.arange(40), 40),
        position=np.tile(np.arange(40), 40),
        confidence_logit=np.full((1600, BLOCK), 4.6),
        accepted=np.zeros(1600, int),
        metadata={"licence": "CC0"},
    )
    speeds = {p: simulated(p, line(), lies).summary["throughput"] for p in ("off", "lagged:2", "bypass:2")}
    assert speeds["lagged:2"] < 0.8 * speeds["off"]
    assert speeds["bypass:2"] > 0.98 * speeds["off"]


def test_a_pause_and_a_return_are_priced() -> None:
    """`idle_draft` is paid by plain steps, `catch_up` by the probes that come after them."""
    dear = {"draft": {"requests": [1], "seconds": [0.03], "block_size": BLOCK}}
    poor = varied([40] * 60, acceptance=0.1)

    def steps(**scheduler: float) -> Any:
        return simulated(schedule.Bypass(2, share=0.08), line(**dear, scheduler=scheduler), poor).steps

    kept = steps(idle_draft=0.5, catch_up=0.0)
    assert kept[kept["budget"] == 0]["seconds"].median() == pytest.approx(0.0122 + 0.015, abs=1e-4)
    price = 0.1
    free, paid = (steps(catch_up=c) for c in (0.0, price))
    probes = [found[found["budget"] > 0]["seconds"].iloc[-1] for found in (free, paid)]
    missed = (probes[1] - probes[0]) / (price * 0.03 / 12)
    assert 12 < missed <= 12 * 40, "tokens that 12 drafters did not read, of requests 40 tokens long"


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda p: p.plan([[0.5]], [1, 1, 1]), "was asked for nothing before; call drafting()"),
        (lambda p: (p.drafting(2, 1, np.ones(5), 1.0), p.plan([[0.5]], [1, 1, 1])), "asked for 2 requests"),
        (lambda p: p.settle([1]), "settle() without a plan"),
        (lambda p: p.drafting(1, 1, [1, 1, 1]), "needs idle_sps"),
        (lambda p: p.drafting(1, 1, None, 1.0), "give sps"),
        (lambda p: p.drafting(1, 1, [1, 1], 1.0), "sps is too short"),
        (lambda p: p.drafting(1, 1, [1, 1, np.nan], 1.0), r"sps\[2\] is nan"),
    ],
)
def test_calls_out_of_turn_are_refused_with_the_turn(call: Any, says: str) -> None:
    with pytest.raises(PolicyError, match=says.replace("()", r"\(\)")):
        call(schedule.Bypass(1))


def test_a_plan_that_nobody_settled_is_told() -> None:
    policy = schedule.Bypass(1)
    policy.drafting(1, 1, np.ones(3), 1.0)
    policy.plan([[0.5]], np.ones(3), ids=[4])
    with pytest.raises(PolicyError, match=r"settle\(\) was not told"):
        policy.drafting(1, 1, np.ones(3), 1.0)
    policy.settle([1])
    assert policy.drafting(1, 1, np.ones(3), 1.0).tolist() == [True]


def test_other_policies_draft_for_all_or_for_nobody(tmp_path: Any) -> None:
    table = tmp_path / "table.json"
    table.write_text("[[1, 2, 3], [3, null, 0]]")
    for name in ("fixed:1", "lagged:2", "early-stop"):
        assert schedule.make(name).drafting(3, 3).tolist() == [True] * 3
    assert schedule.make("off").drafting(3, 3).tolist() == [False] * 3
    by_table = schedule.make(f"batch-table:{table}")
    assert by_table.drafting(2, 3).tolist() == [True] * 2
    assert by_table.drafting(3, 3).tolist() == [False] * 3
