"""What the engine loop costs: a step at several loads, open loops from end to end, a million requests."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from rows import Row, least

from specsched import kernels, load_profile, load_trace, simulate
from specsched.workload import poisson

ROOT = Path(__file__).parents[1]
PROFILE, TRACE = "h100-sxm_qwen3-8b_bf16_tp1", "qwen3-4b-chat"


def sorting(count: int) -> float:
    """Seconds that np.sort takes for so many survivals: what any plan of a step is measured by."""
    numbers = np.random.default_rng(0).random(count)
    return least({"sort": lambda: np.sort(numbers)}, rounds=30, batch=max(1, 20_000 // count))["sort"]


def step_seconds(users: int, requests: int, policy: str = "lagged:2", replicas: int = 1) -> float:
    """Processor seconds of a step of a closed loop, of the compiled loop alone: the least of three runs."""
    trace, profile, engine = load_trace(TRACE), load_profile(PROFILE), kernels.run_engine
    spent: list[float] = []

    def timed(*given: Any) -> Any:
        begun = time.process_time()
        status = engine(*given)
        spent.append(time.process_time() - begun)
        return status

    kernels.run_engine = timed
    try:
        for _ in range(3):
            result = simulate(
                *(trace, profile, policy, users, requests),
                log_steps=0,
                replicas=replicas,
                kv_tokens=10**12,
            )
    finally:
        kernels.run_engine = engine
    return min(spent) / float(result.counts["steps"])


def rows(full: bool = False) -> list[Row]:
    """The table's part of the loop; `full`: a million requests too, which takes a minute."""
    out, each = [], {}
    for users, requests in ((8, 2000), (256, 4000), (1000, 4000), (30_000, 40_000)):
        seconds = step_seconds(users, requests)
        each[users] = seconds / users
        sort = sorting(7 * users)
        if users in (8, 256):
            goal, met = "5 million request-steps a second", seconds <= users / 5e6
            what = f"step of {users} requests, lagged:2"
            out.append(Row(f"step {users}", what, seconds, sort, "s", "np.sort of its survivals", goal, met))
    what, against = "a request and step at 30,000 users", "at 1,000 users"
    many, few = each[30_000], each[1000]
    out.append(Row("users", what, many, few, "s", against, "no more", many <= 1.05 * few))
    few, many = (step_seconds(8, requests, replicas=n) for n, requests in ((10, 4000), (1000, 20_000)))
    what = "a step of one of 1,000 replicas, 8 users each"
    out.append(Row("replicas", what, many, few, "s", "one of 10", "no more", many <= 1.05 * few))
    return out + ([_million(24.0), _million(150.0)] if full else [])


def open_rows() -> list[Row]:
    """Open loops from arrivals to summary."""
    return [_open(n, rate) for n, rate in ((2000, 6.45), (2000, 20.0), (10_000, 20.0))]


def _open(requests: int, rate: float) -> Row:
    """`simulate` of so many arrivals: assigned, laid out, replayed, summed up, with intervals."""
    trace, profile, load = load_trace(TRACE), load_profile(PROFILE), poisson(rate, requests, seed=1)
    counts: dict[str, float] = {}

    def run() -> None:
        result = simulate(trace, profile, "lagged:2", workload=load)
        counts.update(result.counts, requests=float(result.arrays["steps"].sum()))

    seconds = least({"run": run}, rounds=4, clock=time.process_time)["run"]
    floor = counts["steps"] * sorting(max(1, round(7 * counts["requests"] / counts["steps"])))
    what, speed = f"{requests:,} requests at {rate:g}/s, lagged:2, all in", requests / seconds
    against = f"np.sort of the survivals of every step; {speed:,.0f} requests/s"
    return Row(
        f"open {requests} {rate:g}", what, seconds, floor, "s", against, "5 sorts", seconds <= 5 * floor
    )


_MILLION = """
import json, resource, time
from specsched.profile import load_profile
from specsched.simulator import simulate
from specsched.trace import load_trace
from specsched.workload import poisson
trace, profile = load_trace({trace!r}), load_profile({profile!r})
simulate(trace, profile, "lagged:2", workload=poisson({rate}, 50), replicas=3)
begun = time.process_time()
simulate(trace, profile, "lagged:2", workload=poisson({rate}, 1_000_000, seed=1), replicas=3)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps([time.process_time() - begun, peak]))
"""


def _million(rate: float) -> Row:
    code = _MILLION.format(trace=TRACE, profile=PROFILE, rate=rate)
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    seconds, peak = json.loads(run.stdout)
    what = f"a million requests at {rate:g}/s on 3 engines ({peak / 1e6:.0f} MB)"
    goal = "60 s and 1 GB"
    return Row(f"million {rate:g}", what, seconds, 60.0, "s", "60 s", goal, seconds <= 60 and peak <= 1e9)
