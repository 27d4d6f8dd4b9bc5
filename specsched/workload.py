"""Workloads: when requests arrive, and how long they are.

A workload is a handful of arrays, one entry a request. It is drawn (`poisson`, `gamma_burst`), or read from a
public trace (`load_workload`, any format of workload_formats.py). `parse_arrivals` is the command line's
door. Lengths a workload lacks come later from the confidence trace (workload_assign.py).
"""

from __future__ import annotations

import dataclasses
import math
import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import workload_formats
from .errors import WorkloadError
from .workload_assign import Assignment, assign
from .workload_random import check_seed, renewal_times

__all__ = ["Assignment", "Workload", "assign", "gamma_burst", "load_workload", "parse_arrivals", "poisson"]

# Ten times the fleet day of the largest plan: beyond it a typing error is likelier than a wish.
_MOST_REQUESTS = 200_000_000
_GRAMMAR = "closed, poisson:RATE, gamma:RATE:CV (requests per second) or a file of arrivals"


@dataclass(frozen=True)
class Workload:
    """Requests in order of arrival. Every array has one entry a request (n of them), C-contiguous.

    arrival_seconds: float64[n], seconds, >= 0, never falling
    prompt_tokens:   int64[n] >= 0, tokens; None: taken from the trace
    output_tokens:   int64[n] >= 1, tokens; None: taken from the trace. The first output token comes from the
                     prefill, so output_tokens = n decodes n - 1 tokens
    domain:          int64[n] codes into domain_names; None: any
    request_ids:     int64[n], set when the arrivals are those of a confidence trace: its own request ids
    metadata:        provenance: format, source, what the reader dropped or changed

    Raises WorkloadError naming the row (0-based) and column of the first value that cannot be.
    """

    name: str
    arrival_seconds: NDArray[np.float64]
    prompt_tokens: NDArray[np.int64] | None = None
    output_tokens: NDArray[np.int64] | None = None
    domain: NDArray[np.int64] | None = None
    domain_names: tuple[str, ...] = ()
    request_ids: NDArray[np.int64] | None = None
    metadata: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        arrival = _column(self.arrival_seconds, "arrival_seconds", np.float64, None)
        n = len(arrival)
        if n == 0:
            raise WorkloadError(f"workload {self.name!r} holds no request; it needs at least one")
        self._set("arrival_seconds", arrival)
        for name in ("prompt_tokens", "output_tokens", "domain", "request_ids"):
            if getattr(self, name) is not None:
                self._set(name, _column(getattr(self, name), name, np.int64, n))
        self._set("domain_names", tuple(self.domain_names))
        _refuse(~np.isfinite(arrival), "arrival_seconds", arrival, "is no finite time in seconds")
        _refuse(arrival < 0, "arrival_seconds", arrival, "is before the start (0)")
        falls = np.concatenate(([False], arrival[1:] < arrival[:-1]))
        _refuse(falls, "arrival_seconds", arrival, "is earlier than the row before it; sort by arrival")
        if self.prompt_tokens is not None:
            _refuse(self.prompt_tokens < 0, "prompt_tokens", self.prompt_tokens, "is negative")
        if self.output_tokens is not None:
            _refuse(
                self.output_tokens < 1, "output_tokens", self.output_tokens, "is below 1; drop such requests"
            )
        if self.domain is not None:
            outside = (self.domain < 0) | (self.domain >= len(self.domain_names))
            _refuse(
                outside, "domain", self.domain, f"is no code of the {len(self.domain_names)} domain_names"
            )

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self.arrival_seconds)

    @property
    def rate(self) -> float:
        """Requests per second: (n - 1) / (last - first arrival). Raises when there is no such span."""
        span = float(self.arrival_seconds[-1] - self.arrival_seconds[0])
        if span <= 0.0:
            raise WorkloadError(
                f"workload {self.name!r} has no rate: its {len(self)} arrivals span 0 s; "
                "give at least two times"
            )
        return (len(self) - 1) / span

    @property
    def burstiness(self) -> float:
        """Coefficient of variation of the gaps between arrivals: 1 for Poisson, 0 for even spacing."""
        gaps = np.diff(self.arrival_seconds)
        mean = float(gaps.mean()) if len(gaps) else 0.0
        return float(gaps.std() / mean) if mean > 0.0 else 0.0

    @property
    def warnings(self) -> list[str]:
        """What a reader of results should know about where this workload came from."""
        return list(self.metadata.get("warnings", []))

    def scaled(self, rate: float) -> Workload:
        """The same requests at `rate` requests per second, by dilating time: burstiness and order stay."""
        factor = self.rate / _positive(rate, "rate")
        metadata = {**self.metadata, "scaled_from_rate": self.metadata.get("scaled_from_rate", self.rate)}
        return dataclasses.replace(self, arrival_seconds=self.arrival_seconds * factor, metadata=metadata)

    def head(self, n: int) -> Workload:
        """The first n requests (all of them when n is larger)."""
        if n < 1:
            raise WorkloadError(f"head({n}) would keep no request; ask for 1 or more")
        return self._take(slice(0, n))

    def between(self, start: float, stop: float) -> Workload:
        """Requests arriving in start <= t < stop (seconds), with the clock set to 0 at `start`."""
        first, last = np.searchsorted(self.arrival_seconds, [start, stop], side="left")
        if last <= first:
            raise WorkloadError(
                f"workload {self.name!r} has no arrival between {start:g} s and {stop:g} s; "
                f"its arrivals run from {self.arrival_seconds[0]:g} to {self.arrival_seconds[-1]:g} s"
            )
        part = self._take(slice(int(first), int(last)))
        return dataclasses.replace(part, arrival_seconds=part.arrival_seconds - float(start))

    def with_lengths(
        self, prompt_tokens: ArrayLike | None = None, output_tokens: ArrayLike | None = None
    ) -> Workload:
        """The same arrivals with these lengths: one int for every request, or int64[n]; None leaves them."""
        changes: dict[str, Any] = {}
        for name, value in (("prompt_tokens", prompt_tokens), ("output_tokens", output_tokens)):
            if value is not None:
                scalar = np.ndim(value) == 0
                changes[name] = np.full(len(self), value) if scalar else value
        return dataclasses.replace(self, request_ids=None, **changes)

    def _take(self, part: slice) -> Workload:
        names = ("arrival_seconds", "prompt_tokens", "output_tokens", "domain", "request_ids")
        columns = {name: getattr(self, name) for name in names}
        return dataclasses.replace(self, **{k: v[part] for k, v in columns.items() if v is not None})


