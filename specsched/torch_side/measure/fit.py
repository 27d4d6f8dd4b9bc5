"""From timed steps to the cost blocks of a profile; `bias_seconds` is 0, verify's level holds it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import ProfileError
from ...profile.additive import fit_steps
from .run import Sample


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
