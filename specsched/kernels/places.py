"""Who runs: requests are admitted to places and KV memory, give them back, or finish."""

from __future__ import annotations

import numpy as np

from .jit import inner, part
from .queue import count_change, inject
from .state import (
    ADMITTED,
    ARRIVAL,
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
    INITIAL_LEFT,
    J_ACCEPTED,
    J_EMITTED,
    J_ENTERED,
    J_INDEX,
    J_LEFT,
    J_LINK,
    J_PREEMPTED,
    J_PREFILL,
    J_PROMPT,
    J_STEPS,
    J_VERIFIED,
    KV_USED,
    LONGEST,
    MEASURE_FROM,
    MEASURED_LEFT,
    MEASURING,
    PREEMPTED,
    READY,
    RUNNING,
    STARTED,
    TAIL,
    W_BLOCKED,
    W_FULL,
    W_PREEMPTED,
    WAITING,
    Settings,
    State,
    World,
)
from .step import context_tokens


@inner
def finish(world: World, settings: Settings, state: State, j: int, rank: int, now: float) -> None:
    """Job j has emitted its last token: record it if it is measured, refill its place in a closed loop."""
    count_change(state.counts, state.sums, now)
    job, count = state.jobs[j], state.counts
    count[FINISHED] += 1
    state.inside[rank] -= 1
    # Measured in a closed loop: the first so many admitted after warm-up (ranks admit out of turn).
    i = np.int64(job[J_ENTERED]) - count[MEASURE_FROM] if settings.closed else np.int64(job[J_INDEX])
    if 0 <= i < state.times.shape[0] and (not settings.closed or count[MEASURING] == 1):
        state.times[i, ARRIVAL] = state.job_times[j, ARRIVAL]
        state.times[i, READY] = state.job_times[j, READY]
        state.times[i, FINISH] = now
        state.times[i, STARTED] = state.job_times[j, STARTED]
        state.times[i, LONGEST] = state.job_times[j, LONGEST]
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
        inject(world, settings, state, j, rank, now)


@part
def _preempt_newest(settings: Settings, state: State, rank: int, block: int) -> None:
    """The newest running job gives its KV back and waits at the queue's head; its text stays."""
    place = state.rank[rank]
    place[RUNNING] -= 1
    j = state.running[rank, place[RUNNING]]
    job = state.jobs[j]
    place[KV_USED] -= context_tokens(settings, state.jobs, j) + 1 + block
    job[J_PREFILL] = job[J_PROMPT] + job[J_EMITTED]
    job[J_PREEMPTED] += 1
    job[J_LINK] = place[HEAD] if place[WAITING] > 0 else -1
    if place[WAITING] == 0:
        place[TAIL] = j
    place[HEAD] = j
    place[WAITING] += 1
    state.counts[PREEMPTED] += 1
    state.counts[W_PREEMPTED] += state.counts[MEASURING]


@inner
def admit_waiting(world: World, settings: Settings, state: State, rank: int, block: int, now: float) -> None:
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
            state.job_times[j, STARTED] = now
            finish(world, settings, state, j, rank, now)
            continue
        need = context_tokens(settings, state.jobs, j) + 1 + block
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
            state.job_times[j, STARTED] = now
    if place[WAITING] > 0 and place[RUNNING] == settings.max_running:
        count[W_FULL] += count[MEASURING]