def poisson(
    rate: float, requests: int | None = None, seconds: float | None = None, seed: int = 0
) -> Workload:
    """Poisson arrivals at `rate` requests per second: `requests` of them, or those of the first `seconds`.

    With one seed, other rates are the same draws dilated in time (common random numbers), and shorter runs
    are prefixes of longer ones.
    """
    return _renewal(f"poisson:{rate:g}", rate, 1.0, requests, seconds, seed)


def gamma_burst(
    rate: float, cv: float, requests: int | None = None, seconds: float | None = None, seed: int = 0
) -> Workload:
    """Gamma-renewal arrivals: mean gap 1/rate seconds, coefficient of variation `cv` of the gaps.

    cv = 1 is `poisson` to the last bit, cv = 0 is even spacing, cv > 1 comes in bursts. The process is
    stationary: the expected number of arrivals in `seconds` is rate * seconds for every cv.
    """
    return _renewal(f"gamma:{rate:g}:{cv:g}", rate, cv, requests, seconds, seed)


def _renewal(
    name: str, rate: float, cv: float, requests: int | None, seconds: float | None, seed: int
) -> Workload:
    rate = _positive(rate, "rate")
    if not 0.0 <= cv <= 100.0:
        raise WorkloadError(f"burstiness (CV) {cv!r} is not between 0 and 100; 1 is Poisson, 3 is bursty")
    if (requests is None) == (seconds is None):
        raise WorkloadError(f"{name}: give either the number of requests or the seconds to draw, not both")
    expected = float(requests) if requests is not None else _positive(seconds, "seconds") * rate
    if requests is not None and requests < 1:
        raise WorkloadError(f"{name}: {requests} requests asked; ask for 1 or more")
    if expected > _MOST_REQUESTS:
        raise WorkloadError(
            f"{name}: about {expected:.3g} requests do not fit (at most {_MOST_REQUESTS:.3g}); "
            "ask for fewer seconds or a lower rate"
        )
    shape = 1.0 / (cv * cv) if cv > 1e-6 else math.inf
    times = renewal_times(shape, check_seed(seed), requests, None if requests is not None else expected)
    if len(times) == 0:
        raise WorkloadError(f"{name}: no request arrives within {seconds:g} s; ask for more seconds")
    metadata = {"format": "gamma renewal", "rate": rate, "burstiness": cv, "seed": int(seed)}
    return Workload(name=name, arrival_seconds=times / rate, metadata=metadata)


