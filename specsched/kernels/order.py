"""Admission order without a sort: survivals falling, then position rising, then request rising.

Planners need no full sort. Survivals are tallied into buckets by the high bits of their float64 pattern
(bits of positive floats grow with their value): 32 buckets an octave, 16 octaves below 1, the rest in the
last one. Bounds from the tally decide all but a few buckets; those are sorted and summed. Two values that
differ by more than rounding can explain are ordered the same way however the sums were made; when they
do not, the sums are redone one by one in admission order, which is the definition.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .jit import Floats, Whole, inner, jit, part

_SHIFT = 47
BUCKETS = 512
_SLOTS = 1024  # a power of two above BUCKETS: masked, an index is plainly no negative one
ONE = int(np.float64(1.0).view(np.int64))
EDGE_BITS = np.maximum(ONE - (np.arange(BUCKETS + 1, dtype=np.int64) << _SHIFT), 0)
EDGE_BITS[BUCKETS] = 0
EDGE = EDGE_BITS.view(np.float64).copy()  # bucket b holds EDGE[b + 1] < survival <= EDGE[b]
FEW = 128  # candidates up to which a budget is chosen without a tally
SHORT, DEPTH = 32, 64  # survivals sorted by insertion; parts of a crowded bucket that wait at once
TINY, HUGE = 1e-250, 1e250  # beyond these Θ could leave the range where rounding is relative


class Work(NamedTuple):
    """Scratch memory of the planners, made once by `make_work` and reused every step."""

    survival: np.ndarray  # float64[capacity * γ]: for callers that hand in confidences
    value: np.ndarray  # float64[> capacity * γ, >= 4 * FEW]: survivals of the buckets looked at, falling
    total: np.ndarray  # float64[_SLOTS]: sum of the survivals of a bucket
    held: np.ndarray  # int32[_SLOTS]: how many it holds; entry BUCKETS counts survival 0
    place: np.ndarray  # int32[_SLOTS]: where in `value` a bucket's next survival goes
    reach: np.ndarray  # int32[capacity * γ]: drafts of a request that are admitted for sure


def make_work(capacity_requests: int, block_size: int) -> Work:
    """Scratch memory for plans of up to `capacity_requests` requests with `block_size` draft tokens each."""
    size = max(1, capacity_requests * block_size)
    whole = np.empty((2, _SLOTS), np.int32)
    value, reach = np.empty(max(size + 1, 4 * FEW)), np.empty(size, np.int32)
    return Work(np.empty(size), value, np.empty(_SLOTS), whole[0], whole[1], reach)


@jit
def survival(confidence: Floats, out: Floats) -> None:
    """out[r, k] = confidence[r, 0] * ... * confidence[r, k], multiplied left to right. Both float64[R, γ]."""
    for r in range(confidence.shape[0]):
        a = 1.0
        for k in range(confidence.shape[1]):
            a *= confidence[r, k]
            out[r, k] = a


@inner
def _bucket(bits: int) -> int:
    bucket = BUCKETS if bits <= 0 else min((ONE - bits) >> _SHIFT, BUCKETS - 1)
    return bucket & (_SLOTS - 1)


@inner
def bits_of(value: float) -> int:
    """The float64 pattern: of positive values it grows with them. (`view` of an array compiles for long.)"""
    return np.float64(value).view(np.int64)


@inner
def tally(survival: Floats, work: Work) -> int:
    """Count and sum every bucket; returns the number of candidates (survival 0 is none)."""
    values = survival.reshape(-1)
    held, total = work.held, work.total
    held[: BUCKETS + 1] = 0
    total[: BUCKETS + 1] = 0.0
    for i in range(values.size):
        b = _bucket(bits_of(values[i]))
        held[b] += 1
        total[b] += values[i]
    return values.size - held[BUCKETS]


@inner
def _sift(value: Floats, low: int, root: int, size: int) -> None:
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


@part
def _heap_falling(value: Floats, low: int, high: int) -> None:
    """Sort value[low:high], falling, in a time that no order of the values can make long."""
    size = high - low
    for root in range(size // 2 - 1, -1, -1):
        _sift(value, low, root, size)
    for last in range(size - 1, 0, -1):
        value[low], value[low + last] = value[low + last], value[low]
        _sift(value, low, np.int64(0), last)


@part
def _median(a: float, b: float, c: float) -> float:
    return max(min(a, b), min(max(a, b), c))


@part
def _part_at(value: Floats, low: int, high: int, pivot: float, equal: bool) -> int:
    """Those of value[low:high] above the pivot, or `equal` to it too, to the front; returns where they end.

    Which side a value belongs to cannot be foretold, so nothing branches on it.
    """
    end = low
    for i in range(low, high):
        moving = value[i]
        value[i] = value[end]
        value[end] = moving
        end += (moving > pivot) | (equal & (moving == pivot))
    return end


@part
def _insert_falling(value: Floats, low: int, high: int) -> None:
    """Sort value[low:high], falling, where it is short."""
    for i in range(low + 1, high):
        moving = value[i]
        j = i - 1
        while j >= low and value[j] < moving:
            value[j + 1] = value[j]
            j -= 1
        value[j + 1] = moving


@inner
def _sort_falling(value: Floats, low: int, end: int, pending: Whole) -> None:
    """Sort value[low:end], falling: parted while it is long, by insertion where it is short.

    The front is sorted first; `pending` int[>= DEPTH] holds where the parts behind it end. What has been
    parted badly, as an order made for it can have it, is left to a heap.
    """
    high: Any = end
    waiting = 0
    patience = 64 * (end - low)
    while low < end:
        while high - low > SHORT and waiting < DEPTH and patience > 0:
            patience -= high - low
            pivot = _median(value[low], value[(low + high) // 2], value[high - 1])
            middle = _part_at(value, low, high, pivot, False)
            if middle == low:  # none is above the pivot: those equal to it are the greatest
                low = _part_at(value, low, high, pivot, True)
            else:
                pending[waiting] = high
                waiting += 1
                high = middle
        if high - low > SHORT:
            _heap_falling(value, low, high)
        else:
            _insert_falling(value, low, high)
        low = high
        if waiting > 0:
            waiting -= 1
            high = np.int64(pending[waiting])


@inner
def collect(survival: Floats, first: int, last: int, work: Work) -> int:
    """The survivals of buckets first..last into `work.value`, falling; returns how many. Needs `tally`.

    Leaves in `work.reach` how many survivals of each request lie in the buckets ahead of `first`.
    """
    value, place, reach = work.value, work.place, work.reach
    n = np.int64(0)
    for b in range(first, last + 1):
        place[b] = n
        n += work.held[b]
    count_reach(survival, EDGE_BITS[first] + 1, work)
    low = EDGE_BITS[last + 1]
    for r in range(survival.shape[0]):
        k = reach[r]
        while k < survival.shape[1] and bits_of(survival[r, k]) > low:
            b = _bucket(bits_of(survival[r, k]))
            value[place[b]] = survival[r, k]
            place[b] += 1
            k += 1
    start = np.int64(0)
    for b in range(first, last + 1):
        _sort_falling(value, start, np.int64(place[b]), place[BUCKETS + 1 :])
        start = np.int64(place[b])
    return n


@inner
def count_reach(survival: Floats, cut: int, work: Work) -> None:
    """work.reach[r] = how many survivals of request r have bits >= cut."""
    for r in range(survival.shape[0]):
        length = 0
        for k in range(survival.shape[1]):
            length += bits_of(survival[r, k]) >= cut
        work.reach[r] = length


@part
def cut_after(value: Floats, admitted: int) -> int:
    """Bits of the last of `admitted` survivals in `value`."""
    return bits_of(value[admitted - 1])


@inner
def admit(survival: Floats, budget: int, cut: int, lengths: Whole, work: Work) -> None:
    """The first `budget` candidates of the admission order, given cut and reach (see `find_stop`)."""
    admitted = _advance_to(survival, cut, lengths, work)
    if admitted <= budget:
        return
    # Candidates that tie with the last one admitted: the earlier position first, then the earlier request.
    left = budget - _advance_to(survival, cut + 1, lengths, work)
    for k in range(survival.shape[1]):
        for r in range(survival.shape[0]):
            if left > 0 and bits_of(survival[r, k]) == cut:
                lengths[r] += 1
                left -= 1


@inner
def _advance_to(survival: Floats, cut: int, lengths: Whole, work: Work) -> int:
    """Extend every request from its reach while bits >= cut; returns the sum of `lengths`."""
    admitted = 0
    for r in range(survival.shape[0]):
        length = work.reach[r]
        while length < survival.shape[1] and bits_of(survival[r, length]) >= cut:
            length += 1
        lengths[r] = length
        admitted += length
    return admitted
