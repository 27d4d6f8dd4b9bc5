"""One step of one rank: which jobs take part, what the policy verifies of each, what the step costs."""

from __future__ import annotations

from typing import Any

import numpy as np

from .budget import (
    best_budget,
    early_stop,
    paced_budget,
    priced_drafts,
    scale,
    threshold,
    top_k,
    unconstrained,
    weigh,
)
from .clock import settle
from .habit import expect, fade, remember
from .jit import Floats, Longs, Whole, inner, part
from .order import Work
from .outlook import decide, first_row, latest, note, takes_part
from .state import (
    BATCH_TABLE,
    BEGUN,
    BYPASS,
    CONTEXT,
    DECODING,
    DRAFTED,
    EARLY_STOP,
    END,
    FIXED,
    HINDSIGHT,
    HISTORY,
    J_CHUNK,
    J_EMITTED,
    J_LEFT,
    J_LOCAL,
    J_MISSED,
    J_PLANNED,
    J_PREFILL,
    J_PROMPT,
    J_STEPS,
    J_TRACED,
    LAGGED,
    MISSED,
    OFF,
    PACED,
    PLAN_CALLS,
    PREFILL,
    RANKED,
    READY,
    REFUSED,
    REFUSED_TOKENS,
    RUNNING,
    START,
    STATUS,
    STEPS,
    THRESHOLD,
    TOKENS,
    WANTED,
    Plan,
    Scratch,
    Settings,
    State,
    World,
)


@inner
def context_tokens(settings: Settings, jobs: Whole, j: int) -> int:
    """KV tokens a decoding job reads."""
    if settings.context >= 0:
        return np.int64(settings.context)
    return np.int64(jobs[j, J_PROMPT]) + np.int64(jobs[j, J_EMITTED])


@part
def gather(world: World, settings: Settings, state: State, rank: int, block: int) -> None:
    """Which running jobs decode in this step, and which prefill chunks join it (oldest first)."""
    place, running, jobs = state.rank[rank], state.running, state.jobs
    decoding = 0
    context = np.int64(0)
    for i in range(place[RUNNING]):
        j = running[rank, i]
        if jobs[j, J_PREFILL] == 0 and jobs[j, J_LEFT] > 0:
            state.decoding[rank, decoding] = j
            state.rows[rank, decoding] = world.traced[jobs[j, J_TRACED], START] + jobs[j, J_LOCAL]
            decoding += 1
            context += context_tokens(settings, jobs, j)
    prefill = np.int64(0)
    if decoding < place[RUNNING]:
        budget = settings.batch_tokens - decoding * (1 + block)
        for i in range(place[RUNNING]):
            job = jobs[running[rank, i]]
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


@inner
def _attention_seconds(cost: Any, context: float) -> float:
    """attention(N) of the profile: the last piece that begins at or below N."""
    x = cost.attention_x
    if context <= x[0]:
        return cost.attention_y[0]
    i, after = 0, x.shape[0]
    while after - i > 1:
        middle = (i + after) // 2
        if x[middle] <= context:
            i = middle
        else:
            after = middle
    return cost.attention_y[i] + cost.attention_slope[i] * (context - x[i])


@inner
def base_seconds(cost: Any, plan: Plan, place: Whole, drafted: int) -> float:
    """All of a step's cost but `verify`, `drafted` requests drafted for; additions as StepProfile's."""
    requests = place[DECODING]
    base = cost.bias + _attention_seconds(cost, float(place[CONTEXT]))
    base = base + cost.overhead[requests]
    if drafted > 0:
        base = base + cost.draft[drafted]
        if plan.pays_sync:
            base = base + cost.sync
    if plan.drafts and drafted < requests:
        base = base + cost.idle_draft * (cost.draft[requests] - cost.draft[drafted])
    return base


@part
def _step_seconds(cost: Any, drafts: bool, base: float, tokens: int) -> float:
    seconds = base + cost.verify[tokens]
    if drafts and cost.enabling_fraction > 0.0:
        seconds = seconds / (1.0 - cost.enabling_fraction)
    return seconds


