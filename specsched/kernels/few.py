"""What needs no tally: few candidates merged in order, and the cut of a budget, found by halving.

A tally has a price of its own that few candidates do not pay back. Rows never rise, so they are runs in order
already: merged two by two they are the admission order, and the rules are followed as they are defined.
Counting how many survivals reach a cut is what processors do fastest, so that a cut is found by trying.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .jit import Floats, inner, part
from .order import BUCKETS, EDGE_BITS, FEW, ONE, Work, bits_of

_USUAL = int(EDGE_BITS[BUCKETS - 1])  # hardly a survival is below: halving begins there
_MASK = 4 * FEW - 1
_NARROW = 8192  # survivals from which on those still in question are set apart


@part
def _merge(value: Floats, low: int, run: int, to: int) -> None:
    """Two runs, each falling, of `value` from `low` on, in order into value[to:].

    From both ends at once: each end takes as many as a run holds, and so never passes a run's end. Which of
    the two is greater cannot be foretold, so nothing here may branch on it: a maximum, a minimum, steps of 0
    or 1. Masked, an index is plainly no negative one.
    """
    i, j = low, low + run
    last_i, last_j = low + run - 1, low + 2 * run - 1
    end = to + 2 * run - 1
    for k in range(run):
        a, b = value[i & _MASK], value[j & _MASK]
        first = a > b
        value[(to + k) & _MASK] = a if first else b
        i += first
        j += not first
        a, b = value[last_i & _MASK], value[last_j & _MASK]
        first = a > b
        value[(end - k) & _MASK] = b if first else a
        last_j -= first
        last_i -= not first


@inner
def merge_rows(survival: Floats, value: Floats) -> int:
    """All survivals into `value` float64[>= 4 * FEW], falling; returns how many are candidates (not 0)."""
    runs, run = survival.shape
    half = 2 * FEW  # room for rows up to a power of two
    source = np.int64(0)
    while runs > 1:
        runs = (runs + 1) >> 1
        source = half - source
    runs, size = survival.shape[0], survival.size
    flat = survival.reshape(-1)
    for i in range(size):
        value[source + i] = flat[i]
    while runs > 1:
        target = half - source
        for pair in range(runs >> 1):
            _merge(value, source + 2 * run * pair, run, target + 2 * run * pair)
        if runs & 1:  # the last run goes on alone, its other half zeros
            last = (runs - 1) * run
            for i in range(run):
                value[target + last + i] = value[source + last + i]
                value[target + last + run + i] = 0.0
        source = target
        run *= 2
        runs = (runs + 1) >> 1
    while size > 0 and not value[size - 1] > 0.0:
        size -= 1
    return size


@part
def _count(values: Floats, cut: int) -> int:
    above = 0
    for i in range(values.size):
        above += bits_of(values[i]) >= cut
    return above


@inner
def halved_cut(survival: Floats, budget: int, work: Work) -> int:
    """The cut (see `find_stop`) of the first `budget` candidates, all of them if there are fewer."""
    work.reach[: survival.shape[0]] = 0
    values = survival.reshape(-1)
    # More than `budget` bits are >= low, fewer are >= high.
    low: Any = np.int64(1)
    high: Any = np.int64(ONE + 1)
    if budget <= 0:
        return high
    if _count(values, low) <= budget:
        return low
    apart = values.size <= _NARROW  # whether `values` are those in question alone, `ahead` being above them
    ahead = above_high = np.int64(0)
    above_low = values.size
    middle: Any = np.int64(_USUAL)
    while high - low > 1:
        above = ahead + _count(values, middle)
        if above == budget:
            return middle
        if above > budget:
            low, above_low = middle, above
        else:
            high, above_high = middle, above
        middle = low + (high - low) // 2
        if not apart and 16 * (above_low - above_high) < values.size:
            apart, ahead = True, above_high
            n = 0
            for i in range(values.size):
                work.value[n] = values[i]
                n += low <= bits_of(values[i]) < high
            values = work.value[:n]
    return low
