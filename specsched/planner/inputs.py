"""What every question of the planner (`answer`, `plan`, `runs`) is given: loaded, checked, calibrated."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..calibration import Calibration, split_and_calibrate
from ..documents.shared import CalibrationNote
from ..errors import WorkloadError
from ..profile import StepProfile, load_profile
from ..randomness import check_seed
from ..schedule import Policy, default_policies
from ..simulator import Serving, serving_of
from ..simulator.limits import NO_LIMITS, Limits
from ..simulator.own import policy_of
from ..simulator.replay import Replay
from ..trace import Trace, load_trace

Progress = Callable[[int, int | None, str], None]  # done, total (None: not known), what
AUTO = "auto"  # prefill is left to the rule of `prefill.py`
FREE = ("free", "none")  # other words for disaggregated: prompts cost this engine nothing


class Inputs(NamedTuple):
    """Inputs of a question. `trace` is the whole trace, `part` what is replayed of it."""

    trace: Trace
    profile: StepProfile
    serving: Serving
    part: Trace
    calibrated: Calibration | None
    note: CalibrationNote
    replay: Replay
    policies: list[Policy]
    prefill_asked: bool  # False: `serving.prefill` may be changed by the rule
    limits: Limits = NO_LIMITS

    @property
    def sees_token(self) -> bool:
        return self.trace.confidence_sees_token


def load_inputs(
    trace: Trace | str | os.PathLike[str],
    profile: StepProfile | str | os.PathLike[str],
    policies: Sequence[str] | None,
    calibration: Calibration | str | None,
    block_size: int | None,
    seed: int,
    serving: Serving | None,
    options: dict[str, Any],
    limits: Limits = NO_LIMITS,
    **defaults: Any,
) -> Inputs:
    """Load and check what a question is about; `options`, `defaults`: fields of `Serving`.

    `prefill` may also be "auto" (the default unless a `Serving` is given): see `prefill.py`. A limit on the
    first token asks for prefill in the engine. Raises SpecschedError children.
    """
    check_seed(seed)
    if limits.ttft_seconds is not None and serving is None and options.get("prefill", AUTO) == AUTO:
        options = options | {"prefill": "chunked"}  # the first token's time is asked for
    trace = trace if isinstance(trace, Trace) else load_trace(trace)
    profile = profile if isinstance(profile, StepProfile) else load_profile(profile)
    asked = serving is not None or options.get("prefill", AUTO) != AUTO
    settings = {key: value for key, value in options.items() if key != "prefill" or asked}
    if settings.get("prefill") in FREE:
        settings["prefill"] = "disaggregated"
    setup = serving_of(serving, settings, **defaults)
    if limits.ttft_seconds is not None and setup.prefill != "chunked":
        raise WorkloadError(
            "a time to first token needs prefill in the engine: add prefill chunked (disaggregated prompts "
            "arrive with their first token)"
        )
    part, calibrated, note = split_and_calibrate(trace, calibration, seed)
    replay = Replay.of(part, calibrated, block_size)
    names = policies if policies is not None else default_policies(replay.block_size)
    made = {p.name: p for p in (policy_of(name, replay.block_size) for name in names)}
    return Inputs(trace, profile, setup, part, calibrated, note, replay, list(made.values()), asked, limits)


def check_promise(sla_tps: float, share: float) -> None:
    """Refuse a promise that cannot be: tokens/s, and the share of requests that get them."""
    if not (np.isfinite(sla_tps) and sla_tps > 0):
        raise WorkloadError(f"the SLA is {sla_tps} tokens/s; it must be a positive number such as 80")
    if not 0.0 < share <= 1.0:
        raise WorkloadError(f"the SLA fraction is {share}; it is the share of requests, above 0 and up to 1")


def report_progress(searches: Sequence[Any], done: Callable[[Any], int], progress: Progress | None) -> None:
    """Let every search (its `done` is called after each trial) report all trials of all searches."""
    if progress is None:
        return
    for search in searches:

        def told(*_: Any, name: str = search.policy.name) -> None:
            progress(sum(map(done, searches)), None, name)

        search.done = told


def once(*groups: Iterable[str]) -> list[str]:
    """Sentences of all groups in order, each once."""
    return list(dict.fromkeys(said for group in groups for said in group))
