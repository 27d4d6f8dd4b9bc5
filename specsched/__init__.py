"""specsched: confidence-scheduled verification for speculative decoding, and the planner around it.

A reading guide, in the order in which data flows:

    errors, version     what can go wrong; the version
    files               how files are found, read and written
    profile             StepProfile: what one forward pass costs, in seconds
    trace               Trace: what a drafter proposes and what its target would accept
    workload            arrivals and lengths: closed loop, Poisson, public trace formats
    calibration         raw confidences made probabilities, and how far they are from that
    kernels             all compiled code: admission order, budgets, the engine loop
    schedule            the verification policies, as users and engines call them
    audit               a policy of anyone's, searched for decisions that would change the served text
    simulator           one run: arrays in, SimResult out
    fitting             a profile and a trace from how fast benchmarks ran
    sweep               many runs: loads, policies, seeds; threads here or a cluster
    planner             the SLA question: capacity, crossovers, GPUs, cost
    inspection          what a file holds and what is wrong with it
    documents           the documents that commands print, as types and JSON Schemas
    report              tables, plots, one self-contained page
    formats             other people's files
    torch_side          targets, drafters, training, decoding, recording, measuring; alone in needing torch
    engine_client       a running engine measured from outside, over HTTP
    vllm_plugin         a running vLLM recorded from inside; loaded by vLLM, and silent unless asked
    cli                 the command line
    workers, randomness, extras    threads, counter-based draws, optional packages: used by several of these

Start with `simulator.simulate` for how a run goes, or with `schedule` to put a policy into an engine. The
names below are loaded when first used, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .version import VERSION

if TYPE_CHECKING:
    from .calibration import Calibration, fit_sts, load_calibration
    from .errors import SpecschedError
    from .planner.answer import answer
    from .planner.plan import plan
    from .profile import StepProfile, load_profile
    from .simulator import Limits, SimResult, simulate
    from .trace import Trace, load_trace, synthesise
    from .workload import Workload, load_workload


__version__ = VERSION

__all__ = [
    "Calibration",
    "Limits",
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
    "Calibration": "calibration",
    "Limits": "simulator",
    "SimResult": "simulator",
    "SpecschedError": "errors",
    "StepProfile": "profile",
    "Trace": "trace",
    "Workload": "workload",
    "answer": "planner",
    "fit_sts": "calibration",
    "load_calibration": "calibration",
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
