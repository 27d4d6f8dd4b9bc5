"""Every input of tiny systems, smallest first: what decides on a position must be known before it.

For a system's every confidence (and draft, where the policy reads any) on a grid the policy's lengths are one
array with an axis a cell. A position of a request leaks where its verification is not constant along the axes
behind it: the request's later confidences, and its drafts from the position on.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .curves import CURVES, curve
from .subject import Subject
from .system import Leak, Past, System, most_tokens

LEVELS = {
    5: (0.0, 0.3, 0.6, 0.9, 1.0),
    3: (0.3, 0.6, 0.9),
    2: (0.3, 0.9),
}
TOKENS = 2


class Shape(NamedTuple):
    """A tiny system: how many requests, drafts a block and earlier steps."""

    requests: int
    block: int
    past: int

    @property
    def cells(self) -> int:
        return self.requests * self.block


_SIZES = [(1, 1), (1, 2), (2, 1), (1, 3), (3, 1), (1, 4), (2, 2), (2, 3), (3, 2)]
SHAPES = [Shape(*size, past) for size in _SIZES for past in (0, 2)]


def levels(shape: Shape, reads_drafts: bool) -> tuple[float, ...]:
    """The confidences tried at every cell: fewer where there are many cells, or drafts to go with them."""
    if reads_drafts:
        return LEVELS[5 if shape.cells <= 2 else 3 if shape.cells <= 4 else 2]
    return LEVELS[5 if shape.cells <= 4 else 3]


def inputs(shape: Shape, reads_drafts: bool) -> int:
    """Inputs on the grid of one system."""
    values = len(levels(shape, reads_drafts))
    return int((values * (TOKENS if reads_drafts else 1)) ** shape.cells)


def systems(shape: Shape, seed: int) -> Iterator[System]:
    """One system for each curve of costs; earlier steps are drawn, the last request may be new."""
    rng = np.random.default_rng([seed, *shape])
    for i, name in enumerate(CURVES):
        ids = np.arange(shape.requests, dtype=np.int64)
        before = ids[:-1] if i % 2 and shape.requests > 1 else ids
        size = (before.size, shape.block)
        past = tuple(
            Past(
                before,
                rng.choice(LEVELS[5], size),
                rng.integers(0, TOKENS, size),
                rng.integers(0, shape.block + 1, before.size),
            )
            for _ in range(shape.past)
        )
        cells = (shape.requests, shape.block)
        sps = curve(name, shape.requests, most_tokens(past, *cells))
        yield System(sps, past, ids, np.ones(cells), np.zeros(cells, np.int64))


def leak_of(subject: Subject, system: System, sees_token: bool) -> tuple[Leak | None, bool]:
    """The first leak of a system on the grid, or None; and whether its drafts were enumerated too.

    A policy that looks at no draft under any confidence answers the same under all drafts.
    """
    subject.reads_drafts = False
    shape = Shape(system.ids.size, system.block, len(system.past))
    grid = _lengths(subject, system, levels(shape, False), 1)
    reads = subject.reads_drafts
    if reads:
        grid = _lengths(subject, system, levels(shape, True), TOKENS)
    return _first(grid, system, levels(shape, reads), reads, sees_token), reads


def _lengths(subject: Subject, system: System, values: tuple[float, ...], tokens: int) -> NDArray[np.int32]:
    """int32[values, ... (an axis a cell), tokens, ... (an axis a cell), R]: what the policy answers."""
    cells, shape = system.confidence.size, system.confidence.shape
    grid = np.empty((len(values),) * cells + (tokens,) * cells + (shape[0],), np.int32)
    each = [range(len(values))] * cells + [range(tokens)] * cells
    for index in itertools.product(*each):
        confidence = np.array([values[i] for i in index[:cells]]).reshape(shape)
        drafts = np.array(index[cells:], np.int64).reshape(shape)
        grid[index] = subject.lengths(replace(system, confidence=confidence, drafts=drafts))
    return grid


def _first(
    grid: NDArray[np.int32], system: System, values: tuple[float, ...], reads: bool, sees_token: bool
) -> Leak | None:
    requests, block = system.confidence.shape
    cells = requests * block
    for row, k in itertools.product(range(requests), range(1, block + 1)):
        first = row * block
        behind = list(range(first + k - sees_token, first + block))
        behind += range(cells + first + k - 1, cells + first + block)
        verified = grid[..., row] >= k
        varies = verified.any(axis=tuple(behind), keepdims=True) & ~verified.all(
            axis=tuple(behind), keepdims=True
        )
        if not varies.any():
            continue
        at = tuple(np.argwhere(varies)[0])
        inside = tuple(slice(None) if axis in behind else at[axis] for axis in range(2 * cells))
        yes, no = (_place(at, behind, np.argwhere(verified[inside] == side)[0]) for side in (True, False))
        if reads and yes[cells + first + k - 1] == no[cells + first + k - 1]:
            # The draft at k is the same: the present with another one differs from one of the two.
            flipped = list(yes)
            flipped[cells + first + k - 1] ^= 1
            yes, no = tuple(flipped), no if verified[tuple(flipped)] else yes
        return _leak(system, values, yes, no, (row, k), reads, sees_token)
    return None


def _place(at: tuple[int, ...], behind: list[int], found: NDArray[np.int64]) -> tuple[int, ...]:
    """`at` with the axes `behind` set to `found`."""
    place = list(at)
    for axis, index in zip(sorted(behind), found, strict=True):
        place[axis] = int(index)
    return tuple(place)


def _leak(
    system: System,
    values: tuple[float, ...],
    one: tuple[int, ...],
    two: tuple[int, ...],
    where: tuple[int, int],
    reads: bool,
    sees_token: bool,
) -> Leak:
    shape, cells = system.confidence.shape, system.confidence.size
    row, k = where
    confidence, other = (np.array([values[i] for i in p[:cells]]).reshape(shape) for p in (one, two))
    drafts, other_drafts = (np.array(p[cells:], np.int64).reshape(shape) for p in (one, two))
    if not reads:  # whatever the tokens are; the two presents differ in the one at k
        drafts, other_drafts = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        other_drafts[row, k - 1] = 1
    base = replace(system, confidence=confidence, drafts=drafts)
    return Leak(base, row, k, other[row], other_drafts[row], sees_token)
