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
_SLOTS = 1024  # a power of two above _BUCKETS: masked, an index is plainly no negative one
_ONE = int(np.float64(1.0).view(np.int64))
_EDGE_BITS = np.maximum(_ONE - (np.arange(_BUCKETS + 1, dtype=np.int64) << _SHIFT), 0)
_EDGE_BITS[_BUCKETS] = 0
_EDGE = _EDGE_BITS.view(np.float64).copy()  # bucket b holds _EDGE[b + 1] < survival <= _EDGE[b]
_INFINITY = int(np.float64(np.inf).view(np.int64))
_TINY, _HUGE = 1e-250, 1e250  # beyond these Θ could leave the range where rounding is relative


class Work(NamedTuple):
    """Scratch memory of the planners, made once by `make_work` and reused every step."""

    survival: np.ndarray  # float64[capacity * γ]: for callers that hand in confidences
    value: np.ndarray  # float64[>= capacity * γ, _BUCKETS]: survivals of the buckets looked at, falling
    total: np.ndarray  # float64[_SLOTS]: sum of the survivals of a bucket
    held: np.ndarray  # int32[_SLOTS]: how many it holds; entry _BUCKETS counts survival 0
    place: np.ndarray  # int32[_SLOTS]: where in `value` a bucket's next survival goes
    reach: np.ndarray  # int32[capacity * γ]: drafts of a request that are admitted for sure


def make_work(capacity_requests: int, block_size: int) -> Work:
    """Scratch memory for plans of up to `capacity_requests` requests with `block_size` draft tokens each."""
    size = max(1, capacity_requests * block_size)
    whole = np.empty((2, _SLOTS), np.int32)
    value, reach = np.empty(max(size, _BUCKETS)), np.empty(size, np.int32)
    return Work(np.empty(size), value, np.empty(_SLOTS), whole[0], whole[1], reach)


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
    bucket = _BUCKETS if bits <= 0 else min((_ONE - bits) >> _SHIFT, _BUCKETS - 1)
    return bucket & (_SLOTS - 1)


@_jit
def _tally(survival, work):
    """Count and sum every bucket; returns the number of candidates (survival 0 is none)."""
    values = survival.reshape(-1)
    bits = values.view(np.int64)
    held, total = work.held, work.total
    held[: _BUCKETS + 1] = 0
    total[: _BUCKETS + 1] = 0.0
    for i in range(values.size):
        b = _bucket(bits[i])
        held[b] += 1
        total[b] += values[i]
    return values.size - held[_BUCKETS]


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
    """The survivals of buckets first..last into `work.value`, falling; returns how many. Needs `_tally`.

    Leaves in `work.reach` how many survivals of each request lie in the buckets ahead of `first`.
    """
    bits = survival.view(np.int64)
    value, place, reach = work.value, work.place, work.reach
    n = 0
    for b in range(first, last + 1):
        place[b] = n
        n += work.held[b]
    _reach(survival, _EDGE_BITS[first] + 1, work)
    low = _EDGE_BITS[last + 1]
    for r in range(bits.shape[0]):
        k = reach[r]
        while k < bits.shape[1] and bits[r, k] > low:
            b = _bucket(bits[r, k])
            value[place[b]] = survival[r, k]
            place[b] += 1
            k += 1
    start = 0
    for b in range(first, last + 1):
        _sort_falling(value, start, place[b])
        start = place[b]
    return n


@_jit
def _reach(survival, cut, work):
    """work.reach[r] = how many survivals of request r have bits >= cut."""
    bits = survival.view(np.int64)
    for r in range(bits.shape[0]):
        length = 0
        for k in range(bits.shape[1]):
            length += bits[r, k] >= cut
        work.reach[r] = length


@_jit
def _rounding(candidates):
    """Relative distance beyond which two Θ, each summed in any order, compare as their exact values do."""
    return (candidates + _BUCKETS + 8) * 2.0**-50


