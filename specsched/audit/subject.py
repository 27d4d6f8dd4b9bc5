"""A policy under audit: loaded by its name, called, and its answers checked."""

from __future__ import annotations

import contextlib
import copy
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np

from .. import schedule
from ..errors import PolicyError, nearest, plain
from .system import Floats, History, Lengths, Longs, Past, Step, System

SIGNATURE = "policy(confidence, sps, history) -> lengths"
_ALL_TWICE, _THEN_EVERY = 64, 32  # calls that are made twice: the first ones, then one in so many


@contextlib.contextmanager
def blamed(said: str) -> Iterator[None]:
    """Within the block, whatever somebody's code raises, an exit too, is a PolicyError: `said`, with the
    error in the place of `{why}`. Ctrl-C stays what it is."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as e:
        try:
            why = f"{type(e).__name__}: {e}"
        except Exception:  # its __str__ is somebody's too
            why = type(e).__name__
        raise PolicyError(said.replace("{why}", plain(why, 120))) from None


class Subject:
    """A policy function (`SIGNATURE`; docs/losslessness.md has shapes and dtypes) and how it is called."""

    def __init__(self, name: str, function: Callable[[Floats, Floats, History], Any]) -> None:
        self.name, self.function = name, function
        self.calls = 0
        self.reads_drafts = False  # whether any call looked at the present drafts
        self._known: tuple[tuple[Past, ...], Floats, tuple[Step, ...]] | None = None

    def lengths(self, system: System) -> Lengths:
        """int32[R], what the policy answers in `system`. Raises PolicyError for what is no answer."""
        steps = self._steps(system)
        answer = self._call(system, steps)
        if self.calls <= _ALL_TWICE or self.calls % _THEN_EVERY == 0:
            again = self._call(system, steps)
            if not np.array_equal(answer, again):
                raise PolicyError(
                    f"{self.name} is not deterministic: the same call answered {answer.tolist()}, then "
                    f"{again.tolist()}; an audited policy is a function of its arguments: keep no state "
                    "outside of them, seed what is random from them"
                )
        return answer

    def verifies(self, system: System, row: int, position: int) -> bool:
        """Whether the policy verifies `position` (1..γ) of a request."""
        return bool(self.lengths(system)[row] >= position)

    def _steps(self, system: System) -> tuple[Step, ...]:
        """The earlier steps with what the policy answered in them."""
        if self._known is not None and self._known[0] is system.past and self._known[1] is system.sps:
            return self._known[2]
        steps: tuple[Step, ...] = ()
        for past in system.past:
            made = self._call(System(system.sps, (), past.ids, past.confidence, past.drafts), steps)
            accepted = np.minimum(past.accepted, made).astype(np.int32)
            steps = (*steps, Step(past.ids, past.confidence, past.drafts, made, accepted))
        self._known = (system.past, system.sps, steps)
        return steps

    def _call(self, system: System, steps: tuple[Step, ...]) -> Lengths:
        self.calls += 1
        given = (system.confidence.copy(), system.sps.copy(), system.ids.copy(), system.drafts.copy())
        shown = tuple(step.copy() for step in steps)
        history = History(given[2], given[3], shown)
        at = f"at {_size(system, len(steps))}"
        with blamed(f"{self.name} raised {{why}} {at}; it is called as {SIGNATURE}, for any R and γ >= 1"):
            answer = self.function(given[0], given[1], history)
        self.reads_drafts |= history.read_drafts
        pristine = (system.confidence, system.sps, system.ids, system.drafts)
        names = ("confidence", "sps", "history.ids", "history.drafts")
        for name, before, after in zip(names, pristine, given, strict=True):
            if not np.array_equal(before, after):
                raise PolicyError(f"{self.name} changes its argument {name} {at}; work on a copy of it")
        if any(not one.equals(two) for one, two in zip(steps, shown, strict=True)):
            raise PolicyError(f"{self.name} changes its argument history.steps {at}; work on a copy of it")
        return self._checked(answer, system, at)

    def _checked(self, answer: Any, system: System, at: str) -> Lengths:
        requests, block = system.confidence.shape
        wanted = f"return {requests} whole numbers, one a request, each 0..{block}"
        with blamed(f"{self.name} returned no array {at}; {wanted}"):
            lengths = np.asarray(answer)
        if lengths.shape != (requests,):
            raise PolicyError(f"{self.name} returned shape {lengths.shape} {at}; {wanted}")
        if lengths.dtype.kind not in "iu":
            raise PolicyError(f"{self.name} returned dtype {lengths.dtype} {at}; {wanted} (an integer dtype)")
        for row, length in enumerate(lengths.tolist()):
            if not 0 <= length <= block:
                raise PolicyError(f"{self.name} returned length {length} for request {row} {at}; {wanted}")
        return lengths.astype(np.int32)


def _size(system: System, steps: int) -> str:
    requests, block = system.confidence.shape
    return f"R = {requests}, γ = {block}, earlier steps: {steps}"


def load(spec: str) -> Subject:
    """The policy that `spec` names: a bundled one (`lagged:2`), or MODULE:FUNCTION of the user's own.

    MODULE is imported, from the working folder too, so its code runs. FUNCTION may be a function of
    (confidence, sps, history), or a policy as engines call it: an object or a class (made without arguments)
    with plan(confidence, sps, ids=ids). Raises PolicyError for what cannot be found or called.
    """
    module, colon, name = spec.partition(":")
    if module in schedule.POLICIES:
        return Subject(spec, _of_object(schedule.make(spec)))
    if not colon or not name or not module:
        near = nearest(spec, schedule.POLICIES)
        raise PolicyError(f"{spec!r} is no policy to audit;{near} name MODULE:FUNCTION, or a bundled policy")
    found = found_in_module(module, name)
    return Subject(spec, _of_object(found) if hasattr(found, "plan") else found)


def found_in_module(module: str, name: str) -> Any:
    """The policy function, or the object with plan(), that MODULE:NAME is; a class is made without arguments.

    MODULE is imported for it, from the working folder too. Raises PolicyError.
    """
    spec = f"{module}:{name}"
    if module.endswith(".py"):
        raise PolicyError(f"{spec!r} names a file; name its module: {module.removesuffix('.py')}:{name}")
    found = _attribute(module, name)
    if isinstance(found, type) and hasattr(found, "plan"):
        with (
            blamed(f"{spec} cannot be made without arguments ({{why}}); name an object of it"),
            contextlib.redirect_stdout(sys.stderr),
        ):
            found = found()
    with blamed(f"{spec} has a plan that cannot be had ({{why}}); make it a method"):
        usable = hasattr(found, "plan") or callable(found)
    if not usable:
        raise PolicyError(f"{spec} is {type(found).__name__}, no function; it must be called as {SIGNATURE}")
    return found


def _attribute(module: str, name: str) -> Any:
    """The attribute (dotted, if need be) of a module that is imported for it."""
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    found: Any = None
    missing: ModuleNotFoundError | None = None
    with (
        contextlib.redirect_stdout(sys.stderr),  # stdout is the answer
        blamed(f"module {module!r} cannot be imported: {{why}}; make it importable"),
    ):
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError as e:
            missing = e
    if missing is not None:
        what = (
            f"no module {module!r}"
            if missing.name == module
            else f"module {module!r} needs {missing.name!r}, which is not there"
        )
        raise PolicyError(f"{what}; run in the folder that holds it, or set PYTHONPATH")
    for part in name.split("."):
        with blamed(f"module {module!r}: {name!r} cannot be had ({{why}}); name a function that is in it"):
            known = hasattr(found, part)
        if not known:
            own = getattr(found, "__dict__", {})
            near = nearest(part, [n for n in dir(found) if not isinstance(own.get(n), ModuleType)])
            raise PolicyError(f"module {module!r} has no {name!r};{near} name a function that is in it")
        found = getattr(found, part)
    return found


def _of_object(policy: Any) -> Callable[[Floats, Floats, History], Any]:
    """A policy object as a function: a fresh copy of it goes through the history, then plans the present."""

    def plan(confidence: Floats, sps: Floats, history: History) -> Any:
        fresh = copy.deepcopy(policy)
        speeds: dict[int, list[int]] = {}  # what each request got in each of its steps so far
        for step in history.steps:
            _plan(fresh, step.confidence, sps, step.ids, speeds)
            if isinstance(fresh, schedule.Policy):
                fresh.settle(step.accepted)
            for one, accepted in zip(step.ids.tolist(), step.accepted.tolist(), strict=True):
                speeds.setdefault(one, []).append(accepted + 1)
        return _plan(fresh, confidence, sps, history.ids, speeds)

    return plan


def _plan(policy: Any, confidence: Floats, sps: Floats, ids: Longs, speeds: dict[int, list[int]]) -> Any:
    if not isinstance(policy, schedule.SameLength):
        if isinstance(policy, schedule.Policy):  # a step without drafting costs what a pass of anchors does
            policy.drafting(ids.size, confidence.shape[1], sps, float(sps[ids.size]))
            # Tokens a step, at the pace of passes of the anchors alone: something known before the step.
            got = [speeds.get(one, [0]) for one in ids.tolist()]
            policy.pace([sum(each) / len(each) * float(sps[ids.size]) for each in got])
        return policy.plan(confidence, sps, ids=ids)
    # Lengths that no confidence decides: tiny blocks cut them, as they would not an engine's.
    requests, block = confidence.shape
    wide = np.ones((requests, max(block, 64)))
    return np.minimum(policy.plan(wide, None, ids=ids), block)
