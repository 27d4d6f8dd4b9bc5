"""Isotonic regression: the closest values that never fall."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


def rising(values: Iterable[float]) -> np.ndarray:
    """float64[n]: the closest non-falling values by least squares: neighbours out of order share a mean."""
    pools: list[tuple[float, int]] = []
    for value in values:
        mean, n = float(value), 1
        while pools and pools[-1][0] > mean:
            before, m = pools.pop()
            mean, n = (before * m + mean * n) / (m + n), m + n
        pools.append((mean, n))
    return np.repeat([mean for mean, _ in pools], [n for _, n in pools])