@_jit
def _falls(sps, first, last):
    """Whether sps[first] >= ... >= sps[last] (never where there is a NaN): then bounds are cheaper."""
    rises = 0
    for n in range(last):  # from 0, so that it is plain that no index is negative
        rises += (n >= first) & (not sps[n] >= sps[n + 1])
    return rises == 0


@_jit
def _cut(work, admitted):
    """Bits of the last of `admitted` survivals in `work.value`."""
    return work.value.view(np.int64)[admitted - 1]


@_jit
def _stop(survival, sps, falls, candidates, work):
    """(K, cut) of Algorithm 1: how many admissions raise Θ before the first that does not. Needs `_tally`.

    All candidates whose bits are >= cut are admitted, but for ties with the last one. `work.reach` counts, by
    request, survivals that are at least as great.
    """
    requests = survival.shape[0]
    expected = float(requests)
    tokens = requests
    if not _TINY < expected * sps[tokens] < _HUGE:
        return _stop_exactly(survival, sps, work)
    margin = _rounding(candidates)
    b = 0
    while tokens < requests + candidates:
        # Every admission of the bucket gains at least `least * sps` and loses at most `after * drop`.
        least, after, held = _EDGE[b + 1], expected + work.total[b], work.held[b]
        here, there = sps[tokens], sps[tokens + held]
        rises = falls and least * there - after * (here - there) > margin * after * here
        if not rises:
            rises = True
            for n in range(tokens, tokens + held):
                drop = max(sps[n] - sps[n + 1], 0.0)
                rises &= least * sps[n + 1] - after * drop > margin * after * sps[n]
        if rises:
            expected = after
            tokens += held
            b += 1
            continue
        best = expected * sps[tokens]
        if held > 0 and (expected + _EDGE[b]) * sps[tokens + 1] < best * (1.0 - margin):
            _reach(survival, _EDGE_BITS[b] + 1, work)  # not even the greatest it may hold would do
            return tokens - requests, _EDGE_BITS[b] + 1
        last = min(b + 1, _BUCKETS - 1)  # the stop is most likely here or in the next
        for i in range(_collect(survival, b, last, work)):
            expected += work.value[i]
            throughput = expected * sps[tokens + 1]
            if throughput < best * (1.0 - margin):
                return tokens - requests, _cut(work, i) if i > 0 else _EDGE_BITS[b] + 1
            if not throughput > best * (1.0 + margin):
                return _stop_exactly(survival, sps, work)
            best = throughput
            tokens += 1
        b = last + 1
    _reach(survival, 1, work)
    return candidates, 1


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
            return k, _cut(work, k) if k > 0 else _ONE + 1
        best = throughput
    return n, 1


@_jit
def _window(sps, requests, falls, candidates, work):
    """(first, last, tokens, expected): the buckets within which the best k ends, and what lies ahead of them.

    first = 0 where k = 0 may be the best; all buckets where Θ is too small or great for bounds. A NaN among
    the costs is never the greatest: hence no max() of Θ here.
    """
    margin, end = _rounding(candidates), requests + candidates
    expected, tokens = float(requests), requests
    floor = (
        expected * sps[tokens]
    )  # Θ of the best k is at least that: of the best bucket's end, to begin with
    b = 0
    while tokens < end:
        tokens += work.held[b]
        expected += work.total[b]
        floor = expected * sps[tokens] if expected * sps[tokens] > floor else floor
        b += 1
    if not _TINY < floor < _HUGE:
        return 0, _BUCKETS - 1, requests, float(requests)
    floor *= 1.0 - margin
    bound = work.value  # by bucket: Θ is at most that inside; 0 where it was seen to be below the floor
    first, last = _BUCKETS, -1
    expected, tokens = float(requests), requests
    start, before = tokens, expected
    b = 0
    while tokens < end:
        held, after = work.held[b], expected + work.total[b]
        bound[b] = 0.0
        peak = sps[tokens + 1] if falls and held > 0 else 0.0
        if not falls:
            for n in range(tokens + 1, tokens + held + 1):
                peak = sps[n] if sps[n] > peak else peak
        if after * peak >= floor:
            # Of the bucket's n greatest the sum is at most n upper edges, or all but the lower edges of the
            # others, and at least n times the mean.
            most = least = 0.0
            for n in range(1, held + 1):
                upper = min(expected + n * _EDGE[b], after - (held - n) * _EDGE[b + 1]) * sps[tokens + n]
                lower = (expected + n * (work.total[b] / held)) * sps[tokens + n]
                most = upper if upper > most else most
                least = lower if lower > least else least
            if most >= floor:
                bound[b] = most
                floor = max(floor, least * (1.0 - margin))
                if first == _BUCKETS:
                    first, start, before = b, tokens, expected
                last = b
        tokens += held
        expected = after
        b += 1
    if requests * sps[requests] >= floor:
        return 0, last, requests, float(requests)
    while first < last and bound[first] < floor:  # the floor has risen since
        start += work.held[first]
        before += work.total[first]
        first += 1
    while bound[last] < floor and first < last:
        last -= 1
    return first, last, start, before


