"""The scheduler against its oracle, its certificates and its metamorphic laws (docs/architecture.md)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numba
import numpy as np
import pytest
import reference
import strategies
from hypothesis import given, settings
from hypothesis import strategies as st
from numba.core.runtime import _nrt_python, rtsys  # type: ignore[attr-defined]

from specsched import kernels, schedule
from specsched.errors import PolicyError

ROOT = Path(__file__).parents[2]

# -- kernel = oracle, to the last bit ----------------------------------------------------------------------


def agree(confidence, sps, theta=0.3, budget=None, gain=0.05):
    """Everything that is planned from one step's confidences, against the oracle."""
    rows, curve = confidence.tolist(), sps.tolist()
    budget = confidence.size // 2 if budget is None else budget
    assert schedule.survival(confidence).tolist() == reference.survivals(rows)
    assert schedule.early_stop(confidence, sps).tolist() == reference.early_stop(rows, curve)
    assert schedule.best_budget(confidence, sps) == reference.best_budget(rows, curve)
    assert schedule.best_budget(confidence, sps, gain) == reference.best_budget(rows, curve, gain)
    assert schedule.top_k(confidence, budget).tolist() == reference.top_k(rows, budget)
    assert schedule.threshold(confidence, theta).tolist() == reference.threshold(rows, theta)
    plan = schedule.make("global").plan(confidence, sps)
    assert plan.tolist() == reference.global_plan(rows, curve)
    assert plan.dtype == np.int32


@settings(max_examples=5 * settings.default.max_examples)
@given(strategies.problems(), st.floats(0, 1), st.integers(0, 40), st.floats(0, 0.5))
def test_small_steps_agree_with_the_oracle(problem, theta, budget, gain):
    agree(*problem, theta, budget, gain)  # type: ignore[call-arg]


@given(strategies.problems(many=True), st.integers(0, 2400))
def test_large_steps_agree_with_the_oracle(problem, budget):
    agree(*problem, budget=budget)


@given(strategies.plateaus())
def test_steps_where_rounding_decides_agree_with_the_oracle(problem):
    agree(*problem)


@given(strategies.problems(many=True), st.floats(0, 1))
def test_kernels_never_choose_a_cost_that_is_unknown(problem, known):
    """The engine loop has NaN where a pass is refused, above the capture limit: like a speed of 0."""
    confidence, sps = problem
    survival, work = schedule.survival(confidence), kernels.make_work(*confidence.shape)
    refused = np.arange(sps.size) > len(confidence) + known * confidence.size
    lengths = np.empty((2, 2, len(confidence)), np.int64)
    for i, unknown in enumerate((np.nan, 0.0)):
        curve = np.where(refused, unknown, sps)
        kernels.early_stop(survival, curve, lengths[i, 0], work)
        kernels.unconstrained(survival, curve, 0.0, lengths[i, 1], work)
    assert (lengths[0] == lengths[1]).all()


