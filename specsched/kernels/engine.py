"""The engine loop: a discrete-event replay of serving engines.

`run_engine` reads as four sentences: arrivals and finished steps move the clock, a step that ends is
committed, waiting requests are admitted, the next step is planned and executed. Nothing here allocates.
"""

from __future__ import annotations

from typing import Any

from .clock import first_to_end
from .commit import commit
from .jit import jit
from .places import admit_waiting
from .queue import arrive, fill_house
from .state import (
    DONE,
    END,
    INJECTED,
    KV_PEAK,
    KV_USED,
    MEASURED_LEFT,
    STATUS,
    WAITING,
    Plan,
    Scratch,
    Settings,
    State,
    World,
)
from .step import execute, gather, plan_step


@jit
def run_engine(
    world: World, settings: Settings, plan: Plan, cost: Any, state: State, scratch: Scratch
) -> int:
    """Replay until every measured request has finished; returns DONE or REFUSED.

    Order of events at one time: arrivals first, then ends of steps, lower groups first.
    """
    clock, count = state.clock, state.counts
    block = world.survival.shape[1] if plan.drafts else 0
    if settings.closed:
        fill_house(world, settings, state)
    while count[MEASURED_LEFT] > 0 and count[STATUS] == DONE:
        group = first_to_end(state)
        now = clock[group, END]
        if count[INJECTED] < world.arrival.shape[0] and world.arrival[count[INJECTED]] <= now:
            arrive(world, settings, state)
            continue
        commit(world, settings, cost, state, group, block, now)
        for rank in range(group * settings.group_size, (group + 1) * settings.group_size):
            place = state.rank[rank]
            if place[WAITING] > 0 or place[KV_USED] > settings.kv_capacity:
                admit_waiting(world, settings, state, rank, block, now)
            count[KV_PEAK] = max(count[KV_PEAK], place[KV_USED])
            gather(world, settings, state, rank, block)
            plan_step(world, plan, cost, state, rank, scratch, now)
        execute(settings, plan, cost, state, group, now)
    return count[STATUS]
