"""Costs that tempt a policy: seconds of a pass of B tokens, as steps per second."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .system import Floats

# Seconds at B tokens for R requests. The cliff is DSpark's Appendix A: one draft does not pay, two may.
_SECONDS: dict[str, Callable[[Floats, int], Floats]] = {
    "flat": lambda tokens, requests: np.ones_like(tokens),
    "line": lambda tokens, requests: 1 + 0.25 * tokens,
    "cliff": lambda tokens, requests: np.where(tokens > requests, 2 + 0.25 * (tokens - requests - 1), 1.0),
    "stairs": lambda tokens, requests: 1 + 0.5 * np.ceil(tokens / 3),
}
CURVES = tuple(_SECONDS)  # the simplest first


def curve(name: str, requests: int, most: int) -> Floats:
    """float64[most + 1]: steps per second at B = 0..most tokens."""
    return 1.0 / _SECONDS[name](np.arange(most + 1, dtype=np.float64), requests)


def random_curve(rng: np.random.Generator, most: int) -> Floats:
    """float64[most + 1]: seconds rise slowly, with jumps of random size at random places."""
    rises = rng.choice([0.0, 0.02, 0.1, 1.0], size=most + 1, p=[0.5, 0.2, 0.2, 0.1]) * rng.random(most + 1)
    seconds: Floats = float(rng.choice([0.1, 1.0, 5.0])) + np.cumsum(rises)
    return 1.0 / seconds
