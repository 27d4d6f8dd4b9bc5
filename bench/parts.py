"""Where the time of a run goes: imports, kernels loaded, layout, engine loop, summary, noise, plots, page.

    python bench/parts.py open     2,000 requests at 20/s under lagged:2
    python bench/parts.py sla      specsched simulate --trace qwen3-4b-chat --sla 120 --out DIR

Prints processor seconds by part as JSON. The parts of a package are timed at its doors, the rest is layout.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

spent: dict[str, float] = {}
running: list[str] = []
begun = time.process_time()


def enter(part: str) -> None:
    """From here on time is that of `part`; what went before belongs to the part that ran."""
    global begun
    now = time.process_time()
    if running:
        spent[running[-1]] = spent.get(running[-1], 0.0) + now - begun
    running.append(part)
    begun = now


def leave() -> None:
    """Back to the part that was running before."""
    global begun
    now = time.process_time()
    part = running.pop()
    spent[part] = spent.get(part, 0.0) + now - begun
    begun = now


def door(module: Any, name: str, part: str) -> None:
    """Time everything inside `module.name` as `part`."""
    inner: Callable[..., Any] = getattr(module, name)

    def timed(*given: Any, **named: Any) -> Any:
        enter(part)
        try:
            return inner(*given, **named)
        finally:
            leave()

    setattr(module, name, timed)


def main(kind: str) -> None:
    """Run it and print the parts."""
    enter("imports")
    import numpy as np

    from specsched import kernels, load_profile, load_trace, planner, report, schedule, simulate
    from specsched.planner import capacity, inputs
    from specsched.report import page
    from specsched.simulator import result, run
    from specsched.workload import poisson

    leave()
    enter("trace and profile read")
    trace, profile = load_trace("qwen3-4b-chat"), load_profile("h100-sxm_qwen3-8b_bf16_tp1")
    leave()
    enter("kernels loaded")  # compiled before: what is read from the cache
    simulate(trace, profile, "lagged:2", 2, requests=20)
    leave()
    door(kernels, "run_engine", "engine loop")
    door(run, "summarise", "summary")
    door(result, "_intervals", "bootstrap")
    if kind == "sla":
        answering: Any = importlib.import_module("specsched.planner.answer")  # a function has its name
        answering.map_points = lambda function, items, workers=None: [function(item) for item in items]
        door(capacity, "speed_noise", "noise of a load")
        door(inputs, "split_and_calibrate", "calibration fitted")
        for name in ("pareto_png", "load_png"):
            if hasattr(page, name):
                door(page, name, "plots")
    enter("layout and the rest")
    if kind == "sla":
        document = planner.answer(trace, profile, 120.0)
        leave()
        enter("text and page")
        report.answer_text(document)
        with tempfile.TemporaryDirectory() as folder:
            report.write_answer(document, Path(folder), "specsched simulate")
    else:
        simulate(trace, profile, schedule.make("lagged:2"), workload=poisson(20.0, 2000, seed=1))
    leave()
    assert np.isfinite(sum(spent.values()))
    print(json.dumps(spent))


if __name__ == "__main__":
    main(sys.argv[1])