@_jit
def _budget(survival, sps, falls, minimum_gain, candidates, work):
    """(K, cut): first argmax of Θ over sorted prefix sums (see `best_budget` and `_stop`). Needs `_tally`."""
    requests = survival.shape[0]
    if minimum_gain > 0.0:
        return _budget_exactly(survival, sps, minimum_gain, _BUCKETS - 1, work)
    first, last, tokens, expected = _window(sps, requests, falls, candidates, work)
    best = expected * sps[tokens]
    second = 0.0
    admitted = 0
    for i in range(_collect(survival, first, last, work)):
        expected += work.value[i]
        throughput = expected * sps[tokens + i + 1]
        if throughput > best:
            second, best = best, throughput
            admitted = i + 1
        elif throughput > second:
            second = throughput
    # From bucket 0 on the sums are the definition's own; else they are right to within rounding.
    if first > 0 and not second < best * (1.0 - _rounding(candidates)):
        return _budget_exactly(survival, sps, minimum_gain, last, work)
    cut = _cut(work, admitted) if admitted > 0 else _EDGE_BITS[first] + 1
    return tokens - requests + admitted, cut


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
        return n, 1
    return budget, _cut(work, budget) if budget > 0 else _ONE + 1


@_jit
def _cut_at(survival, budget, work):
    """The cut (see `_stop`) of the first `budget` candidates. Needs `_tally`."""
    b, above = 0, 0
    while b < _BUCKETS and above + work.held[b] <= budget:
        above += work.held[b]
        b += 1
    if above == budget or b == _BUCKETS:
        _reach(survival, _EDGE_BITS[b] + 1, work)
        return _EDGE_BITS[b] + 1
    _collect(survival, b, b, work)
    return _cut(work, budget - above)


@_jit
def _admit(survival, budget, cut, lengths, work):
    """The first `budget` candidates of the admission order, given cut and reach (see `_stop`)."""
    bits = survival.view(np.int64)
    admitted = _advance_to(bits, cut, lengths, work)
    if admitted <= budget:
        return
    # Candidates that tie with the last one admitted: the earlier position first, then the earlier request.
    left = budget - _advance_to(bits, cut + 1, lengths, work)
    for k in range(bits.shape[1]):
        for r in range(bits.shape[0]):
            if left > 0 and bits[r, k] == cut:
                lengths[r] += 1
                left -= 1


@_jit
def _advance_to(bits, cut, lengths, work):
    """Extend every request from its reach while bits >= cut; returns the sum of `lengths`."""
    admitted = 0
    for r in range(bits.shape[0]):
        length = work.reach[r]
        while length < bits.shape[1] and bits[r, length] >= cut:
            length += 1
        lengths[r] = length
        admitted += length
    return admitted


