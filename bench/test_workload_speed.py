"""How fast arrivals are drawn, read and laid on a trace, and what a second thread brings to a sweep.

Run with `pytest bench --benchmark-only`. Figures of one run are comparable with each other alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specsched.workers import map_points
from specsched.workload import assign, gamma_burst, load_workload

MILLION = 1_000_000


@pytest.fixture(scope="module")
def trace() -> Any:
    from specsched.trace import load_trace

    return load_trace("chat")


def test_draw_a_million_bursty_arrivals(benchmark: Any) -> None:
    workload = benchmark(lambda: gamma_burst(100.0, 3.0, requests=MILLION))
    assert len(workload) == MILLION


def test_lay_a_million_requests_on_a_trace(benchmark: Any, trace: Any) -> None:
    workload = gamma_burst(100.0, 3.0, requests=MILLION)
    assert len(benchmark(lambda: assign(trace, workload))) == MILLION


def test_read_a_million_rows_of_csv(benchmark: Any, tmp_path: Path) -> None:
    file = tmp_path / "big.csv"
    rows = np.column_stack([np.arange(MILLION) / 100.0, np.full(MILLION, 1024), np.full(MILLION, 256)])
    header = "arrival_seconds,prompt_tokens,output_tokens"
    np.savetxt(file, rows, fmt=["%.2f", "%d", "%d"], delimiter=",", header=header, comments="")
    assert len(benchmark(lambda: load_workload(file))) == MILLION


@pytest.mark.parametrize("workers", [1, 2])
def test_eight_runs_on_threads(benchmark: Any, trace: Any, workers: int) -> None:
    """The time with two workers over that with one: near 0.5 where two cores are free."""
    from specsched.profile import load_profile
    from specsched.simulator import simulate

    profile = load_profile("h100-sxm_qwen3-8b_bf16_tp1")

    def one(seed: int) -> float:
        result = simulate(trace, profile, "lagged:2", 64, 1000, seed, log_steps=1)
        return float(result.summary["throughput"])

    one(0)  # compile
    speeds = benchmark(lambda: map_points(one, range(8), workers))
    assert min(speeds) > 0
