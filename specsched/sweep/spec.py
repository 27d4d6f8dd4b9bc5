"""A sweep as written (TOML) and as run: a list of points, each with a stable key.

    traces = ["chat", "code"]              # bundled names, or paths (from the folder of the file, or from
    here) profiles = ["h100-sxm_qwen3-8b_bf16_tp1"]
    policies = ["off", "early-stop", "lagged"]
    lags = [1, 2, 4]                       # what a bare "lagged" stands for
    block_sizes = [3, 7]                   # default: the trace's own
    concurrencies = [1, 8, 64]             # closed loop, and/or
    arrivals = ["poisson", "gamma:3", "azure.csv"]
    rates = [2.0, 8.0]                     # requests per second of the arrivals
    seeds = [0, 1]

    [run]                                  # settings of every point; a list is one more axis
    requests = 2000
    calibration = "sts"                    # or "affine", "none", or a file
    sla = 80.0                             # also record the share of requests at this speed
    prefill = "chunked"                    # and every other field of simulator.Serving

The grid is the product of all axes. A single value may stand for a list of one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..calibration.calibration import METHODS
from ..errors import ProfileError, SpecschedError, TraceError, WorkloadError, is_whole, nearest, plain, quoted
from ..files.disk import resolve
from ..files.guard import reading
from ..files.strict import read_toml
from ..schedule import default_policies, parse
from ..simulator import Serving
from ..trace import load_trace
from ..version import VERSION
from ..workload import parse_arrivals

FITTED = METHODS  # calibrations that are fitted on half of the trace
DEFAULT_PROFILE = "h100-sxm_qwen3-8b_bf16_tp1"
AXES = (
    "traces",
    "profiles",
    "policies",
    "lags",
    "block_sizes",
    "concurrencies",
    "arrivals",
    "rates",
    "seeds",
)
_OWN_SETTINGS = {"requests": 2000, "calibration": "sts", "sla": None}
_MOST_POINTS = 1_000_000
_MOST_COUNT = 10**8  # users, requests, lags and block sizes beyond it are mistakes


@dataclass(frozen=True)
class Point:
    """One run of a sweep: plain values, so that it can be hashed, stored and sent to another machine.

    Of `concurrency` and `arrivals` exactly one is set; `rate` (requests/s) None replays a file at its own
    rate. `settings` holds the [run] table: requests, calibration, sla and fields of `Serving`.
    """

    trace: str
    profile: str
    policy: str
    block_size: int
    concurrency: int | None
    arrivals: str | None
    rate: float | None
    seed: int
    settings: dict[str, Any] = field(default_factory=dict)
    key: str = ""

    @property
    def load(self) -> str:
        """The load in words, for progress and messages."""
        if self.concurrency is not None:
            return f"{self.concurrency} users"
        return f"{self.arrivals}" + (f" at {self.rate:g}/s" if self.rate is not None else "")

    def row(self) -> dict[str, Any]:
        """The point as columns of a result."""
        flat = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "settings"}
        return {"key": flat.pop("key"), **flat, **self.settings}


@dataclass(frozen=True)
class Sweep:
    """A sweep ready to run: points in the order of the grid, and the files they need by the name they use."""

    name: str
    axes: dict[str, list[Any]]
    points: list[Point]
    files: dict[str, Path]  # traces, profiles, calibrations, arrivals: name in a point -> file


def read_spec(path: str | Path) -> Sweep:
    """Read and expand a TOML file; raises WorkloadError naming the key that cannot be."""
    path = Path(path)
    with reading(path, WorkloadError, "sweep"):
        return expand(read_toml(path, WorkloadError), path.parent, path.name)


def expand(document: dict[str, Any], folder: Path = Path(), name: str = "sweep") -> Sweep:
    """The grid of a parsed spec; relative files are looked for in `folder` first."""
    axes, settings = _axes(document, name), _settings(document, name)
    axes.setdefault("profiles", [DEFAULT_PROFILE])
    axes.setdefault("seeds", [0])
    loads = _loads(axes, name)
    finder = _Finder(folder)
    policies = axes.get("policies")
    products = itertools.product(*settings.values())
    combinations = [dict(zip(settings, values, strict=True)) for values in products]
    for combination in combinations:
        _check_serving(combination, name)
    points: dict[str, Point] = {}
    for trace in axes["traces"]:
        deepest = load_trace(finder.trace(trace)).block_size
        blocks = axes.get("block_sizes") or [deepest]
        if max(blocks) > deepest:
            raise WorkloadError(
                f"{name}: block_sizes holds {max(blocks)}, and trace {trace!r} has blocks of {deepest}; give "
                f"1 to {deepest}"
            )
        named = {block: _policies(policies, axes.get("lags"), block, name, finder) for block in blocks}
        grid = itertools.product(axes["profiles"], blocks, combinations, loads, axes["seeds"])
        size = len(axes["profiles"]) * len(combinations) * len(loads) * len(axes["seeds"])
        if size * sum(map(len, named.values())) > _MOST_POINTS:
            raise WorkloadError(f"{name}: the grid has more than {_MOST_POINTS:,} points; shorten an axis")
        for profile, block, combination, (concurrency, arrivals, rate), seed in grid:
            for policy in named[block]:
                point = Point(
                    *(trace, profile, policy, block, concurrency, arrivals, rate, seed), dict(combination)
                )
                point = dataclasses.replace(point, key=finder.key(point))
                points.setdefault(point.key, point)
    return Sweep(name, axes, list(points.values()), finder.files)


def _axes(document: dict[str, Any], name: str) -> dict[str, list[Any]]:
    axes = {}
    for key, value in document.items():
        if key in ("run", "schema"):
            continue
        if key not in AXES:
            near = _near(key, [*AXES, "run"])
            raise WorkloadError(f"{name}: unknown key {quoted(key)}{near}; keys are {', '.join(AXES)}, run")
        values = value if isinstance(value, list) else [value]
        if not values:
            raise WorkloadError(f"{name}: {key} is empty; give at least one value or leave it out")
        twice = [v for i, v in enumerate(values) if v in values[:i]]
        if twice:
            raise WorkloadError(f"{name}: {key} names {quoted(twice[0])} twice; every value once")
        for i, one in enumerate(values):
            _check(f"{name}: {key}[{i}]", key, one)
        axes[key] = [float(v) for v in values] if key == "rates" else values
    if "traces" not in axes:
        raise WorkloadError(f'{name}: no traces; say what to replay, e.g. traces = ["chat"]')
    return axes


def _check(where: str, key: str, value: Any) -> None:
    if key in ("traces", "profiles", "policies", "arrivals"):
        if not isinstance(value, str) or not value:
            raise WorkloadError(f"{where} is {quoted(value)}; it must be text")
    elif key == "rates":
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or value <= 0:
            raise WorkloadError(
                f"{where} is {quoted(value)}; it must be a positive number of requests per second"
            )
    else:
        least = 0 if key == "seeds" else 1
        most = 2**63 - 1 if key == "seeds" else _MOST_COUNT
        if not is_whole(value, least, most):
            raise WorkloadError(
                f"{where} is {quoted(value)}; it must be a whole number of at least {least}, at most {most}"
            )


def _settings(document: dict[str, Any], name: str) -> dict[str, list[Any]]:
    """[run] as {setting: values}, with the defaults of what a sweep itself knows."""
    table = document.get("run", {})
    if not isinstance(table, dict):
        raise WorkloadError(f"{name}: run is {quoted(table)}; it must be a table, written [run]")
    known = [*_OWN_SETTINGS, *(f.name for f in dataclasses.fields(Serving))]
    settings: dict[str, list[Any]] = {key: [v] for key, v in _OWN_SETTINGS.items() if v is not None}
    for key, value in table.items():
        if key not in known:
            near = _near(key, known)
            raise WorkloadError(
                f"{name}: unknown key run.{plain(key, 60)}{near}; keys are {', '.join(known)}"
            )
        values = value if isinstance(value, list) else [value]
        if not values:
            raise WorkloadError(f"{name}: run.{key} is empty; give a value or leave it out")
        if key == "requests":
            for one in values:
                _check(f"{name}: run.requests", "requests", one)
        if key == "sla" and not all(isinstance(v, int | float) and 0 < v < math.inf for v in values):
            raise WorkloadError(f"{name}: run.sla is {quoted(value)}; it must be tokens per second, above 0")
        if key == "calibration" and not all(isinstance(v, str) for v in values):
            raise WorkloadError(
                f'{name}: run.calibration is {value!r}; say "sts", "affine", "none" or a file'
            )
        settings[key] = values
    return settings


def _loads(axes: dict[str, list[Any]], name: str) -> list[tuple[int | None, str | None, float | None]]:
    """(concurrency, arrivals, rate) of every load."""
    loads: list[tuple[int | None, str | None, float | None]]
    loads = [(n, None, None) for n in axes.get("concurrencies", [])]
    rates = axes.get("rates")
    for arrivals in axes.get("arrivals", ["poisson"] if rates else []):
        kind, colon, burst = arrivals.partition(":")
        if kind in ("poisson", "gamma"):
            if rates is None:
                raise WorkloadError(f"{name}: arrivals {arrivals!r} need rates, e.g. rates = [2.0, 8.0]")
            parse_arrivals(f"{kind}:{rates[0]!r}" + (f":{burst}" if colon else ""), requests=1)
        loads += [(None, arrivals, rate) for rate in rates or [None]]
    if not loads:
        raise WorkloadError(f"{name}: no load; give concurrencies = [1, 8], or arrivals and rates")
    return loads


def _check_serving(settings: dict[str, Any], name: str) -> None:
    try:
        Serving(**{k: v for k, v in settings.items() if k not in _OWN_SETTINGS})
    except TypeError:  # a text or a table where a number belongs
        wrong = {k: v for k, v in settings.items() if k not in _OWN_SETTINGS and isinstance(v, str | dict)}
        raise WorkloadError(f"{name}: [run] holds {wrong}; a number belongs there") from None


def _policies(
    policies: list[str] | None, lags: list[int] | None, block: int, name: str, finder: _Finder
) -> list[str]:
    """Canonical names at one block size; raises WorkloadError for one that cannot be."""
    wanted: list[str] = []
    for policy in policies or default_policies(block):
        wanted += [f"lagged:{lag}" for lag in lags] if lags and policy == "lagged" else [policy]
    if lags and policies is not None and "lagged" not in policies:
        raise WorkloadError(f'{name}: lags are given but no policy is a bare "lagged"; add it, or drop lags')
    named = []
    for policy in wanted:
        kind, _, table = policy.partition(":")
        try:
            if kind == "batch-table" and table:
                # Its file may be in the folder of the spec, where parse does not look.
                parse(f"{kind}:{finder.existing(table)}", block)
                named.append(policy)
            else:
                named.append(parse(policy, block))
        except SpecschedError as error:
            raise WorkloadError(f"{name}: policies: {error}") from None
    return list(dict.fromkeys(named))


def _near(name: str, names: list[str]) -> str:
    near = nearest(name, names).strip()
    return f" ({near})" if near else ""


class _Finder:
    """Finds the files points name, and hashes what is in them: a changed file is another point."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, Path] = {}
        self._digests: dict[str, str] = {}

    def trace(self, name: str) -> Path:
        return self._find(name, lambda n: resolve(n, "traces", ".parquet", TraceError))

    def existing(self, name: str) -> Path:
        """A user's own file, in the folder of the spec first."""
        return self._find(name, _existing)

    def _find(self, name: str, otherwise: Any) -> Path:
        if name not in self.files:
            here = self.folder / name
            self.files[name] = here if here.is_file() else otherwise(name)
            self._digests[name] = hashlib.sha256(self.files[name].read_bytes()).hexdigest()
        return self.files[name]

    def key(self, point: Point) -> str:
        """24 hexadecimal digits of the point, the bytes of its files and the version of the package."""
        self.trace(point.trace)
        self._find(point.profile, lambda n: resolve(n, "profiles", ".json", ProfileError))
        named = [point.trace, point.profile]
        calibration = point.settings["calibration"]
        if calibration not in FITTED and calibration != "none":
            self._find(calibration, _existing)
            named.append(calibration)
        if point.arrivals is not None and point.arrivals.partition(":")[0] not in ("poisson", "gamma"):
            self._find(point.arrivals, _existing)
            named.append(point.arrivals)
        kind, _, table = point.policy.partition(":")
        if kind == "batch-table":
            self._find(table, _existing)
            named.append(table)
        what = {"point": point.row(), "files": [self._digests[n] for n in named], "version": VERSION}
        text = json.dumps(what, sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:24]


def _existing(name: str) -> Path:
    path = Path(name)
    if not path.is_file():
        raise WorkloadError(
            f"no file {name!r}; paths count from the folder of the sweep's file, then from here"
        )
    return path
