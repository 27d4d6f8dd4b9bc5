"""All numba code of the package: what an engine runs every step, and the loop that replays an engine.

Reading order: `survival` (what the confidences promise), the admission order, then the planners built on
it (`early_stop`, `best_budget`, `top_k`, `threshold`). Kernels trust their input: `schedule` validates.

Conventions. R rows (requests), γ columns (draft positions), arrays C-contiguous. `survival` rows never
rise from left to right. `sps[B]` is steps per second at B tokens in the pass, anchors included: a plan of
k drafts costs `sps[R + k]`. Nothing here allocates: scratch memory comes in as `Work`. Additions are done
one by one in admission order and comparisons are strict, so that a plain Python oracle agrees to the last
bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import njit

# Policy codes, shared with the engine loop (a jitted function cannot take the policy objects themselves).
OFF, FIXED, THRESHOLD, EARLY_STOP, LAGGED, GLOBAL, HINDSIGHT, BATCH_TABLE = range(8)


def _jit(function: Callable[..., Any]) -> Any:
    """njit as this package uses it: no GIL, IEEE arithmetic (no fastmath), cached where possible."""
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:  # numba found no folder it may write its cache to: compile in every process instead
        return njit(**options)(function)


# Planners need no full sort. Survivals are tallied into buckets by the high bits of their float64 pattern
# (bits of positive floats grow with their value): 32 buckets an octave, 16 octaves below 1, the rest in the
# last one. Bounds from the tally decide all but a few buckets; those are sorted and summed. Two values that
# differ by more than rounding can explain are ordered the same way however the sums were made; when they
# do not, the sums are redone one by one in admission order, which is the definition.
_SHIFT = 47
_BUCKETS = 512
_ONE = int(np.float64(1.0).view(np.int64))
_EDGE_BITS = np.maximum(_ONE - (np.arange(_BUCKETS + 1, dtype=np.int64) << _SHIFT), 0)
_EDGE_BITS[_BUCKETS] = 0
_EDGE = _EDGE_BITS.view(np.float64).copy()  # bucket b holds _EDGE[b + 1] < survival <= _EDGE[b]
_TINY, _HUGE = 1e-250, 1e250  # beyond these Θ could leave the range where rounding is relative


class Work(NamedTuple):
    """Scratch memory of the planners, made once by `make_work` and reused every step."""

    survival: np.ndarray  # float64[capacity * γ]: for callers that hand in confidences
    value: np.ndarray  # float64[capacity * γ]: survivals of the buckets being looked at, falling
    total: np.ndarray  # float64[_BUCKETS + 1]: sum of the survivals of a bucket
    count: np.ndarray  # int64[_BUCKETS + 1]: how many there are; the last entry counts survival 0
    place: np.ndarray  # int64[_BUCKETS]: where in `value` a bucket's next survival goes


def make_work(capacity_requests: int, block_size: int) -> Work:
    """Scratch memory for plans of up to `capacity_requests` requests with `block_size` draft tokens each."""
    size = max(1, capacity_requests * block_size)
    return Work(
        survival=np.empty(size),
        value=np.empty(size),
        total=np.empty(_BUCKETS + 1),
        count=np.empty(_BUCKETS + 1, np.int64),
        place=np.empty(_BUCKETS, np.int64),
    )


@_jit
def survival(confidence, out):
    """out[r, k] = confidence[r, 0] * ... * confidence[r, k], multiplied left to right. Both float64[R, γ]."""
    for r in range(confidence.shape[0]):
        a = 1.0
        for k in range(confidence.shape[1]):
            a *= confidence[r, k]
            out[r, k] = a


@_jit
def _bucket(bits):
    return _BUCKETS if bits <= 0 else min((_ONE - bits) >> _SHIFT, _BUCKETS - 1)


@_jit
def _tally(survival, work):
    """Count and sum every bucket; returns the number of candidates (survival 0 is none)."""
    values = survival.reshape(-1)
    bits = values.view(np.int64)
    count, total = work.count, work.total
    count[:] = 0
    total[:] = 0.0
    for i in range(values.size):
        b = _bucket(bits[i])
        count[b] += 1
        total[b] += values[i]
    return values.size - count[_BUCKETS]


@_jit
def _sift(value, low, root, size):
    """Restore the min-heap value[low : low + size] below `root`."""
    moving = value[low + root]
    while 2 * root + 1 < size:
        child = 2 * root + 1
        if child + 1 < size and value[low + child + 1] < value[low + child]:
            child += 1
        if value[low + child] >= moving:
            break
        value[low + root] = value[low + child]
        root = child
    value[low + root] = moving


@_jit
def _sort_falling(value, low, high):
    """Sort value[low:high], falling: insertion where it is short, a heap where a bucket is crowded."""
    if high - low > 32:
        size = high - low
        for root in range(size // 2 - 1, -1, -1):
            _sift(value, low, root, size)
        for last in range(size - 1, 0, -1):
            value[low], value[low + last] = value[low + last], value[low]
            _sift(value, low, 0, last)
        return
    for i in range(low + 1, high):
        moving = value[i]
        j = i - 1
        while j >= low and value[j] < moving:
            value[j + 1] = value[j]
            j -= 1
        value[j + 1] = moving


@_jit
def _collect(survival, first, last, work):
    """The survivals of buckets first..last into `work.value`, falling; returns how many. Needs `_tally`."""
    values = survival.reshape(-1)
    bits = values.view(np.int64)
    value, place = work.value, work.place
    n = 0
    for b in range(first, last + 1):
        place[b] = n
        n += work.count[b]
    low, high = _EDGE_BITS[last + 1], _EDGE_BITS[first]
    for i in range(values.size):
        if low < bits[i] <= high:
            b = _bucket(bits[i])
            value[place[b]] = values[i]
            place[b] += 1
    start = 0
    for b in range(first, last + 1):
        _sort_falling(value, start, place[b])
        start = place[b]
    return n


@_jit
def _rounding(candidates):
    """Relative distance beyond which two Θ, each summed in any order, compare as their exact values do."""
    return (candidates + _BUCKETS + 8) * 2.0**-50


@_jit
def _stop(survival, sps, candidates, work):
    """K of Algorithm 1: how many admissions raise Θ before the first that does not. Needs `_tally`."""
    requests = survival.shape[0]
    expected = float(requests)
    tokens = requests
    if not _TINY < expected * sps[tokens] < _HUGE:
        return _stop_exactly(survival, sps, work)
    margin = _rounding(candidates)
    for b in range(_BUCKETS):
        if work.count[b] == 0:
            continue
        # Every admission of the bucket gains at least `least * sps` and loses at most `after * drop`.
        least, after = _EDGE[b + 1], expected + work.total[b]
        rises = True
        for n in range(tokens, tokens + work.count[b]):
            drop = max(sps[n] - sps[n + 1], 0.0)
            rises &= least * sps[n + 1] - after * drop > margin * after * sps[n]
        if rises:
            expected = after
            tokens += work.count[b]
            continue
        best = expected * sps[tokens]
        for i in range(_collect(survival, b, b, work)):
            expected += work.value[i]
            throughput = expected * sps[tokens + 1]
            if throughput < best * (1.0 - margin):
                return tokens - requests
            if not throughput > best * (1.0 + margin):
                return _stop_exactly(survival, sps, work)
            best = throughput
            tokens += 1
    return tokens - requests


@_jit
def _stop_exactly(survival, sps, work):
    """`_stop` by its definition: a full sort, then one addition after the other."""
    requests = survival.shape[0]
    n = _collect(survival, 0, _BUCKETS - 1, work)
    expected = float(requests)
    best = expected * sps[requests]
    for k in range(n):
        expected += work.value[k]
        throughput = expected * sps[requests + k + 1]
        if not throughput > best:
            return k
        best = throughput
    return n


@_jit
def _budget(survival, sps, minimum_gain, candidates, work):
    """First argmax of Θ over the sorted prefix sums (see `best_budget`). Needs `_tally`."""
    requests = survival.shape[0]
    margin = _rounding(candidates)
    expected = float(requests)
    tokens = requests
    floor = expected * sps[tokens]  # Θ that the best k reaches at least: the greatest at a bucket's end
    for b in range(_BUCKETS):
        if work.count[b] > 0:
            tokens += work.count[b]
            expected += work.total[b]
            floor = max(floor, expected * sps[tokens])
    if minimum_gain > 0.0 or not _TINY < floor < _HUGE:
        return _budget_exactly(survival, sps, minimum_gain, _BUCKETS - 1, work)
    floor *= 1.0 - margin
    first, last = _BUCKETS, -1  # the buckets within which the best k may end
    start, before = requests, float(requests)  # tokens and expected tokens ahead of bucket `first`
    expected, tokens = before, start
    if expected * sps[tokens] >= floor:
        first = 0
    for b in range(_BUCKETS):
        if work.count[b] == 0:
            continue
        most = 0.0
        for n in range(1, work.count[b] + 1):
            most = max(most, (expected + n * _EDGE[b]) * sps[tokens + n])
        if most >= floor:
            if first == _BUCKETS:
                first, start, before = b, tokens, expected
            last = b
        tokens += work.count[b]
        expected += work.total[b]
    expected = before
    best = expected * sps[start]
    second = 0.0
    budget = start - requests
    for i in range(_collect(survival, first, last, work)):
        expected += work.value[i]
        throughput = expected * sps[start + i + 1]
        if throughput > best:
            second, best = best, throughput
            budget = start + i + 1 - requests
        elif throughput > second:
            second = throughput
    if first > 0 and not second < best * (1.0 - margin):
        return _budget_exactly(survival, sps, minimum_gain, last, work)
    return budget


@_jit
def _budget_exactly(survival, sps, minimum_gain, last, work):
    """`_budget` by its definition, over the candidates of buckets 0..last."""
    requests = survival.shape[0]
    expected = float(requests)
    throughput = best = expected * sps[requests]
    budget = 0
    n = _collect(survival, 0, last, work)
    for k in range(n):
        expected += work.value[k]
        throughput = expected * sps[requests + k + 1]
        if throughput > best:
            best = throughput
            budget = k + 1
    if minimum_gain > 0.0 and best <= (1.0 + minimum_gain) * throughput:
        return n
    return budget


@_jit
def _admit_from(survival, cut, lengths):
    """lengths[r] = how many survivals of request r have bits >= cut; returns their sum."""
    bits = survival.view(np.int64)
    admitted = 0
    for r in range(bits.shape[0]):
        length = 0
        for k in range(bits.shape[1]):
            length += bits[r, k] >= cut
        lengths[r] = length
        admitted += length
    return admitted


@_jit
def _admit(survival, budget, lengths, work):
    """The first `budget` candidates of the admission order. Needs `_tally`."""
    b, above = 0, 0
    while b < _BUCKETS and above + work.count[b] <= budget:
        above += work.count[b]
        b += 1
    cut = _EDGE_BITS[b] + 1  # all of the buckets ahead of b, and some of b:
    if above < budget and b < _BUCKETS:
        _collect(survival, b, b, work)
        cut = work.value.view(np.int64)[budget - above - 1]
    if _admit_from(survival, cut, lengths) <= budget:
        return
    # Candidates that tie with the last one admitted: the earlier position first, then the earlier request.
    left = budget - _admit_from(survival, cut + 1, lengths)
    bits = survival.view(np.int64)
    for k in range(bits.shape[1]):
        for r in range(bits.shape[0]):
            if left > 0 and bits[r, k] == cut:
                lengths[r] += 1
                left -= 1


@_jit
def early_stop(survival, sps, lengths, work):
    """Algorithm 1: admit by falling survival, stop at the first admission that does not raise Θ.

    survival float64[R, γ]; sps float64, indexed up to R(1 + γ); lengths int[R], written.
    """
    candidates = _tally(survival, work)
    _admit(survival, _stop(survival, sps, candidates, work), lengths, work)


@_jit
def best_budget(survival, sps, minimum_gain, work):
    """First k at which Θ(k) = (R + sum of the k largest survivals) * sps[R + k] is greatest (section 5.2).

    With minimum_gain g > 0 every candidate is kept (k = their number) unless Θ(k) > (1 + g) * Θ(all).
    """
    candidates = _tally(survival, work)
    return _budget(survival, sps, minimum_gain, candidates, work)


@_jit
def top_k(survival, budget, lengths, work):
    """Admit the first `budget` candidates of the admission order (all of them if there are fewer)."""
    _tally(survival, work)
    _admit(survival, budget, lengths, work)


@_jit
def unconstrained(survival, sps, minimum_gain, lengths, work):
    """`best_budget` and `top_k` of the same survivals in one go: the policies `global` and `hindsight`."""
    candidates = _tally(survival, work)
    _admit(survival, _budget(survival, sps, minimum_gain, candidates, work), lengths, work)


@_jit
def threshold(survival, theta, lengths):
    """lengths[r] = how many leading positions have survival >= theta."""
    for r in range(survival.shape[0]):
        length = 0
        while length < survival.shape[1] and survival[r, length] >= theta:
            length += 1
        lengths[r] = length


@_jit
def hindsight_survival(accepted, out):
    """out[r, k] = 1 where a full verification accepts position k of request r, else 0. accepted int[R]."""
    for r in range(out.shape[0]):
        for k in range(out.shape[1]):
            out[r, k] = 1.0 if k < accepted[r] else 0.0


@_jit
def table_length(table, requests):
    """k of the row of `table` int64[n, 3] (first, last, k) that covers `requests`; -1 when none does."""
    for i in range(table.shape[0]):
        if table[i, 0] <= requests <= table[i, 1]:
            return table[i, 2]
    return -1
