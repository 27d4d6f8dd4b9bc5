"""What a step that ends leaves behind: tokens, finished requests, totals, a row of the log."""

from __future__ import annotations

from typing import Any

import numpy as np

from .jit import part
from .places import finish
from .queue import advance
from .state import (
    ADMITTED,
    BEGUN,
    CONTEXT,
    DECODING,
    EMITTED,
    END,
    FINISH,
    INITIAL_LEFT,
    J_ACCEPTED,
    J_CHUNK,
    J_LEFT,
    J_PREFILL,
    J_STEPS,
    J_VERIFIED,
    KV_USED,
    LONGEST,
    MEASURE_FROM,
    MEASURING,
    PREFILL,
    READY,
    RECORDED,
    RUNNING,
    SEEN_STEPS,
    STRIDE,
    TOKENS,
    W_ACCEPTED,
    W_DECODE_STEPS,
    W_EMITTED,
    W_END,
    W_EXTRAPOLATED,
    W_OFF_GRAPH,
    W_PREFILL,
    W_REQUEST_SECONDS,
    W_REQUESTS,
    W_SECONDS,
    W_START,
    W_STEPS,
    W_TOKENS,
    W_VERIFIED,
    Settings,
    State,
    World,
)
from .step import context_tokens


@part
def _commit_rank(world: World, settings: Settings, state: State, rank: int, block: int, now: float) -> None:
    """[emitted | rejected | drafted, not verified]: each decoding job keeps min(l, accepted) + 1.

    Prefilled prompts become ready; finished jobs leave and give their KV back.
    """
    place, jobs, running = state.rank[rank], state.jobs, state.running
    kept = decoded = 0
    emitted_all = accepted_all = np.int64(0)
    for i in range(place[RUNNING]):
        j = np.int64(running[rank, i])
        if decoded < place[DECODING] and state.decoding[rank, decoded] == j:
            length = np.int64(state.lengths[rank, decoded])
            accepted = min(length, np.int64(world.accepted[state.rows[rank, decoded]]))
            emitted = min(accepted + 1, np.int64(jobs[j, J_LEFT]))
            jobs[j, J_STEPS] += 1
            jobs[j, J_VERIFIED] += length
            jobs[j, J_ACCEPTED] += accepted
            gap = now - state.job_times[j, FINISH]
            state.job_times[j, LONGEST] = max(state.job_times[j, LONGEST], gap)
            state.job_times[j, FINISH] = now
            before = context_tokens(settings, jobs, j)
            advance(world, jobs, j, emitted, 1 if settings.row_a_step else emitted)
            place[KV_USED] += context_tokens(settings, jobs, j) - before
            emitted_all += emitted
            accepted_all += accepted
            decoded += 1
        if jobs[j, J_CHUNK] > 0:
            jobs[j, J_PREFILL] -= jobs[j, J_CHUNK]
            jobs[j, J_CHUNK] = 0
            if jobs[j, J_PREFILL] == 0 and np.isnan(state.job_times[j, READY]):
                state.job_times[j, READY] = state.job_times[j, FINISH] = now
        if jobs[j, J_LEFT] == 0 and jobs[j, J_PREFILL] == 0:
            place[KV_USED] -= context_tokens(settings, jobs, j) + 1 + block
            finish(world, settings, state, j, rank, now)
        else:
            running[rank, kept] = j
            kept += 1
    place[RUNNING] = kept
    _count_step(state, rank, emitted_all, accepted_all)
    _log_step(state, rank // settings.group_size, rank, emitted_all)


@part
def _count_step(state: State, rank: int, emitted: int, accepted: int) -> None:
    """Totals of the run and, while it is open, of the measured window."""
    place, count = state.rank[rank], state.counts
    count[EMITTED] += emitted
    if count[MEASURING] == 1:
        count[W_EMITTED] += emitted
        count[W_ACCEPTED] += accepted
        count[W_VERIFIED] += place[TOKENS] - place[DECODING]
        count[W_REQUESTS] += place[DECODING]
        count[W_TOKENS] += place[TOKENS]
        count[W_PREFILL] += place[PREFILL]
        count[W_DECODE_STEPS] += 1 if place[DECODING] > 0 else 0


@part
def _log_step(state: State, group: int, rank: int, emitted: int) -> None:
    """Keep every stride-th step; when the log is full keep every second entry and double the stride."""
    log, count, place = state.log, state.counts, state.rank[rank]
    if log.shape[0] < 2:
        return
    if count[RECORDED] == log.shape[0]:
        kept = (log.shape[0] + 1) // 2
        for i in range(kept):
            for column in range(log.shape[1]):
                log[i, column] = log[2 * i, column]
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


@part
def commit(
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
            _commit_rank(world, settings, state, rank, block, now)
    state.clock[group, BEGUN] = np.nan
    if settings.closed and count[MEASURING] == 0 and count[INITIAL_LEFT] == 0:
        count[MEASURING] = 1
        count[MEASURE_FROM] = count[ADMITTED]
        real[W_START] = now
