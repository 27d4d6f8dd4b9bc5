"""One step of one rank: which jobs take part, what the policy verifies of each, what the step costs."""

from __future__ import annotations

from typing import Any

import numpy as np

from .budget import best_budget, early_stop, priced_drafts, threshold, top_k
from .jit import Floats, Whole, jit
from .state import (
    BATCH_TABLE,
    BEGUN,
    CONTEXT,
    DECODING,
    EARLY_STOP,
    END,
    FIXED,
    HINDSIGHT,
    J_CHUNK,
    J_EMITTED,
    J_LEFT,
    J_LOCAL,
    J_PLANNED,
    J_PREFILL,
    J_PROMPT,
    J_TRACED,
    LAGGED,
    OFF,
    PLAN_CALLS,
    PREFILL,
    REFUSED,
    REFUSED_TOKENS,
    RUNNING,
    START,
    STATUS,
    STEPS,
    THRESHOLD,
    TOKENS,
    Plan,
    Scratch,
    Settings,
    State,
    World,
)


@jit
def context_tokens(settings: Settings, job: Whole) -> int:
    """KV tokens a decoding job reads."""
    if settings.context >= 0:
        return np.int64(settings.context)
    return np.int64(job[J_PROMPT]) + np.int64(job[J_EMITTED])


@jit
def gather(settings: Settings, state: State, rank: int, block: int) -> None:
    """Which running jobs decode in this step, and which prefill chunks join it (oldest first)."""
    place = state.rank[rank]
    decoding = 0
    context = np.int64(0)
    for i in range(place[RUNNING]):
        job = state.jobs[state.running[rank, i]]
        if job[J_PREFILL] == 0 and job[J_LEFT] > 0:
            state.decoding[rank, decoding] = state.running[rank, i]
            decoding += 1
            context += context_tokens(settings, job)
    prefill = np.int64(0)
    if decoding < place[RUNNING]:
        budget = settings.batch_tokens - decoding * (1 + block)
        for i in range(place[RUNNING]):
            job = state.jobs[state.running[rank, i]]
            if job[J_PREFILL] > 0 and budget > 0:
                chunk = min(budget, np.int64(job[J_PREFILL]))
                job[J_CHUNK] = chunk
                # A chunk attends to what of its request is in the cache already.
                context += job[J_PROMPT] + job[J_EMITTED] - job[J_PREFILL]
                budget -= chunk
                prefill += chunk
    place[DECODING] = decoding
    place[PREFILL] = prefill
    place[CONTEXT] = context


@jit
def _attention_seconds(cost: Any, context: float) -> float:
    """attention(N) of the profile: the last piece that begins at or below N."""
    x = cost.attention_x
    if context <= x[0]:
        return cost.attention_y[0]
    i = 0
    while i + 1 < x.shape[0] and x[i + 1] <= context:
        i += 1
    return cost.attention_y[i] + cost.attention_slope[i] * (context - x[i])


@jit
def _drafts(plan: Plan, requests: int) -> bool:
    """Whether a step of R requests drafts: a table's k = 0 is known beforehand, and nothing is drafted."""
    return plan.drafts and not (plan.code == BATCH_TABLE and requests > 0 and plan.fixed[requests] == 0)


@jit
def _base_seconds(cost: Any, plan: Plan, place: Whole) -> float:
    """All of a step's cost but `verify`; the order of additions is that of StepProfile."""
    requests = place[DECODING]
    base = cost.bias + _attention_seconds(cost, float(place[CONTEXT]))
    base = base + cost.overhead[requests]
    if requests > 0 and _drafts(plan, requests):
        base = base + cost.draft[requests]
        if plan.pays_sync:
            base = base + cost.sync
    return base


@jit
def _step_seconds(cost: Any, drafts: bool, base: float, tokens: int) -> float:
    seconds = base + cost.verify[tokens]
    if drafts and cost.enabling_fraction > 0.0:
        seconds = seconds / (1.0 - cost.enabling_fraction)
    return seconds


@jit
def _price(cost: Any, plan: Plan, place: Whole, block: int, sps: Floats) -> None:
    """sps[B] of this very step: its requests, KV and prefill tokens are priced in."""
    base = _base_seconds(cost, plan, place)
    requests, prefill = place[DECODING], place[PREFILL]
    # `_step_seconds` written out: handing it the tuples costs twenty times the arithmetic.
    verify, left = cost.verify, 1.0
    if plan.drafts and cost.enabling_fraction > 0.0:
        left = 1.0 - cost.enabling_fraction
    for tokens in range(requests, requests * (1 + block) + 1):
        seconds = (base + verify[tokens + prefill]) / left
        # No cost there (above the capture limit, no eager curve): such a pass must never look worth it.
        sps[tokens] = 0.0 if np.isnan(seconds) else 1.0 / seconds


