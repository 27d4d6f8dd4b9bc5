"""Policies of a user's own: planned in Python, in the very engine that bundled ones run in."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_cases import Case, cases, policies, policy_of, rows_of
from hypothesis import given, settings
from hypothesis import strategies as st
from profile_cases import small

from specsched import audit, schedule
from specsched.errors import PolicyError, ProfileError
from specsched.profile import StepProfile
from specsched.simulator import SimResult, simulate
from specsched.simulator.own import KEPT, Own
from specsched.simulator.own import policy_of as taken
from specsched.trace import Trace, synthesise

TRACE = synthesise([0.8, 0.6, 0.5], requests=12, seed=3, output_tokens=25.0)
# Waiting for confidences costs nothing here, and memory is plenty.
PROFILE = StepProfile.from_dict(small(sync_seconds=None, gpu=None, model=None))


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    trace, profile = Trace.from_arrays([0], [0], [[0.0]], [0]), StepProfile.from_dict(small())
    simulate(trace, profile, "lagged", 1, requests=1)
    simulate(trace, profile, Own(schedule.Lagged(), "own"), 1, requests=1)


def copied(policy: tuple[str, Any], block: int) -> Own:
    """The bundled policy as somebody's own: the engine loop knows nothing of it but its plan()."""
    made = policy_of(policy)
    return Own(schedule.make(made, block) if isinstance(made, str) else made, "mine:Copy")


def same(one: SimResult, other: SimResult) -> None:
    assert rows_of(one) == rows_of(other)
    assert one.log.tolist() == other.log.tolist()
    assert one.counts == other.counts
    assert one.summary == other.summary


@pytest.mark.parametrize("policy", [p for p in policies(3) if p[0] != "hindsight"], ids=str)
def test_a_copy_of_each_policy_gives_the_same_run(policy: tuple[str, Any]) -> None:
    same(run(copied(policy, 3)), run(policy_of(policy)))


@settings(deadline=None)
@given(cases(), st.data())
def test_a_copy_of_a_bundled_policy_gives_the_same_run(case: Case, data: st.DataObject) -> None:
    """To the last bit, whatever is run: `run_engine` is the oracle."""
    block = case.trace.block_size
    # hindsight alone is told the future, which nobody's own policy is.
    known = [p for p in policies(block) if p[0] != "hindsight"]
    policy = data.draw(st.sampled_from(known))
    try:
        wanted = case.run(policy)
    except ProfileError as refusal:
        with pytest.raises(ProfileError, match=re.escape(str(refusal))):
            own_run(case, copied(policy, block))
        return
    same(own_run(case, copied(policy, block)), wanted)


def own_run(case: Case, policy: Own) -> SimResult:
    options: dict[str, Any] = {"workload": case.workload, "seed": case.seed, "log_steps": 1 << 14}
    if case.workload is None:
        options |= {"concurrency": case.users, "requests": case.requests}
    return simulate(case.trace, case.profile, policy, **(options | case.serving))


def run(policy: Any, **more: Any) -> SimResult:
    return simulate(TRACE, PROFILE, policy, **({"concurrency": 3, "requests": 20, "log_steps": 10**6} | more))


class Plain:
    """Of no class of ours: what `specsched audit` takes is enough."""

    def plan(self, confidence: Any, sps: Any, ids: Any = None) -> Any:
        return (np.cumprod(confidence, axis=1) >= 0.3).sum(axis=1)


def by_function(confidence: Any, sps: Any, history: Any) -> Any:
    return (np.cumprod(confidence, axis=1) >= 0.3).sum(axis=1)


@pytest.mark.parametrize("policy", [Plain(), Plain, by_function])
def test_an_object_a_class_and_a_function_are_taken(policy: Any) -> None:
    mine, bundled = run(policy), run("threshold:0.3")
    assert rows_of(mine) == rows_of(bundled)
    assert mine.lossless is None
    assert mine.policy.endswith(("Plain", "by_function"))
    said = [w for w in mine.warnings if "not proved" in w]
    assert len(said) == 1
    assert "specsched audit" in said[0]
    assert "Python" in said[0]


