"""Which group steps next: a tree over the groups, each node with the one of its two whose step ends first."""

from __future__ import annotations

import numpy as np

from .jit import Floats, Whole, inner, part
from .state import END, State


@inner
def settle(leader: Whole, clock: Floats, group: int) -> None:
    """The END of a group has changed: who comes first is settled again on its way up the tree."""
    node = (leader.shape[0] // 2 + group) >> 1
    while node >= 1:
        left, right = leader[2 * node], leader[2 * node + 1]
        leader[node] = right if clock[right, END] < clock[left, END] else left
        node >>= 1


@part
def first_to_end(state: State) -> int:
    """The group whose step ends first, the lowest of several; an idle group never ends."""
    return np.int64(state.leader[1])