@inner
def price(
    verify: Floats, base: float, left: float, prefill: int, block: int, requests: int, sps: Floats
) -> None:
    """sps[B] of this very step: its requests, KV and prefill tokens are priced in. See `_step_seconds`."""
    for tokens in range(requests, requests * (1 + block) + 1):
        seconds = (base + verify[tokens + prefill]) / left
        # No cost there (above the capture limit, no eager curve): such a pass must never look worth it.
        sps[tokens] = 0.0 if np.isnan(seconds) else 1.0 / seconds


@part
def decision_sps(cost: Any, plan: Plan, place: Whole, block: int, sps: Floats) -> None:
    """sps[B] that a policy weighs at this step: its costs, or the table that the engine decides by."""
    requests = place[DECODING]
    if cost.decides:
        price(
            cost.decision_tokens,
            cost.decision_requests[requests],
            1.0,
            place[PREFILL],
            block,
            requests,
            sps,
        )
    else:
        left = 1.0 - cost.enabling_fraction if cost.enabling_fraction > 0.0 else 1.0
        base = base_seconds(cost, plan, place, requests if plan.drafts else np.int64(0))
        price(cost.verify, base, left, place[PREFILL], block, requests, sps)


@inner
def _take(survival: Floats, rows: Longs, out: Floats) -> None:
    """out[i] = survival[rows[i]], or ones where the row is -1."""
    for i in range(out.shape[0]):
        for k in range(out.shape[1]):
            out[i, k] = survival[rows[i], k] if rows[i] >= 0 else 1.0


@inner
def _recall(
    jobs: Whole, history: Whole, decoding: Whole, rows: Longs, lag: int, call: int, past: Longs
) -> None:
    """past[i]: where the i-th decoding request stood `lag` plans ago, -1: nowhere; the present is noted."""
    slot = call % lag
    for i in range(rows.size):
        j = decoding[i]
        # Plans it was no part of, not yet here or preempted, leave nothing to bring.
        for missed in range(max(jobs[j, J_PLANNED] + 1, call - lag), call):
            history[j, missed % lag] = -1
        jobs[j, J_PLANNED] = call
        past[i] = history[j, slot] if call >= lag else -1
        history[j, slot] = rows[i]


@inner
def _weigh(
    plan: Plan, first: bool, current: Floats, lagged: Floats, sps: Floats, lengths: Whole, work: Work
) -> None:
    """Plans of the policies that weigh costs. `first`: none of `lag` plans ago exists yet (section 5.2)."""
    requests, size = current.shape[0], current.size
    if plan.code == EARLY_STOP:
        early_stop(current, sps, lengths, work)
    elif plan.code != LAGGED and plan.code != BYPASS:
        unconstrained(current, sps, plan.minimum_gain, lengths, work)
    else:
        if first:
            budget = priced_drafts(sps, requests, size)
        else:
            budget = best_budget(lagged, sps, plan.minimum_gain, work)
        if first and budget == size:
            lengths[:requests] = current.shape[1]
        else:
            top_k(current, budget, lengths, work)


@inner
def speeds(jobs: Whole, job_times: Floats, decoding: Whole, now: float, speed: Floats) -> None:
    """speed[i]: tokens/s of the i-th decoding request so far; 0 at its very start."""
    for i in range(speed.size):
        elapsed = now - job_times[decoding[i], READY]
        speed[i] = jobs[decoding[i], J_EMITTED] / elapsed if elapsed > 0.0 else 0.0