@_jit
def early_stop(survival, sps, lengths, work):
    """Algorithm 1: admit by falling survival, stop at the first admission that does not raise Θ.

    survival float64[R, γ]; sps float64, indexed up to R(1 + γ); lengths int[R], written.
    """
    falls = _falls(sps, survival.shape[0], survival.shape[0] + survival.size)
    budget, cut = _stop(survival, sps, falls, _tally(survival, work), work)
    _admit(survival, budget, cut, lengths, work)


@_jit
def best_budget(survival, sps, minimum_gain, work):
    """First k at which Θ(k) = (R + sum of the k largest survivals) * sps[R + k] is greatest (section 5.2).

    With minimum_gain g > 0 every candidate is kept (k = their number) unless Θ(k) > (1 + g) * Θ(all).
    """
    falls = _falls(sps, survival.shape[0], survival.shape[0] + survival.size)
    return _budget(survival, sps, falls, minimum_gain, _tally(survival, work), work)[0]


@_jit
def top_k(survival, budget, lengths, work):
    """Admit the first `budget` candidates of the admission order (all of them if there are fewer)."""
    _tally(survival, work)
    _admit(survival, budget, _cut_at(survival, budget, work), lengths, work)


@_jit
def unconstrained(survival, sps, minimum_gain, lengths, work):
    """`best_budget` and `top_k` of the same survivals in one go: the policies `global` and `hindsight`."""
    falls = _falls(sps, survival.shape[0], survival.shape[0] + survival.size)
    budget, cut = _budget(survival, sps, falls, minimum_gain, _tally(survival, work), work)
    _admit(survival, budget, cut, lengths, work)


@_jit
def threshold(survival, theta, lengths):
    """lengths[r] = how many leading positions have survival >= theta."""
    for r in range(survival.shape[0]):
        length = 0
        while length < survival.shape[1] and survival[r, length] >= theta:
            length += 1
        lengths[r] = length


@_jit
def table_length(table, requests):
    """k of the row of `table` int64[n, 3] (first, last, k) that covers `requests`; -1 when none does."""
    for i in range(table.shape[0]):
        if table[i, 0] <= requests <= table[i, 1]:
            return table[i, 2]
    return -1


# -- entries for `schedule` ----------------------------------------------------------------------------------
#
# They take confidences, check them and the costs in passing, then plan. A result below 0 is -1 - i, where
# i < R * γ is the flat index of the first confidence that is no probability, and i - R * γ the first B whose
# cost is no number >= 0; nothing is planned then. The arrays of `Work` come one by one: handing them over
# in a tuple would cost Python as much as a tenth of a plan.


@_jit
def take_confidence(confidence, out):
    """`survival` of confidences to be checked: 0, or -1 - i for the first that is NaN or outside [0, 1]."""
    flat = confidence.reshape(-1)
    wrong = 0
    for i in range(flat.size):
        wrong += not ((flat[i] >= 0.0) & (flat[i] <= 1.0))
    if wrong > 0:
        for i in range(flat.size):
            if not 0.0 <= flat[i] <= 1.0:
                return -1 - i
    survival(confidence, out)
    return 0


@_jit
def check_costs(sps, requests, size):
    """Whether the costs of R..R + size (= R * γ) tokens fall (1) or not (0); or a fault."""
    last = requests + size
    if _falls(sps, requests, last) and sps[requests] < np.inf and sps[last] >= 0.0:
        return 1
    bits = sps.view(np.int64)
    least = most = np.int64(0)
    for n in range(last + 1):
        here = bits[n] if n >= requests else np.int64(0)
        least, most = min(least, here), max(most, here)
    if least < 0 or most >= _INFINITY:
        for n in range(requests, last + 1):
            if not 0.0 <= sps[n] < np.inf:
                return -1 - size - n
    return 0


@_jit
def take_both(confidence, sps, out):
    """`check_costs` and `take_confidence`."""
    falls = check_costs(sps, confidence.shape[0], confidence.size)
    fault = take_confidence(confidence, out)
    return falls if fault == 0 or falls < 0 else fault