@pytest.mark.parametrize("value", [0.0, -0.0, 5e-324, 1e-310, 0.5, 0.9, 1.0 - 2**-53, 1.0])
@pytest.mark.parametrize("curve", ["flat", "stairs", "inverse"])
def test_equal_confidences_agree_with_the_oracle(value, curve):
    confidence = np.full((40, 7), value)
    tokens = np.arange(40 * 8 + 1)
    sps = {"flat": np.ones(321), "stairs": 1 / (1 + tokens // 64), "inverse": 1 / np.maximum(1, tokens)}[
        curve
    ]
    agree(confidence, sps)


@given(st.data())
def test_hindsight_agrees_with_the_oracle(data):
    confidence, sps = data.draw(strategies.problems())
    requests, block = confidence.shape
    accepted = data.draw(st.lists(st.integers(0, block), min_size=requests, max_size=requests))
    plan = schedule.make("hindsight").plan(confidence, sps, accepted=accepted)
    assert plan.tolist() == reference.hindsight(accepted, block, sps.tolist())
    assert all(length <= n for length, n in zip(plan, accepted, strict=True))


# -- certificates ------------------------------------------------------------------------------------------


@given(strategies.problems(max_requests=3, max_block=3))
def test_no_prefix_plan_beats_the_global_one(problem):
    """Over all plans there are, not only over prefixes of the admission order."""
    confidence, sps = problem
    survival = schedule.survival(confidence)
    requests = len(confidence)

    def objective(lengths):
        expected = requests + sum(survival[r, :n].sum() for r, n in enumerate(lengths))
        return expected * sps[requests + sum(lengths)]

    candidates = [1 + int((row > 0).sum()) for row in survival]
    best = max(objective(lengths) for lengths in np.ndindex(*candidates))
    found = objective(schedule.make("global").plan(confidence, sps).tolist())
    assert found >= best * (1 - 1e-12)


@given(strategies.problems())
def test_early_stop_rises_all_the_way_and_not_one_further(problem):
    confidence, sps = problem
    survival = schedule.survival(confidence).tolist()
    theta = reference.throughputs(survival, sps.tolist())
    k = int(schedule.early_stop(confidence, sps).sum())
    assert all(theta[i] < theta[i + 1] for i in range(k))
    assert k + 1 == len(theta) or not theta[k + 1] > theta[k]


# -- metamorphic laws --------------------------------------------------------------------------------------


@given(strategies.problems(many=True), st.integers(0, 2**32 - 1))
def test_permuting_requests_permutes_the_plan_where_nothing_ties(problem, seed):
    confidence, sps = problem
    survival = schedule.survival(confidence)
    positive = survival[survival > 0]
    if len(np.unique(positive)) < positive.size:
        return  # ties are broken by request: nothing to hold here
    order = np.random.default_rng(seed).permutation(len(confidence))
    for name in ("early-stop", "global", "threshold:0.3"):
        plan = schedule.make(name).plan
        assert (plan(confidence[order], sps) == plan(confidence, sps)[order]).all()


@given(strategies.problems(many=True), st.integers(-40, 40))
def test_scaling_costs_by_a_power_of_two_changes_nothing(problem, power):
    confidence, sps = problem
    if sps.min() < 1e-200 or sps.max() > 1e200:
        return
    scaled = np.ldexp(sps, power)
    for name in ("early-stop", "global"):
        plan = schedule.make(name).plan
        assert (plan(confidence, sps) == plan(confidence, scaled)).all()
    assert schedule.best_budget(confidence, sps) == schedule.best_budget(confidence, scaled)


def anticipates(plan, data, confidence):
    """Whether `plan` changes at or before position k of a request when only positions behind k change."""
    r = data.draw(st.integers(0, confidence.shape[0] - 1))
    k = data.draw(st.integers(0, confidence.shape[1] - 1))
    changed = confidence.copy()
    behind = confidence.shape[1] - k
    changed[r, k:] = data.draw(st.lists(st.floats(0, 1), min_size=behind, max_size=behind))
    return min(plan(confidence)[r], k) != min(plan(changed)[r], k)


@settings(max_examples=3 * settings.default.max_examples)
@given(st.data())
def test_lossless_policies_do_not_anticipate(data):
    confidence, sps = data.draw(strategies.problems())
    past = data.draw(st.lists(st.floats(0, 1), min_size=confidence.size, max_size=confidence.size))

    def lagged(current):
        policy = schedule.Lagged(lag=1)
        policy.plan(np.reshape(past, confidence.shape), sps)
        return policy.plan(current, sps)

    plans = [schedule.make(name).plan for name in ("off", "fixed", "threshold:0.4", "early-stop")]
    for plan in [*(lambda c, plan=plan: plan(c, sps) for plan in plans), lagged]:
        assert not anticipates(plan, data, confidence)


def test_the_anticipation_test_catches_global():
    """A survival behind the cliff makes crossing it pay: position 1 is admitted because of position 2."""
    sps = np.array([1.0, 1.0, 0.5, 0.45])
    plan = schedule.make("global").plan
    assert plan([[0.8, 0.9]], sps).tolist() == [2]
    assert plan([[0.8, 0.0]], sps).tolist() == [0]


# -- lagged: what a step is remembered by ------------------------------------------------------------------


@st.composite
def histories(draw):
    """(lag, steps): requests come, go, return and change rows; (ids, confidences) of each step."""
    lag = draw(st.integers(1, 3))
    block = draw(st.integers(1, 4))
    steps = []
    for _ in range(draw(st.integers(1, 7))):
        ids = draw(st.lists(st.integers(-3, 6), min_size=1, max_size=5, unique=True))
        value = st.sampled_from([0.0, 0.3, 0.5, 0.8, 1.0]) | st.floats(0, 1)
        rows = draw(
            st.lists(st.lists(value, min_size=block, max_size=block), min_size=len(ids), max_size=len(ids))
        )
        steps.append((ids, rows))
        if draw(st.booleans()):  # nobody comes or goes
            steps.append((ids, [list(reversed(row)) for row in rows]))
    return lag, steps


@settings(max_examples=3 * settings.default.max_examples)
@given(histories(), st.sampled_from([0.0, 0.04]), st.integers(0, 2**32 - 1))
def test_lagged_agrees_with_the_oracle(history, gain, seed):
    lag, steps = history
    policy = schedule.Lagged(lag, minimum_gain=gain)
    rng = np.random.default_rng(seed)
    for t in range(len(steps)):
        ids, rows = steps[t]
        sps = 1 / (1 + np.cumsum(rng.choice([0.0, 0.0, 0.5], len(ids) * (1 + len(rows[0])) + 1)))
        plan = policy.plan(rows, sps, ids=np.array(ids))
        assert plan.tolist() == reference.lagged(steps[: t + 1], sps.tolist(), lag, gain), f"step {t}"


def test_lagged_verifies_whole_blocks_until_a_step_of_that_lag_exists():
    policy = schedule.Lagged(lag=2)
    sps = 1 / (1 + np.arange(20.0))
    confidence = [[0.5, 0.0], [0.1, 0.1]]
    assert [policy.plan(confidence, sps).tolist() for _ in range(3)] == [[2, 2], [2, 2], [0, 0]]


def test_lagged_counts_a_newcomer_as_certain_and_prices_the_present():
    policy = schedule.Lagged(lag=1)
    cheap, dear = np.ones(20), 1 / (1 + np.arange(20.0))
    low = [[0.01, 0.01], [0.02, 0.02]]
    policy.plan(low, dear, ids=[4, 9])
    # Costs of this step, not of the last: nothing is trimmed at constant cost.
    assert policy.plan(low, cheap, ids=[4, 9]).tolist() == [2, 2]
    # The two certain positions of newcomer 7 are the budget; the slots go to the top of the present.
    limited = np.where(np.arange(20) <= 5, 1.0, 0.1)
    assert policy.plan([*low, [0.9, 0.001]], limited, ids=[4, 9, 7]).tolist() == [0, 1, 1]


def test_lagged_without_ids_starts_anew_when_the_number_of_requests_changes():
    policy = schedule.Lagged(lag=1)
    sps = 1 / (1 + np.arange(20.0))
    assert policy.plan([[0.1]], sps).tolist() == [1]
    assert policy.plan([[0.1]], sps).tolist() == [0]
    assert policy.plan([[0.1], [0.1]], sps).tolist() == [1, 1]
    assert policy.plan([[0.1], [0.1]], sps).tolist() == [0, 0]
    assert policy.plan([[0.1, 0.1], [0.1, 0.1]], sps).tolist() == [2, 2], (
        "another block size, another history"
    )
    policy.reset()
    assert policy.plan([[0.1, 0.1], [0.1, 0.1]], sps).tolist() == [2, 2]


def test_lagged_keeps_its_own_copy_of_confidences_and_ids():
    policy, sps = schedule.Lagged(lag=1), 1 / (1 + np.arange(20.0))
    ids, confidence = np.array([1, 2]), np.full((2, 2), 0.01)
    policy.plan(confidence, sps, ids=ids)
    ids[:] = [8, 9]
    confidence[:] = 0.5
    expected = reference.lagged([([1, 2], [[0.01] * 2] * 2), ([8, 9], [[0.5] * 2] * 2)], sps.tolist(), 1)
    assert expected == [2, 2], "newcomers count as certain"
    assert policy.plan(confidence, sps, ids=ids).tolist() == expected


def test_a_refused_step_leaves_no_trace_in_the_history():
    sps = 1 / (1 + np.arange(20.0))
    policy, clean = schedule.Lagged(lag=2), schedule.Lagged(lag=2)
    for t in range(6):
        confidence = np.full((2, 2), 0.1 * t)
        with pytest.raises(PolicyError):
            policy.plan(confidence + np.array([[0, 0], [0, np.nan]]), sps, ids=[1, 2])
        with pytest.raises(PolicyError):
            policy.plan(confidence, sps[:3], ids=[1, 2])
        assert (policy.plan(confidence, sps, ids=[1, 2]) == clean.plan(confidence, sps, ids=[1, 2])).all()


@pytest.mark.parametrize("spacing", [1, 1024, 2**20, 2**31 - 1, 2**40, -(2**35)])
def test_many_ids_however_spaced(spacing):
    """Ids of an engine are counters, addresses or hashes; all are found again, in any order."""
    rng = np.random.default_rng(0)
    ids = np.arange(500) * spacing
    confidence = rng.random((500, 2))
    policy, sps = schedule.Lagged(lag=1), 1 / (300 + np.arange(2000.0))
    policy.plan(confidence, sps, ids=ids)
    order = rng.permutation(500)[:400]
    present = rng.random((400, 2))
    history = [(ids.tolist(), confidence.tolist()), (ids[order].tolist(), present.tolist())]
    assert policy.plan(present, sps, ids=ids[order]).tolist() == reference.lagged(history, sps.tolist(), 1)


# -- policies and names ------------------------------------------------------------------------------------

LOSSLESS = [
    "off",
    "fixed:2",
    "fixed",
    "threshold:0.25",
    "early-stop",
    "lagged",
    "lagged:3",
    "bypass:3",
    "sla:80",
    "history",
]


def test_canonical_names_can_be_parsed_again(tmp_path):
    table = tmp_path / "table.json"
    table.write_text("[[1, 8, 3], [9, null, 1]]")
    names = ["off", "fixed", "fixed:1", "threshold:0.30", "threshold:1e-3", "threshold:0.1234567890123456789"]
    names += [
        "threshold:1",
        "early-stop",
        "lagged",
        "lagged:5",
        "bypass",
        "bypass:5",
        "sla:80",
        "sla:12.5",
        "history",
        "history:16",
        "global",
        "hindsight",
        f"batch-table:{table}",
    ]
    for name in names:
        canonical = schedule.parse(name, 3)
        assert schedule.parse(canonical, 3) == canonical
        assert repr(schedule.make(name, 3)) == f"<policy {canonical}>"
        assert schedule.is_bundled(schedule.make(name, 3))
    assert schedule.parse("fixed", 5) == "fixed:5"
    assert schedule.parse("lagged") == "lagged:2"
    assert schedule.parse("bypass") == "bypass:2"
    assert schedule.parse("history") == "history:8"
    assert schedule.parse("sla:80.0") == "sla:80"
    assert schedule.parse("threshold:0.30") == "threshold:0.3"
    assert schedule.default_policies(7) == [
        "off",
        "fixed:1",
        "fixed:7",
        "threshold:0.3",
        "early-stop",
        "lagged:2",
    ]
    assert schedule.default_policies(1).count("fixed:1") == 1


def test_policies_say_what_they_are():
    for name in LOSSLESS:
        policy = schedule.make(name)
        blind = name.startswith(("off", "fixed", "history"))
        assert policy.lossless()
        assert policy.lossless(confidence_sees_token=True) == blind
    for name in ("global", "hindsight"):
        assert not schedule.make(name).lossless()
    waits = {name for name, policy in schedule.POLICIES.items() if policy.pays_sync}
    assert waits == {"threshold", "early-stop", "global"}
    assert not schedule.make("off").drafts
    assert all(schedule.make(n).drafts for n in LOSSLESS[1:])


def test_a_policy_says_all_that_others_ask_of_it():
    """Tokens of one request in a full pass, and the numbers of the engine loop, from the rules themselves."""
    widths = {"off": 1, "fixed:2": 3, "threshold:0.5": 6, "early-stop": 6, "lagged:3": 6, "hindsight": 6}
    assert {name: schedule.make(name).pass_width(5) for name in widths} == widths
    assert schedule.Fixed().pass_width(5) == 6
    for name in widths:
        policy = schedule.make(name)
        plan = policy.kernel_plan(4, 5, 0.05)
        assert (plan.code, plan.drafts, plan.pays_sync) == (policy.code, policy.drafts, policy.pays_sync)
        assert plan.theta == (0.5 if name == "threshold:0.5" else 0.0)
        assert plan.lag == (3 if name == "lagged:3" else 1)
        assert plan.fixed.tolist() == ([0, 2, 2, 2, 2] if name == "fixed:2" else [0] * 5)
        assert plan.minimum_gain == 0.05, "the profile's"
    for own in (0.0, 0.3):
        assert schedule.Lagged(2, minimum_gain=own).kernel_plan(4, 5, 0.05).minimum_gain == own
        assert schedule.make("global", minimum_gain=own).kernel_plan(4, 5, 0.05).minimum_gain == own
    # One code a rule of the engine loop; a rule by the number of requests alone is a table there.
    rules = [cls.code for cls in schedule.POLICIES.values() if cls.code != schedule.SameLength.code]
    assert len(set(rules)) == len(rules)
    assert len({cls.colour for cls in schedule.POLICIES.values()}) == len(schedule.POLICIES)
    assert schedule.Fixed().kernel_plan(2, 5, 0.0).fixed.tolist() == [0, 5, 5]
    with pytest.raises(PolicyError, match="verifies 6 tokens but blocks hold 5"):
        schedule.make("fixed:6").kernel_plan(2, 5, 0.0)


def test_a_policy_of_ones_own_is_not_taken_for_a_bundled_one():
    class Mine(schedule.Lagged):
        def plan(self, confidence, sps=None, ids=None, accepted=None):
            return super().plan(confidence, sps, ids, accepted) * 0

    class Renamed(schedule.Lagged):
        """Overrides nothing of the plan."""

    class Foreign(schedule.Policy):
        family = name = "foreign"

    assert schedule.is_bundled(Renamed(2))
    assert not schedule.is_bundled(Mine(2))
    assert not schedule.is_bundled(Foreign())


def test_ids_may_be_text():
    rng = np.random.default_rng(1)
    by_number, by_name = schedule.Lagged(1), schedule.Lagged(1)
    for _ in range(6):
        who = rng.permutation(6)[:4]
        confidence, sps = rng.random((4, 3)), 1 / (1 + np.arange(17.0))
        lengths = by_number.plan(confidence, sps, ids=who)
        assert by_name.plan(confidence, sps, ids=[f"request-{i}" for i in who]).tolist() == lengths.tolist()
    with pytest.raises(PolicyError, match="as an earlier row is"):
        by_name.plan(np.zeros((2, 3)), 1 / (1 + np.arange(9.0)), ids=["a", "a"])
    with pytest.raises(PolicyError, match="one id a row"):
        by_name.plan(np.zeros((2, 3)), 1 / (1 + np.arange(9.0)), ids=["a"])


def test_tensors_of_any_kind_are_arrays():
    torch = pytest.importorskip("torch")
    plain = np.array([[0.5, 0.25], [0.75, 0.5]])
    for tensor in (
        torch.tensor(plain),
        torch.tensor(plain, dtype=torch.bfloat16),
        torch.tensor(plain, dtype=torch.float16, requires_grad=True),
    ):
        assert schedule.threshold(tensor, 0.3).tolist() == schedule.threshold(plain, 0.3).tolist() == [1, 2]
    sps = torch.tensor([1.0] * 7, dtype=torch.bfloat16)
    assert schedule.early_stop(plain, sps).tolist() == [2, 2]


def test_plans_that_no_confidence_moves(tmp_path):
    table = tmp_path / "table.json"
    table.write_text(json.dumps([[1, 2, 3], [3, 4, 0], [5, None, 1]]))
    confidence = np.zeros((4, 3))
    assert schedule.make("off").plan(confidence).tolist() == [0] * 4
    assert schedule.make("fixed").plan(confidence).tolist() == [3] * 4
    assert schedule.make("fixed:2").plan(confidence).tolist() == [2] * 4
    policy = schedule.make(f"batch-table:{table}")
    assert isinstance(policy, schedule.BatchTable)
    assert [policy.plan(np.zeros((r, 3))).tolist() for r in (1, 2, 3, 5)] == [[3], [3, 3], [0] * 3, [1] * 5]
    assert [policy.length_for(r) for r in (2, 4, 1000)] == [3, 0, 1]


def test_no_requests_no_plan():
    for name in ("off", "fixed:2", "threshold:0.5", "early-stop", "lagged:1", "global"):
        policy = schedule.make(name)
        for _ in range(3):
            plan = policy.plan(np.empty((0, 4)), [1.0])
            assert plan.shape == (0,)
            assert plan.dtype == np.int32


@given(strategies.problems())
def test_lists_float32_and_strided_arrays_are_the_same_confidences(problem):
    confidence, sps = problem
    plan = schedule.early_stop(confidence, sps)
    assert (schedule.early_stop(confidence.tolist(), sps.tolist()) == plan).all()
    assert (schedule.early_stop(np.asfortranarray(confidence), np.repeat(sps, 2)[::2]) == plan).all()
    single = confidence.astype(np.float32)
    assert (schedule.early_stop(single, sps) == schedule.early_stop(single.astype(np.float64), sps)).all()


def test_functions_may_be_called_from_several_threads():
    rng = np.random.default_rng(1)
    problems = [(rng.random((n, 7)), 1 / (100 + np.arange(8.0 * n + 1))) for n in (3, 300, 40, 200)]
    expected = [schedule.early_stop(*problem) for problem in problems]
    wrong = []

    def run(i):
        for _ in range(200):
            if not (schedule.early_stop(*problems[i]) == expected[i]).all():
                wrong.append(i)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# -- refusals ----------------------------------------------------------------------------------------------

SPS = np.ones(9)
CONFIDENCE = np.full((2, 3), 0.5)


@pytest.mark.parametrize(
    ("value", "says"),
    [(np.nan, "nan"), (-0.1, "-0.1"), (1.0000001, "1.0000001"), (np.inf, "inf")],
)
@pytest.mark.parametrize(
    "name", ["off", "fixed:1", "threshold:0.5", "early-stop", "lagged", "global", "hindsight"]
)
def test_confidences_that_are_none_are_refused_by_name(name, value, says):
    confidence = CONFIDENCE.copy()
    confidence[1, 2] = value
    with pytest.raises(
        PolicyError, match=rf"confidence\[1, 2\] is {says} \(request 1, position 3 of 1\.\.3\)"
    ):
        schedule.make(name).plan(confidence, SPS, accepted=[0, 0])


REFUSALS = {
    "sps is too short: 8 entries, but 2 requests with blocks of 3 need 9": lambda: schedule.early_stop(
        CONFIDENCE, SPS[:8]
    ),
    r"sps\[5\] is nan .*B = 5": lambda: schedule.best_budget(
        CONFIDENCE, np.where(np.arange(9) == 5, np.nan, 1.0)
    ),
    r"sps\[2\] is -1": lambda: schedule.early_stop(CONFIDENCE, -SPS),
    r"sps\[8\] is inf": lambda: schedule.early_stop(CONFIDENCE, [*SPS[:8], np.inf]),
    "give sps": lambda: schedule.make("lagged").plan(CONFIDENCE),
    "sps has shape": lambda: schedule.early_stop(CONFIDENCE, SPS.reshape(3, 3)),
    "sps is not an array": lambda: schedule.early_stop(CONFIDENCE, ["a"]),
    "confidence has shape": lambda: schedule.early_stop([0.5, 0.5], SPS),
    "confidence is not an array": lambda: schedule.early_stop([[0.5], [0.5, 0.5]], SPS),
    "γ >= 1": lambda: schedule.early_stop(np.empty((2, 0)), SPS),
    "ids have shape": lambda: schedule.make("lagged").plan(CONFIDENCE, SPS, ids=[1, 2, 3]),
    "ids are float64": lambda: schedule.make("lagged").plan(CONFIDENCE, SPS, ids=[1.0, 2.0]),
    r"ids\[1\] is 7, as an earlier row is; give each row its own": lambda: schedule.make("lagged").plan(
        CONFIDENCE, SPS, ids=[7, 7]
    ),
    "needs accepted": lambda: schedule.make("hindsight").plan(CONFIDENCE, SPS),
    r"accepted\[1\] is 4": lambda: schedule.make("hindsight").plan(CONFIDENCE, SPS, accepted=[0, 4]),
    "give 2 whole numbers": lambda: schedule.make("hindsight").plan(CONFIDENCE, SPS, accepted=[0.5, 1]),
    "no policy 'laged'; did you mean 'lagged'": lambda: schedule.make("laged:2"),
    "no policy 'Early_Stop'; did you mean 'early-stop'": lambda: schedule.make("Early_Stop"),
    "not by 3": lambda: schedule.make(3),
    "no policy ''": lambda: schedule.make(""),
    "ends before its parameter": lambda: schedule.make("fixed:"),
    "'x' is not a whole number": lambda: schedule.make("fixed:x"),
    "'0.5' is not a whole number": lambda: schedule.make("lagged:0.5"),
    "give a whole number >= 1": lambda: schedule.make("fixed:0"),
    "verifies 4 drafts but blocks have 3": lambda: schedule.make("fixed:4", 3),
    "verifies 4 drafts of each": lambda: schedule.make("fixed:4").plan(CONFIDENCE),
    "not lossless; name that": lambda: schedule.make("lagged:0"),
    r"whole number >= 1": lambda: schedule.make("lagged:-1"),
    "needs its θ": lambda: schedule.make("threshold"),
    r"\[0, 1\]": lambda: schedule.make("threshold:1.5"),
    "θ of policy threshold is nan": lambda: schedule.make("threshold:nan"),
    "takes no parameter": lambda: schedule.make("early-stop:3"),
    "minimum_gain is -1": lambda: schedule.make("lagged", minimum_gain=-1),
    "budget k is -1": lambda: schedule.top_k(CONFIDENCE, -1),
    "budget k is True": lambda: schedule.top_k(CONFIDENCE, True),
    "needs a JSON file": lambda: schedule.make("batch-table"),
    "cannot read": lambda: schedule.make("batch-table:no/such/file.json"),
    "name k": lambda: schedule.Fixed().length_for(3),
}


@pytest.mark.parametrize("message", REFUSALS)
def test_refusals_end_with_the_fix(message):
    with pytest.raises(PolicyError, match=message):
        REFUSALS[message]()


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ("[]", "no list of rows"),
        ('{"a": 1}', "no list of rows"),
        ("[[1, 2]]", "not three numbers"),
        ("[[2, 4, 1]]", "covers 2..4 requests where 1.. comes next"),
        ("[[1, 4, 1], [6, 8, 1]]", "covers 6..8 requests where 5.. comes next"),
        ("[[1, 4, 1], [4, 8, 1]]", "covers 4..8"),
        ("[[1, 0, 1]]", "last of row 1"),
        ("[[1, null, 1], [2, 3, 1]]", "no end but is not the last"),
        ("[[1, 2, -1]]", "k of row 1 is -1"),
        ("[[1, 2, 1.5]]", "k of row 1 is 1.5"),
        ("[[1, 2, 9]]", "verifies 9 drafts but blocks have 3"),
        ("[[1, 2", "line 1"),
    ],
)
def test_malformed_batch_tables_are_refused(tmp_path, rows, says):
    file = tmp_path / "table.json"
    file.write_text(rows)
    with pytest.raises(PolicyError, match=says) as refusal:
        schedule.make(f"batch-table:{file}", 3)
    assert str(file) in str(refusal.value)


