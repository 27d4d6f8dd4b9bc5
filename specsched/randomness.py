"""Randomness by counter: every draw is a function of (seed, stream, index), never of call order.

Streams keep the uses apart: changing how lengths are drawn can never move an arrival, and the other way
round. Numbers are those of numpy's Philox and of splitmix64 (Steele, Lea and Flood, OOPSLA 2014).
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import WorkloadError, is_whole

ARRIVALS, PHASE, ASSIGN, CHAIN, LENGTHS, SERVEGEN = 1, 2, 3, 4, 5, 6
TICKS = 26

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
BLOCK = 1 << 16


def check_seed(seed: Any) -> int:
    """The seed as an int in 0..2**63-1; raises WorkloadError otherwise."""
    if not is_whole(seed):
        raise WorkloadError(f"seed {seed!r} is not a whole number from 0 to 2**63 - 1; give one such as 0")
    return int(seed)


def generator(seed: int, stream: int, *counter: int) -> np.random.Generator:
    """A numpy Generator for one (seed, stream) and up to three counters, independent of every other one."""
    words = np.zeros(4, dtype=np.uint64)
    words[1 : 1 + len(counter)] = counter
    key = np.array([check_seed(seed), stream], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=words))


def hashed(seed: int, stream: int, index: NDArray[np.int64], salt: int = 0) -> NDArray[np.uint64]:
    """splitmix64 of (seed, stream, salt, index): uint64, the shape of `index`."""
    start = np.array([check_seed(seed)], dtype=np.uint64)
    for word in (stream, salt):
        start = _mix(start ^ _mix(np.array([word], dtype=np.uint64)))
    return _mix(start + index.astype(np.uint64) * _GOLDEN)


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    # Array operations wrap silently, scalar ones warn: hence arrays throughout.
    z = z + _GOLDEN
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def name_salt(name: str) -> int:
    """A stable 32-bit number for a name (Python's own `hash` differs from run to run)."""
    return zlib.crc32(name.encode())


def shuffled_passes(count: int, items: int, seed: int, stream: int, salt: int = 0) -> NDArray[np.int64]:
    """int64[count]: passes over 0..items-1, each pass in its own seeded order.

    Entry i depends on (seed, stream, salt, i // items, i % items) alone, so a longer sequence begins with the
    shorter one. Passes, unlike independent draws, use every item equally often: less noise at equal length.
    """
    if items <= 0:
        raise WorkloadError(
            "nothing to draw from: no traced requests; give a trace with at least one request"
        )
    out = np.empty(count, dtype=np.int64)
    passes_at_once = max(1, BLOCK * 16 // items)
    for first in range(0, -(-count // items), passes_at_once):
        last = min(first + passes_at_once, -(-count // items))
        index = np.arange(first * items, last * items, dtype=np.int64)
        keys = hashed(seed, stream, index, salt).reshape(last - first, items)
        order = np.argsort(keys, axis=1, kind="stable").ravel()
        stop = min(last * items, count)
        out[first * items : stop] = order[: stop - first * items]
    return out