@_jit
def _room(confidence, work):
    return work.survival[: confidence.size].reshape(confidence.shape)


@_jit
def plan_threshold(confidence, theta, lengths, room):
    """`threshold` of confidences; room float64[>= R * γ]."""
    current = room[: confidence.size].reshape(confidence.shape)
    fault = take_confidence(confidence, current)
    if fault == 0:
        threshold(current, theta, lengths)
    return fault


@_jit
def plan_early_stop(confidence, sps, lengths, room, value, total, held, place, reach):
    """`early_stop` of confidences."""
    work = Work(room, value, total, held, place, reach)
    current = _room(confidence, work)
    falls = take_both(confidence, sps, current)
    if falls >= 0:
        budget, cut = _stop(current, sps, falls == 1, _tally(current, work), work)
        _admit(current, budget, cut, lengths, work)
    return falls


@_jit
def plan_unconstrained(confidence, sps, minimum_gain, lengths, room, value, total, held, place, reach):
    """`unconstrained` of confidences."""
    work = Work(room, value, total, held, place, reach)
    current = _room(confidence, work)
    falls = take_both(confidence, sps, current)
    if falls >= 0:
        budget, cut = _budget(current, sps, falls == 1, minimum_gain, _tally(current, work), work)
        _admit(current, budget, cut, lengths, work)
    return falls


@_jit
def plan_budget(confidence, sps, minimum_gain, room, value, total, held, place, reach):
    """`best_budget` of confidences; the budget, or a fault below 0."""
    work = Work(room, value, total, held, place, reach)
    current = _room(confidence, work)
    fault = take_both(confidence, sps, current)
    return best_budget(current, sps, minimum_gain, work) if fault >= 0 else fault


@_jit
def plan_top_k(confidence, budget, lengths, room, value, total, held, place, reach):
    """`top_k` of confidences. Leaves survivals and tally of the step behind, for `budget_of_past`."""
    work = Work(room, value, total, held, place, reach)
    current = _room(confidence, work)
    fault = take_confidence(confidence, current)
    if fault == 0:
        top_k(current, budget, lengths, work)
    return fault


@_jit
def budget_of_past(requests, block, sps, minimum_gain, room, value, total, held, place, reach):
    """`best_budget` of the survivals and tally that an earlier `plan_top_k` or `recall` left; or a fault."""
    size = requests * block
    falls = check_costs(sps, requests, size)
    if falls < 0:
        return falls
    work = Work(room, value, total, held, place, reach)
    past = room[:size].reshape((requests, block))
    return _budget(past, sps, falls == 1, minimum_gain, size - held[_BUCKETS], work)[0]


# -- who is who between steps: a hash table from request id to row, open addressing --------------------------


@_jit
def index_ids(ids, slots):
    """Fill `slots` int64[a power of two > R] with rows by id, -1 where empty; a repeated id's row, or -1."""
    slots[:] = -1
    for row in range(ids.size):
        slot = _slot(ids, slots, ids[row])
        if slots[slot] >= 0:
            return row
        slots[slot] = row
    return -1


@_jit
def _slot(ids, slots, wanted):
    """Where `wanted` is in the table, or the empty place where it would go."""
    mask = slots.size - 1
    # Multiplicative hash of two 31-bit factors: evenly spaced ids spread out, no overflow.
    slot = (((wanted % 0x7FFFFFFF) * 0x43F9B6A9) >> 20) & mask
    while slots[slot] >= 0 and ids[slots[slot]] != wanted:
        slot = (slot + 1) & mask
    return slot


@_jit
def recall(ids, past_ids, past_slots, past, room, value, total, held, place, reach):
    """Survivals of the requests `ids`: the row of `past` float64[_, γ] that had the id, or ones if none."""
    block = past.shape[1]
    out = room[: ids.size * block].reshape((ids.size, block))
    for r in range(ids.size):
        row = r
        if not (r < past_ids.size and past_ids[r] == ids[r]):
            row = past_slots[_slot(past_ids, past_slots, ids[r])]
        for k in range(block):
            out[r, k] = past[row, k] if row >= 0 else 1.0
    _tally(out, Work(room, value, total, held, place, reach))


