"""The engine loop for a policy that is not compiled: it stops wherever a plan is due, and goes on with it.

Costs, memory, admission and clock are those of `run_engine`; only the plan comes from Python, a call a step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .clock import first_to_end
from .commit import commit
from .jit import inner, jit
from .places import admit_waiting
from .queue import arrive, fill_house
from .state import (
    ASKED,
    DECODING,
    DONE,
    DRAFTED,
    END,
    INJECTED,
    J_MISSED,
    KV_PEAK,
    KV_USED,
    MEASURED_LEFT,
    MISSED,
    PREFILL,
    STATUS,
    TOKENS,
    WAITING,
    Plan,
    Settings,
    State,
    World,
)
from .step import base_seconds, decision_sps, execute, gather, speeds


class Asked(NamedTuple):
    """What is asked of the policy, of `rank`; it answers in State.lengths[rank] and `drafted`."""

    rank: np.ndarray  # int64[1]; -1: nothing is asked
    sps: np.ndarray  # float64[max_running * (1 + γ) + 1]: of this step, drafting for all
    idle: np.ndarray  # float64[1]: steps per second when nothing is drafted
    speed: np.ndarray  # float64[max_running]: tokens/s of each decoding request so far
    drafted: np.ndarray  # bool[max_running]: for whom the step drafts


def make_asked(max_running: int, block_size: int) -> Asked:
    """Memory for the questions of a run that has not begun."""
    return Asked(
        rank=np.full(1, -1, np.int64),
        sps=np.zeros(max_running * (1 + block_size) + 1),
        idle=np.zeros(1),
        speed=np.zeros(max_running),
        drafted=np.zeros(max_running, np.bool_),
    )


@inner
def _ask(world: World, plan: Plan, cost: Any, state: State, rank: int, asked: Asked, now: float) -> None:
    """What `plan_step` would weigh at this rank: the costs of the step, the users' speeds."""
    place, block = state.rank[rank], world.survival.shape[1]
    requests = place[DECODING]
    decision_sps(cost, plan, place, block, asked.sps)
    idle = base_seconds(cost, plan, place, 0) + cost.verify[requests + place[PREFILL]]
    asked.idle[0] = 0.0 if np.isnan(idle) else 1.0 / idle
    speeds(state.jobs, state.job_times, state.decoding[rank], now, asked.speed[:requests])


@inner
def _take(plan: Plan, cost: Any, state: State, rank: int, drafted: np.ndarray) -> None:
    """The plan is known: what the step holds and costs, as at the end of `plan_step`."""
    place = state.rank[rank]
    requests, count = place[DECODING], np.int64(0)
    place[MISSED] = 0
    place[TOKENS] = requests
    for i in range(requests):
        j = state.decoding[rank, i]
        place[TOKENS] += state.lengths[rank, i]
        if drafted[i]:
            place[MISSED] += state.jobs[j, J_MISSED]
            state.jobs[j, J_MISSED] = 0
            count += 1
        else:
            state.jobs[j, J_MISSED] += 1  # not drafted for, it emits one token
    place[DRAFTED] = count
    state.base[rank] = base_seconds(cost, plan, place, count)
    if place[MISSED] > 0 and count > 0:
        state.base[rank] += cost.catch_up * place[MISSED] * (cost.draft[count] / count)


@jit
def run_to_plan(
    world: World, settings: Settings, plan: Plan, cost: Any, state: State, asked: Asked, begins: bool
) -> int:
    """Replay until a plan is due (ASKED), or to the end (DONE or REFUSED), as `run_engine` would.

    Called again, it takes the plan and goes on. `begins`: nothing has happened yet.
    """
    clock, count, size = state.clock, state.counts, settings.group_size
    block = world.survival.shape[1] if plan.drafts else 0
    if begins and settings.closed:
        fill_house(world, settings, state)
    while asked.rank[0] >= 0 or (count[MEASURED_LEFT] > 0 and count[STATUS] == DONE):
        rank = asked.rank[0]
        group = rank // size if rank >= 0 else np.int64(first_to_end(state))
        now = clock[group, END]
        if rank >= 0:
            _take(plan, cost, state, rank, asked.drafted)
            rank += 1
        elif count[INJECTED] < world.arrival.shape[0] and world.arrival[count[INJECTED]] <= now:
            arrive(world, settings, state)
            continue
        else:
            commit(world, settings, cost, state, group, block, now)
            rank = group * size
        asked.rank[0] = -1
        while rank < (group + 1) * size:
            place = state.rank[rank]
            if place[WAITING] > 0 or place[KV_USED] > settings.kv_capacity:
                admit_waiting(world, settings, state, rank, block, now)
            count[KV_PEAK] = max(count[KV_PEAK], place[KV_USED])
            gather(world, settings, state, rank, block)
            if place[DECODING] > 0:
                _ask(world, plan, cost, state, rank, asked, now)
                asked.rank[0] = rank
                return ASKED
            _take(plan, cost, state, rank, asked.drafted)
            rank += 1
        execute(settings, plan, cost, state, group, now)
    return count[STATUS]
