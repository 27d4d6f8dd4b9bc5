"""How requests come: to which rank, and into its queue."""

from __future__ import annotations

import numpy as np

from .clock import settle
from .jit import Floats, Longs, Whole, inner, part
from .state import (
    ARRIVAL,
    BEGUN,
    DECODE_TOKENS,
    EMITTED,
    END,
    FINISH,
    FINISHED,
    FIRST,
    HEAD,
    IN_SYSTEM_AREA,
    INITIAL_LEFT,
    INJECTED,
    J_EMITTED,
    J_INDEX,
    J_LEFT,
    J_LINK,
    J_LOCAL,
    J_PLANNED,
    J_PREFILL,
    J_PROMPT,
    J_TRACED,
    LAST_CHANGE,
    LENGTH,
    LONGEST,
    MEASURING,
    NEXT,
    PROMPT_TOKENS,
    READY,
    ROUND_ROBIN,
    TAIL,
    TWO_CHOICES,
    W_END,
    W_START,
    WAITING,
    Settings,
    State,
    World,
)


@inner
def count_change(counts: Longs, sums: Floats, now: float) -> None:
    """The number of requests in the system is about to change: add up its time integral (Little's law)."""
    inside = counts[INJECTED] - counts[FINISHED]
    sums[IN_SYSTEM_AREA] += (now - sums[LAST_CHANGE]) * inside
    sums[LAST_CHANGE] = now


@inner
def inject(world: World, settings: Settings, state: State, j: int, rank: int, now: float) -> None:
    """The next request arrives at `rank` as job j, at the queue's tail; an idle group wakes up."""
    i = state.counts[INJECTED]
    count_change(state.counts, state.sums, now)
    state.counts[INJECTED] += 1
    request = world.requests[i % world.requests.shape[0]]
    job = state.jobs[j]
    job[:] = 0
    job[J_INDEX] = i
    job[J_TRACED] = request[FIRST]
    job[J_LEFT] = request[DECODE_TOKENS]
    job[J_PROMPT] = request[PROMPT_TOKENS]
    job[J_LINK] = -1
    job[J_PLANNED] = -1
    state.job_times[j, ARRIVAL] = now
    state.job_times[j, READY] = state.job_times[j, FINISH] = now
    state.job_times[j, LONGEST] = 0.0
    if settings.chunked and request[PROMPT_TOKENS] > 0:
        job[J_PREFILL] = request[PROMPT_TOKENS]
        state.job_times[j, READY] = state.job_times[j, FINISH] = np.nan
    place = state.rank[rank]
    if place[WAITING] == 0:
        place[HEAD] = j
    else:
        state.jobs[place[TAIL], J_LINK] = j
    place[TAIL] = j
    place[WAITING] += 1
    state.inside[rank] += 1
    group = rank // settings.group_size
    if np.isnan(state.clock[group, BEGUN]) and now < state.clock[group, END]:
        state.clock[group, END] = now
        settle(state.leader, state.clock, group)


@part
def _route(world: World, settings: Settings, state: State, i: int) -> int:
    """Rank that request i goes to."""
    inside = state.inside
    ranks = inside.shape[0]
    if settings.router == ROUND_ROBIN or ranks == 1:
        return i % ranks
    if settings.router == TWO_CHOICES:
        a, b = world.choices[i, 0], world.choices[i, 1]
        return np.int64(b if inside[b] < inside[a] else a)
    best = 0
    for rank in range(1, ranks):
        if inside[rank] < inside[best]:
            best = rank
    return best


@part
def arrive(world: World, settings: Settings, state: State) -> None:
    """The next request of an open loop arrives; the measured window opens and closes with arrivals."""
    i = state.counts[INJECTED]
    now = world.arrival[i]
    if i == settings.warmup:
        state.counts[MEASURING] = 1
        state.sums[W_START] = now
    if i == world.arrival.shape[0] - 1:  # what drains after the last arrival is not measured
        state.counts[MEASURING] = 0
        state.sums[W_END] = now
    inject(world, settings, state, i, _route(world, settings, state, i), now)


@inner
def advance(world: World, jobs: Whole, j: int, emitted: int, rows: int) -> None:
    """A job emitted tokens: move so many rows along its traced request, and on into the next at its end."""
    jobs[j, J_EMITTED] += emitted
    jobs[j, J_LEFT] -= emitted
    local = jobs[j, J_LOCAL] + rows
    while local >= world.traced[jobs[j, J_TRACED], LENGTH]:
        local -= world.traced[jobs[j, J_TRACED], LENGTH]
        jobs[j, J_TRACED] = world.traced[jobs[j, J_TRACED], NEXT]
    jobs[j, J_LOCAL] = local


@part
def fill_house(world: World, settings: Settings, state: State) -> None:
    """Closed loop, time 0: every user's first request, part of it already behind it."""
    users = world.offset.shape[0]
    state.counts[INITIAL_LEFT] = users
    for j in range(users):
        inject(world, settings, state, j, j % state.rank.shape[0], 0.0)
        advance(world, state.jobs, j, world.offset[j, 0], world.offset[j, 1])
        state.counts[EMITTED] += world.offset[j, 0]