# -- the engine loop --------------------------------------------------------------------------------------
#
# A discrete-event replay of serving engines (DESIGN section 8). Words used below:
#   rank    one model replica with its own queue, running set and KV cache
#   group   `group_size` ranks that step together (data parallel); its slowest rank sets the step
#   job     the place that holds one request's state; open loop: job = request, closed loop: a job a user
# A job walks rows `start[traced] + local` of the trace; past the last it goes on in the next traced request.
# State is struct-of-arrays packed by owner: one row a job, one row a rank. A numba tuple of many small arrays
# costs a minute to compile; columns named by the constants below cost none.

ROUND_ROBIN, LEAST_OUTSTANDING, TWO_CHOICES = range(3)
DONE, REFUSED = range(2)  # how a run ended; REFUSED: a step above the capture limit that has no cost

# Columns of World.requests int32[n, 3] and World.traced int64[m, 3].
FIRST, DECODE_TOKENS, PROMPT_TOKENS = range(3)
START, LENGTH, NEXT = range(3)
# Columns of State.jobs int32[jobs, 16]: `_inject` fills, `_admit_waiting`, `_plan` and `_commit_*` move.
(J_INDEX, J_TRACED, J_LOCAL, J_LEFT, J_PROMPT, J_EMITTED, J_PREFILL, J_CHUNK) = range(8)
(J_STEPS, J_VERIFIED, J_ACCEPTED, J_PREEMPTED, J_LINK, J_PLANNED, J_ENTERED) = range(8, 15)
ARRIVAL, READY, FINISH = range(3)  # columns of State.job_times float64[jobs, 2], State.times float64[n, 3]
# Columns of State.facts int32[n, 6], one row a measured request.
F_TRACED, F_TOKENS, F_STEPS, F_VERIFIED, F_ACCEPTED, F_PREEMPTED = range(6)
# Columns of State.rank int64[ranks, 10]; the last five describe the step in flight.
HEAD, TAIL, WAITING, RUNNING, KV_USED, PLAN_CALLS, DECODING, TOKENS, PREFILL, CONTEXT = range(10)
BEGUN, END = range(
    2
)  # columns of State.clock float64[groups, 2]; BEGUN nan: no step in flight, END inf: idle
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
    offset: np.ndarray  # int32[users]: tokens the first request of each user has behind it (closed loop)
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


class Plan(NamedTuple):
    """The verification policy, as numbers."""

    code: int
    theta: float
    lag: int
    fixed: np.ndarray  # int64[max_running + 1]: k for every R, of FIXED and BATCH_TABLE
    minimum_gain: float
    drafts: bool
    pays_sync: bool


class State(NamedTuple):
    """Everything that moves during a run; see the column names above."""

    jobs: np.ndarray
    job_times: np.ndarray
    history: np.ndarray  # int32[jobs, lag]: rows of a job's last plans, by plan call modulo lag; -1: none
    rank: np.ndarray
    running: np.ndarray  # int32[ranks, max_running]: jobs in order of admission
    decoding: np.ndarray  # int32[ranks, max_running]: those of them that decode in the step in flight
    lengths: np.ndarray  # int64[ranks, max_running]: their verification lengths
    clock: np.ndarray
    times: np.ndarray
    facts: np.ndarray
    log: np.ndarray  # float64[rows, 9]: begun, seconds, rank, R, tokens, prefill, context, emitted, budget
    counts: np.ndarray
    sums: np.ndarray


class Scratch(NamedTuple):
    """Memory one plan works in."""

    current: np.ndarray  # float64[max_running, γ]
    lagged: np.ndarray  # float64[max_running, γ]
    sps: np.ndarray  # float64[max_running * (1 + γ) + 1]
    work: Work


