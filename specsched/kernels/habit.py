"""How far a request's own drafts were accepted so far: survivals for drafters that give no confidences.

By request and position, tries and hits: a position is tried when it is verified and all before it were
accepted, and hit when it is accepted. Both fade by `kept` a step of the request. What all requests of an
engine did, fading eightfold slower, stands in where a request has tried little: ANCHOR tries of it. Where
nobody has tried, a draft counts as accepted: positions left out are tried again once they are forgotten.
"""

from __future__ import annotations

from .jit import Floats, Whole, jit, part

TRIES, HITS = range(2)  # first axis of float64[2, γ]
ANCHOR = 4.0
OPTIMISM = 1.0  # tries that went well, assumed of all requests together


@part
def fade(habit: Floats, kept: float) -> None:
    """One step further: what was seen counts `kept` of what it did."""
    for k in range(habit.shape[1]):
        habit[TRIES, k] *= kept
        habit[HITS, k] *= kept


@part
def remember(habit: Floats, length: int, accepted: int) -> None:
    """A step verified `length` drafts, of which the first `accepted` were accepted."""
    for k in range(min(length, accepted + 1)):
        habit[TRIES, k] += 1.0
        if k < accepted:
            habit[HITS, k] += 1.0


@part
def expect(habit: Floats, common: Floats, out: Floats) -> None:
    """Survivals float64[γ] of the next block of a request, from its habit and that of all."""
    a = 1.0
    for k in range(out.shape[0]):
        others = (common[HITS, k] + OPTIMISM) / (common[TRIES, k] + OPTIMISM)
        a *= (habit[HITS, k] + ANCHOR * others) / (habit[TRIES, k] + ANCHOR)
        out[k] = a


@jit
def expect_all(habits: Floats, common: Floats, out: Floats) -> None:
    """`expect` of R requests: habits float64[R, 2, γ], out float64[R, γ]."""
    for r in range(out.shape[0]):
        expect(habits[r], common, out[r])


@jit
def remember_all(habits: Floats, common: Floats, lengths: Whole, accepted: Whole, kept: float) -> None:
    """A step of R requests is over: each fades and remembers its own, and all together everything."""
    fade(common, 1.0 - (1.0 - kept) / 8.0)
    for r in range(habits.shape[0]):
        fade(habits[r], kept)
        n = min(lengths[r], accepted[r])
        remember(habits[r], lengths[r], n)
        remember(common, lengths[r], n)
