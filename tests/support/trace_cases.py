"""Traces to test with."""

from __future__ import annotations

from typing import Any

import numpy as np

from specsched.calibration.metrics import sigmoid
from specsched.trace import Trace


def made(
    temperature: Any = 1.0,
    shift: Any = 0.0,
    rows: int = 200,
    requests: int = 100,
    gamma: int = 3,
    seed: int = 0,
) -> Trace:
    """Independent rows whose true conditional acceptance is σ(logit / temperature + shift)."""
    rng = np.random.default_rng(seed)
    n = rows * requests
    true = rng.normal(0.8, 1.5, (n, gamma))
    accepted = np.cumprod(rng.random((n, gamma)) < sigmoid(true), axis=1).sum(axis=1)
    raw = (true - np.asarray(shift)) * np.asarray(temperature)
    return Trace.from_arrays(
        request=np.repeat(np.arange(requests), rows),
        position=np.tile(np.arange(rows), requests),
        confidence_logit=raw,
        accepted=accepted,
    )
