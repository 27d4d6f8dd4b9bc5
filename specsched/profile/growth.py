"""The smooth law a + b√R + cR of host work, held against measured points by the noise that is seen."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

# Benchmarks repeated on one machine scatter by a few percent; more is another shape, not noise.
NOISE = 0.05
FEWEST = 4  # points from which scatter about a law of up to three terms can be seen


@dataclass(frozen=True)
class Growth:
    """a + b√R + cR seconds, none of the three below 0. `scatter`: rms of (law - point) / step."""

    coefficients: tuple[float, float, float]
    scatter: float

    def __call__(self, requests: Any) -> np.ndarray:
        """Seconds at each entry of `requests`."""
        r = np.asarray(requests, dtype=np.float64)
        a, b, c = self.coefficients
        return np.asarray(a + b * np.sqrt(r) + c * r)


def fit_growth(
    requests: np.ndarray, extra: np.ndarray, steps: np.ndarray, noise: float | None
) -> Growth | None:
    """The law nearest to `extra` seconds at `requests`, errors as shares of `steps`; None where it is not
    that within the noise: `noise` as repeats showed it (twice that is allowed), else `NOISE`.
    """
    from scipy.optimize import nnls

    if len(requests) < FEWEST:
        return None
    r = requests.astype(np.float64)
    terms = np.stack([np.ones_like(r), np.sqrt(r), r], axis=1) / steps[:, None]
    coefficients, norm = nnls(terms, extra / steps)
    degrees = max(len(r) - int(np.count_nonzero(coefficients)), 1)
    scatter = float(norm) / math.sqrt(degrees)
    allowed = NOISE if noise is None else max(2.0 * noise, 1e-3)
    a, b, c = map(float, coefficients)
    return Growth((a, b, c), scatter) if scatter <= allowed else None
