"""Maps over threads: results in order, the first failure in order raised. Kernels release the GIL."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, TypeVar

from .errors import WorkloadError

Item = TypeVar("Item")
Progress = Callable[[int, int, str], None]


def default_workers() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def map_points(
    function: Callable[[Item], Any],
    points: Iterable[Item],
    workers: int | None = None,
    progress: Progress | None = None,
) -> list[Any]:
    """[function(p) for p in points] on threads, results in the order of the points.

    When points fail, those not begun are dropped and the first failure in the order of the points is raised:
    the same one on any number of workers. `function` should spend its time where the GIL is released.
    """
    items = list(points)
    with ThreadPoolExecutor(worker_count(workers)) as pool:
        futures = [pool.submit(function, item) for item in items]
        try:
            for done, future in enumerate(as_completed(futures), start=1):
                if future.exception() is not None:
                    break
                if progress is not None:
                    progress(done, len(items), "")
        finally:
            for future in futures:
                future.cancel()
    # Points begin in order, so whatever stands before a failure has run to its end.
    return [future.result() for future in futures]


def worker_count(workers: int | None) -> int:
    if workers is not None and workers < 1:
        raise WorkloadError(f"{workers} workers cannot run anything; give 1 or more")
    return workers or default_workers()
