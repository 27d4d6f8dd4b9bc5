"""specsched: confidence-scheduled verification for speculative decoding, and the planner around it.

A reading guide, in the order in which data flows:

    errors, files       what can go wrong, and how files are read and written
    profile             StepProfile: what one forward pass costs, in seconds
    trace               Trace: what a drafter proposes and what its target would accept
    workload            arrivals and lengths: closed loop, Poisson, public trace formats
    calibrate           raw confidences made probabilities, and how far they are from that
    kernels             all compiled code: admission order, budgets, the engine loop
    schedule            the verification policies, as users and engines call them
    simulator           one run: arrays in, SimResult out
    sweep               many runs: loads, policies, seeds; threads here or a cluster
    planner             the SLA question: capacity, crossovers, GPUs, cost
    report              tables, plots, one self-contained page
    formats             other people's files
    torch_side          targets, drafters, training, decoding, recording, measuring; alone in needing torch
    cli                 the command line

Start with `simulator.simulate` for how a run goes, or with `schedule` to put a policy into an engine. The
names below are loaded when first used, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .calibrate import Calibration, fit_sts, load_calibration
    from .errors import SpecschedError
    from .planner import answer, plan
    from .profile import StepProfile, load_profile
    from .simulator import SimResult, simulate
    from .trace import Trace, load_trace, synthesise
    from .workload import Workload, load_workload

__version__ = "0.1.0"

__all__ = [
    "Calibration",
    "SimResult",
    "SpecschedError",
    "StepProfile",
    "Trace",
    "Workload",
    "answer",
    "fit_sts",
    "load_calibration",
    "load_profile",
    "load_trace",
    "load_workload",
    "plan",
    "simulate",
    "synthesise",
]

_HOME = {
    "Calibration": "calibrate",
    "SimResult": "simulator",
    "SpecschedError": "errors",
    "StepProfile": "profile",
    "Trace": "trace",
    "Workload": "workload",
    "answer": "planner",
    "fit_sts": "calibrate",
    "load_calibration": "calibrate",
    "load_profile": "profile",
    "load_trace": "trace",
    "load_workload": "workload",
    "plan": "planner",
    "simulate": "simulator",
    "synthesise": "trace",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
