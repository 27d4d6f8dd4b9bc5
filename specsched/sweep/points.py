"""One point of a sweep: what it needs, loaded once and shared, and its run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..calibration import Calibration
from ..calibration.holdout import split_and_calibrate
from ..errors import SpecschedError
from ..profile import StepProfile, load_profile
from ..schedule import Policy, make
from ..simulator import Serving, SimResult, simulate
from ..simulator.idle import idle_settings
from ..simulator.prefill import Load, left_out
from ..trace import Trace, load_trace
from ..workers import map_points
from ..workload import Workload, load_workload, parse_arrivals, portion
from ..workload.portion import LONGEST, Portion
from .spec import FITTED, Point, Sweep
from .store import Row, flatten

# -- the points of a sweep ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Inputs:
    """What points need, loaded once and shared by all: nothing a worker must find on its own disk.

    Keys are names as points spell them. Replays, what is left of a trace to replay and its calibration, are
    keyed by (trace, setting, seed), files of arrivals, whole or their busiest window, by (file, rate,
    requests), policies that need a file by (policy, block size). What could not be loaded is the error
    itself: it fails the points that need it, and no others.
    """

    profiles: dict[str, StepProfile | SpecschedError]
    replays: dict[tuple[str, str, int], tuple[Trace, Calibration | None] | SpecschedError]
    workloads: dict[tuple[str, float | None, int], Portion | SpecschedError]
    policies: dict[tuple[str, int], Policy | SpecschedError]


def load_inputs(sweep: Sweep, points: list[Point], workers: int | None = None) -> Inputs:
    """Load every file these points name, and fit the calibrations they ask for."""
    traces = {name: load_trace(sweep.files[name]) for name in dict.fromkeys(p.trace for p in points)}
    profiles = dict.fromkeys(p.profile for p in points)
    keys = dict.fromkeys(_arrivals_key(p) for p in points)
    arrivals = [key for key in keys if key is not None and key[0] in sweep.files]
    files = {key[0]: _loaded(load_workload, sweep.files[key[0]]) for key in arrivals}
    wanted = list(dict.fromkeys(_replay_key(p) for p in points))

    def replay(key: tuple[str, str, int]) -> tuple[Trace, Calibration | None]:
        trace, setting, seed = key
        return split_and_calibrate(traces[trace], str(sweep.files.get(setting, setting)), seed)[:2]

    def loaded(key: tuple[str, str, int]) -> Any:
        return _loaded(replay, key)

    tables = dict.fromkeys((p.policy, p.block_size) for p in points if p.policy.startswith("batch-table:"))
    return Inputs(
        profiles={name: _loaded(load_profile, sweep.files[name]) for name in profiles},
        replays=dict(zip(wanted, map_points(loaded, wanted, workers), strict=True)),
        workloads={key: _loaded(_portion, files[key[0]], *key[1:]) for key in arrivals},
        policies={key: _loaded(_table_policy, sweep, *key) for key in tables},
    )


def _table_policy(sweep: Sweep, policy: str, block: int) -> Policy:
    kind, _, table = policy.partition(":")
    return make(f"{kind}:{sweep.files.get(table, table)}", block_size=block)


def _arrivals_key(point: Point) -> tuple[str, float | None, int] | None:
    """What of which arrivals a point runs; None: a closed loop."""
    return None if point.arrivals is None else (point.arrivals, point.rate, int(point.settings["requests"]))


def _portion(loaded: Workload | SpecschedError, rate: float | None, requests: int) -> Portion:
    """Of a file at a rate: all of it, or its busiest window where it is long, as `simulate` runs it."""
    whole: Workload = _needed(loaded)
    return portion(whole if rate is None else whole.scaled(rate), 0.0, max(requests, LONGEST))


def _loaded(load: Callable[..., Any], *arguments: Any) -> Any:
    """What `load` gives, or the error that says why it gives nothing."""
    try:
        return load(*arguments)
    except SpecschedError as error:
        return error


def _needed(loaded: Any) -> Any:
    if isinstance(loaded, SpecschedError):
        raise loaded
    return loaded


def _replay_key(point: Point) -> tuple[str, str, int]:
    setting = point.settings["calibration"]
    # Only a fit depends on the seed: it decides which half of the trace is fitted and which replayed.
    return point.trace, setting, point.seed if setting in FITTED else 0


def run_point(point: Point, inputs: Inputs) -> Row:
    """One row of results. An error of the point becomes a row with status "failed"; nothing is raised."""
    row = {**point.row(), "status": "done", "error": None}
    try:
        settings = dict(point.settings)
        requests, sla, _ = settings.pop("requests"), settings.pop("sla", None), settings.pop("calibration")
        trace, calibration = _needed(inputs.replays[_replay_key(point)])
        workload, said = _workload(point, inputs, requests)
        result = simulate(
            trace,
            _needed(inputs.profiles[point.profile]),
            _needed(inputs.policies.get((point.policy, point.block_size), point.policy)),
            concurrency=point.concurrency,
            requests=requests,
            seed=point.seed,
            calibration=calibration,
            workload=workload,
            block_size=point.block_size,
            log_steps=1,
            **settings,
        )
        warnings = [*said, *(workload.warnings if workload is not None else []), *result.warnings]
        warnings += _settings_warnings(point, _needed(inputs.profiles[point.profile]), result, workload)
        row |= {"lossless": result.lossless, "warnings": list(dict.fromkeys(warnings))}
        if sla is not None:
            row["share_at_sla"] = result.share_at(sla)
        row |= {name: value for name, value in flatten(result.summary).items() if name not in point.settings}
    except Exception as e:
        kind = "" if isinstance(e, SpecschedError) else f"{type(e).__name__}: "
        row |= {"status": "failed", "error": f"{kind}{e}"}
    return row


def _settings_warnings(
    point: Point, profile: StepProfile, result: SimResult, workload: Workload | None
) -> list[str]:
    """Settings of [run] that do nothing here, and prefill that is left out although it is much."""
    prefill = point.settings.get("prefill", Serving.prefill)
    idle = idle_settings(
        profile,
        point.settings,
        prefill=prefill,
        sla=point.settings.get("sla"),
        policies=[point.policy],
    )
    said = [f"run.{name} {why}" for name, why in idle.items()]
    if prefill != "disaggregated":
        return said
    replay, own = result.replay, workload
    prompts = own.prompt_tokens if own is not None and own.prompt_tokens is not None else replay.prompt_tokens
    lengths = own.output_tokens if own is not None and own.output_tokens is not None else replay.length
    context = point.settings.get("context")
    prompt = float(context if context is not None else prompts.mean())
    engines = point.settings.get("replicas", 1)
    rate = result.summary["throughput"] / engines / float(lengths.mean())
    load = Load(rate, result.summary["tokens_per_pass"], prompt, f"{point.load} of {result.policy}")
    return said + left_out(profile, load)


def _workload(point: Point, inputs: Inputs, requests: int) -> tuple[Workload | None, list[str]]:
    """The arrivals of a point, and what to say of the part of a file that they are."""
    key = _arrivals_key(point)
    if key is None or point.arrivals is None:
        return None, []
    if key in inputs.workloads:
        part: Portion = _needed(inputs.workloads[key])
        return part.workload, part.warnings
    kind, _, burstiness = point.arrivals.partition(":")
    spec = f"{kind}:{point.rate!r}" + (f":{burstiness}" if burstiness else "")
    return parse_arrivals(spec, requests=requests, seed=point.seed), []