def test_a_function_is_shown_the_last_steps_of_its_engine() -> None:
    """Who decoded, what was planned and kept: the log of the run, read back by the policy."""
    seen: list[Any] = []

    def policy(confidence: Any, sps: Any, history: Any) -> Any:
        seen.append(history.steps)
        return np.full(len(confidence), 2)

    log = run(policy).steps
    seen.pop()  # the step in flight when the last measured request ends
    assert len(seen) == len(log)
    assert max(map(len, seen)) == KEPT
    for i, steps in enumerate(seen):
        past = log.iloc[max(0, i - KEPT) : i]
        assert [len(s.ids) for s in steps] == past["requests"].tolist()
        assert [int(s.lengths.sum()) for s in steps] == past["budget"].tolist()
        for step, emitted in zip(steps, past["emitted"], strict=True):
            # A request's last step may be cut at its length.
            assert step.accepted.sum() + len(step.ids) >= emitted
            assert (step.accepted <= step.lengths).all()
            assert (step.drafts == -1).all()


def test_every_engine_has_a_policy_of_its_own() -> None:
    """Two ranks that shared one would mix their histories."""
    workload = dict(concurrency=3, replicas=2, requests=30)
    same(run(Own(schedule.Lagged(2), "x:y"), **workload), run("lagged:2", **workload))


def test_the_profiles_minimum_gain_holds_for_ones_own_policy_too() -> None:
    greedy = dataclasses.replace(PROFILE, minimum_gain=100.0)
    mine, bundled = (simulate(TRACE, greedy, p, 3, 20) for p in (Own(schedule.Lagged(), "x:y"), "lagged:2"))
    assert rows_of(mine) == rows_of(bundled) != rows_of(run("lagged:2"))


def test_a_policy_object_keeps_nothing_of_a_run() -> None:
    policy = schedule.History(4)
    own = Own(policy, "x:y")
    first = run(own)
    assert rows_of(run(own)) == rows_of(first)
    assert policy._planned is None
    assert not policy._habits


class Raises(Plain):
    def plan(self, confidence: Any, sps: Any, ids: Any = None) -> Any:
        raise KeyError("gone")


class Long(Plain):
    def plan(self, confidence: Any, sps: Any, ids: Any = None) -> Any:
        return np.full(len(confidence), 9)


class Short(Plain):
    def plan(self, confidence: Any, sps: Any, ids: Any = None) -> Any:
        return [1]


class Half(Plain):
    def plan(self, confidence: Any, sps: Any, ids: Any = None) -> Any:
        return np.full(len(confidence), 0.5)


class Undrafted(schedule.Lagged):
    def drafting(self, *args: Any, **more: Any) -> Any:
        return ~super().drafting(*args, **more)


class Uncopied(Plain):
    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("no")