@inner
def _paced(
    plan: Plan,
    first: bool,
    current: Floats,
    lagged: Floats,
    weight: Floats,
    sps: Floats,
    lengths: Whole,
    work: Work,
) -> None:
    """`lagged` of survivals that count by `weight`, which holds the speeds when this begins."""
    requests, size = current.shape[0], current.size
    weigh(weight, plan.pace[0], plan.pace[1], plan.pace[2], weight)
    scale(lagged, weight)
    scale(current, weight)
    budget = priced_drafts(sps, requests, size) if first else paced_budget(lagged, weight, sps, work)
    if first and budget == size:
        lengths[:requests] = current.shape[1]
    else:
        top_k(current, budget, lengths, work)


@inner
def _know(code: int, accepted: Whole, rows: Longs, current: Floats) -> None:
    """What will be accepted in place of survivals; rejected drafts last (RANKED) or left out (WANTED)."""
    for i in range(current.shape[0]):
        for k in range(current.shape[1]):
            rejected = 0.5 if code == RANKED and current[i, k] > 0.0 else 0.0
            current[i, k] = 1.0 if k < accepted[rows[i]] else rejected


@inner
def _expect(jobs: Whole, habits: Floats, common: Floats, decoding: Whole, current: Floats) -> None:
    """Survivals by each request's own past; that of a job's former request is gone."""
    for i in range(current.shape[0]):
        j = decoding[i]
        if jobs[j, J_STEPS] == 0:
            habits[j, :] = 0.0
        expect(habits[j], common, current[i])


@inner
def _remember(
    habits: Floats, common: Floats, decoding: Whole, lengths: Whole, accepted: Whole, rows: Longs, kept: float
) -> None:
    """The step's outcome joins the habits; plans of later steps alone see it."""
    fade(common, 1.0 - (1.0 - kept) / 8.0)
    for i in range(rows.size):
        n = min(np.int64(lengths[i]), np.int64(accepted[rows[i]]))
        fade(habits[decoding[i]], kept)
        remember(habits[decoding[i]], np.int64(lengths[i]), n)
        remember(common, np.int64(lengths[i]), n)


@inner
def _count_missed(jobs: Whole, decoding: Whole, place: Whole, first: int, drafted: int) -> None:
    """Tokens that the drafter of those drafted for has to read first; the others' misses one more."""
    for i in range(place[DECODING]):
        j = decoding[i]
        if takes_part(i, first, drafted, place[DECODING]):
            place[MISSED] += jobs[j, J_MISSED]
            jobs[j, J_MISSED] = 0
        else:
            jobs[j, J_MISSED] += 1  # not drafted for, it emits one token