def make_state(
    measured: int, jobs: int, ranks: int, groups: int, max_running: int, lag: int, log: int
) -> State:
    """The state of a run before it starts: all ranks idle, nothing injected. `lag` 0: no history is kept."""
    state = State(
        jobs=np.zeros((jobs, 16), np.int32),
        job_times=np.full((jobs, 2), np.nan),
        history=np.zeros((jobs if lag else 0, max(lag, 1)), np.int32),
        rank=np.zeros((ranks, 10), np.int64),
        running=np.zeros((ranks, max_running), np.int32),
        decoding=np.zeros((ranks, max_running), np.int32),
        lengths=np.zeros((ranks, max_running), np.int64),
        clock=np.full((groups, 2), np.nan),
        times=np.full((measured, 3), np.nan),
        facts=np.zeros((measured, 6), np.int32),
        log=np.zeros((log, 9)),
        counts=np.zeros(N_COUNTS, np.int64),
        sums=np.zeros(N_SUMS),
    )
    state.clock[:, END] = np.inf
    state.counts[MEASURED_LEFT] = measured
    state.counts[STRIDE] = 1
    return state


def make_scratch(max_running: int, block_size: int) -> Scratch:
    """Memory for plans of up to `max_running` requests."""
    shape = (max_running, block_size)
    sps = np.zeros(max_running * (1 + block_size) + 1)
    return Scratch(np.empty(shape), np.empty(shape), sps, make_work(max_running, block_size))


@_jit
def _context(settings, job):
    """KV tokens a decoding job reads."""
    if settings.context >= 0:
        return np.int64(settings.context)
    return np.int64(job[J_PROMPT]) + np.int64(job[J_EMITTED])


@_jit
def _count_change(state, now):
    """The number of requests in the system is about to change: add up its time integral (Little's law)."""
    inside = state.counts[INJECTED] - state.counts[FINISHED]
    state.sums[IN_SYSTEM_AREA] += (now - state.sums[LAST_CHANGE]) * inside
    state.sums[LAST_CHANGE] = now


@_jit
def _inject(world, settings, state, j, rank, now):
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


@_jit
def _finish(world, settings, state, j, rank, now):
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


@_jit
def _preempt_newest(settings, state, rank, block):
    """The newest running job gives its KV back and waits at the queue's head; its text stays."""
    place = state.rank[rank]
    place[RUNNING] -= 1
    j = state.running[rank, place[RUNNING]]
    job = state.jobs[j]
    place[KV_USED] -= _context(settings, job) + 1 + block
    job[J_PREFILL] = job[J_PROMPT] + job[J_EMITTED]
    job[J_PREEMPTED] += 1
    job[J_LINK] = place[HEAD] if place[WAITING] > 0 else -1
    if place[WAITING] == 0:
        place[TAIL] = j
    place[HEAD] = j
    place[WAITING] += 1
    state.counts[PREEMPTED] += 1
    state.counts[W_PREEMPTED] += state.counts[MEASURING]


@_jit
def _admit_waiting(world, settings, state, rank, block, now):
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
        need = _context(settings, job) + 1 + block
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


@_jit
def _gather(settings, state, rank, block):
    """Which running jobs decode in this step, and which prefill chunks join it (oldest first)."""
    place = state.rank[rank]
    decoding = 0
    context = np.int64(0)
    for i in range(place[RUNNING]):
        job = state.jobs[state.running[rank, i]]
        if job[J_PREFILL] == 0 and job[J_LEFT] > 0:
            state.decoding[rank, decoding] = state.running[rank, i]
            decoding += 1
            context += _context(settings, job)
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


@_jit
def _attention_seconds(cost, context):
    """attention(N) of the profile: the last piece that begins at or below N."""
    x = cost.attention_x
    if context <= x[0]:
        return cost.attention_y[0]
    i = 0
    while i + 1 < x.shape[0] and x[i + 1] <= context:
        i += 1
    return cost.attention_y[i] + cost.attention_slope[i] * (context - x[i])


