"""Entries for `schedule`: confidences and costs are checked in passing, then planned.

A result below 0 is -1 - i, where i < R * γ is the flat index of the first confidence that is not a
probability, and i - R * γ the first B whose cost is not a number >= 0; nothing is planned then. The arrays
of `Work` come one by one: handing them over in a tuple would cost Python as much as a tenth of a plan.
"""

from __future__ import annotations

import numpy as np

from .budget import INFINITY, best_budget, costs_fall, find_budget, find_stop, threshold, top_k
from .jit import Floats, Whole, jit, part
from .order import Work, admit, bits_of, survival


@jit
def take_confidence(confidence: Floats, out: Floats) -> int:
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


@jit
def check_costs(sps: Floats, requests: int, size: int) -> int:
    """Whether the costs of R..R + size (= R * γ) tokens fall (1) or not (0); or a fault."""
    last = requests + size
    if costs_fall(sps, requests, last) and sps[requests] < np.inf and sps[last] >= 0.0:
        return 1
    least = most = np.int64(0)
    for n in range(last + 1):
        here = bits_of(sps[n]) if n >= requests else np.int64(0)
        least, most = min(least, here), max(most, here)
    if least < 0 or most >= INFINITY:
        for n in range(requests, last + 1):
            if not 0.0 <= sps[n] < np.inf:
                return -1 - size - n
    return 0


@jit
def take_both(confidence: Floats, sps: Floats, out: Floats) -> int:
    """`check_costs` and `take_confidence`."""
    falls = check_costs(sps, confidence.shape[0], confidence.size)
    fault = take_confidence(confidence, out)
    return falls if fault == 0 or falls < 0 else fault


@part
def _room(confidence: Floats, work: Work) -> Floats:
    return work.survival[: confidence.size].reshape(confidence.shape)


@jit
def plan_threshold(confidence: Floats, theta: float, lengths: Whole, room: Floats) -> int:
    """`threshold` of confidences; room float64[>= R * γ]."""
    current = room[: confidence.size].reshape(confidence.shape)
    fault = take_confidence(confidence, current)
    if fault == 0:
        threshold(current, theta, lengths)
    return fault


@jit
def plan_early_stop(
    confidence: Floats,
    sps: Floats,
    lengths: Whole,
    room: Floats,
    value: Floats,
    total: Floats,
    held: Whole,
    place: Whole,
    reach: Whole,
) -> int:
    """`early_stop` of confidences."""
    work = Work(room, value, total, held, place, reach)
    current = _room(confidence, work)
    falls = take_both(confidence, sps, current)
    if falls >= 0:
        budget, cut = find_stop(current, sps, falls == 1, work)
        admit(current, budget, cut, lengths, work)
    return falls


@jit
def plan_unconstrained(
    confidence: Floats,
    sps: Floats,
    minimum_gain: float,
    lengths: Whole,
    room: Floats,
    value: Floats,
    total: Floats,
    held: Whole,
    place: Whole,
    reach: Whole,
) -> int:
    """`unconstrained` of confidences."""
    work = Work(room, value, total, held, place, reach)
    current = _room(confidence, work)
    falls = take_both(confidence, sps, current)
    if falls >= 0:
        budget, cut = find_budget(current, sps, falls == 1, minimum_gain, work)
        admit(current, budget, cut, lengths, work)
    return falls


@jit
def plan_budget(
    confidence: Floats,
    sps: Floats,
    minimum_gain: float,
    room: Floats,
    value: Floats,
    total: Floats,
    held: Whole,
    place: Whole,
    reach: Whole,
) -> int:
    """`best_budget` of confidences; the budget, or a fault below 0."""
    work = Work(room, value, total, held, place, reach)
    current = _room(confidence, work)
    fault = take_both(confidence, sps, current)
    return best_budget(current, sps, minimum_gain, work) if fault >= 0 else fault


@jit
def plan_top_k(
    confidence: Floats,
    budget: int,
    lengths: Whole,
    room: Floats,
    value: Floats,
    total: Floats,
    held: Whole,
    place: Whole,
    reach: Whole,
) -> int:
    """`top_k` of confidences. Leaves the survivals of the step in `room`, for `budget_of_past`."""
    work = Work(room, value, total, held, place, reach)
    current = _room(confidence, work)
    fault = take_confidence(confidence, current)
    if fault == 0:
        top_k(current, budget, lengths, work)
    return fault


@jit
def budget_of_past(
    requests: int,
    block: int,
    sps: Floats,
    minimum_gain: float,
    room: Floats,
    value: Floats,
    total: Floats,
    held: Whole,
    place: Whole,
    reach: Whole,
) -> int:
    """`best_budget` of the survivals that an earlier `plan_top_k` or `recall` left in `room`; or a fault."""
    size = requests * block
    falls = check_costs(sps, requests, size)
    if falls < 0:
        return falls
    work = Work(room, value, total, held, place, reach)
    past = room[:size].reshape((requests, block))
    return find_budget(past, sps, falls == 1, minimum_gain, work)[0]