@part
def plan_step(
    world: World, plan: Plan, cost: Any, state: State, rank: int, scratch: Scratch, now: float
) -> None:
    """Verification lengths of the decoding requests: what `schedule` would plan, to the last bit."""
    place, lengths, block = state.rank[rank], state.lengths[rank], world.survival.shape[1]
    requests, call = place[DECODING], place[PLAN_CALLS]
    drafted = requests if plan.drafts else np.int64(0)
    place[MISSED] = 0
    if plan.code == OFF or plan.code == FIXED or plan.code == BATCH_TABLE:
        lengths[:requests] = plan.fixed[requests]
        if plan.code == BATCH_TABLE:
            drafted = np.int64(0) if plan.fixed[requests] == 0 else requests  # known beforehand
            _count_missed(state.jobs, state.decoding[rank], place, 0, drafted)
    elif requests > 0:
        current, lagged, sps = scratch.current[:requests], scratch.lagged[:requests], scratch.sps
        rows, past = state.rows[rank, :requests], scratch.past[:requests]
        if plan.code == HINDSIGHT:
            for i in range(requests):
                for k in range(block):
                    current[i, k] = 1.0 if k < world.accepted[rows[i]] else 0.0
        else:
            _take(world.survival, rows, current)
        if plan.code == THRESHOLD:
            threshold(current, plan.theta, lengths)
        else:
            decision_sps(cost, plan, place, block, sps)
            first = np.int64(0)
            if plan.code == BYPASS:
                idle = base_seconds(cost, plan, place, 0) + cost.verify[requests + place[PREFILL]]
                idle_sps = 0.0 if np.isnan(idle) else 1.0 / idle
                memory, counters = state.memory[rank], state.counters[rank]
                drafted = decide(memory, counters, requests, block, sps, idle_sps, plan.bypass)
                first = first_row(counters, drafted, requests)
                for i in range(requests):
                    scratch.accepted[i] = world.accepted[rows[i]]
                    if not takes_part(i, first, drafted, requests):
                        current[i] = 0.0
                _count_missed(state.jobs, state.decoding[rank], place, first, drafted)
            if drafted < requests:  # a probe verifies whole blocks; of nothing, nothing
                top_k(current, priced_drafts(sps, requests, drafted * block), lengths, scratch.work)
            else:
                if plan.code == LAGGED or plan.code == BYPASS or plan.code == PACED:
                    _recall(state.jobs, state.history, state.decoding[rank], rows, plan.lag, call, past)
                    _take(world.survival, past, lagged)
                if plan.code == PACED:
                    weight = scratch.weight[:requests]
                    speeds(state.jobs, state.job_times, state.decoding[rank], now, weight)
                    _paced(plan, call < plan.lag, current, lagged, weight, sps, lengths, scratch.work)
                elif plan.code == RANKED or plan.code == WANTED:
                    budget = best_budget(current, sps, plan.minimum_gain, scratch.work)
                    _know(plan.code, world.accepted, rows, current)
                    top_k(current, budget, lengths, scratch.work)
                else:
                    if plan.code == HISTORY:
                        common = state.common[rank]
                        _expect(state.jobs, state.habits, common, state.decoding[rank], current)
                    _weigh(plan, call < plan.lag, current, lagged, sps, lengths, scratch.work)
            if plan.code == HISTORY:
                decoding, common = state.decoding[rank], state.common[rank]
                _remember(state.habits, common, decoding, lengths, world.accepted, rows, plan.theta)
            if plan.code == BYPASS:
                entry = state.memory[rank, latest(state.memory[rank], state.counters[rank])]
                note(current, first, drafted, lengths, scratch.accepted, entry)
    place[DRAFTED] = drafted
    state.base[rank] = base_seconds(cost, plan, place, drafted)
    if place[MISSED] > 0 and drafted > 0:  # the drafter reads what it missed while it did not draft
        state.base[rank] += cost.catch_up * place[MISSED] * (cost.draft[drafted] / drafted)
    # Steps of `bypass` that do not draft for all are no part of its history.
    place[PLAN_CALLS] += 1 if requests > 0 and (drafted == requests or plan.code != BYPASS) else 0
    tokens = requests
    for i in range(requests):
        tokens += lengths[i]
    place[TOKENS] = tokens


@part
def execute(settings: Settings, plan: Plan, cost: Any, state: State, group: int, now: float) -> None:
    """The group's clock: its slowest rank's work, at the group's largest pass."""
    clock = state.clock
    largest = np.int64(0)
    for rank in range(group * settings.group_size, (group + 1) * settings.group_size):
        largest = max(largest, state.rank[rank, TOKENS] + state.rank[rank, PREFILL])
    if largest == 0:
        clock[group, BEGUN] = np.nan
        clock[group, END] = np.inf
        settle(state.leader, state.clock, group)
        return
    seconds = 0.0
    for rank in range(group * settings.group_size, (group + 1) * settings.group_size):
        # A step that only prefills neither drafts nor waits, but its engine is set up to.
        drafts = state.rank[rank, DRAFTED] > 0 or (plan.drafts and state.rank[rank, DECODING] == 0)
        seconds = max(seconds, _step_seconds(cost, drafts, state.base[rank], largest))
    if np.isnan(cost.verify[largest]):
        state.counts[STATUS] = REFUSED
        state.counts[REFUSED_TOKENS] = largest
    clock[group, BEGUN] = now
    clock[group, END] = now + seconds
    settle(state.leader, state.clock, group)
    state.counts[STEPS] += 1
