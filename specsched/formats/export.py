"""Our additive profile as the tables other engines read, exact at every whole number of tokens or requests.

Their tables have no context and no draft axis: attention at a stated context and the cost of drafting go into
the part that depends on the requests.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..errors import FormatError
from ..profile import StepProfile

DEFAULT_CONTEXT = 2048
DEFAULT_REQUESTS = 256
MOST_TOKENS = 1 << 17
# Two slopes count as one when they differ by less than this share of a step per token.
_SAME_SLOPE = 1e-12


@dataclass(frozen=True)
class AdditiveParts:
    """T(R, B) = bias + overhead(R) + verify(B), each curve exact by linear interpolation, clamped at its
    ends.
    """

    bias: float
    requests: np.ndarray
    overhead: np.ndarray
    tokens: np.ndarray
    verify: np.ndarray
    notes: tuple[str, ...]


def additive_parts(
    profile: StepProfile,
    context: int | None = None,
    max_requests: int | None = None,
    max_tokens: int | None = None,
    drafting: bool = True,
) -> AdditiveParts:
    """The profile at one context per request, up to `max_requests` (256) and `max_tokens` (all drafts of
    those).
    """
    notes: list[str] = []
    context = _context(profile, context, notes)
    most_requests = int(max_requests or DEFAULT_REQUESTS)
    block = profile.draft_block_size or 7
    most_tokens = int(max_tokens or max(most_requests * (1 + block), int(profile.verify.x[-1])))
    requests = np.arange(1, most_requests + 1)
    overhead = np.array([_per_requests(profile, int(r), context, drafting) for r in requests])
    tokens, verify = _verify(profile, most_tokens, notes)
    if drafting and profile.draft is not None:
        notes.append("The cost of drafting is inside the part that depends on requests.")
    keep_r, keep_b = _bends(requests, overhead), _bends(tokens, verify)
    return AdditiveParts(
        profile.bias_seconds, requests[keep_r], overhead[keep_r], tokens[keep_b], verify[keep_b], tuple(notes)
    )


def steps_at(
    profile: StepProfile, requests: int, context: int | None = None, max_tokens: int | None = None
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """(tokens int64[n], seconds float64[n]) of whole steps of R requests, B = R .. all their drafts, and
    notes.
    """
    notes = [f"Steps of {requests} requests."]
    context = _context(profile, context, notes)
    most = int(max_tokens or requests * (1 + (profile.draft_block_size or 7)))
    if most <= requests:
        raise FormatError(f"max_tokens {most} leaves no room for drafts of {requests} requests; raise it")
    tokens, verify = _verify(profile, most, notes)
    seconds = profile.bias_seconds + _per_requests(profile, requests, context, True) + verify
    return tokens[tokens >= requests], seconds[tokens >= requests], notes


def whole_step(
    profile: StepProfile, tokens: int, requests: int, context: int | None = None, drafting: bool = True
) -> float:
    """Seconds of one step of B tokens and R requests at one context per request; NaN where it has no cost."""
    base = profile.bias_seconds + _per_requests(profile, requests, _context(profile, context, []), drafting)
    return base + float(profile.verify_seconds(tokens))


def _context(profile: StepProfile, context: int | None, notes: list[str]) -> int:
    if profile.attention is None:
        return 0
    chosen = DEFAULT_CONTEXT if context is None else int(context)
    notes.append(
        f"Attention is fixed at {chosen} tokens of context per request: the format has no context axis."
    )
    return chosen


def _per_requests(profile: StepProfile, requests: int, context: int, drafting: bool) -> float:
    total = float(profile.attention(requests * context)) if profile.attention is not None else 0.0
    total += float(profile.overhead(requests)) if profile.overhead is not None else 0.0
    return total + (profile.draft_seconds(requests) if drafting else 0.0)


def _verify(profile: StepProfile, most: int, notes: list[str]) -> tuple[np.ndarray, np.ndarray]:
    tokens = _tokens(profile, most)
    verify = profile.verify_seconds(tokens)
    known = ~np.isnan(verify)
    if not known.all():
        notes.append(
            f"The profile has no cost above its capture limit {profile.graph_limit}; the table ends there "
            "and "
            "its reader clamps: keep batches below it."
        )
    return tokens[known], verify[known]


def _tokens(profile: StepProfile, most: int) -> np.ndarray:
    """Token counts at which the cost is looked at: all of them, or beyond MOST_TOKENS those beside the
    points of the profile, between which it is straight or level."""
    if most <= MOST_TOKENS:
        return np.arange(1, most + 1)
    curves = [c.x for c in (profile.verify, profile.eager) if c is not None]
    sizes = [profile.capture_sizes] if profile.capture_sizes is not None else []
    limit = [np.array([profile.graph_limit])] if profile.graph_limit is not None else []
    points = np.concatenate([*curves, *sizes, *limit]).astype(np.int64)
    near = np.concatenate([points - 1, points, points + 1, np.arange(1, MOST_TOKENS + 1), [most]])
    return np.unique(near[(near >= 1) & (near <= most)])


def _bends(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """bool[n]: the points a linear, clamped reader needs; level ends are left to the clamp."""
    keep = np.ones(len(x), dtype=bool)
    if len(x) > 2:
        slope = np.diff(y) / np.diff(x)
        keep[1:-1] = np.abs(np.diff(slope)) > _SAME_SLOPE * np.abs(y[1:-1])
    kept = np.flatnonzero(keep)
    if len(kept) > 2 and y[kept[-1]] == y[kept[-2]]:
        keep[kept[-1]] = False
    if len(kept) > 2 and y[kept[0]] == y[kept[1]]:
        keep[kept[0]] = False
    return keep
