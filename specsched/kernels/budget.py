"""The planning rules: Algorithm 1, the unconstrained budget of section 5.2, top-K, threshold.

Additions are done one by one in admission order and comparisons are strict, so that a plain Python oracle
agrees to the last bit; bounds from the tally of `order` only decide what no rounding can change.
"""

from __future__ import annotations

import numpy as np

from .few import halved_cut, merge_rows
from .jit import Floats, Longs, Whole, inner, jit, part
from .order import (
    BUCKETS,
    EDGE,
    EDGE_BITS,
    FEW,
    HUGE,
    ONE,
    TINY,
    Work,
    admit,
    collect,
    count_reach,
    cut_after,
    tally,
)

INFINITY = int(np.float64(np.inf).view(np.int64))


@part
def _rounding(candidates: int) -> float:
    """Relative distance beyond which two Θ, each summed in any order, compare as their exact values do."""
    return (candidates + BUCKETS + 8) * 2.0**-50


@inner
def costs_fall(sps: Floats, first: int, last: int) -> bool:
    """Whether sps[first] >= ... >= sps[last] (never where there is a NaN): then bounds are cheaper."""
    rises = 0
    for n in range(last):  # from 0, so that it is plain that no index is negative
        rises += (n >= first) & (not sps[n] >= sps[n + 1])
    return rises == 0


@inner
def find_stop(survival: Floats, sps: Floats, falls: bool, work: Work) -> tuple[int, int]:
    """(K, cut) of Algorithm 1: how many admissions raise Θ before the first that does not.

    All candidates whose bits are >= cut are admitted, but for ties with the last one. `work.reach` counts, by
    request, survivals that are at least as great.
    """
    requests = survival.shape[0]
    if survival.size <= FEW:
        work.reach[:requests] = 0
        return _stop_in_order(requests, sps, merge_rows(survival, work.value), work.value)
    candidates = tally(survival, work)
    expected = float(requests)
    tokens = requests
    if not TINY < expected * sps[tokens] < HUGE:
        return _find_stop_exactly(survival, sps, BUCKETS - 1, work)
    margin = _rounding(candidates)
    b = 0
    while tokens < requests + candidates:
        # Every admission of the bucket gains at least `least * sps` and loses at most `after * drop`.
        least, after, held = EDGE[b + 1], expected + work.total[b], work.held[b]
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
        if held > 0 and (expected + EDGE[b]) * sps[tokens + 1] < best * (1.0 - margin):
            count_reach(survival, EDGE_BITS[b] + 1, work)  # not even the greatest it may hold would do
            return tokens - requests, EDGE_BITS[b] + 1
        last = min(b + 1, BUCKETS - 1)  # the stop is most likely here or in the next
        for i in range(collect(survival, b, last, work)):
            expected += work.value[i]
            throughput = expected * sps[tokens + 1]
            if throughput < best * (1.0 - margin):
                return tokens - requests, cut_after(work.value, i) if i > 0 else EDGE_BITS[b] + 1
            if not throughput > best * (1.0 + margin):
                return _find_stop_exactly(survival, sps, last, work)
            best = throughput
            tokens += 1
        b = last + 1
    count_reach(survival, np.int64(1), work)
    return candidates, 1


@inner
def _find_stop_exactly(survival: Floats, sps: Floats, last: int, work: Work) -> tuple[int, int]:
    """`find_stop` by its definition: a sort, then one addition after the other.

    Of the buckets up to `last` first, where the stop most likely is, else of all.
    """
    n = collect(survival, np.int64(0), last, work)
    budget, cut = _stop_in_order(survival.shape[0], sps, n, work.value)
    if budget == n and last < BUCKETS - 1:
        n = collect(survival, np.int64(0), BUCKETS - 1, work)
        budget, cut = _stop_in_order(survival.shape[0], sps, n, work.value)
    return budget, cut


@inner
def _stop_in_order(requests: int, sps: Floats, n: int, value: Floats) -> tuple[int, int]:
    """Algorithm 1 over n candidates in order."""
    expected = float(requests)
    best = expected * sps[requests]
    for k in range(n):
        expected += value[k]
        throughput = expected * sps[requests + k + 1]
        if not throughput > best:
            return k, cut_after(value, k) if k > 0 else ONE + 1
        best = throughput
    return n, 1


