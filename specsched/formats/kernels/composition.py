"""From parts of a step to an additive profile: what every composer shares, whatever its kernels were
measured with.

Kernels price a step as verify(B) + attention(R, N). The profile knows attention(N) and overhead(R): the
second takes what attention costs beyond its KV read (more work items for more requests), fitted over a grid
of powers of two on which every N occurs under many R, and then held against steps off that grid.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import nnls

from ...profile import StepProfile
from ...profile.shapes import Gpu, ModelShape, vllm_capture_sizes

REQUESTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTEXTS = tuple(1 << k for k in range(7, 18))
DRAFT_REQUESTS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
OFF_GRID = (
    (3, 12, 24, 48, 96, 192, 1, 8, 32, 128),
    (700, 1024, 3000, 6000, 12000),
    (1, 3, 5, 8),
)
# A drafter kept in bfloat16: five layers like the target's, a head over its vocabulary, a Markov head of
# rank 256.
DRAFTER_LAYERS, MARKOV_RANK, FEATURE_LAYERS = 5, 256, 5
NOT_INCLUDED = (
    "Not in it: host scheduling, sampling and synchronisation (fit overhead from a measured run without "
    "drafts), and the "
    "launch cost of passes above the capture limit, which multiplied a step by 5 on one published system."
)


DRAFTER = f"DSpark, {DRAFTER_LAYERS} layers, Markov rank {MARKOV_RANK}, bfloat16 (composed, not measured)"


def drafter_note(shape: ModelShape, context: int) -> str:
    """What the draft curve assumes, and the memory that such a drafter takes by its shape."""
    weights, per_token = drafter_bytes(shape)
    return (
        f"Draft cost at {context} tokens of context per request. By its shape this drafter takes "
        f"{weights / 1e9:.1f} GB of weights and {per_token / 1024:.0f} KiB of KV a token "
        "(draft.weight_bytes, draft.kv_bytes_per_token), beside the target's."
    )


def drafter_bytes(shape: ModelShape) -> tuple[int, int]:
    """(weights, KV of a token) in bytes of the drafter that is composed here."""
    return shape.drafter_bytes(DRAFTER_LAYERS, MARKOV_RANK, FEATURE_LAYERS)


@dataclass(frozen=True)
class Subject:
    """What is composed: a model of this shape on `tensor` GPUs, weights and KV cache in these dtypes."""

    shape: ModelShape
    gpu: Gpu
    tensor: int
    dtype: str
    kv_dtype: str


@dataclass(frozen=True)
class Pieces:
    """What a composer measured or looked up. `verify(B)` and `attention(R, context)` in seconds, B already
    padded.
    """

    verify: Callable[[int], float]
    attention: Callable[[int, int], float]
    draft: Callable[[int], float]
    eager_sizes: Sequence[int]


@dataclass(frozen=True)
class AttentionFit:
    """attention(N) float64[n] at `kv_tokens` and overhead(R) float64[m] ≥ 0 at `requests`."""

    kv_tokens: np.ndarray
    seconds: np.ndarray
    requests: np.ndarray
    overhead: np.ndarray


def fit_attention(pieces: Pieces, pad: Callable[[int], int], most_kv: int) -> AttentionFit:
    """Additive fit of attention over the grid, weighted so that errors count as shares of a whole step.

    Neither falls: overhead stands for work items, and more requests have no fewer; a longer context is no
    less to read. (These are fitted parts, not measured curves: what the kernels' own dips cost is in the fit
    error.)

    Contexts whose KV would be more than twice `most_kv` tokens (what memory holds) are left out.
    """
    r, n, t, weight = [], [], [], []
    for requests in REQUESTS:
        for context in CONTEXTS:
            if requests * context > max(2 * most_kv, 1 << 17):
                continue
            seconds = pieces.attention(requests, context)
            r.append(requests)
            n.append(requests * context)
            t.append(seconds)
            weight.append(1.0 / (seconds + pieces.verify(pad(4 * requests))))
    rs, ri = np.unique(r, return_inverse=True)
    ns, ni = np.unique(n, return_inverse=True)
    # Both are sums of rises, overhead from 0 at one request, so that only N can tell one request's attention.
    rises_r = (ri[:, None] > np.arange(len(rs) - 1)).astype(float)
    rises_n = (ni[:, None] >= np.arange(len(ns))).astype(float)
    w = np.array(weight)
    solved = nnls(np.hstack([rises_r, rises_n]) * w[:, None], w * np.array(t))[0]
    overhead = np.concatenate([[0.0], np.cumsum(solved[: len(rs) - 1])])
    return AttentionFit(ns, np.cumsum(solved[len(rs) - 1 :]), rs, overhead)


def off_grid_errors(profile: StepProfile, pieces: Pieces, most_kv: int) -> np.ndarray:
    """float64[n]: |profile / kernels - 1| at steps that no fit saw, within the capture limit and memory."""
    errors = []
    limit = profile.graph_limit or 0
    for requests in OFF_GRID[0]:
        for context in OFF_GRID[1]:
            if requests * context > most_kv:
                continue
            attention = pieces.attention(requests, context)
            for width in OFF_GRID[2]:
                if requests * width <= limit:
                    padded = int(profile.pad(requests * width))
                    kernels = pieces.verify(padded) + attention
                    ours = profile.seconds(requests * width, requests, requests * context, draft=False)
                    errors.append(abs(ours / kernels - 1.0))
    return np.array(errors)


def assemble(
    name: str,
    pieces: Pieces,
    subject: Subject,
    provenance: dict[str, Any],
    block_size: int,
    capture_limit: int,
) -> StepProfile:
    """The profile of `pieces`, its captured sizes, its draft curve, and its fit error off the grid."""
    sizes = vllm_capture_sizes(capture_limit)
    shape, gpu, tensor = subject.shape, subject.gpu, subject.tensor
    weights, per_token = shape.weight_bytes(subject.dtype), shape.kv_bytes_per_token(subject.kv_dtype)
    draft_weights, draft_per_token = drafter_bytes(shape)
    most_kv = max(int((0.9 * gpu.memory_bytes * tensor - weights) / per_token), 1 << 15)

    def pad(tokens: int) -> int:
        return next((s for s in sizes if s >= tokens), tokens)

    attention = fit_attention(pieces, pad, most_kv)
    eager = [b for b in pieces.eager_sizes if b > capture_limit]
    document: dict[str, Any] = {
        "schema": "specsched/profile/1",
        "name": name,
        "gpu": {"name": gpu.name, "count": tensor, "memory_bytes": gpu.memory_bytes},
        "model": {
            "name": shape.name,
            "weight_bytes": weights,
            "kv_bytes_per_token": per_token,
            "max_context": shape.max_context,
            "dtype": subject.dtype,
        },
        "parallel": {"tensor": tensor, "data": 1},
        "verify": {
            **_points("tokens", sizes, map(pieces.verify, sizes)),
            "lookup": "linear",
            "beyond": "slope",
        },
        "capture": {"sizes": sizes, "limit": sizes[-1]},
        "eager": _points("tokens", eager, map(pieces.verify, eager)),
        "attention": _points("kv_tokens", attention.kv_tokens, attention.seconds),
        "overhead": _points("requests", attention.requests, attention.overhead),
        "draft": {
            **_points("requests", DRAFT_REQUESTS, map(pieces.draft, DRAFT_REQUESTS)),
            "block_size": block_size,
            "drafter": DRAFTER,
            "weight_bytes": draft_weights,
            "kv_bytes_per_token": draft_per_token,
        },
        "provenance": provenance,
    }
    profile = StepProfile.from_dict(document, name)
    errors = off_grid_errors(profile, pieces, most_kv)
    document["fit"] = {
        "median_relative_error": _round(np.median(errors)),
        "p90_relative_error": _round(np.quantile(errors, 0.9)),
        "max_relative_error": _round(errors.max()),
        "samples": len(errors),
    }
    return StepProfile.from_dict(document, name)


def _points(axis: str, x: Sequence[int] | np.ndarray, seconds: Any) -> dict[str, list[Any]]:
    return {axis: [int(v) for v in x], "seconds": [_round(v) for v in seconds]}


def _round(value: float) -> float:
    """Six digits: kernels were timed to three or four."""
    return float(f"{float(value):.6g}")
