"""From curves to a `StepProfile`: the one place where readers of other people's tables build our document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..profile import StepProfile

Hints = Mapping[str, Any]


def curve(
    x_name: str, x: Sequence[float] | np.ndarray, seconds: Sequence[float] | np.ndarray
) -> dict[str, Any]:
    """One curve of the profile schema: whole sizes and seconds as plain Python numbers."""
    return {x_name: [int(v) for v in x], "seconds": [float(v) for v in seconds]}


def imported(
    where: str, source_format: str, owner_rule: str, notes: Sequence[str], hints: Hints
) -> dict[str, Any]:
    """Provenance of an imported table. `owner_rule`: how its owner reads between points, in words."""
    return {
        "method": "imported",
        "source": str(hints.get("source") or where),
        "licence": str(hints.get("licence") or "unknown"),
        "date": str(hints.get("date") or ""),
        "tool": source_format,
        "host": {},
        "notes": " ".join([f"Owner's lookup: {owner_rule}.", *notes]),
    }


def build(
    name: str,
    verify: dict[str, Any],
    provenance: dict[str, Any],
    hints: Hints,
    **parts: Any,
) -> StepProfile:
    """A validated profile of `verify` (a curve with lookup and beyond) and other schema `parts`.

    Hints `gpu`, `gpu_count`, `model`, `dtype`, `tensor`, `memory_bytes`, `weight_bytes`, `kv_bytes_per_token`
    and `max_context` fill what no table of costs holds; unknown memory stays 0, which means unknown.
    """
    document: dict[str, Any] = {
        "schema": "specsched/profile/1",
        "name": str(hints.get("name") or name),
        "gpu": {
            "name": str(hints.get("gpu") or "unknown"),
            "count": int(hints.get("gpu_count") or 1),
            "memory_bytes": int(hints.get("memory_bytes") or 0),
        },
        "model": {
            "name": str(hints.get("model") or "unknown"),
            "weight_bytes": int(hints.get("weight_bytes") or 0),
            "kv_bytes_per_token": int(hints.get("kv_bytes_per_token") or 0),
            "max_context": int(hints.get("max_context") or 0),
            "dtype": str(hints.get("dtype") or "unknown"),
        },
        "parallel": {"tensor": int(hints.get("tensor") or hints.get("gpu_count") or 1), "data": 1},
        "bias_seconds": 0.0,
        "sync_seconds": 0.0,
        "verify": verify,
        "provenance": provenance,
    }
    document.update({key: value for key, value in parts.items() if value is not None})
    return StepProfile.from_dict(document)


def ceil_steps(x: np.ndarray, seconds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A linear curve that equals the ceil-to-next-point rule at every whole number up to the last point.

    Between a and b the owner reads seconds[b]; so a point a + 1 with that value is added before each b.
    """
    xs: list[int] = []
    ys: list[float] = []
    for i, (size, value) in enumerate(zip(x, seconds, strict=True)):
        first = int(x[i - 1]) + 1 if i else int(size)
        if first < size:
            xs.append(first)
            ys.append(float(value))
        xs.append(int(size))
        ys.append(float(value))
    return np.array(xs, dtype=np.int64), np.array(ys)
