"""How fast the engine loop replays, what memory a long run takes, and how soon the first answer is there.

Run with `pytest bench --benchmark-only -s`; each bench prints a line of what it measured. Times are of the
processor (`time.process_time`), so that a busy machine does not count; memory is the peak of a process of its
own. Goals: 3 million request-steps a second on one core, a million requests within 60 s and 2 GB, the first
answer within 10 s warm and 30 s on the very first run.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from specsched.profile import load_profile
from specsched.schedule import make
from specsched.simulator import Serving
from specsched.simulator.replay import Replay
from specsched.simulator.requests import closed_loop
from specsched.simulator.run import Run
from specsched.trace import load_trace

H100 = "h100-sxm_qwen3-8b_bf16_tp1"
ROOT = Path(__file__).parents[1]
GIB = 1 << 30

OPEN_LOOP = """
import json, resource, time
import numpy as np
from specsched.profile import load_profile
from specsched.simulator import simulate
from specsched.trace import load_trace
from specsched.workload import poisson

chat, h100 = load_trace("qwen3-4b-chat"), load_profile("h100-sxm_qwen3-8b_bf16_tp1")
simulate(chat, h100, "lagged", workload=poisson({rate}, 50), replicas={replicas})
began = time.process_time()
load = poisson({rate}, {requests}, seed=1)
result = simulate(chat, h100, "lagged", workload=load, replicas={replicas})
seconds = time.process_time() - began
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
steps = int(result.arrays["steps"].sum())
p05 = result.summary["tps_user"]["p05"]
print(json.dumps({{"seconds": seconds, "peak": peak, "request_steps": steps, "p05": p05}}))
"""


def python(code: str, **environment: str) -> dict[str, Any]:
    """What a fresh process prints, as JSON."""
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, **environment},
        check=True,
        capture_output=True,
        text=True,
    )
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("policy", ["lagged:2", "early-stop", "fixed:7", "off"])
@pytest.mark.parametrize("users", [16, 256])
def test_request_steps_per_second(benchmark: Any, policy: str, users: int) -> None:
    """The loop alone: no bootstrap, which costs as much as a short run."""
    replay, h100 = Replay.of(load_trace("qwen3-4b-chat")), load_profile(H100)
    requests = 8 * users + 500
    load = Run(replay, h100, Serving(kv_tokens=10**9), closed_loop(replay, users, requests, 0), requests)
    made = make(policy, replay.block_size)
    rates = []

    def run() -> None:
        began = time.process_time()
        result = load.result(made, 0, bootstrap=False)
        seconds = time.process_time() - began
        # Every step, of warm-up and window, takes all users one step on.
        rates.append(float(result.counts["steps"]) * users / seconds)

    benchmark.pedantic(run, rounds=5, warmup_rounds=1)
    best = max(rates[1:])
    benchmark.extra_info["request_steps_per_second"] = best
    print(f"\n{policy}, {users} users: {best / 1e6:.2f} million request-steps a second")


def test_memory_does_not_grow_with_steps(benchmark: Any) -> None:
    """Five times as many steps: what grows is one row of results a request. Intervals are of bounded size."""
    code = """
import json, resource
from specsched.profile import load_profile
from specsched.simulator import simulate
from specsched.trace import load_trace
chat, h100 = load_trace("qwen3-4b-chat"), load_profile("h100-sxm_qwen3-8b_bf16_tp1")
simulate(chat, h100, "lagged", 64, requests=100)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
result = simulate(chat, h100, "lagged", 64, requests={requests})
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({{"grown": peak - before, "steps": result.counts["steps"]}}))
"""
    found = {n: python(code.format(requests=n)) for n in (40_000, 200_000)}
    few, many = benchmark.pedantic(lambda: (found[40_000], found[200_000]), rounds=1)
    each = (many["grown"] - few["grown"]) / 160_000
    benchmark.extra_info["bytes_per_request"] = each
    print(f"\n{few['steps']} to {many['steps']} steps: {each:.0f} bytes a request more")
    # The list of coming requests, 48 bytes of state, a few copies of each column for the summary.
    assert each < 1000


@pytest.mark.parametrize(("requests", "rate"), [(10**5, 150.0), (10**6, 150.0), (10**6, 24.0)])
def test_open_loop_requests(benchmark: Any, requests: int, rate: float) -> None:
    """A day of traffic in pieces: Poisson arrivals at three engines, about 30 and 4 requests at once each.

    A fleet with little to do costs more: its steps hold fewer requests, and each costs the same.
    """
    code = OPEN_LOOP.format(rate=rate, replicas=3, requests=requests)
    found = benchmark.pedantic(lambda: python(code), rounds=1)
    benchmark.extra_info.update(found)
    speed = found["request_steps"] / found["seconds"]
    print(
        f"\n{requests} requests at {rate:g}/s: {found['seconds']:.1f} s of one core, "
        f"peak {found['peak'] / GIB:.2f} GiB, {speed / 1e6:.2f} million request-steps a second, "
        f"p05 {found['p05']:.0f} tokens/s"
    )
    assert found["peak"] < 2 * 10**9


def test_first_answer_cold_and_warm(benchmark: Any, tmp_path: Path) -> None:
    """`specsched simulate --trace qwen3-4b-chat --sla 120`, nothing compiled yet, and again."""
    command = [sys.executable, "-m", "specsched", "simulate", "--trace", "qwen3-4b-chat", "--sla", "120"]
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "numba")}
    took = []

    def answer() -> None:
        wall, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [*command, "--out", str(tmp_path / "out")],
            cwd=ROOT,
            env=environment,
            check=True,
            capture_output=True,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        took.append((spent, time.perf_counter() - wall))

    benchmark.pedantic(answer, rounds=3)
    (cold, cold_wall), (warm, warm_wall) = took[0], min(took[1:])
    benchmark.extra_info.update({"cold_cpu_seconds": cold, "warm_cpu_seconds": warm})
    print(
        f"\nfirst answer: {cold:.1f} s of processor ({cold_wall:.1f} s by the clock), "
        f"then {warm:.1f} s ({warm_wall:.1f} s)"
    )
