"""Maps over threads: order, progress, and which failure is raised."""

from __future__ import annotations

import time

import pytest

from specsched.errors import PolicyError, WorkloadError
from specsched.workers import map_points


@pytest.mark.parametrize("workers", [1, 3])
def test_map_points_keeps_order_and_reports(workers: int) -> None:
    seen: list[tuple[int, int]] = []
    squares = map_points(lambda x: x * x, range(20), workers, lambda d, n, _: seen.append((d, n)))
    assert squares == [x * x for x in range(20)]
    assert seen == [(i + 1, 20) for i in range(20)]
    assert map_points(str, [], workers) == []


@pytest.mark.parametrize("workers", [1, 2, 8])
def test_map_points_raises_the_first_failure_in_order(workers: int) -> None:
    def fragile(x: int) -> int:
        if x == 3:
            time.sleep(0.05)  # the later failure is seen first
        if x >= 3:
            raise PolicyError(f"point {x}")
        return x

    for _ in range(3):
        with pytest.raises(PolicyError, match="point 3"):
            map_points(fragile, range(8), workers)
    with pytest.raises(WorkloadError, match="0 workers"):
        map_points(fragile, [1], 0)
