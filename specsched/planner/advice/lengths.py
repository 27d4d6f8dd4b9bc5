"""How many tokens to draft at every batch size: the best k of R requests, and as few rows as say it.

By the same law as the simulator: a step of R requests that drafts k each emits R (1 + s_1 + ... + s_k)
tokens, s_j the share of blocks whose first j drafts are accepted, and takes seconds(R (1 + k), R, R context).
The draft of a whole block is paid whatever k > 0 is, as drafters of whole blocks have it; k = 0 pays none.

Where the engine prefills its prompts, requests that end make room for others, a of them a step: their chunks
join a share 1 - exp(-a) of the steps, as Poisson arrivals would, and those passes are so much longer.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...profile import StepProfile
from ...simulator.replay import Replay

TOLERANCE = 0.02  # of the best throughput of a batch size, given up to say the schedule in fewer rows


class Row(NamedTuple):
    """k drafts for every batch size from `first` to `last`, both included."""

    first: int
    last: int
    k: int


def accepted_shares(replay: Replay) -> np.ndarray:
    """float64[γ]: entry j-1 is the share of blocks whose first j drafts are accepted, measured."""
    found: np.ndarray = (replay.accepted[:, None] > np.arange(replay.block_size)).mean(axis=0)
    return found


def context_of(replay: Replay, fixed: int | None = None) -> float:
    """Tokens of context of a request, averaged over the time it decodes: prompt and half of what it emits."""
    if fixed is not None:
        return float(fixed)
    length = replay.length.astype(np.float64)
    return float(((replay.prompt_tokens + length / 2.0) * length).sum() / length.sum())


def speeds(
    profile: StepProfile,
    shares: np.ndarray,
    requests: int,
    context: float,
    prompts: tuple[float, float] | None = None,
) -> np.ndarray:
    """float64[γ + 1]: predicted tokens/s of R requests that draft 0..γ each; 0 where it has no cost.

    prompts: mean tokens of a prompt and of an output, where the engine prefills itself.
    """
    k = np.arange(len(shares) + 1)
    emitted = requests * (1.0 + np.concatenate([[0.0], np.cumsum(shares)]))
    tokens = requests * (1 + k)
    read = requests * context
    base = profile.seconds(1, requests, read, draft=False) - float(profile.verify_seconds(1))
    verify = profile.verify_seconds(tokens)
    if prompts is not None and prompts[0] > 0.0:
        ending = emitted / prompts[1]
        joined = 1.0 - np.exp(-ending)
        longer = tokens + np.maximum(np.round(ending * prompts[0] / joined), 1).astype(np.int64)
        verify = (1.0 - joined) * verify + joined * profile.verify_seconds(longer)
    seconds = base + verify
    seconds = seconds + np.where(k > 0, profile.draft_seconds(requests), 0.0)
    seconds = np.where(k > 0, seconds / (1.0 - profile.enabling_fraction), seconds)
    return np.nan_to_num(emitted / seconds, nan=0.0)


def table(
    profile: StepProfile,
    shares: np.ndarray,
    most: int,
    context: float,
    prompts: tuple[float, float] | None = None,
) -> np.ndarray:
    """float64[most, γ + 1]: row R-1 is `speeds` of R requests."""
    return np.stack([speeds(profile, shares, r, context, prompts) for r in range(1, most + 1)])


def schedule(speed: np.ndarray, tolerance: float = TOLERANCE) -> list[Row]:
    """The fewest rows whose k is within `tolerance` of the best at every batch size.

    speed float64[R, γ + 1], as `table` makes it. A row goes on as long as some k is good enough at all of
    its batch sizes, which makes the rows as few as can be; of several such k the one that serves most.
    """
    best = speed.max(axis=1, keepdims=True)
    good = speed >= best * (1.0 - tolerance)
    share = speed / np.where(best > 0.0, best, 1.0)  # all 0 where no k has a cost
    rows: list[Row] = []
    first = 0
    while first < len(good):
        able, last = good[first], first
        while last + 1 < len(good) and (able & good[last + 1]).any():
            last += 1
            able = able & good[last]
        served = share[first : last + 1].sum(axis=0)
        k = int(np.argmax(np.where(able, served, -1.0)))
        if rows and rows[-1].k == k:
            rows[-1] = Row(rows[-1].first, last + 1, k)
        else:
            rows.append(Row(first + 1, last + 1, k))
        first = last + 1
    return rows


def cut(rows: list[Row], most: int) -> list[Row]:
    """The rows up to a batch size of `most`."""
    return [Row(r.first, min(r.last, most), r.k) for r in rows if r.first <= most]


def length_at(rows: list[Row], requests: int) -> int:
    """k of a batch size; the last row's beyond the end, as engines have it."""
    return next((r.k for r in rows if r.first <= requests <= r.last), rows[-1].k)
