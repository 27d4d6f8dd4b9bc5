"""Who is who between steps: a hash table from request id to row, open addressing."""

from __future__ import annotations

from .jit import Floats, Longs, inner, jit


@jit
def index_ids(ids: Longs, slots: Longs) -> int:
    """Fill `slots` int64[a power of two > R] with rows by id, -1 where empty; a repeated id's row, or -1."""
    slots[:] = -1
    for row in range(ids.size):
        slot = _slot(ids, slots, ids[row])
        if slots[slot] >= 0:
            return row
        slots[slot] = row
    return -1


@inner
def _slot(ids: Longs, slots: Longs, wanted: int) -> int:
    """Where `wanted` is in the table, or the empty place where it would go."""
    mask = slots.size - 1
    # Multiplicative hash of two 31-bit factors: evenly spaced ids spread out, no overflow.
    slot = (((wanted % 0x7FFFFFFF) * 0x43F9B6A9) >> 20) & mask
    while slots[slot] >= 0 and ids[slots[slot]] != wanted:
        slot = (slot + 1) & mask
    return slot


@jit
def recall(ids: Longs, past_ids: Longs, past_slots: Longs, past: Floats, out: Floats) -> None:
    """out[r] = the row of `past` float64[_, γ] that had the id ids[r], or ones where none had it."""
    for r in range(ids.size):
        row = r
        if not (r < past_ids.size and past_ids[r] == ids[r]):
            row = past_slots[_slot(past_ids, past_slots, ids[r])]
        for k in range(out.shape[1]):
            out[r, k] = past[row, k] if row >= 0 else 1.0