@jit
def _lagged_budget(world: World, plan: Plan, state: State, rank: int, scratch: Scratch) -> int:
    """K from the survivals of `lag` plans ago, 1 where there are none; -1: no such plan yet (section 5.2)."""
    call, requests = state.rank[rank, PLAN_CALLS], state.rank[rank, DECODING]
    block = world.survival.shape[1]
    lagged = scratch.lagged[:requests]
    for i in range(requests):
        j = state.decoding[rank, i]
        job = state.jobs[j]
        slot = call % plan.lag
        # Plans it was no part of, not yet here or preempted, leave nothing to bring.
        for missed in range(max(job[J_PLANNED] + 1, call - plan.lag), call):
            state.history[j, missed % plan.lag] = -1
        job[J_PLANNED] = call
        if call >= plan.lag and state.history[j, slot] >= 0:
            for k in range(block):
                lagged[i, k] = world.survival[state.history[j, slot], k]
        else:
            lagged[i] = 1.0
        state.history[j, slot] = world.traced[job[J_TRACED], START] + job[J_LOCAL]
    if call < plan.lag:
        return np.int64(-1)
    return best_budget(lagged, scratch.sps, plan.minimum_gain, scratch.work)


@jit
def plan_step(world: World, plan: Plan, cost: Any, state: State, rank: int, scratch: Scratch) -> None:
    """Verification lengths of the decoding requests: what `schedule` would plan, to the last bit."""
    place, lengths, block = state.rank[rank], state.lengths[rank], world.survival.shape[1]
    requests = place[DECODING]
    if plan.code == OFF or plan.code == FIXED or plan.code == BATCH_TABLE:
        lengths[:requests] = plan.fixed[requests]
    elif requests > 0:
        current = scratch.current[:requests]
        for i in range(requests):
            job = state.jobs[state.decoding[rank, i]]
            row = world.traced[job[J_TRACED], START] + job[J_LOCAL]
            for k in range(block):
                if plan.code == HINDSIGHT:
                    current[i, k] = 1.0 if k < world.accepted[row] else 0.0
                else:
                    current[i, k] = world.survival[row, k]
        if plan.code == THRESHOLD:
            threshold(current, plan.theta, lengths)
        else:
            _price(cost, plan, place, block, scratch.sps)
            if plan.code == EARLY_STOP:
                early_stop(current, scratch.sps, lengths, scratch.work)
            else:
                if plan.code == LAGGED:
                    budget = _lagged_budget(world, plan, state, rank, scratch)
                else:
                    budget = best_budget(current, scratch.sps, plan.minimum_gain, scratch.work)
                first = budget < 0
                if first:
                    budget = priced_drafts(scratch.sps, requests, requests * block)
                if first and budget == requests * block:
                    lengths[:requests] = block
                else:
                    top_k(current, budget, lengths, scratch.work)
    place[PLAN_CALLS] += 1 if requests > 0 else 0
    place[TOKENS] = requests
    for i in range(requests):
        place[TOKENS] += lengths[i]


@jit
def execute(settings: Settings, plan: Plan, cost: Any, state: State, group: int, now: float) -> None:
    """The group's clock: its slowest rank's work, at the group's largest pass."""
    largest = np.int64(0)
    for rank in range(group * settings.group_size, (group + 1) * settings.group_size):
        place = state.rank[rank]
        largest = max(largest, place[TOKENS] + place[PREFILL])
    if largest == 0:
        state.clock[group, BEGUN] = np.nan
        state.clock[group, END] = np.inf
        return
    seconds = 0.0
    for rank in range(group * settings.group_size, (group + 1) * settings.group_size):
        place = state.rank[rank]
        base = _base_seconds(cost, plan, place)
        seconds = max(seconds, _step_seconds(cost, _drafts(plan, place[DECODING]), base, largest))
    if np.isnan(cost.verify[largest]):
        state.counts[STATUS] = REFUSED
        state.counts[REFUSED_TOKENS] = largest
    state.clock[group, BEGUN] = now
    state.clock[group, END] = now + seconds
    state.counts[STEPS] += 1
