"""The scheduler once more, naive, in plain Python: from DSpark section 5 and Algorithm 1, not from kernels.

Lists of floats in, lists of ints out. Everything is written as its definition reads: survivals are running
products, the admission order is one sort, Θ is summed from scratch in that order.
"""

from __future__ import annotations

from collections.abc import Sequence

Rows = Sequence[Sequence[float]]


def survivals(confidence: Rows) -> list[list[float]]:
    """a[r][k] = c[r][0] * ... * c[r][k], multiplied from the left."""
    result = []
    for row in confidence:
        products, product = [], 1.0
        for c in row:
            product = product * c
            products.append(product)
        result.append(products)
    return result


def admission_order(survival: Rows) -> list[tuple[int, int]]:
    """(request, position) of all candidates: survival falling, then position rising, then request rising."""
    candidates = [(r, k) for r, row in enumerate(survival) for k, a in enumerate(row) if a > 0]
    return sorted(candidates, key=lambda rk: (-survival[rk[0]][rk[1]], rk[1], rk[0]))


def throughputs(survival: Rows, sps: Sequence[float]) -> list[float]:
    """Θ(0), Θ(1), ...: expected emitted tokens times steps per second after k admissions."""
    requests = len(survival)
    expected = float(requests)
    result = [expected * sps[requests]]
    for k, (r, position) in enumerate(admission_order(survival), start=1):
        expected = expected + survival[r][position]
        result.append(expected * sps[requests + k])
    return result


def first(survival: Rows, budget: int) -> list[int]:
    """Lengths when the first `budget` candidates are admitted."""
    lengths = [0] * len(survival)
    for r, position in admission_order(survival)[:budget]:
        assert position == lengths[r], "a position was admitted before its own prefix"
        lengths[r] += 1
    return lengths


def early_stop(confidence: Rows, sps: Sequence[float]) -> list[int]:
    """Algorithm 1."""
    survival = survivals(confidence)
    theta = throughputs(survival, sps)
    admitted = 0
    while admitted + 1 < len(theta) and theta[admitted + 1] > theta[admitted]:
        admitted += 1
    return first(survival, admitted)


def budget_of_survivals(survival: Rows, sps: Sequence[float], minimum_gain: float = 0.0) -> int:
    """Section 5.2: the first argmax; with a minimum gain, everything unless that gains enough."""
    theta = throughputs(survival, sps)
    best = theta.index(max(theta))
    everything = len(theta) - 1
    if minimum_gain > 0 and theta[best] <= (1 + minimum_gain) * theta[everything]:
        return everything
    return best


def best_budget(confidence: Rows, sps: Sequence[float], minimum_gain: float = 0.0) -> int:
    return budget_of_survivals(survivals(confidence), sps, minimum_gain)


def top_k(confidence: Rows, k: int) -> list[int]:
    return first(survivals(confidence), k)


def threshold(confidence: Rows, theta: float) -> list[int]:
    lengths = []
    for row in survivals(confidence):
        length = 0
        while length < len(row) and row[length] >= theta:
            length += 1
        lengths.append(length)
    return lengths


def global_plan(confidence: Rows, sps: Sequence[float], minimum_gain: float = 0.0) -> list[int]:
    return top_k(confidence, best_budget(confidence, sps, minimum_gain))


def hindsight(accepted: Sequence[int], block: int, sps: Sequence[float]) -> list[int]:
    """Global with certainty in place of confidence."""
    return global_plan([[1.0 if k < n else 0.0 for k in range(block)] for n in accepted], sps)


def lagged(
    history: Sequence[tuple[Sequence[int], Rows]],
    sps: Sequence[float],
    lag: int,
    minimum_gain: float = 0.0,
) -> list[int]:
    """Section 7: history = (ids, confidence) of every step so far, the present one last."""
    ids, confidence = history[-1]
    block = len(confidence[0])
    if len(history) <= lag:
        priced = [k for k in range(len(ids) * block + 1) if sps[len(ids) + k] > 0.0]
        if priced[-1:] == [len(ids) * block]:
            return [block] * len(ids)
        return top_k(confidence, priced[-1] if priced else 0)
    past_ids, past_confidence = history[-1 - lag]
    past = dict(zip(past_ids, survivals(past_confidence), strict=True))
    brought = [past.get(i, [1.0] * block) for i in ids]
    return top_k(confidence, budget_of_survivals(brought, sps, minimum_gain))
