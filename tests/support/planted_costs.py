"""A cost of steps with a cliff and an inversion, which fits must find again."""

from __future__ import annotations

import math


def theta(tokens: int) -> float:
    """A staircase with a cliff after 128 tokens and an inversion at 200, seconds."""
    base = 5e-3 + 1e-5 * tokens
    return base * (1.3 if tokens > 128 else 1.0) * (0.85 if tokens == 200 else 1.0)


def planted(tokens: int, requests: int, kv: float) -> float:
    return theta(tokens) + 2.5e-8 * kv + 2e-4 * math.sqrt(requests)