@part
def _window(
    sps: Floats, requests: int, falls: bool, candidates: int, work: Work
) -> tuple[int, int, int, float]:
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
        if falls and (expected + (end - tokens) * EDGE[b]) * sps[tokens] < floor:
            break  # nor is any Θ from here on above it
    if not TINY < floor < HUGE:
        return 0, BUCKETS - 1, requests, float(requests)
    floor *= 1.0 - margin
    bound = work.value  # by bucket: Θ is at most that inside; 0 where it was seen to be below the floor
    first, last = BUCKETS, -1
    expected, tokens = float(requests), requests
    start, before = tokens, expected
    b = 0
    while tokens < end:
        held, after = work.held[b], expected + work.total[b]
        bound[b] = 0.0
        if falls and (expected + (end - tokens) * EDGE[b]) * sps[tokens] < floor:
            break
        peak = sps[tokens + 1] if falls and held > 0 else 0.0
        if not falls:
            for n in range(tokens + 1, tokens + held + 1):
                peak = sps[n] if sps[n] > peak else peak
        if after * peak >= floor:
            # Of the bucket's n greatest the sum is at most n upper edges, or all but the lower edges of the
            # others, and at least n times the mean.
            most = least = 0.0
            for n in range(1, held + 1):
                upper = min(expected + n * EDGE[b], after - (held - n) * EDGE[b + 1]) * sps[tokens + n]
                lower = (expected + n * (work.total[b] / held)) * sps[tokens + n]
                most = upper if upper > most else most
                least = lower if lower > least else least
            if most >= floor:
                bound[b] = most
                floor = max(floor, least * (1.0 - margin))
                if first == BUCKETS:
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


@inner
def find_budget(
    survival: Floats, sps: Floats, falls: bool, minimum_gain: float, work: Work
) -> tuple[int, int]:
    """(K, cut): first argmax of Θ over sorted prefix sums (see `best_budget`)."""
    requests = survival.shape[0]
    if survival.size <= FEW:
        work.reach[:requests] = 0
        n = merge_rows(survival, work.value)
        return _budget_in_order(requests, sps, minimum_gain, n, work.value)
    candidates = tally(survival, work)
    if minimum_gain > 0.0:
        return _find_budget_exactly(survival, sps, minimum_gain, BUCKETS - 1, work)
    first, last, tokens, expected = _window(sps, requests, falls, candidates, work)
    best = expected * sps[tokens]
    second = 0.0
    admitted = np.int64(0)
    ahead = expected
    n = collect(survival, first, last, work)
    for i in range(n):
        expected += work.value[i]
        throughput = expected * sps[tokens + i + 1]
        if throughput > best:
            second, best = best, throughput
            admitted = np.int64(i + 1)
        elif throughput > second:
            second = throughput
    # From bucket 0 on the sums are the definition's own; else they are right to within rounding.
    margin = _rounding(candidates)
    close = first > 0 and not second < best * (1.0 - margin)
    if close and not _stands_out(sps, tokens, ahead, n, admitted, margin, work.value):
        return _find_budget_exactly(survival, sps, minimum_gain, last, work)
    cut = cut_after(work.value, admitted) if admitted > 0 else EDGE_BITS[first] + 1
    return tokens - requests + admitted, cut


@part
def _stands_out(
    sps: Floats, tokens: int, expected: float, n: int, admitted: int, margin: float, value: Floats
) -> bool:
    """Whether Θ(admitted) is the greatest of the n + 1 of a window, however the sum ahead of it was made.

    All sums of the window are off by about the same: by what the sum ahead is off, `margin` of it at most,
    and two roundings for every candidate between the two that are compared.
    """
    peak, total = expected, expected
    for i in range(n):
        total += value[i]
        if i + 1 == admitted:
            peak = total
    unit = 2.0**-52 * total
    here = sps[tokens + admitted]
    best = peak * here
    clear = True
    for i in range(n + 1):
        there = sps[tokens + i]
        off = margin * total * abs(here - there) + (2 * abs(i - admitted) + 8) * unit * max(here, there)
        clear &= i == admitted or best - expected * there > off
        if i < n:
            expected += value[i]
    return clear


@inner
def _find_budget_exactly(
    survival: Floats, sps: Floats, minimum_gain: float, last: int, work: Work
) -> tuple[int, int]:
    """`find_budget` by its definition, over the candidates of buckets 0..last."""
    n = collect(survival, np.int64(0), last, work)
    return _budget_in_order(survival.shape[0], sps, minimum_gain, n, work.value)


