"""A step profile laid out as plain arrays, which compiled code reads."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .curve import Curve
from .decision import Decision

NO_LIMIT = int(np.iinfo(np.int64).max)


class ProfileTables(NamedTuple):
    """A profile as plain arrays, for the engine loop (all read-only by convention).

    A step costs base = ((bias + attention(N)) + overhead[R]) + draft[R] (+ sync), then base + verify[B], then
    / (1 - enabling_fraction) when drafting.
    attention(N) = attention_y[i] + attention_slope[i] * (N - attention_x[i]) for the last i with
    attention_x[i] <= N, and attention_y[0] below the first point.
    """

    # float64[max_tokens + 1]: entry B, padded and looked up; NaN where refused; entry 0 = entry 1
    verify: np.ndarray
    extrapolated: np.ndarray  # uint8[max_tokens + 1]: 1 where the entry lies past the last measured point
    overhead: np.ndarray  # float64[max_requests + 1]
    draft: np.ndarray  # float64[max_requests + 1]; entry 0 is 0: nothing is drafted
    attention_x: np.ndarray  # float64[n], n >= 2
    attention_y: np.ndarray  # float64[n]
    attention_slope: np.ndarray  # float64[n]
    bias: float
    sync: float
    enabling_fraction: float
    idle_draft: float
    catch_up: float
    # B above this has no cost (capture limit without an eager curve); NO_LIMIT when all have
    refused_above: int
    # What the engine's own scheduler takes a step to cost: decision_requests[R] + decision_tokens[B]. Where
    # it has no table of its own, `decides` is False and both are empty.
    decides: bool
    decision_tokens: np.ndarray  # float64[max_tokens + 1]
    decision_requests: np.ndarray  # float64[max_requests + 1]


def attention_points(curve: Curve | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """float64[n] each, n >= 2: points of the curve (nothing where it is None), and the slopes after them."""
    if curve is None:
        curve = Curve(np.array([0.0, 1.0]), np.zeros(2))
    x, y, slope = curve.x, curve.y, curve.slopes
    # One more point where the last slope is not that of the last two points (one point, or a final
    # inversion): whoever extends the last two points of x and y then reads the same curve.
    if len(x) < 2 or slope[-1] != slope[-2]:
        x, y, slope = np.append(x, x[-1] + 1.0), np.append(y, y[-1]), np.append(slope, 0.0)
    return x, y, slope


def decision_arrays(decision: Decision | None, tokens: np.ndarray, max_requests: int) -> dict[str, Any]:
    """The last fields of `ProfileTables`; `tokens`: int64[max_tokens + 1]."""
    if decision is None:
        return {"decides": False, "decision_tokens": np.zeros(0), "decision_requests": np.zeros(0)}
    requests = np.arange(max_requests + 1, dtype=np.float64)
    by_requests = decision.requests(requests) if decision.requests is not None else np.zeros(max_requests + 1)
    return {
        "decides": True,
        "decision_tokens": np.ascontiguousarray(decision.tokens(tokens)),
        "decision_requests": np.ascontiguousarray(by_requests),
    }
