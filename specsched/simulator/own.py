"""Policies of a user's own in a run: planned in Python, a call a step, where bundled ones are compiled.

Everything but the plan is the same engine loop (`kernels.run_to_plan`), so a policy that plans what a bundled
one does gives the same run to the last bit, two to fifteen times slower.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import kernels, schedule
from ..audit.subject import blamed, found_in_module
from ..audit.system import Floats, History, Longs, Step
from ..errors import PolicyError, nearest
from ..kernels import state as columns
from ..schedule import Policy, is_bundled, make

KEPT = 64  # earlier steps that a policy function is shown
CALLED = "plan(confidence, sps, ids=ids) -> lengths, or policy(confidence, sps, history) -> lengths"


class Own(Policy):
    """Somebody's policy as the simulator takes it: an object or class with `plan`, or a function.

    Shapes and dtypes are those of `schedule.Policy.plan`, and of `specsched audit` for a function. Costs are
    charged by its class attributes: `drafts`, `pays_sync` (docs/extending.md); a plain object or function
    drafts, and waits for nothing.
    """

    family = "own"
    code = kernels.OFF  # no kernel plans for it

    def __init__(self, policy: Any, name: str) -> None:
        self.policy, self.name = policy, name
        with blamed(
            f"{name}: what it costs cannot be read ({{why}}); make drafts, pays_sync, ... True or False"
        ):
            self.drafts = bool(getattr(policy, "drafts", True))  # type: ignore[misc]
            self.pays_sync = bool(getattr(policy, "pays_sync", False))  # type: ignore[misc]
            self.engines_own = bool(getattr(policy, "engines_own", False))  # type: ignore[misc]
            self.weighs_costs = bool(getattr(policy, "weighs_costs", True))  # type: ignore[misc]
            self.biased = bool(getattr(policy, "biased", False))  # type: ignore[misc]

    def lossless(self, confidence_sees_token: bool = False) -> bool | None:
        return False if self.biased else None

    def pass_width(self, block_size: int) -> int:
        if not isinstance(self.policy, Policy):
            return 1 + block_size
        with blamed(f"{self.name}: pass_width() raised {{why}}; return 1..{1 + block_size}"):
            width = int(self.policy.pass_width(block_size))
        if not 1 <= width <= 1 + block_size:
            raise PolicyError(f"{self.name}: pass_width() returned {width}; return 1..{1 + block_size}")
        return width

    def caller(self, minimum_gain: float) -> _Caller:
        """A fresh copy of the policy for one engine; what it decides trimming by is the profile's."""
        if not isinstance(self.policy, Policy) and not hasattr(self.policy, "plan"):
            return _Caller(self.name, _of_function(self.policy))
        with blamed(
            f"{self.name} cannot be copied ({{why}}): every engine of a run gets a copy of its own; keep "
            "nothing in it that copy.deepcopy refuses"
        ):
            fresh = copy.deepcopy(self.policy)
        if not isinstance(fresh, Policy):
            return _Caller(self.name, lambda c, sps, ids: fresh.plan(c, sps, ids=ids))
        with blamed(f"{self.name}: reset() raised {{why}}; it is called before a run"):
            fresh.reset()
        if fresh.minimum_gain is None:
            fresh.minimum_gain = minimum_gain
        return _Caller(self.name, lambda c, sps, ids: fresh.plan(c, sps, ids=ids), fresh)


class _Caller:
    """One engine's policy: asked before a step, and told after it."""

    def __init__(
        self, name: str, plan: Callable[[Floats, Floats, Longs], Any], policy: Policy | None = None
    ) -> None:
        self.name, self.plan, self.policy = name, plan, policy

    def ask(
        self, confidence: Floats, sps: Floats, idle: float, ids: Longs, speed: Floats, outcome: Longs
    ) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """(lengths int32[R], drafted bool[R]) of the coming step; then the policy is told how it went.

        outcome int64[R]: how many drafts would be accepted of each request. No policy sees more of it than
        what it verified, and that after its plan.
        """
        requests, block = confidence.shape
        drafted = np.ones(requests, np.bool_)
        raised = (
            f"{self.name} raised {{why}} with {requests} requests and blocks of {block}; it is called as "
            f"{CALLED}"
        )
        with blamed(raised):
            if self.policy is not None:
                drafted = np.array(self.policy.drafting(requests, block, sps, idle), np.bool_)
                self.policy.pace(speed.copy())
            answer = np.asarray(self.plan(confidence, sps, ids))
        if isinstance(self.plan, _OfFunction) and self.plan.read_drafts:
            raise PolicyError(
                f"{self.name} reads history.drafts, and a trace holds no tokens: it cannot be simulated"
            )
        lengths = self._checked(answer, drafted, requests, block)
        accepted = np.minimum(lengths, outcome).astype(np.int32)
        with blamed(raised):
            if self.policy is not None:
                self.policy.settle(accepted)
            elif isinstance(self.plan, _OfFunction):
                self.plan.settle(lengths, accepted)
        return lengths, drafted

    def _checked(
        self, lengths: NDArray[Any], drafted: NDArray[np.bool_], requests: int, block: int
    ) -> NDArray[np.int32]:
        wanted = f"return {requests} whole numbers, one a request, each 0..{block}"
        if lengths.shape != (requests,) or lengths.dtype.kind not in "iu":
            raise PolicyError(
                f"{self.name} returned {lengths.dtype} of shape {lengths.shape} for {requests} requests; "
                f"{wanted}"
            )
        if requests and not 0 <= lengths.min() <= lengths.max() <= block:
            row = int(np.flatnonzero((lengths < 0) | (lengths > block))[0])
            raise PolicyError(f"{self.name} returned length {lengths[row]} for request {row}; {wanted}")
        if drafted.shape != (requests,) or lengths[~drafted].any():
            raise PolicyError(
                f"{self.name} verifies drafts of a request that drafting() left out; draft for whom it plans"
            )
        return lengths.astype(np.int32)


