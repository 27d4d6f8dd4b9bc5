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


class Work(NamedTuple):
    """Scratch memory of the planners, made once by `make_work` and reused every step."""

    order: np.ndarray  # int64[capacity * γ]: candidates (position * R + request) in admission order
    spare: np.ndarray  # int64[capacity * γ]: the other half of the merge


def make_work(capacity_requests: int, block_size: int) -> Work:
    """Scratch memory for plans of up to `capacity_requests` requests with `block_size` draft tokens each."""
    size = max(1, capacity_requests * block_size)
    return Work(np.empty(size, np.int64), np.empty(size, np.int64))


@_jit
def survival(confidence, out):
    """out[r, k] = confidence[r, 0] * ... * confidence[r, k], multiplied left to right. Both float64[R, γ]."""
    for r in range(confidence.shape[0]):
        a = 1.0
        for k in range(confidence.shape[1]):
            a *= confidence[r, k]
            out[r, k] = a


@_jit
def _sort_candidates(survival, work):
    """Sort into admission order; returns (candidates, 0 or 1: whether they lie in `order` or `spare`).

    Survival falling, then position rising, then request rising. Survival 0 is no candidate.
    """
    requests, block = survival.shape
    n = 0
    for k in range(block):
        for r in range(requests):
            if survival[r, k] > 0.0:
                work.order[n] = k * requests + r
                n += 1
    source, target = work.order, work.spare
    side = 0
    width = 1
    while width < n:
        for low in range(0, n, 2 * width):
            middle = min(low + width, n)
            high = min(low + 2 * width, n)
            i, j = low, middle
            for t in range(low, high):
                take_left = j >= high
                if i < middle and j < high:
                    left, right = source[i], source[j]
                    a = survival[left % requests, left // requests]
                    b = survival[right % requests, right // requests]
                    take_left = a >= b
                if take_left:
                    target[t] = source[i]
                    i += 1
                else:
                    target[t] = source[j]
                    j += 1
        source, target = target, source
        side = 1 - side
        width *= 2
    return n, side


@_jit
def early_stop(survival, sps, lengths, work):
    """Algorithm 1: admit by falling survival, stop at the first admission that does not raise Θ.

    survival float64[R, γ]; sps float64, indexed up to R(1 + γ); lengths int[R], written.
    """
    requests = survival.shape[0]
    n, side = _sort_candidates(survival, work)
    order = work.spare if side else work.order
    lengths[:requests] = 0
    expected = float(requests)
    best = expected * sps[requests]
    for k in range(n):
        r = order[k] % requests
        expected += survival[r, order[k] // requests]
        throughput = expected * sps[requests + k + 1]
        if not throughput > best:
            return
        best = throughput
        lengths[r] += 1


@_jit
def best_budget(survival, sps, minimum_gain, work):
    """First k at which Θ(k) = (R + sum of the k largest survivals) * sps[R + k] is greatest (section 5.2).

    With minimum_gain g > 0 every candidate is kept (k = their number) unless Θ(k) > (1 + g) * Θ(all).
    """
    requests = survival.shape[0]
    n, side = _sort_candidates(survival, work)
    order = work.spare if side else work.order
    expected = float(requests)
    best = expected * sps[requests]
    budget = 0
    throughput = best
    for k in range(n):
        expected += survival[order[k] % requests, order[k] // requests]
        throughput = expected * sps[requests + k + 1]
        if throughput > best:
            best = throughput
            budget = k + 1
    if minimum_gain > 0.0 and best <= (1.0 + minimum_gain) * throughput:
        return n
    return budget


@_jit
def top_k(survival, budget, lengths, work):
    """Admit the first `budget` candidates of the admission order (all of them if there are fewer)."""
    requests = survival.shape[0]
    n, side = _sort_candidates(survival, work)
    order = work.spare if side else work.order
    lengths[:requests] = 0
    for k in range(min(n, budget)):
        lengths[order[k] % requests] += 1


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