def load_workload(path: str | os.PathLike[str], requests: int | None = None, seed: int = 0) -> Workload:
    """Read arrivals from a file, its format told by its columns (workload_formats.py lists them).

    `requests` keeps the first so many. `seed` matters to ServeGen client windows alone, which are a
    generator. Raises WorkloadError naming file, row (1-based, header not counted) and column.
    """
    columns = workload_formats.read_columns(path, requests=requests, seed=check_seed(seed))
    workload = Workload(
        name=os.fspath(path),
        arrival_seconds=columns.arrival_seconds,
        prompt_tokens=columns.prompt_tokens,
        output_tokens=columns.output_tokens,
        domain=columns.domain,
        domain_names=columns.domain_names,
        request_ids=columns.request_ids,
        metadata=columns.metadata,
    )
    return workload if requests is None else workload.head(requests)


def parse_arrivals(
    spec: str, requests: int | None = None, seconds: float | None = None, seed: int = 0
) -> Workload | None:
    """The workload of `closed | poisson:RATE | gamma:RATE:CV | FILE`; None for the closed loop.

    `requests` (or `seconds`) says how many to draw; of a file it keeps the first so many.
    """
    kind, _, rest = spec.partition(":")
    if kind == "closed":
        if rest:
            raise WorkloadError(f"arrivals {spec!r}: closed takes no parameter; the load is --concurrency")
        return None
    if kind in ("poisson", "gamma") and not os.path.isfile(spec):
        wanted = {"poisson": 1, "gamma": 2}[kind]
        parts = rest.split(":") if rest else []
        try:
            numbers = [float(part) for part in parts]
        except ValueError:
            numbers = []
        if len(numbers) != wanted:
            form = {"poisson": "poisson:RATE", "gamma": "gamma:RATE:CV"}[kind]
            raise WorkloadError(f"arrivals {spec!r} are not of the form {form}, e.g. {form_example(kind)}")
        cv = numbers[1] if kind == "gamma" else 1.0
        return _renewal(spec, numbers[0], cv, requests, None if requests is not None else seconds, seed)
    if not os.path.exists(spec):
        raise WorkloadError(f"arrivals {spec!r}: no such file, and no generator of that name; use {_GRAMMAR}")
    workload = load_workload(spec, requests=requests, seed=seed)
    return workload if seconds is None else workload.between(0.0, seconds)


def form_example(kind: str) -> str:
    """One correct spelling of a generator, for messages and help texts."""
    return {"poisson": "poisson:12.5", "gamma": "gamma:12.5:3"}[kind]


def _positive(value: Any, name: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not (math.isfinite(number) and number > 0.0):
        raise WorkloadError(f"{name} {value!r} is no positive finite number; give one such as 12.5")
    return number


def _column(values: Any, name: str, dtype: type, n: int | None) -> NDArray[Any]:
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "iuf":
        raise WorkloadError(
            f"{name} must be a flat array of numbers, not {array.dtype} of shape {array.shape}"
        )
    if n is not None and len(array) != n:
        raise WorkloadError(f"{name} has {len(array)} rows, arrival_seconds {n}; give one value a request")
    if dtype is np.int64 and array.dtype.kind == "f":
        _refuse(~np.isfinite(array) | (array != np.floor(array)), name, array, "is no whole number")
    return np.ascontiguousarray(array, dtype=dtype)


def _refuse(bad: NDArray[np.bool_], column: str, values: NDArray[Any], why: str) -> None:
    if bad.any():
        row = int(np.argmax(bad))
        raise WorkloadError(f"{column}, row {row}: {values[row]} {why}")
