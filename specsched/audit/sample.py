"""Random larger systems, in which one request's present is changed from one draft on, in many ways."""

from __future__ import annotations

import numpy as np

from .curves import CURVES, curve, random_curve
from .subject import Subject
from .system import Floats, Leak, Longs, Past, System, most_tokens, with_row

MOST_REQUESTS, MOST_BLOCK, MOST_TOKENS = 8, 7, 4
CHANGES = 8  # of each system


def random_system(rng: np.random.Generator, most_past: int) -> System:
    """A system of up to 8 requests, blocks of up to 7 and `most_past` earlier steps; requests come and go."""
    block = int(rng.integers(1, MOST_BLOCK + 1))
    vocabulary = int(rng.integers(2, MOST_TOKENS + 1))
    everybody = rng.permutation(3 * MOST_REQUESTS)[: int(rng.integers(1, MOST_REQUESTS + 1))]

    def present() -> Longs:
        some = rng.permutation(everybody)
        stay = some[rng.random(some.size) < 0.8]
        return (stay if stay.size else some).astype(np.int64)

    kind = int(rng.integers(3))
    past = []
    for _ in range(int(rng.integers(0, most_past + 1))):
        ids = present()
        size = (ids.size, block)
        confidence, drafts = _confidence(rng, kind, size), rng.integers(0, vocabulary, size)
        past.append(Past(ids, confidence, drafts, rng.integers(0, block + 1, ids.size)))
    ids = present()
    most = most_tokens(past, ids.size, block)
    name = str(rng.choice([*CURVES, "random", "random"]))
    sps = random_curve(rng, most) if name == "random" else curve(name, ids.size, most)
    size = (ids.size, block)
    return System(sps, tuple(past), ids, _confidence(rng, kind, size), rng.integers(0, vocabulary, size))


def _confidence(rng: np.random.Generator, kind: int, size: tuple[int, int]) -> Floats:
    """Any numbers; few values, so that many tie; or high ones."""
    if kind == 0:
        return rng.random(size)
    if kind == 1:
        return rng.choice([0.0, 0.25, 0.5, 0.75, 1.0], size, p=[0.05, 0.15, 0.3, 0.3, 0.2])
    return 1.0 - 0.4 * rng.random(size) ** 2


def leak_of(subject: Subject, system: System, rng: np.random.Generator, sees_token: bool) -> Leak | None:
    """The first leak that some change of one request's present shows, or None."""
    requests, block = system.confidence.shape
    before = subject.lengths(system)
    for change in range(CHANGES):
        row, k = int(rng.integers(requests)), int(rng.integers(1, block + 1))
        confidence, drafts = _changed(rng, system, row, k, change % 4, sees_token)
        after = subject.lengths(with_row(system, row, confidence, drafts))
        if min(before[row], k) != min(after[row], k):
            # Both presents share the drafts up to k; the first position that differs may lie before it.
            position = int(min(before[row], after[row])) + 1
            return _at(subject, Leak(system, row, k, confidence, drafts, sees_token), position)
    return None


def _changed(
    rng: np.random.Generator, system: System, row: int, k: int, how: int, sees_token: bool
) -> tuple[Floats, Longs]:
    """The row with another draft at k; behind it certain, hopeless, drawn again, or other tokens alone."""
    confidence, drafts = system.confidence[row].copy(), system.drafts[row].copy()
    first = k - sees_token
    drafts[k - 1] = (drafts[k - 1] + rng.integers(1, MOST_TOKENS)) % MOST_TOKENS
    if how == 3 or rng.random() < 0.5:
        drafts[k:] = rng.integers(0, MOST_TOKENS, drafts.size - k)
    if how == 2:
        confidence[first:] = rng.permutation(_confidence(rng, int(rng.integers(3)), (1, drafts.size))[0])[
            first:
        ]
    elif how < 2:
        confidence[first:] = 1.0 - how
    return confidence, drafts


def _at(subject: Subject, leak: Leak, position: int) -> Leak:
    """The same leak with its first changed draft at `position`, where the two presents are told apart.

    A third present with another draft there is verified as one of the two is, so it differs from the other.
    """
    if leak.position == position:
        return leak
    drafts = leak.system.drafts[leak.row].copy()
    drafts[position - 1] = (drafts[position - 1] + 1) % MOST_TOKENS
    confidence = leak.system.confidence[leak.row]
    third = Leak(leak.system, leak.row, position, confidence, drafts, leak.sees_token)
    one = subject.verifies(leak.system, leak.row, position)
    if subject.verifies(third.other, leak.row, position) != one:
        return third
    return Leak(leak.other, leak.row, position, confidence, drafts, leak.sees_token)