def test_a_batch_table_that_ends_refuses_more_requests(tmp_path):
    with pytest.raises(PolicyError, match=r"covers 1\.\.2 requests but there are 3; add a row"):
        schedule.BatchTable([[1, 2, 1]]).plan(np.zeros((3, 3)))


# -- the kernels in numba's other modes --------------------------------------------------------------------

SMALL_CASES = """
import sys, warnings
warnings.simplefilter("error")
warnings.filterwarnings("ignore", message="Cannot cache compiled function")  # bounds checks are not cached
sys.path[:0] = ["tests/support", "tests/schedule"]
import numpy as np
import reference
from specsched import kernels, schedule
from test_schedule import agree

rng = np.random.default_rng(3)
for t in range(60):
    shape = (int(rng.integers(1, 7)), int(rng.integers(1, 5)))
    pick = [rng.random(shape), rng.choice([0.0, 0.3, 1.0], shape), 1 - 1e-9 * rng.random(shape)][t % 3]
    tokens = np.arange(shape[0] * (1 + shape[1]) + 1)
    agree(pick, [1 / (1 + tokens), 1 / (1 + tokens // 4), np.ones(tokens.size)][t % 2])
agree(1 - 1e-6 * rng.random((30, 4)), 1 / (1 + np.arange(151.0)))
agree(1 - 1e-2 * rng.random((90, 7)), 1 / (100 + np.arange(721.0)))  # more candidates than are merged
history, policy = [], schedule.Lagged(1)
for t in range(6):
    ids = rng.permutation(6)[:4] * 1000003 - 2
    history.append((ids.tolist(), rng.random((4, 3)).tolist()))
    sps = 1 / (1 + np.arange(17.0))
    assert policy.plan(history[-1][1], sps, ids=ids).tolist() == reference.lagged(history, sps.tolist(), 1)
print(hasattr(kernels.early_stop, "py_func"))
"""


