"""What a million requests cost before any is simulated: drawn, read from a file, laid on a trace."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
from rows import Row, least

from specsched.trace import load_trace
from specsched.workload import assign, gamma_burst, load_workload

MILLION = 1_000_000


def rows() -> list[Row]:
    """Against drawing, reading and sorting as many numbers with numpy and Arrow and nothing else."""
    from pyarrow import csv

    trace, workload = load_trace("chat"), gamma_burst(100.0, 3.0, requests=MILLION)
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "big.csv"
        columns = np.column_stack([np.arange(MILLION) / 100.0, np.full(MILLION, 1024), np.full(MILLION, 256)])
        header = "arrival_seconds,prompt_tokens,output_tokens"
        np.savetxt(file, columns, fmt=["%.2f", "%d", "%d"], delimiter=",", header=header, comments="")
        seconds = least(
            {
                "draw": lambda: gamma_burst(100.0, 3.0, requests=MILLION),
                "numpy": lambda: np.cumsum(rng.gamma(1 / 9, 1.0, MILLION)),
                "assign": lambda: assign(trace, workload),
                "sort": lambda: np.argsort(rng.random(MILLION)),
                "read": lambda: load_workload(file),
                "arrow": lambda: csv.read_csv(file),
            },
            rounds=2,
            clock=time.process_time,
        )
    told = {
        "draw": ("a million bursty arrivals drawn", "numpy", "as many gamma draws added up", 10.0),
        "assign": ("a million requests laid on a trace", "sort", "as many random numbers sorted", 10.0),
        "read": ("a million rows of CSV read", "arrow", "the same by Arrow, unchecked", 20.0),
    }
    out = []
    for key, (what, floor, against, most) in told.items():
        ours, theirs = seconds[key], seconds[floor]
        goal, met = f"at most {most:g} times", ours <= most * theirs
        out.append(Row(f"arrivals {key}", what, ours, theirs, "s", against, goal, met))
    return out