class Rude(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Odd(BaseException):
    pass


def _raiser(error: BaseException, where: str = "plan") -> Own:
    """A policy in which one method raises, as somebody's own may."""

    def fails(*_: Any, **__: Any) -> Any:
        raise error

    kind: Any = type("Theirs", (schedule.Lagged,), {})
    made = kind()  # which calls reset() itself
    setattr(kind, where, fails)
    return Own(made, "their:Policy")


@pytest.mark.parametrize("error", [SystemExit(0), GeneratorExit(), Rude(), Odd()], ids=repr)
@pytest.mark.parametrize(
    "where", ["plan", "drafting", "pace", "settle", "reset", "__deepcopy__", "pass_width"]
)
def test_no_code_of_a_policy_ends_a_run_but_in_a_sentence(error: BaseException, where: str) -> None:
    """An exit of somebody's own would end the command with code 0 and no answer."""
    policy = _raiser(error, where)
    with pytest.raises(PolicyError, match=f"their:Policy.*{type(error).__name__}"):
        policy.pass_width(3) if where == "pass_width" else run(policy)


def test_ctrl_c_in_a_policy_stays_ctrl_c() -> None:
    with pytest.raises(KeyboardInterrupt):
        run(_raiser(KeyboardInterrupt()))


@pytest.mark.parametrize("width", [0, -5, 5, 10**12])
def test_a_pass_has_an_anchor_and_no_more_than_a_block(width: int) -> None:
    policy = Own(type("Wide", (schedule.Lagged,), {"pass_width": lambda *_: width})(), "their:Wide")
    with pytest.raises(PolicyError, match=f"returned {width}; return 1..4"):
        policy.pass_width(3)


def test_flags_that_are_no_truth_are_refused() -> None:
    with pytest.raises(PolicyError, match="their:Flags: what it costs cannot be read"):
        Own(type("Flags", (Plain,), {"drafts": np.ones(3)})(), "their:Flags")


MODULES = {
    "theirs_exits": "raise SystemExit(0)",
    "theirs_raises": "class Odd(BaseException): pass\nraise Odd",
    "theirs_needs": "import nosuch_module_at_all",
    "theirs_lazy": "def __getattr__(name):\n    raise SystemExit(0)",
    "theirs_makes": "class Policy:\n    def __init__(self): raise SystemExit(0)\n    plan = 0",
}


@pytest.mark.parametrize("name", MODULES)
def test_modules_that_end_the_process_are_told(tmp_path: Path, monkeypatch: Any, name: str) -> None:
    (tmp_path / f"{name}.py").write_text(MODULES[name])
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(PolicyError, match=f"{name}.*cannot be|{name}.*is not there"):
        taken(f"{name}:Policy", 3)


def tokens(confidence: Any, sps: Any, history: Any) -> Any:
    return history.drafts[:, 0] * 0


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (Raises(), "Raises raised KeyError"),
        (Long(), "Long returned length 9 for request 0; return 3 whole numbers"),
        (Short(), "of shape (1,)"),
        (Half(), "Half returned float64"),
        (Undrafted(), "drafting() left out"),
        (Uncopied(), "cannot be copied (TypeError: no)"),
        (tokens, "a trace holds no tokens"),
        (3, "3 is no policy"),
        ("nosuchmodule:Policy", "no module 'nosuchmodule'"),
        ("laged:Policy", "did you mean 'lagged'"),
        ("os:nothing", "has no 'nothing'"),
        ("lagged:x", "is not a whole number"),
        ("elsewhere", "no policy 'elsewhere'"),
    ],
)
def test_what_is_no_policy_is_refused_in_a_sentence(policy: Any, said: str) -> None:
    with pytest.raises(PolicyError, match=re.escape(said)):
        run(policy)


def test_a_named_policy_is_imported_from_the_working_folder(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "mine_of_tests.py").write_text(
        "from specsched import schedule\n\nclass Policy(schedule.Lagged):\n"
        "    def plan(self, *args, **more):\n        return super().plan(*args, **more)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    policy = taken("mine_of_tests:Policy", 3)
    assert policy.name == "mine_of_tests:Policy"
    mine, bundled = run(policy), run("lagged:2")
    assert rows_of(mine) == rows_of(bundled)
    assert mine.summary == bundled.summary
    assert audit.load("mine_of_tests:Policy").name == policy.name


def test_costs_are_those_the_class_claims() -> None:
    """Drafting is not paid where nothing is drafted; waiting is where the plan needs the confidences."""
    slow = StepProfile.from_dict(small(sync_seconds=0.5, gpu=None, model=None))

    class Never(schedule.Off):
        def plan(self, *args: Any, **more: Any) -> Any:
            return super().plan(*args, **more)

    class Waits(Plain):
        pays_sync = True

    same(run(Own(schedule.Off(), "x:y")), run("off"))
    assert rows_of(run(Never())) == rows_of(run("off"))
    waits = simulate(TRACE, slow, Waits(), 3, 20)
    assert rows_of(waits) == rows_of(simulate(TRACE, slow, "threshold:0.3", 3, 20))
    assert rows_of(waits) != rows_of(simulate(TRACE, slow, Plain(), 3, 20))