@pytest.mark.parametrize(
    ("variable", "jitted"), [("NUMBA_BOUNDSCHECK", "True"), ("NUMBA_DISABLE_JIT", "False")]
)
def test_kernels_in_numbas_checking_modes(variable, jitted, tmp_path):
    environment = {**os.environ, variable: "1", "PYTHONPATH": str(ROOT)}
    environment |= {"NUMBA_CACHE_DIR": str(tmp_path), "NUMBA_OPT": "0"}  # compiled once, run briefly
    done = subprocess.run(
        [sys.executable, "-c", SMALL_CASES], env=environment, cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == jitted


@numba.njit
def plan_often(survival, sps, lengths, work, times):
    for _ in range(times):
        kernels.early_stop(survival, sps, lengths, work)
        kernels.top_k(survival, kernels.best_budget(survival, sps, 0.02, work), lengths, work)
        kernels.unconstrained(survival, sps, 0.0, lengths, work)


def test_kernels_allocate_nothing():
    _nrt_python.memsys_enable_stats()
    survival = schedule.survival(np.random.default_rng(0).random((40, 7)))
    arguments = survival, 1 / (30 + np.arange(321.0)), np.empty(40, np.int64), kernels.make_work(40, 7)

    def allocations(times):
        plan_often(*arguments, times)
        before = rtsys.get_allocation_stats().alloc
        plan_often(*arguments, times)
        return rtsys.get_allocation_stats().alloc - before

    assert allocations(100) == allocations(0), "numba wraps the arguments once a call; plans add nothing"


def test_kernels_work_where_no_cache_can_be_written(tmp_path):
    """A read-only install without a home: numba finds no folder, so every process compiles for itself."""
    program = (
        "from numba.core import caching\n"
        "caching.CacheImpl._locator_classes = []\n"
        "from specsched import kernels\n"
        "import numpy as np\n"
        "found = kernels.table_length(np.array([[1, 4, 3]]), 2)\n"
        "print(kernels.table_length.stats.cache_path, found)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=ROOT, capture_output=True, text=True
    )
    assert done.stdout.strip() == "None 3", done.stderr
