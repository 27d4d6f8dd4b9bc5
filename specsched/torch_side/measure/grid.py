"""Which steps the profiler times, in what order, and how their tokens and contexts are spread over requests.

    requests R  x  verify width w = B / R in {1, 2, 4, ..., 1 + γ}  x  context of one request

plus, on a GPU, M and M + 8 around multiples of 64 and 128, where the tiles of matrix products end. A tier is
complete in itself and the next one refines it, so that a run cut short still has a whole grid; within a tier
the order is random, so that a machine that slows down does not slow down the large steps alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

WIDTHS = (1, 2, 4, 8, 16, 32)
DRAFT_CONTEXT = 1024
QUICK_SIZES = (1, 2, 4, 8, 16, 32, 64, 96, 128, 136, 192, 256, 272, 384, 512)


@dataclass(frozen=True)
class Point:
    """One step to time: `tokens` B over `requests` R, each with about `context` tokens in its cache.

    kind: "verify" (the target's pass), "draft", "host" (what the host does around them), "step" (a whole step
    of the small engine, drafting), "plain" (one without drafts), "prefill" (`tokens` of one prompt).
    """

    kind: str
    requests: int
    tokens: int
    context: int
    ragged: bool = False
    eager: bool = False
    tier: int = 0

    @property
    def label(self) -> str:
        """What a progress bar says."""
        return f"{self.kind}, {self.requests} requests, {self.tokens} tokens, context {self.context}"


def engine_points(
    block_size: int, requests: Sequence[int], contexts: Sequence[int], prompts: Sequence[int]
) -> list[Point]:
    """Steps of the small engine on a CPU. The first context is the one every tier has.

    Widths between 1 and the whole block are timed ragged, as a scheduler leaves them, and even, as `fixed:k`
    does: attention pads requests of unequal length, so the two differ.
    """
    whole = 1 + block_size
    widths = widths_up_to(whole)
    points = [Point("prefill", 1, n, n, tier=min(i, 1)) for i, n in enumerate(prompts)]
    for c, context in enumerate(contexts):
        for n, r in enumerate(sorted(requests)):
            tier = min(c, 1) + n % 2
            points.append(Point("plain", r, r, context, tier=tier))
            for w in widths:
                inner = 1 < w < whole and r > 1
                points.append(Point("step", r, r * w, context, inner, tier=tier))
                if inner:
                    points.append(replace(points[-1], ragged=False, tier=tier + 1))
    return points


def pass_points(
    captured: Sequence[int],
    block_size: int,
    contexts: Sequence[int],
    most_requests: int,
    most_kv: int,
    quick: bool = False,
    prompts: Sequence[int] = (),
) -> list[Point]:
    """Passes of a target on a GPU: every captured size in a graph, sizes above the last one off it.

    captured: sizes a graph is made for, rising. most_kv: tokens the KV cache holds; larger steps are left
    out. prompts: lengths to prefill.
    """
    limit = captured[-1]
    coarse = {b for b in captured if b in QUICK_SIZES} | {captured[0], limit}
    graph = sorted(coarse if quick else {*captured, *edges(limit)})
    off_graph = off_graph_sizes(limit, quick)
    points: list[Point] = []
    for tokens in [*graph, *off_graph]:
        eager = tokens > limit
        for c, context in enumerate(contexts):
            for width in widths_up_to(1 + block_size):
                r = -(-tokens // width)
                # R of a size not divisible by the width: the last requests verify fewer.
                if r > most_requests or tokens > r * (1 + block_size) or r * context > most_kv:
                    continue
                first = tokens in coarse or tokens in (off_graph[0], off_graph[-1])
                tier = (0 if first else 1) + (0 if c == 0 else 1) + (0 if width in (1, 4) else 1)
                points.append(Point("verify", r, tokens, context, width > 1 and r > 1, eager, tier))
    seen: dict[tuple[int, ...], Point] = {}
    for p in points:
        seen.setdefault((p.requests, p.tokens, p.context), p)
    # A drafter's context is memory beside the target's: long ones of many requests would not fit.
    context = min(contexts[0], DRAFT_CONTEXT)
    for n, r in enumerate(ladder(most_requests)):
        if r * context <= most_kv:
            seen[(-1, r)] = Point("draft", r, r, context, tier=n % 2)
            seen[(-2, r)] = Point("host", r, r, context, tier=n % 2)
    for n, length in enumerate(prompts):
        seen[(-3, length)] = Point("prefill", 1, length, length, eager=True, tier=n % 2)
    return list(seen.values())


def widths_up_to(whole: int) -> list[int]:
    """Verification widths to time: powers of two below the whole block, and the whole, 1 + γ."""
    return sorted({w for w in WIDTHS if w < whole} | {whole})


def edges(limit: int) -> list[int]:
    """M and M + 8 for multiples M of 64 up to `limit`: a tile full, and the next begun."""
    return [b for m in range(64, limit + 1, 64) for b in (m, m + 8) if b <= limit]


def off_graph_sizes(limit: int, quick: bool) -> list[int]:
    """Sizes above the capture limit to time without a graph, rising."""
    if quick:
        return sorted({limit + 8, 2 * limit, 4 * limit})
    fine = [b for m in range(limit, 2 * limit + 1, 128) for b in (m, m + 8) if b > limit]
    return sorted({limit + 1, *fine, 3 * limit, 4 * limit})


def ladder(most: int) -> list[int]:
    """1, 2, 4, ... up to `most`, which is the last."""
    return sorted({1 << i for i in range(most.bit_length())} | {most})


def in_order(points: Iterable[Point], seed: int = 0) -> list[Point]:
    """Tier after tier, each in a random order that `seed` decides."""
    rng = np.random.default_rng(seed)
    points = list(points)
    shuffled = [points[i] for i in rng.permutation(len(points))]
    return sorted(shuffled, key=lambda p: p.tier)


def anchor_of(points: Sequence[Point]) -> Point:
    """The point that is timed again and again to see drift: the middle one of the first tier by size."""
    first = [p for p in points if p.kind in ("verify", "step", "plain") and not p.eager] or list(points)
    least = min(p.tier for p in first)
    ranked = sorted((p for p in first if p.tier == least), key=lambda p: (p.tokens, p.requests, p.context))
    return ranked[len(ranked) // 2]


def widths_of(point: Point, block_size: int, rng: np.random.Generator) -> np.ndarray:
    """int64[R]: tokens each request sends, 1 .. 1 + γ, summing to B; as even as can be unless `ragged`."""
    r, b, most = point.requests, point.tokens, 1 + block_size
    if not r <= b <= r * most:
        raise ValueError(f"{b} tokens cannot be spread over {r} requests of 1 to {most}")
    if not point.ragged:
        return b // r + (np.arange(r) < b % r).astype(np.int64)
    # B - R of the R * γ places for drafts, drawn without replacement: all lengths from none to all occur.
    places = rng.choice(r * block_size, b - r, replace=False)
    return 1 + np.bincount(places // block_size, minlength=r).astype(np.int64)


def contexts_of(point: Point, rng: np.random.Generator) -> np.ndarray:
    """int64[R]: tokens in each request's cache, between half and one and a half times `context`, of that
    mean."""
    r, mean = point.requests, point.context
    if r == 1:
        return np.array([mean], dtype=np.int64)
    lengths = rng.integers(-(-mean // 2), mean + mean // 2 + 1, r)
    return np.array(list(_moved_to_sum(lengths, r * mean, -(-mean // 2), mean + mean // 2)), dtype=np.int64)


def _moved_to_sum(lengths: np.ndarray, total: int, low: int, high: int) -> Iterator[int]:
    missing = total - int(lengths.sum())
    for length in lengths.tolist():
        moved = min(max(length + missing, low), high)
        missing -= moved - length
        yield moved
