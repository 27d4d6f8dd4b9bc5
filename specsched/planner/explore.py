"""What a capacity becomes at other SLAs, and were drafts accepted more or less often.

Beside the answer itself: the numbers behind the page's moving SLA and its table of what would change the
answer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from ..documents.answer import CapacityAt, IfAcceptance
from ..randomness import generator
from ..simulator.own import resized
from ..simulator.replay import Replay
from .capacity import RATIO, STEP_CHANGE, Search, ladder, largest_load

ACCEPTANCE = 31  # random stream of this module
SLOWEST, FASTEST, MOST = 0.7, 1.6, 10  # SLAs explored, as multiples of the one asked for, and their number
NEAR = 0.02  # of the load: how exactly a changed acceptance is followed


@dataclass(frozen=True)
class Explored:
    """What was found beside a capacity."""

    capacity_at: list[CapacityAt] = field(default_factory=list)
    if_acceptance: IfAcceptance | None = None


def explored_by(search: Search, capacity: int) -> Explored:
    """Capacities at `other_slas`, and with acceptance a tenth lower and higher."""
    rungs, asked = ladder(search.question), search.question.sla_tps
    found: list[CapacityAt] = [
        {"sla_tps": sla, "capacity": search.at_sla(rungs, sla)} for sla in other_slas(asked)
    ]
    if not search.policy.drafts or not capacity:
        return Explored(found)
    lower, higher = (_changed(search, capacity, 1.0 + change) for change in (-STEP_CHANGE, STEP_CHANGE))
    return Explored(found, {"lower": lower, "higher": higher, "by": STEP_CHANGE})


def other_slas(sla_tps: float) -> list[float]:
    """Up to MOST round speeds (tokens/s) around an SLA, that one left out."""
    low, high = SLOWEST * sla_tps, FASTEST * sla_tps
    least = (high - low) / MOST
    power = 10.0 ** math.floor(math.log10(least))
    step = power * next(m for m in (1.0, 2.0, 5.0, 10.0) if m * power >= least * (1.0 - 1e-9))
    # The names of numbers, not sums of steps: 84.0 and not 84.00000000000001.
    rounds = [float(f"{i * step:.12g}") for i in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return [sla for sla in rounds if sla > 0.0 and not math.isclose(sla, sla_tps)]


def _changed(search: Search, capacity: int, factor: float) -> int:
    """The capacity, to NEAR, were every draft accepted `factor` times as often; looked for around it."""
    question = search.question
    changed = replace(question, replay=with_acceptance(question.replay, factor, question.seed))
    policy = resized(search.policy, question.replay.block_size)
    tried = Search(changed, policy, done=search.done)
    wanted, largest = question.share, largest_load(question)
    good, bad = capacity, 0
    while good >= 1 and not tried.at(good).passes(wanted):
        good, bad = min(good - 1, int(good / RATIO)), good
    while not bad and good < largest:
        above = min(largest, max(good + 1, int(good * RATIO)))
        good, bad = (above, 0) if tried.at(above).passes(wanted) else (good, above)
    while bad - good > max(1.0, NEAR * good):
        middle = (good + bad) // 2
        good, bad = (middle, bad) if tried.at(middle).passes(wanted) else (good, middle)
    return good


def with_acceptance(replay: Replay, factor: float, seed: int) -> Replay:
    """The replay with every draft accepted `factor` times as often, its confidences as they are.

    Below 1 each accepted draft is rejected with probability 1 - factor, and with it what follows. Above 1 a
    draft rejected at a position of conditional rate p is accepted with probability (factor - 1) p / (1 - p),
    and those after it with probability factor p of their positions; p never passes 1.
    """
    block, accepted = replay.block_size, replay.accepted.astype(np.int64)
    draws = generator(seed, ACCEPTANCE).random((len(accepted), block))
    if factor <= 1.0:
        lost = draws >= factor
        kept = np.where(lost.any(axis=1), lost.argmax(axis=1), block)
        return replace(replay, accepted=np.minimum(accepted, kept).astype(np.int16))
    stood, going = accepted.copy(), np.zeros(len(accepted), bool)
    for k in range(block):
        reached = int((stood >= k).sum())
        rate = float((stood > k).sum()) / reached if reached else 0.0
        turned = draws[:, k] * (1.0 - rate) < (factor - 1.0) * rate
        going = np.where(stood == k, turned, going & (draws[:, k] < factor * rate))
        accepted += going
    return replace(replay, accepted=accepted.astype(np.int16))
