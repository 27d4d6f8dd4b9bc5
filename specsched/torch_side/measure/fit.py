"""From timed steps to the additive cost of a step:

    seconds(B, R, N) = verify(B) + attention(N) + overhead(R)        [+ draft(R) when drafting]

A pass that keeps features for a drafter takes longer than one of the same size that does not: that is found
as a cost by R too (`keeping`) and belongs to draft(R).

verify is free at every B measured, so that cliffs and inversions survive; attention is piecewise linear from
0 at N = 0; overhead is free at every R, pulled weakly towards a straight line where the data leave it open.
All are non-negative and minimise the squared *relative* error of the medians. A constant cannot be told from
verify's own level and stays there: `bias_seconds` is 0, and overhead is 0 at its cheapest R.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import ProfileError
from .run import Sample

LEAST = 0.05  # of the fastest pass of a size: no noise may explain all of it by R and N
PULL = 0.02  # of a median step: how much a bend of a curve weighs against the relative error of a sample


@dataclass(frozen=True)
class StepFit:
    """`verify` and `eager`: {B: seconds}; attention at `kv_tokens`; at `requests` overhead and `keeping`,
    what passes with drafts take more than passes of the same B, R and N without (0 unless both
    were measured).

    `relative_error` float64[n]: predicted / measured - 1 of every sample.
    """

    verify: dict[int, float]
    eager: dict[int, float]
    kv_tokens: np.ndarray
    attention: np.ndarray
    requests: np.ndarray
    overhead: np.ndarray
    keeping: np.ndarray
    relative_error: np.ndarray


def fit_steps(
    tokens: np.ndarray,
    requests: np.ndarray,
    context_tokens: np.ndarray,
    seconds: np.ndarray,
    eager: np.ndarray | None = None,
    drafting: np.ndarray | None = None,
) -> StepFit:
    """Fit measured passes: int64[n] B, R, N, float64[n] seconds > 0, bool[n] off-graph, bool[n] of steps that
    draft (None: not told apart). Raises ProfileError."""
    seconds = np.asarray(seconds, dtype=np.float64)
    n = len(seconds)
    if n == 0 or not (np.isfinite(seconds) & (seconds > 0)).all():
        raise ProfileError(
            f"{n} measured steps, of which not all take a finite time above 0; nothing to fit: measure again"
        )
    eager = np.zeros(n, dtype=bool) if eager is None else np.asarray(eager, dtype=bool)
    sizes, at_size = np.unique(np.stack([eager, tokens]).T.astype(np.int64), axis=0, return_inverse=True)
    rs, at_r = np.unique(np.asarray(requests), return_inverse=True)
    knots = _knots(np.asarray(context_tokens, dtype=np.float64))
    scale = float(np.median(seconds))
    at_size = at_size.reshape(-1)
    by_r = np.eye(len(rs))[at_r.reshape(-1)]
    drafting = np.zeros(n, dtype=bool) if drafting is None else np.asarray(drafting, dtype=bool)
    if drafting.all():  # without plain passes their extra cost is no other than verify's
        drafting = np.zeros(n, dtype=bool)
    design = np.hstack(
        [
            np.eye(len(sizes))[at_size],
            _hats(np.asarray(context_tokens, dtype=np.float64), knots)[:, 1:],
            by_r,
            by_r * drafting[:, None],
        ]
    )
    weight = scale / seconds
    rows = [design * weight[:, None]]
    blank = np.zeros(len(sizes))
    for bend in _bends(knots):
        rows.append(PULL * np.concatenate([blank, bend[1:], np.zeros(2 * len(rs))])[None])
    blank, none = np.zeros(len(sizes) + len(knots) - 1), np.zeros(len(rs))
    for bend in [*_bends(rs.astype(np.float64)), np.eye(len(rs))[0]]:
        rows += [PULL * np.concatenate([blank, *pair])[None] for pair in ((bend, none), (none, bend))]
    stacked = np.concatenate(rows)
    target = np.concatenate([np.ones(n), np.zeros(len(stacked) - n)])
    floor = np.zeros(stacked.shape[1])
    floor[: len(sizes)] = [LEAST * seconds[at_size == i].min() / scale for i in range(len(sizes))]
    solved = (floor + _non_negative(stacked, target - stacked @ floor)) * scale
    predicted = design @ solved
    ends = np.cumsum([len(sizes), len(knots) - 1, len(rs)])
    theta, attention, overhead, keeping = np.split(solved, ends)
    constant = overhead.min()
    theta, overhead = theta + constant, overhead - constant
    cost = {(int(e), int(b)): float(t) for (e, b), t in zip(sizes, theta, strict=True)}
    return StepFit(
        verify={b: t for (e, b), t in cost.items() if not e},
        eager={b: t for (e, b), t in cost.items() if e},
        kv_tokens=knots,
        attention=np.concatenate([[0.0], attention]),
        requests=rs,
        overhead=overhead,
        keeping=keeping,
        relative_error=predicted / seconds - 1.0,
    )


def _non_negative(design: np.ndarray, target: np.ndarray) -> np.ndarray:
    from scipy.optimize import nnls

    return nnls(design, target, maxiter=30 * design.shape[1])[0]


def _knots(context_tokens: np.ndarray, most: int = 8) -> np.ndarray:
    """0 and up to `most` points, one for every three N measured, spread evenly over their logarithm."""
    low, high = float(context_tokens.min()), float(context_tokens.max())
    distinct = len(np.unique(context_tokens))
    if high <= 0:
        return np.array([0.0, 1.0])
    inner = np.geomspace(max(low, 1.0), high, min(most, max(distinct // 3, 2)))
    return np.unique(np.concatenate([[0.0], np.round(inner)]))


def _hats(x: np.ndarray, knots: np.ndarray) -> np.ndarray:
    """float64[n, k]: weights of linear interpolation between knots."""
    right = np.clip(np.searchsorted(knots, x, side="left"), 1, len(knots) - 1)
    share = (x - knots[right - 1]) / (knots[right] - knots[right - 1])
    hats = np.zeros((len(x), len(knots)))
    hats[np.arange(len(x)), right - 1] = 1.0 - share
    hats[np.arange(len(x)), right] += share
    return hats


def _bends(x: np.ndarray) -> list[np.ndarray]:
    """Rows that are 0 on a straight line: each point against the line through its neighbours."""
    rows = []
    for i in range(1, len(x) - 1):
        row = np.zeros(len(x))
        share = (x[i] - x[i - 1]) / (x[i + 1] - x[i - 1])
        row[i - 1 : i + 2] = -(1.0 - share), 1.0, -share
        rows.append(row)
    return rows


def blocks(samples: Sequence[Sample]) -> tuple[dict[str, Any], np.ndarray]:
    """The cost blocks of a profile document fitted from a run, and the relative error of every step.

    "overhead" is what the fit finds to depend on R plus the host's own work in steps without drafts;
    "draft" is the drafter's time plus what target and host do more in steps that draft.
    """
    passes = [s for s in samples if "verify" in s.seconds]
    if not any(not s.point.eager for s in passes):
        raise ProfileError("no pass of the target was measured; let the run go on for longer")
    fit = fit_steps(
        np.array([s.point.tokens for s in passes]),
        np.array([s.point.requests for s in passes]),
        np.array([s.context_tokens for s in passes]),
        np.array([s.median("verify") for s in passes]),
        np.array([s.point.eager for s in passes]),
        np.array([s.point.kind == "step" for s in passes]),
    )
    host = by_requests([s for s in samples if s.point.kind in ("plain", "host")], "host")
    drafting_host = by_requests([s for s in samples if s.point.kind == "step"], "host")
    draft = by_requests([s for s in samples if s.point.kind in ("step", "draft")], "draft")
    host = host or drafting_host
    extra = {r: max(t - _read(host, r), 0.0) for r, t in drafting_host.items()}
    rs = sorted({*map(int, fit.requests), *host})
    alpha, keeping = (
        dict(zip(map(int, fit.requests), found, strict=True)) for found in (fit.overhead, fit.keeping)
    )
    document: dict[str, Any] = {
        "verify": curve("tokens", fit.verify) | {"lookup": "linear", "beyond": "slope"},
        "eager": curve("tokens", fit.eager) if fit.eager else None,
        "attention": curve("kv_tokens", dict(zip(map(int, fit.kv_tokens), fit.attention, strict=True))),
        "overhead": curve("requests", {r: _read(alpha, r) + _read(host, r) for r in rs}),
        "draft": curve("requests", {r: t + extra.get(r, 0.0) + _read(keeping, r) for r, t in draft.items()})
        if draft
        else None,
    }
    prefill = {s.point.tokens: s.median("prefill") for s in samples if "prefill" in s.seconds}
    if prefill:
        document["prefill"] = curve("tokens", prefill)
    syncs = [s.median("sync") for s in samples if "sync" in s.seconds]
    document["sync_seconds"] = _digits(np.median(syncs)) if syncs else 0.0
    return document, fit.relative_error


def by_requests(samples: Sequence[Sample], part: str) -> dict[int, float]:
    """{R: median over that R's points of their median seconds of `part`}."""
    found: dict[int, list[float]] = {}
    for s in samples:
        if part in s.seconds:
            found.setdefault(s.point.requests, []).append(s.median(part))
    return {r: float(np.median(found[r])) for r in sorted(found)}


def curve(axis: str, values: dict[int, float]) -> dict[str, list[Any]]:
    """{axis: sizes, "seconds": [...]}, rising in size, five digits."""
    return {axis: sorted(values), "seconds": [_digits(values[x]) for x in sorted(values)]}


def _read(values: dict[int, float], at: int) -> float:
    """Linear between the sizes of {size: seconds}, the end values beyond; 0 without any."""
    if not values:
        return 0.0
    x = sorted(values)
    return float(np.interp(at, x, [values[v] for v in x]))


def _digits(value: Any) -> float:
    return float(f"{float(value):.5g}")