@_jit
def _base_seconds(cost, plan, place):
    """All of a step's cost but `verify` (DESIGN section 4); the order of additions is that of StepProfile."""
    requests = place[DECODING]
    base = cost.bias + _attention_seconds(cost, float(place[CONTEXT]))
    base = base + cost.overhead[max(requests, 1)]
    if plan.drafts and requests > 0:
        base = base + cost.draft[requests]
        if plan.pays_sync:
            base = base + cost.sync
    return base


@_jit
def _step_seconds(cost, plan, base, tokens):
    seconds = base + cost.verify[tokens]
    if plan.drafts and cost.enabling_fraction > 0.0:
        seconds = seconds / (1.0 - cost.enabling_fraction)
    return seconds


@_jit
def _price(cost, plan, place, block, sps):
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


@_jit
def _lagged_budget(world, plan, state, rank, scratch):
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


@_jit
def _plan(world, plan, cost, state, rank, scratch):
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
                if budget < 0:
                    lengths[:requests] = block
                else:
                    top_k(current, budget, lengths, scratch.work)
    place[PLAN_CALLS] += 1 if requests > 0 else 0
    place[TOKENS] = requests
    for i in range(requests):
        place[TOKENS] += lengths[i]


@_jit
def _execute(settings, plan, cost, state, group, now):
    """The group's clock: its slowest rank's work, at the group's largest pass."""
    largest = np.int64(0)
    base = 0.0
    for rank in range(group * settings.group_size, (group + 1) * settings.group_size):
        place = state.rank[rank]
        largest = max(largest, place[TOKENS] + place[PREFILL])
        base = max(base, _base_seconds(cost, plan, place))
    if largest == 0:
        state.clock[group, BEGUN] = np.nan
        state.clock[group, END] = np.inf
        return
    seconds = _step_seconds(cost, plan, base, largest)
    if np.isnan(seconds):
        state.counts[STATUS] = REFUSED
        state.counts[REFUSED_TOKENS] = largest
    state.clock[group, BEGUN] = now
    state.clock[group, END] = now + seconds
    state.counts[STEPS] += 1


@_jit
def _advance(world, job, emitted):
    """A job emitted tokens: move along its traced request, and on into the next one at its end."""
    job[J_EMITTED] += emitted
    job[J_LEFT] -= emitted
    local = job[J_LOCAL] + emitted
    while local >= world.traced[job[J_TRACED], LENGTH]:
        local -= world.traced[job[J_TRACED], LENGTH]
        job[J_TRACED] = world.traced[job[J_TRACED], NEXT]
    job[J_LOCAL] = local


@_jit
def _commit_decode(world, settings, state, rank):
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
        before = _context(settings, job)
        _advance(world, job, emitted)
        place[KV_USED] += _context(settings, job) - before
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


@_jit
def _leave(world, settings, state, rank, block, now):
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
            place[KV_USED] -= _context(settings, job) + 1 + block
            _finish(world, settings, state, j, rank, now)
        else:
            state.running[rank, kept] = j
            kept += 1
    place[RUNNING] = kept


@_jit
def _log_step(state, group, rank, emitted):
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


@_jit
def _commit(world, settings, cost, state, group, block, now):
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


@_jit
def _route(world, settings, state, i):
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


@_jit
def _arrive(world, settings, state):
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


@_jit
def _fill_house(world, settings, state):
    """Closed loop, time 0: every user's first request, part of it already behind it."""
    users = world.offset.shape[0]
    state.counts[INITIAL_LEFT] = users
    for j in range(users):
        _inject(world, settings, state, j, j % state.rank.shape[0], 0.0)
        _advance(world, state.jobs[j], world.offset[j])
        state.counts[EMITTED] += world.offset[j]


@_jit
def run_engine(world, settings, plan, cost, state, scratch):
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
            _gather(settings, state, rank, block)
            _plan(world, plan, cost, state, rank, scratch)
        _execute(settings, plan, cost, state, group, now)
    return count[STATUS]
