"""Step profiles to test with: by hand, by hypothesis, and the cost of a step in exact arithmetic."""

from __future__ import annotations

import copy
import itertools
from fractions import Fraction
from typing import Any

from hypothesis import strategies as st

SMALL: dict[str, Any] = {
    "schema": "specsched/profile/1",
    "name": "small",
    "gpu": {"name": "G", "count": 2, "memory_bytes": 1000},
    "model": {"name": "M", "weight_bytes": 800, "kv_bytes_per_token": 10},
    "bias_seconds": 0.001,
    "sync_seconds": 0.0002,
    "verify": {"tokens": [1, 8, 64], "seconds": [0.005, 0.006, 0.02], "lookup": "linear", "beyond": "slope"},
    "capture": {"sizes": [1, 2, 4, 8, 16], "limit": 16},
    "eager": {"tokens": [17, 64, 256], "seconds": [0.05, 0.06, 0.1]},
    "attention": {"kv_tokens": [0, 1000], "seconds": [0.0, 0.001]},
    "overhead": {"requests": [1, 32], "seconds": [0.001, 0.005]},
    "draft": {
        **{"requests": [1, 32], "seconds": [0.001, 0.002], "block_size": 7, "drafter": "D"},
        **{"weight_bytes": 0, "kv_bytes_per_token": 0},
    },
    "provenance": {"method": "measured", "licence": "CC0"},
}


def small(**changes: Any) -> dict[str, Any]:
    """SMALL with top-level keys replaced; None removes a key."""
    document = copy.deepcopy(SMALL) | changes
    return {key: value for key, value in document.items() if value is not None}


# -- the oracle: the cost of a step in exact arithmetic, one loop per lookup -----------------------------


def look_up(x: list[int], y: list[float], at: int, lookup: str = "linear", beyond: str = "slope") -> Fraction:
    points = [(Fraction(a), Fraction(b)) for a, b in zip(x, y, strict=True)]
    if at <= points[0][0]:
        return points[0][1]
    if at > points[-1][0]:
        if beyond == "clamp" or len(points) == 1:
            return points[-1][1]
        (x0, y0), (x1, y1) = points[-2:]
        return y1 + max((y1 - y0) / (x1 - x0), Fraction(0)) * (at - x1)
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        if x0 <= at <= x1:
            if at == x1:
                return y1
            if lookup == "floor" or at == x0:
                return y0
            return y1 if lookup == "ceil" else y0 + (y1 - y0) * (at - x0) / (x1 - x0)
    raise AssertionError("unreachable")


def naive_seconds(
    d: dict[str, Any], tokens: int, requests: int, context: int, draft: bool, sync: bool
) -> Fraction | None:
    """Seconds by the formula of docs/architecture.md; None where the profile refuses."""
    verify, capture = d["verify"], d.get("capture")
    lookup, beyond = verify.get("lookup", "linear"), verify.get("beyond", "slope")
    usable = [s for s in capture["sizes"] if s <= capture["limit"]] if capture else []
    if capture and tokens > usable[-1]:
        if not d.get("eager"):
            return None
        total = look_up(d["eager"]["tokens"], d["eager"]["seconds"], tokens, beyond=beyond)
    else:
        padded = next(s for s in usable if s >= tokens) if capture else tokens
        total = look_up(verify["tokens"], verify["seconds"], padded, lookup, beyond)
    total += Fraction(d.get("bias_seconds", 0.0))
    if d.get("attention"):
        total += look_up(d["attention"]["kv_tokens"], d["attention"]["seconds"], context)
    if d.get("overhead"):
        total += look_up(d["overhead"]["requests"], d["overhead"]["seconds"], requests, beyond=beyond)
    if draft and d.get("draft") and requests:
        total += look_up(d["draft"]["requests"], d["draft"]["seconds"], requests, beyond=beyond)
    if sync:
        total += Fraction(d.get("sync_seconds", 0.0))
    fraction = d.get("scheduler", {}).get("enabling_fraction", 0.0)
    return total / (1 - Fraction(fraction)) if draft else total


SECONDS = st.floats(1e-4, 1.0)


@st.composite
def curves(draw: st.DrawFn, axis: str, least: int = 1, most: int = 400) -> dict[str, Any]:
    x = sorted(draw(st.sets(st.integers(least, most), min_size=1, max_size=6)))
    return {axis: x, "seconds": draw(st.lists(SECONDS, min_size=len(x), max_size=len(x)))}


@st.composite
def decisions(draw: st.DrawFn) -> dict[str, Any]:
    """`scheduler.table`: what an engine's scheduler divides by."""
    table = draw(curves("tokens", 1, 40)) | {
        "lookup": draw(st.sampled_from(["linear", "floor", "ceil"])),
        "beyond": draw(st.sampled_from(["slope", "clamp"])),
    }
    if draw(st.booleans()):
        by_requests = draw(curves("requests", 1, 8))
        table |= {"requests": by_requests["requests"], "request_seconds": by_requests["seconds"]}
    return table


@st.composite
def profiles(draw: st.DrawFn) -> dict[str, Any]:
    """Profile documents, curves as jagged as they come, every optional block present or not."""
    document = {
        "schema": "specsched/profile/1",
        "name": "drawn",
        "bias_seconds": draw(st.sampled_from([0.0, 0.003])),
        "sync_seconds": draw(st.sampled_from([0.0, 0.001])),
        "verify": draw(curves("tokens"))
        | {
            "lookup": draw(st.sampled_from(["linear", "floor", "ceil"])),
            "beyond": draw(st.sampled_from(["slope", "clamp"])),
        },
        "scheduler": {
            "minimum_gain": 0.0,
            "enabling_fraction": draw(st.sampled_from([0.0, 0.05, 0.5])),
            "idle_draft": draw(st.sampled_from([0.0, 0.1, 1.0])),
            "catch_up": draw(st.sampled_from([0.0, 0.01, 2.0])),
        },
    }
    if draw(st.booleans()):
        sizes = sorted(draw(st.sets(st.integers(1, 300), min_size=1, max_size=8)))
        document["capture"] = {"sizes": sizes, "limit": draw(st.integers(sizes[0], 400))}
        if draw(st.booleans()):
            document["eager"] = draw(curves("tokens", 1, 600))
    for key, axis, least in (
        ("attention", "kv_tokens", 0),
        ("overhead", "requests", 0),
        ("draft", "requests", 1),
    ):
        if draw(st.booleans()):
            document[key] = draw(curves(axis, least))
    return document
