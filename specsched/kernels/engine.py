"""The engine loop: a discrete-event replay of serving engines.

`run_engine` reads as four sentences: arrivals and finished steps move the clock, a step that ends is
committed, waiting requests are admitted, the next step is planned and executed. Nothing here allocates.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .jit import Whole, jit
from .state import (
    ADMITTED,
    ARRIVAL,
    BEGUN,
    CONTEXT,
    DECODE_TOKENS,
    DECODING,
    DONE,
    EMITTED,
    END,
    F_ACCEPTED,
    F_PREEMPTED,
    F_STEPS,
    F_TOKENS,
    F_TRACED,
    F_VERIFIED,
    FINISH,
    FINISHED,
    FIRST,
    HEAD,
    IN_SYSTEM_AREA,
    INITIAL_LEFT,
    INJECTED,
    J_ACCEPTED,
    J_CHUNK,
    J_EMITTED,
    J_ENTERED,
    J_INDEX,
    J_LEFT,
    J_LINK,
    J_LOCAL,
    J_PLANNED,
    J_PREEMPTED,
    J_PREFILL,
    J_PROMPT,
    J_STEPS,
    J_TRACED,
    J_VERIFIED,
    KV_PEAK,
    KV_USED,
    LAST_CHANGE,
    LENGTH,
    MEASURE_FROM,
    MEASURED_LEFT,
    MEASURING,
    NEXT,
    PREEMPTED,
    PREFILL,
    PROMPT_TOKENS,
    READY,
    RECORDED,
    ROUND_ROBIN,
    RUNNING,
    SEEN_STEPS,
    START,
    STATUS,
    STRIDE,
    TAIL,
    TOKENS,
    TWO_CHOICES,
    W_ACCEPTED,
    W_BLOCKED,
    W_DECODE_STEPS,
    W_EMITTED,
    W_END,
    W_EXTRAPOLATED,
    W_FULL,
    W_OFF_GRAPH,
    W_PREEMPTED,
    W_PREFILL,
    W_REQUEST_SECONDS,
    W_REQUESTS,
    W_SECONDS,
    W_START,
    W_STEPS,
    W_TOKENS,
    W_VERIFIED,
    WAITING,
    Plan,
    Scratch,
    Settings,
    State,
    World,
)
from .step import context_tokens, execute, gather, plan_step


@jit
def _count_change(state: State, now: float) -> None:
    """The number of requests in the system is about to change: add up its time integral (Little's law)."""
    inside = state.counts[INJECTED] - state.counts[FINISHED]
    state.sums[IN_SYSTEM_AREA] += (now - state.sums[LAST_CHANGE]) * inside
    state.sums[LAST_CHANGE] = now


@jit
def _inject(world: World, settings: Settings, state: State, j: int, rank: int, now: float) -> None:
    """The next request arrives at `rank` as job j, at the queue's tail; an idle group wakes up."""
    i = state.counts[INJECTED]
    _count_change(state, now)
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
    state.job_times[j, READY] = now
    if settings.chunked and request[PROMPT_TOKENS] > 0:
        job[J_PREFILL] = request[PROMPT_TOKENS]
        state.job_times[j, READY] = np.nan
    place = state.rank[rank]
    if place[WAITING] == 0:
        place[HEAD] = j
    else:
        state.jobs[place[TAIL], J_LINK] = j
    place[TAIL] = j
    place[WAITING] += 1
    clock = state.clock[rank // settings.group_size]
    clock[END] = min(clock[END], now) if np.isnan(clock[BEGUN]) else clock[END]


@jit
def _finish(world: World, settings: Settings, state: State, j: int, rank: int, now: float) -> None:
    """Job j has emitted its last token: record it if it is measured, refill its place in a closed loop."""
    _count_change(state, now)
    job, count = state.jobs[j], state.counts
    count[FINISHED] += 1
    # Measured in a closed loop: the first so many admitted after warm-up (ranks admit out of turn).
    i = np.int64(job[J_ENTERED]) - count[MEASURE_FROM] if settings.closed else np.int64(job[J_INDEX])
    if 0 <= i < state.times.shape[0] and (not settings.closed or count[MEASURING] == 1):
        state.times[i, ARRIVAL] = state.job_times[j, ARRIVAL]
        state.times[i, READY] = state.job_times[j, READY]
        state.times[i, FINISH] = now
        facts = state.facts[i]
        facts[F_TRACED] = world.requests[job[J_INDEX] % world.requests.shape[0], FIRST]
        facts[F_TOKENS] = job[J_EMITTED]
        facts[F_STEPS] = job[J_STEPS]
        facts[F_VERIFIED] = job[J_VERIFIED]
        facts[F_ACCEPTED] = job[J_ACCEPTED]
        facts[F_PREEMPTED] = job[J_PREEMPTED]
        count[MEASURED_LEFT] -= 1
    if settings.closed:
        if job[J_INDEX] < world.offset.shape[0]:
            count[INITIAL_LEFT] -= 1
        _inject(world, settings, state, j, rank, now)


@jit
def _preempt_newest(settings: Settings, state: State, rank: int, block: int) -> None:
    """The newest running job gives its KV back and waits at the queue's head; its text stays."""
    place = state.rank[rank]
    place[RUNNING] -= 1
    j = state.running[rank, place[RUNNING]]
    job = state.jobs[j]
    place[KV_USED] -= context_tokens(settings, job) + 1 + block
    job[J_PREFILL] = job[J_PROMPT] + job[J_EMITTED]
    job[J_PREEMPTED] += 1
    job[J_LINK] = place[HEAD] if place[WAITING] > 0 else -1
    if place[WAITING] == 0:
        place[TAIL] = j
    place[HEAD] = j
    place[WAITING] += 1
    state.counts[PREEMPTED] += 1
    state.counts[W_PREEMPTED] += state.counts[MEASURING]


@jit
def _admit_waiting(world: World, settings: Settings, state: State, rank: int, block: int, now: float) -> None:
    """First come first served, while places and KV allow. A job holds its context and room for a block."""
    place, count = state.rank[rank], state.counts
    while place[KV_USED] > settings.kv_capacity:
        _preempt_newest(settings, state, rank, block)
    while place[WAITING] > 0 and place[RUNNING] < settings.max_running:
        j = place[HEAD]
        job = state.jobs[j]
        if job[J_LEFT] == 0 and job[J_PREFILL] == 0:  # its only token came with its prefill, elsewhere
            place[HEAD] = job[J_LINK]
            place[WAITING] -= 1
            count[ADMITTED] += 1
            _finish(world, settings, state, j, rank, now)
            continue
        need = context_tokens(settings, job) + 1 + block
        if place[KV_USED] + need > settings.kv_capacity:
            count[W_BLOCKED] += count[MEASURING]
            break
        place[KV_USED] += need
        state.running[rank, place[RUNNING]] = j
        place[RUNNING] += 1
        place[HEAD] = job[J_LINK]
        place[WAITING] -= 1
        if job[J_PREEMPTED] == 0:
            job[J_ENTERED] = count[ADMITTED]
            count[ADMITTED] += 1
    if place[WAITING] > 0 and place[RUNNING] == settings.max_running:
        count[W_FULL] += count[MEASURING]
    count[KV_PEAK] = max(count[KV_PEAK], place[KV_USED])


@jit
def advance(world: World, job: Whole, emitted: int, rows: int) -> None:
    """A job emitted tokens: move so many rows along its traced request, and on into the next at its end."""
    job[J_EMITTED] += emitted
    job[J_LEFT] -= emitted
    local = job[J_LOCAL] + rows
    while local >= world.traced[job[J_TRACED], LENGTH]:
        local -= world.traced[job[J_TRACED], LENGTH]
        job[J_TRACED] = world.traced[job[J_TRACED], NEXT]
    job[J_LOCAL] = local


@jit
def _commit_decode(world: World, settings: Settings, state: State, rank: int) -> int:
    """[emitted | rejected | drafted, not verified]: each decoding job keeps min(l, accepted) + 1."""
    place, count = state.rank[rank], state.counts
    emitted_all = np.int64(0)
    accepted_all = np.int64(0)
    for i in range(place[DECODING]):
        job = state.jobs[state.decoding[rank, i]]
        length = state.lengths[rank, i]
        row = world.traced[job[J_TRACED], START] + job[J_LOCAL]
        kept = min(length, np.int64(world.accepted[row]))
        emitted = min(kept + 1, np.int64(job[J_LEFT]))
        job[J_STEPS] += 1
        job[J_VERIFIED] += length
        job[J_ACCEPTED] += kept
        before = context_tokens(settings, job)
        advance(world, job, emitted, 1 if settings.row_a_step else emitted)
        place[KV_USED] += context_tokens(settings, job) - before
        emitted_all += emitted
        accepted_all += kept
    count[EMITTED] += emitted_all
    if count[MEASURING] == 1:
        count[W_EMITTED] += emitted_all
        count[W_ACCEPTED] += accepted_all
        count[W_VERIFIED] += place[TOKENS] - place[DECODING]
        count[W_REQUESTS] += place[DECODING]
        count[W_TOKENS] += place[TOKENS]
        count[W_PREFILL] += place[PREFILL]
        count[W_DECODE_STEPS] += 1 if place[DECODING] > 0 else 0
    return emitted_all


@jit
def _leave(world: World, settings: Settings, state: State, rank: int, block: int, now: float) -> None:
    """Prefilled prompts become ready; finished jobs leave and give their KV back."""
    place = state.rank[rank]
    kept = 0
    running = place[RUNNING]
    for i in range(running):
        j = state.running[rank, i]
        job = state.jobs[j]
        if job[J_CHUNK] > 0:
            job[J_PREFILL] -= job[J_CHUNK]
            job[J_CHUNK] = 0
            if job[J_PREFILL] == 0 and np.isnan(state.job_times[j, READY]):
                state.job_times[j, READY] = now
        if job[J_LEFT] == 0 and job[J_PREFILL] == 0:
            place[KV_USED] -= context_tokens(settings, job) + 1 + block
            _finish(world, settings, state, j, rank, now)
        else:
            state.running[rank, kept] = j
            kept += 1
    place[RUNNING] = kept


@jit
def _log_step(state: State, group: int, rank: int, emitted: int) -> None:
    """Keep every stride-th step; when the log is full keep every second entry and double the stride."""
    log, count, place = state.log, state.counts, state.rank[rank]
    if log.shape[0] < 2:
        return
    if count[RECORDED] == log.shape[0]:
        kept = (log.shape[0] + 1) // 2
        for i in range(kept):
            log[i] = log[2 * i]
        count[RECORDED] = kept
        count[STRIDE] *= 2
    if count[SEEN_STEPS] % count[STRIDE] == 0:
        row = log[count[RECORDED]]
        row[0] = state.clock[group, BEGUN]
        row[1] = state.clock[group, END] - state.clock[group, BEGUN]
        row[2] = rank
        row[3] = place[DECODING]
        row[4] = place[TOKENS]
        row[5] = place[PREFILL]
        row[6] = place[CONTEXT]
        row[7] = emitted
        row[8] = place[TOKENS] - place[DECODING]
        count[RECORDED] += 1
    count[SEEN_STEPS] += 1


@jit
def _commit(
    world: World, settings: Settings, cost: Any, state: State, group: int, block: int, now: float
) -> None:
    """The group's step ends: every rank commits; then the measured window may open."""
    low, high = group * settings.group_size, (group + 1) * settings.group_size
    count, real = state.counts, state.sums
    seconds = now - state.clock[group, BEGUN]  # nan: an idle group was woken up, no step ends
    if seconds >= 0.0 and count[MEASURING] == 1:
        count[W_STEPS] += 1
        real[W_SECONDS] += seconds
        real[W_END] = now
        largest = np.int64(0)
        for rank in range(low, high):
            real[W_REQUEST_SECONDS] += seconds * state.rank[rank, DECODING]
            largest = max(largest, state.rank[rank, TOKENS] + state.rank[rank, PREFILL])
        count[W_EXTRAPOLATED] += cost.extrapolated[largest]
        count[W_OFF_GRAPH] += 1 if largest > settings.capture_limit else 0
    for rank in range(low, high):
        if seconds >= 0.0:
            emitted = _commit_decode(world, settings, state, rank)
            _log_step(state, group, rank, emitted)
            _leave(world, settings, state, rank, block, now)
    state.clock[group, BEGUN] = np.nan
    if settings.closed and count[MEASURING] == 0 and count[INITIAL_LEFT] == 0:
        count[MEASURING] = 1
        count[MEASURE_FROM] = count[ADMITTED]
        real[W_START] = now


@jit
def _route(world: World, settings: Settings, state: State, i: int) -> int:
    """Rank that request i goes to."""
    ranks = state.rank.shape[0]
    if settings.router == ROUND_ROBIN or ranks == 1:
        return i % ranks
    if settings.router == TWO_CHOICES:
        a, b = world.choices[i, 0], world.choices[i, 1]
        fewer = (
            state.rank[b, WAITING] + state.rank[b, RUNNING] < state.rank[a, WAITING] + state.rank[a, RUNNING]
        )
        return np.int64(b if fewer else a)
    best = 0
    for rank in range(1, ranks):
        place, least = state.rank[rank], state.rank[best]
        if place[WAITING] + place[RUNNING] < least[WAITING] + least[RUNNING]:
            best = rank
    return best


@jit
def _arrive(world: World, settings: Settings, state: State) -> None:
    """The next request of an open loop arrives; the measured window opens and closes with arrivals."""
    i = state.counts[INJECTED]
    now = world.arrival[i]
    if i == settings.warmup:
        state.counts[MEASURING] = 1
        state.sums[W_START] = now
    if i == world.arrival.shape[0] - 1:  # what drains after the last arrival is not measured
        state.counts[MEASURING] = 0
        state.sums[W_END] = now
    _inject(world, settings, state, i, _route(world, settings, state, i), now)


@jit
def _fill_house(world: World, settings: Settings, state: State) -> None:
    """Closed loop, time 0: every user's first request, part of it already behind it."""
    users = world.offset.shape[0]
    state.counts[INITIAL_LEFT] = users
    for j in range(users):
        _inject(world, settings, state, j, j % state.rank.shape[0], 0.0)
        advance(world, state.jobs[j], world.offset[j, 0], world.offset[j, 1])
        state.counts[EMITTED] += world.offset[j, 0]


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
        _fill_house(world, settings, state)
    while count[MEASURED_LEFT] > 0 and count[STATUS] == DONE:
        group = 0
        for g in range(1, clock.shape[0]):
            if clock[g, END] < clock[group, END]:
                group = g
        now = clock[group, END]
        if count[INJECTED] < world.arrival.shape[0] and world.arrival[count[INJECTED]] <= now:
            _arrive(world, settings, state)
            continue
        _commit(world, settings, cost, state, group, block, now)
        for rank in range(group * settings.group_size, (group + 1) * settings.group_size):
            _admit_waiting(world, settings, state, rank, block, now)
            gather(settings, state, rank, block)
            plan_step(world, plan, cost, state, rank, scratch)
        execute(settings, plan, cost, state, group, now)
    return count[STATUS]
