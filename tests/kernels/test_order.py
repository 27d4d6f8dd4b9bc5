"""Crowded buckets: sorting them, and plans over more survivals than are merged, against the definition."""

from __future__ import annotations

import numpy as np
import pytest
import reference

from specsched import schedule
from specsched.kernels import order

SIZE = 700
RNG = np.random.default_rng(5)
KILLER = np.concatenate([np.arange(0, SIZE, 2), np.arange(1, SIZE, 2)]) / SIZE
ORDERS = {
    "any": RNG.random(SIZE),
    "rising": np.sort(RNG.random(SIZE)),
    "falling": np.sort(RNG.random(SIZE))[::-1].copy(),
    "one value": np.full(SIZE, 0.5),
    "three values": RNG.choice([0.25, 0.5, 0.75], SIZE),
    "up and down": np.concatenate([np.arange(SIZE / 2), np.arange(SIZE / 2)[::-1]]),
    "medians at the edges": KILLER,
    "nothing": np.zeros(0),
}


@pytest.mark.parametrize("depth", [0, 1, 64], ids=["by heap", "one part waits", "parted"])
@pytest.mark.parametrize("kind", ORDERS)
def test_sorted_falling(kind: str, depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any order comes out falling, within its bounds, however few parts may wait."""
    monkeypatch.setattr(order, "DEPTH", depth)
    sort = getattr(order._sort_falling, "py_func", order._sort_falling)
    values = ORDERS[kind]
    framed = np.concatenate([[-1.0], values, [2.0]])
    sort(framed, 1, 1 + len(values), np.zeros(max(depth, 1), np.int32))
    assert framed[1:-1].tolist() == sorted(values.tolist(), reverse=True)
    assert framed[0] == -1.0
    assert framed[-1] == 2.0


@pytest.mark.parametrize("kind", ["near 1", "few values", "spread"])
@pytest.mark.parametrize("falls", [True, False], ids=["smooth costs", "captured sizes"])
def test_crowded_plans(kind: str, falls: bool) -> None:
    """Many survivals in a bucket, and costs whose best budget is close: the oracle to the last bit."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        rows, block = 400, 3
        confidence = {
            "near 1": 1.0 - 0.01 * rng.random((rows, block)),
            "few values": rng.choice([0.5, 0.9, 0.999], (rows, block)),
            "spread": rng.random((rows, block)),
        }[kind]
        sizes = np.arange(rows * (1 + block) + 1, dtype=np.float64)
        if not falls:
            sizes = 40.0 * np.ceil(sizes / 40.0)
        # Seconds grow so that the gain of one more draft is lost among those of one bucket.
        sps = 1.0 / (1.0 + sizes / rng.uniform(400.0, 1600.0))
        told = confidence.tolist(), sps.tolist()
        assert schedule.best_budget(confidence, sps) == reference.best_budget(*told)
        assert schedule.early_stop(confidence, sps).tolist() == reference.early_stop(*told)
