"""State of the engine loop: what a run is given, what moves in it, and the names of all columns.

Words used in the loop:
  rank    one model replica with its own queue, running set and KV cache
  group   `group_size` ranks that step together (data parallel); its slowest rank sets the step
  job     the place that holds one request's state; open loop: job = request, closed loop: a job a user
A job walks rows `start[traced] + local` of the trace: a row a token, or (an engine's log) a row a step.
Past the last it goes on in the next traced request.
State is struct-of-arrays packed by owner: one row a job, one row a rank. A numba tuple of many small arrays
costs a minute to compile; columns named by the constants below cost none.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .order import Work, make_work
from .outlook import ENTRY

# Policy codes, shared with the engine loop (a jitted function cannot take the policy objects themselves).
OFF, FIXED, THRESHOLD, EARLY_STOP, LAGGED, GLOBAL, HINDSIGHT, BATCH_TABLE, BYPASS, PACED, HISTORY = range(11)
# For the decomposition of `planner.explain` alone: the budget of GLOBAL, spent on drafts that will be
# accepted before others; and the same without the others.
RANKED, WANTED = range(11, 13)

ROUND_ROBIN, LEAST_OUTSTANDING, TWO_CHOICES = range(3)
# How a run ended; REFUSED: a step above the capture limit that has no cost. ASKED: it waits for a plan.
DONE, REFUSED, ASKED = range(3)

# Columns of World.requests int32[n, 3] and World.traced int64[m, 3].
FIRST, DECODE_TOKENS, PROMPT_TOKENS = range(3)
START, LENGTH, NEXT = range(3)
# Columns of State.jobs int32[jobs, 16]: `_inject` fills, `_admit_waiting`, `plan_step` and `_commit_*` move.
(J_INDEX, J_TRACED, J_LOCAL, J_LEFT, J_PROMPT, J_EMITTED, J_PREFILL, J_CHUNK) = range(8)
(J_STEPS, J_VERIFIED, J_ACCEPTED, J_PREEMPTED, J_LINK, J_PLANNED, J_ENTERED, J_MISSED) = range(8, 16)
# Columns of State.job_times float64[jobs, 5] and State.times float64[n, 5], seconds: READY when the first
# anchor is there, FINISH when the last tokens came (of a job: so far), STARTED when it first got a place,
# LONGEST between two deliveries of tokens, the first anchor's among them.
ARRIVAL, READY, FINISH, STARTED, LONGEST = range(5)
# Columns of State.facts int32[n, 6], one row a measured request.
F_TRACED, F_TOKENS, F_STEPS, F_VERIFIED, F_ACCEPTED, F_PREEMPTED = range(6)
# Columns of State.rank int64[ranks, 12]; the last seven describe the step in flight: DRAFTED requests are
# drafted for, whose drafter has MISSED so many tokens of theirs since it last did.
(HEAD, TAIL, WAITING, RUNNING, KV_USED, PLAN_CALLS) = range(6)
(DECODING, TOKENS, PREFILL, CONTEXT, DRAFTED, MISSED) = range(6, 12)
# Columns of State.clock float64[groups, 2], rows up to a power of two; BEGUN nan: no step in flight, END inf:
# idle.
BEGUN, END = range(2)
# Entries of State.counts int64; those named W_ are of the measured window.
(INJECTED, ADMITTED, FINISHED, EMITTED, STEPS, PREEMPTED, KV_PEAK, STATUS, REFUSED_TOKENS) = range(9)
(INITIAL_LEFT, MEASURING, MEASURE_FROM, MEASURED_LEFT, SEEN_STEPS, STRIDE, RECORDED) = range(9, 16)
(W_STEPS, W_DECODE_STEPS, W_REQUESTS, W_TOKENS, W_EMITTED, W_VERIFIED, W_ACCEPTED) = range(16, 23)
(W_PREFILL, W_EXTRAPOLATED, W_OFF_GRAPH, W_PREEMPTED, W_BLOCKED, W_FULL, N_COUNTS) = range(23, 30)
# Entries of State.sums float64.
W_START, W_END, W_SECONDS, W_REQUEST_SECONDS, IN_SYSTEM_AREA, LAST_CHANGE, N_SUMS = range(7)


class World(NamedTuple):
    """What a run is given and never changes. n requests, m traced requests, γ = block size."""

    survival: np.ndarray  # float64[rows, γ], calibrated
    accepted: np.ndarray  # int16[rows]
    traced: np.ndarray  # int64[m, 3]: first row, rows, traced request a longer output goes on in
    requests: np.ndarray  # int32[n, 3]: traced request, tokens to decode, prompt (closed loop: i modulo n)
    arrival: np.ndarray  # float64[n], sorted, seconds; empty in a closed loop
    offset: np.ndarray  # int32[users, 2]: tokens and rows the first of each user has behind it (closed loop)
    choices: np.ndarray  # int32[n, 2]: the two ranks that TWO_CHOICES compares; else empty


class Settings(NamedTuple):
    """How the engines are set up. Limits are per rank."""

    closed: bool
    warmup: int  # open loop: requests before the measured window
    router: int
    group_size: int
    max_running: int
    kv_capacity: int  # tokens
    context: int  # tokens a request reads, fixed; -1: prompt + position, growing
    chunked: bool  # prompts are prefilled here, in chunks that join decode steps
    batch_tokens: int  # most tokens of a pass that a prefill chunk may fill up to
    capture_limit: int
    row_a_step: bool  # the trace is an engine's log: a row a step; else a row a token


class Plan(NamedTuple):
    """The verification policy, as numbers."""

    code: int
    theta: float
    lag: int
    fixed: np.ndarray  # int64[max_running + 1]: k for every R, of FIXED and BATCH_TABLE
    minimum_gain: float
    drafts: bool
    pays_sync: bool
    bypass: np.ndarray  # float64[5] of BYPASS: see `outlook.decide`
    pace: np.ndarray  # float64[3] of PACED: tokens/s promised, margin, least weight: see `budget.weigh`


class State(NamedTuple):
    """Everything that moves during a run; see the column names above."""

    jobs: np.ndarray
    job_times: np.ndarray
    history: np.ndarray  # int32[jobs, lag]: rows of a job's last plans, by plan call modulo lag; -1: none
    memory: np.ndarray  # float64[ranks, 1 + lag, ENTRY] of BYPASS: see `outlook`
    counters: np.ndarray  # int64[ranks, 4] of BYPASS: see `outlook`
    habits: np.ndarray  # float64[jobs, 2, γ] of HISTORY: see `habit`
    common: np.ndarray  # float64[ranks, 2, γ] of HISTORY
    rank: np.ndarray
    running: np.ndarray  # int32[ranks, max_running]: jobs in order of admission
    decoding: np.ndarray  # int32[ranks, max_running]: those of them that decode in the step in flight
    rows: np.ndarray  # int64[ranks, max_running]: the rows of the trace that they stand at
    lengths: np.ndarray  # int32[ranks, max_running]: their verification lengths
    base: np.ndarray  # float64[ranks]: seconds of the step in flight but for `verify`
    inside: np.ndarray  # int32[ranks]: requests at the rank, waiting or running
    clock: np.ndarray
    leader: np.ndarray  # int32[2 * rows of `clock`]: a tree of whose END comes first; see `settle`
    times: np.ndarray
    facts: np.ndarray
    log: np.ndarray  # float64[rows, 9]: begun, seconds, rank, R, tokens, prefill, context, emitted, budget
    counts: np.ndarray
    sums: np.ndarray


class Scratch(NamedTuple):
    """Memory one plan works in."""

    current: np.ndarray  # float64[max_running, γ]
    lagged: np.ndarray  # float64[max_running, γ]
    past: np.ndarray  # int64[max_running]: rows of the trace that `lagged` is made of; -1: ones
    sps: np.ndarray  # float64[max_running * (1 + γ) + 1]
    accepted: np.ndarray  # int64[max_running]
    weight: np.ndarray  # float64[max_running]
    work: Work


def make_state(
    measured: int, jobs: int, ranks: int, groups: int, max_running: int, lag: int, log: int, habit: int = 0
) -> State:
    """The state of a run before it starts: all ranks idle, nothing injected. `lag` 0: no history is kept;
    `habit`: the block size, of HISTORY alone."""
    leaves = 1 << (groups - 1).bit_length()
    state = State(
        jobs=np.zeros((jobs, 16), np.int32),
        job_times=np.full((jobs, 5), np.nan),
        history=np.zeros((jobs if lag else 0, max(lag, 1)), np.int32),
        memory=np.zeros((ranks, 1 + max(lag, 1), ENTRY)),
        counters=np.zeros((ranks, 4), np.int64),
        habits=np.zeros((jobs if habit else 0, 2, habit)),
        common=np.zeros((ranks, 2, habit)),
        rank=np.zeros((ranks, 12), np.int64),
        running=np.zeros((ranks, max_running), np.int32),
        decoding=np.zeros((ranks, max_running), np.int32),
        rows=np.zeros((ranks, max_running), np.int64),
        lengths=np.zeros((ranks, max_running), np.int32),
        base=np.zeros(ranks),
        inside=np.zeros(ranks, np.int32),
        clock=np.full((leaves, 2), np.nan),
        leader=np.zeros(2 * leaves, np.int32),
        times=np.full((measured, 5), np.nan),
        facts=np.zeros((measured, 6), np.int32),
        log=np.zeros((log, 9)),
        counts=np.zeros(N_COUNTS, np.int64),
        sums=np.zeros(N_SUMS),
    )
    state.clock[:, END] = np.inf
    state.leader[leaves:] = np.arange(leaves)
    for node in range(leaves - 1, 0, -1):
        state.leader[node] = state.leader[2 * node]
    state.counts[MEASURED_LEFT] = measured
    state.counts[STRIDE] = 1
    return state


def make_scratch(max_running: int, block_size: int) -> Scratch:
    """Memory for plans of up to `max_running` requests."""
    shape = (max_running, block_size)
    sps = np.zeros(max_running * (1 + block_size) + 1)
    past, accepted = np.empty(max_running, np.int64), np.zeros(max_running, np.int64)
    work = make_work(max_running, block_size)
    weight = np.ones(max_running)
    return Scratch(np.empty(shape), np.empty(shape), past, sps, accepted, weight, work)