@inner
def _budget_in_order(
    requests: int, sps: Floats, minimum_gain: float, n: int, value: Floats
) -> tuple[int, int]:
    """First argmax of Θ over n candidates in order."""
    expected = float(requests)
    throughput = best = expected * sps[requests]
    budget = np.int64(0)
    for k in range(n):
        expected += value[k]
        throughput = expected * sps[requests + k + 1]
        if throughput > best:
            best = throughput
            budget = np.int64(k + 1)
    if minimum_gain > 0.0 and best <= (1.0 + minimum_gain) * throughput:
        return n, 1
    return budget, cut_after(value, budget) if budget > 0 else ONE + 1


@part
def early_stop(survival: Floats, sps: Floats, lengths: Whole, work: Work) -> None:
    """Algorithm 1: admit by falling survival, stop at the first admission that does not raise Θ.

    survival float64[R, γ]; sps float64, indexed up to R(1 + γ); lengths int[R], written.
    """
    falls = costs_fall(sps, survival.shape[0], survival.shape[0] + survival.size)
    budget, cut = find_stop(survival, sps, falls, work)
    admit(survival, budget, cut, lengths, work)


@part
def best_budget(survival: Floats, sps: Floats, minimum_gain: float, work: Work) -> int:
    """First k at which Θ(k) = (R + sum of the k largest survivals) * sps[R + k] is greatest (section 5.2).

    With minimum_gain g > 0 every candidate is kept (k = their number) unless Θ(k) > (1 + g) * Θ(all).
    """
    falls = costs_fall(sps, survival.shape[0], survival.shape[0] + survival.size)
    return find_budget(survival, sps, falls, minimum_gain, work)[0]


@part
def top_k(survival: Floats, budget: int, lengths: Whole, work: Work) -> None:
    """Admit the first `budget` candidates of the admission order (all of them if there are fewer)."""
    admit(survival, budget, halved_cut(survival, budget, work), lengths, work)


@part
def priced_drafts(sps: Floats, requests: int, drafts: int) -> int:
    """Most drafts, up to `drafts`, with which a pass of R requests has a price (sps above 0); or 0."""
    while drafts > 0 and not sps[requests + drafts] > 0.0:
        drafts -= 1
    return drafts


@part
def unconstrained(survival: Floats, sps: Floats, minimum_gain: float, lengths: Whole, work: Work) -> None:
    """`best_budget` and `top_k` of the same survivals in one go: the policies `global` and `hindsight`."""
    falls = costs_fall(sps, survival.shape[0], survival.shape[0] + survival.size)
    budget, cut = find_budget(survival, sps, falls, minimum_gain, work)
    admit(survival, budget, cut, lengths, work)


@part
def weigh(speed: Floats, promised: float, margin: float, least: float, weight: Floats) -> None:
    """weight[r] = 1 up to the promised speed, falling to `least` at (1 + margin) times it."""
    for r in range(speed.shape[0]):
        ahead = speed[r] / promised - 1.0
        need = min(max(1.0 - ahead / margin, 0.0), 1.0) if ahead > 0.0 else 1.0
        weight[r] = least + (1.0 - least) * need


@part
def scale(survival: Floats, weight: Floats) -> None:
    """survival[r] *= weight[r]: what a draft of each request is worth."""
    for r in range(survival.shape[0]):
        for k in range(survival.shape[1]):
            survival[r, k] *= weight[r]


@part
def paced_budget(worth: Floats, weight: Floats, sps: Floats, work: Work) -> int:
    """First argmax over k of (sum of weights + the k largest worths) * sps[R + k], by a full sort."""
    tally(worth, work)
    requests = worth.shape[0]
    expected = 0.0
    for r in range(requests):
        expected += weight[r]
    best = expected * sps[requests]
    budget = 0
    for k in range(collect(worth, np.int64(0), BUCKETS - 1, work)):
        expected += work.value[k]
        value = expected * sps[requests + k + 1]
        if value > best:
            best = value
            budget = k + 1
    return budget


@part
def threshold(survival: Floats, theta: float, lengths: Whole) -> None:
    """lengths[r] = how many leading positions have survival >= theta."""
    for r in range(survival.shape[0]):
        length = 0
        while length < survival.shape[1] and survival[r, length] >= theta:
            length += 1
        lengths[r] = length


@jit
def table_length(table: Longs, requests: int) -> int:
    """k of the row of `table` int64[n, 3] (first, last, k) that covers `requests`; -1 when none does."""
    for i in range(table.shape[0]):
        if table[i, 0] <= requests <= table[i, 1]:
            return table[i, 2]
    return -1
