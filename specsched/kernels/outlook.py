"""What drafting is expected to bring, from past steps alone: the memory of a policy that may stop.

A pool of the survivals that drafts had, in bins of equal width, and of how many of those verified were
accepted. It holds `window` rows (a row: one request in one step that drafted); older ones fade as new ones
come. Stopped, when rows come from probes alone, it holds an eighth: a stop must be well founded, since what
it misses is not seen, while a wrong return shows at once. From the pool `outlook` knows the tokens to expect
of any budget at any number of requests, so that a change of load is priced at once; only a change of the
traffic itself has to be seen by drafting.

A step's rows join the pool `lag` plans later, since an engine that prepares launches ahead does not know
sooner what was accepted.
"""

from __future__ import annotations

import numpy as np

from .budget import priced_drafts
from .jit import Floats, Longs, Whole, inner, jit, part

BINS = 64
# Columns of an entry float64[2 * BINS + 3]: by bin how many survivals and their sum; then rows, the survivals
# of all drafts verified, and how many of these were accepted.
ROWS, EXPECTED, ACCEPTED = 2 * BINS, 2 * BINS + 1, 2 * BINS + 2
ENTRY = 2 * BINS + 3
# Columns of the counters int64[4].
CALLS, IDLE, TURN, STOPPED = range(4)
PRIOR = 16.0  # drafts that went as expected, assumed before any were seen


def make_memory(lag: int) -> tuple[Floats, Longs]:
    """Memory and counters of one engine that has seen nothing yet."""
    return np.zeros((1 + lag, ENTRY)), np.zeros(4, np.int64)


@inner
def takes_part(i: int, first: int, drafted: int, requests: int) -> bool:
    """Whether row i is among the `drafted` of `requests` rows from `first` on, round and round."""
    return (i - first) % requests < drafted


@jit
def note(survival: Floats, first: int, drafted: int, lengths: Whole, accepted: Whole, entry: Floats) -> None:
    """What a step's drafts were and became, into `entry`, which was empty."""
    requests, block = survival.shape
    for r in range(requests):
        if not takes_part(r, first, drafted, requests):
            continue
        entry[ROWS] += 1.0
        for k in range(block):
            a = survival[r, k]
            if a > 0.0:
                b = min(int(a * BINS), BINS - 1)
                entry[b] += 1.0
                entry[BINS + b] += a
            if k < lengths[r]:
                entry[EXPECTED] += a
                if k < accepted[r]:
                    entry[ACCEPTED] += 1.0


@part
def take(pool: Floats, entry: Floats, window: float) -> None:
    """A step's rows join the pool, whose own fade as far as `window` is passed; `entry` is empty after it."""
    if entry[ROWS] == 0.0:
        return
    kept = 1.0
    if pool[ROWS] + entry[ROWS] > window:
        kept = max(window - entry[ROWS], 0.0) / pool[ROWS] if pool[ROWS] > 0.0 else 0.0
    for i in range(ENTRY):
        pool[i] = pool[i] * kept + entry[i]
        entry[i] = 0.0


@part
def outlook(pool: Floats, requests: int, block: int, sps: Floats) -> float:
    """The greatest Θ over budgets of 0, 1, 2, ... drafts of R requests, as the pool expects them.

    A request brings the pool's mean row; its survivals count as much as such drafts were accepted of late.
    """
    scale = requests / pool[ROWS]
    trust = (pool[ACCEPTED] + PRIOR) / (pool[EXPECTED] + PRIOR)
    expected = float(requests)
    best = expected * sps[requests]
    b, left, each = BINS, 0.0, 0.0
    for k in range(1, requests * block + 1):
        need = 1.0
        while need > 0.0:
            while left <= 0.0:
                b -= 1
                if b < 0:
                    return best
                if pool[b] > 0.0:
                    left = pool[b] * scale
                    each = trust * (pool[BINS + b] / pool[b])
            used = min(need, left)
            expected += used * each
            need -= used
            left -= used
        best = max(best, expected * sps[requests + k])
    return best


@jit
def decide(
    memory: Floats,
    counters: Longs,
    requests: int,
    block: int,
    sps: Floats,
    idle_sps: float,
    setting: Floats,
) -> int:
    """For how many of R requests the coming step drafts: all, none, or the few of a probe.

    memory float64[1 + lag, ENTRY], the pool first; setting float64[5]: window, least rows, gain to resume
    for, share of the time that probes may take, rows of a probe. Nothing of the step itself is known yet.
    """
    pool = memory[0]
    window = setting[0] if counters[STOPPED] == 0 else setting[0] / 8.0
    take(pool, memory[1 + counters[CALLS] % (memory.shape[0] - 1)], window)
    counters[CALLS] += 1
    if pool[ROWS] < setting[1]:  # nothing is known of the traffic yet
        return requests
    theta = outlook(pool, requests, block, sps)
    idle = requests * idle_sps
    if counters[STOPPED] == 0:
        counters[STOPPED] = 1 if idle > theta else 0
    else:
        counters[STOPPED] = 0 if theta > (1.0 + setting[2]) * idle else 1
    if counters[STOPPED] == 0:
        counters[IDLE] = 0
        return requests
    counters[IDLE] += 1
    rows = min(requests, np.int64(setting[4]))
    # What a probe takes more than a plain step, in plain steps, is saved up first.
    there = sps[requests + priced_drafts(sps, requests, rows * block)]
    if there == 0.0 or counters[IDLE] * setting[3] < idle_sps / there - 1.0:
        return 0
    counters[IDLE] = 0
    counters[TURN] += rows
    return rows


@jit
def first_row(counters: Longs, drafted: int, requests: int) -> int:
    """The first row of a probe just decided on: probes go round the rows."""
    return (counters[TURN] - drafted) % requests


@jit
def latest(memory: Floats, counters: Longs) -> int:
    """The row of `memory` that is the entry of the step just decided on."""
    return 1 + (counters[CALLS] - 1) % (memory.shape[0] - 1)
