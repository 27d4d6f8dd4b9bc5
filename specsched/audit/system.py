"""What a policy is shown, the systems it is shown in, and what a leak is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Longs = NDArray[np.int64]
Lengths = NDArray[np.int32]


class Step(NamedTuple):
    """An earlier step, as everybody knows it now: it is settled or forgotten."""

    ids: Longs  # int64[R'], who is who
    confidence: Floats  # float64[R', γ] in [0, 1]
    drafts: Longs  # int64[R', γ], the tokens that were drafted
    lengths: Lengths  # int32[R'] in 0..γ, what the policy answered then
    accepted: Lengths  # int32[R'], of the verified drafts; 1 more token was emitted

    def copy(self) -> Step:
        """The same with arrays of its own."""
        return Step(
            self.ids.copy(),
            self.confidence.copy(),
            self.drafts.copy(),
            self.lengths.copy(),
            self.accepted.copy(),
        )

    def equals(self, other: Step) -> bool:
        """Whether every array is the same."""
        pairs: list[tuple[NDArray[Any], NDArray[Any]]] = list(zip(self, other, strict=True))
        return all(np.array_equal(one, two) for one, two in pairs)


class History:
    """What is known beside the present confidences.

    ids     int64[R], whose the rows of the present confidences are
    drafts  int64[R, γ], the tokens drafted in this step
    steps   tuple of `Step`, oldest first; empty in the first step
    """

    def __init__(self, ids: Longs, drafts: Longs, steps: tuple[Step, ...]) -> None:
        self.ids, self.steps = ids, steps
        self._drafts = drafts
        self.read_drafts = False  # whether anybody looked

    @property
    def drafts(self) -> Longs:
        """int64[R, γ], the tokens drafted in this step."""
        self.read_drafts = True
        return self._drafts


@dataclass(frozen=True)
class Past:
    """An earlier step without what the policy answered in it. `accepted`: drafts the target would accept."""

    ids: Longs
    confidence: Floats
    drafts: Longs
    accepted: Longs  # int64[R'] in 0..γ


@dataclass(frozen=True)
class System:
    """One call of a policy, and all that came before it. Every step has the same γ and the same sps."""

    sps: Floats  # float64[1 + R(1 + γ)] for the most requests of any step; entry B: steps/s at B tokens
    past: tuple[Past, ...]  # oldest first
    ids: Longs
    confidence: Floats
    drafts: Longs

    @property
    def block(self) -> int:
        return int(self.confidence.shape[1])


@dataclass(frozen=True)
class Leak:
    """Two presents that differ in the draft at `position` of one request and in what may follow from it, and
    nowhere else: the policy verifies that position in one of them alone.

    Confidences up to `position` are the same (before it, where confidences see their own token).
    """

    system: System
    row: int
    position: int  # 1..γ
    confidence: Floats  # float64[γ], of the request in the other present
    drafts: Longs  # int64[γ]
    sees_token: bool = False

    @property
    def other(self) -> System:
        """The other present."""
        return with_row(self.system, self.row, self.confidence, self.drafts)

    def is_fair(self) -> bool:
        """Whether the two presents share all that a decision on the position may depend on."""
        k, mine = self.position, self.system
        same = k - 1 if self.sees_token else k
        return (
            np.array_equal(mine.drafts[self.row, : k - 1], self.drafts[: k - 1])
            and mine.drafts[self.row, k - 1] != self.drafts[k - 1]
            and np.array_equal(mine.confidence[self.row, :same], self.confidence[:same])
        )


def with_row(system: System, row: int, confidence: Floats, drafts: Longs) -> System:
    """`system` with another present of one request."""
    all_confidence, all_drafts = system.confidence.copy(), system.drafts.copy()
    all_confidence[row], all_drafts[row] = confidence, drafts
    return replace(system, confidence=all_confidence, drafts=all_drafts)


def most_tokens(past: Sequence[Past], requests: int, block: int) -> int:
    """Tokens of the largest pass that any step could make."""
    return max([requests, *(step.ids.size for step in past)]) * (1 + block)