class _OfFunction:
    """A policy function with the steps that it is shown: the last KEPT of its engine."""

    def __init__(self, function: Callable[[Floats, Floats, History], Any]) -> None:
        self.function = function
        self.steps: deque[Step] = deque(maxlen=KEPT)
        self.read_drafts = False
        self.present: tuple[Longs, Floats] = (np.empty(0, np.int64), np.empty((0, 0)))

    def __call__(self, confidence: Floats, sps: Floats, ids: Longs) -> Any:
        history = History(ids, np.full(confidence.shape, -1, np.int64), tuple(self.steps))
        answer = self.function(confidence, sps, history)
        self.read_drafts |= history.read_drafts
        self.present = ids, confidence
        return answer

    def settle(self, lengths: NDArray[np.int32], accepted: NDArray[np.int32]) -> None:
        ids, confidence = self.present
        self.steps.append(Step(ids, confidence, np.full(confidence.shape, -1, np.int64), lengths, accepted))


def _of_function(function: Callable[[Floats, Floats, History], Any]) -> _OfFunction:
    return _OfFunction(function)


def policy_of(policy: str | Policy | Any, block_size: int) -> Policy:
    """The policy that a run takes: a bundled one by name or as it is, or somebody's own.

    `MODULE:NAME` imports a module, from the working folder too, so its code runs. Raises PolicyError.
    """
    if isinstance(policy, str):
        module, colon, name = policy.strip().partition(":")
        if module in schedule.POLICIES or not (colon and module and name.replace(".", "").isidentifier()):
            return make(policy, block_size=block_size)
        try:
            return Own(found_in_module(module, name), policy.strip())
        except PolicyError as e:
            if str(e).startswith("no module") and nearest(module.lower(), schedule.POLICIES):
                return make(policy)  # which says what was meant
            raise
    if isinstance(policy, Own) or (isinstance(policy, Policy) and is_bundled(policy)):
        return policy
    if not hasattr(policy, "plan") and not callable(policy):
        raise PolicyError(f"{policy!r} is no policy: it has no plan() and cannot be called as {CALLED}")
    kind = policy if hasattr(policy, "__qualname__") else type(policy)
    return Own(policy() if isinstance(policy, type) else policy, f"{kind.__module__}:{kind.__qualname__}")


def resized(policy: Policy, block_size: int) -> Policy:
    """The policy of the same name for other blocks."""
    return policy if isinstance(policy, Own) else make(policy.name, block_size=block_size)


def replay_own(
    policy: Own,
    world: kernels.World,
    settings: kernels.Settings,
    plan: kernels.Plan,
    tables: Any,
    state: kernels.State,
    confidence: Floats,
) -> int:
    """`kernels.run_engine` with plans of `policy`; confidence float64[rows, γ] as in `world.survival`."""
    k, block = columns, confidence.shape[1]
    asked = kernels.make_asked(settings.max_running, block)
    callers = [policy.caller(plan.minimum_gain) for _ in range(len(state.rank))]
    begins = True
    while True:
        status = kernels.run_to_plan(world, settings, plan, tables, state, asked, begins)
        begins = False
        if status != kernels.ASKED:
            return int(status)
        rank = int(asked.rank[0])
        requests = int(state.rank[rank, k.DECODING])
        rows = state.rows[rank, :requests]
        sps = asked.sps[: requests * (1 + block) + 1].copy()
        sps[:requests] = sps[requests]  # no pass has fewer tokens than requests
        lengths, drafted = callers[rank].ask(
            confidence[rows],
            sps,
            float(asked.idle[0]),
            state.jobs[state.decoding[rank, :requests], k.J_INDEX].astype(np.int64),
            asked.speed[:requests],
            world.accepted[rows].astype(np.int64),
        )
        state.lengths[rank, :requests] = lengths
        asked.drafted[:requests] = drafted & policy.drafts
