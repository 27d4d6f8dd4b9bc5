"""Workloads: when requests arrive, and how long they are.

A workload is a handful of arrays, one entry a request. It is drawn (`poisson`, `gamma_burst`), or read from a
public trace (`load_workload`, any format of `file`). Lengths a workload lacks come later from the confidence
trace (`assignment`).
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import WorkloadError

# Ten times the fleet day of the largest plan: beyond it a typing error is likelier than a wish.
MOST_REQUESTS = 200_000_000
# A step is simulated for every few of them: of more, one request alone would take minutes.
MOST_SECONDS = 3.2e8  # ten years, from the first arrival to the last
MOST_OUTPUT = 2**20
_TOO_LONG = f"is more than the {MOST_OUTPUT:,} tokens that one request may ask for"
GENERATED = "gamma renewal"  # format of drawn arrivals
GRAMMAR = "closed, poisson:RATE, gamma:RATE:CV (requests per second) or a file of arrivals"


MOST_TOKENS = 2**31 - 1  # of one request: the engine loop counts tokens in 32 bits
_BEYOND = f"is beyond the {MOST_TOKENS} tokens of 32 bits; is it a token count?"


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
        _refuse(~np.isfinite(arrival), "arrival_seconds", arrival, "is not a finite time in seconds")
        _refuse(arrival < 0, "arrival_seconds", arrival, "is before the start (0)")
        falls = np.concatenate(([False], arrival[1:] < arrival[:-1]))
        _refuse(falls, "arrival_seconds", arrival, "is earlier than the row before it; sort by arrival")
        if arrival[-1] - arrival[0] > MOST_SECONDS:
            raise WorkloadError(
                f"workload {self.name!r}: its arrivals span {arrival[-1] - arrival[0]:.3g} s, more than the "
                f"{MOST_SECONDS:.3g} that are replayed; check the unit of the times, or give a part"
            )
        if self.prompt_tokens is not None:
            _refuse(self.prompt_tokens < 0, "prompt_tokens", self.prompt_tokens, "is negative")
            beyond = self.prompt_tokens > MOST_TOKENS
            _refuse(beyond, "prompt_tokens", self.prompt_tokens, _BEYOND)
        if self.output_tokens is not None:
            beyond = self.output_tokens > MOST_OUTPUT
            _refuse(beyond, "output_tokens", self.output_tokens, _TOO_LONG)
            _refuse(
                self.output_tokens < 1, "output_tokens", self.output_tokens, "is below 1; drop such requests"
            )
        if self.domain is not None:
            outside = (self.domain < 0) | (self.domain >= len(self.domain_names))
            _refuse(
                outside, "domain", self.domain, f"is not a code of the {len(self.domain_names)} domain_names"
            )

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        return f"<workload {self.name}: {len(self):,} requests, {self.rate:.4g} requests/s>"

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
    def recorded(self) -> bool:
        """Whether the arrivals are a file's, not drawn from a distribution."""
        return self.metadata.get("format") != GENERATED

    @property
    def warnings(self) -> list[str]:
        """What a reader of results should know about where this workload came from."""
        return list(self.metadata.get("warnings", []))

    def scaled(self, rate: float) -> Workload:
        """The same requests at `rate` requests per second, by dilating time: burstiness and order stay."""
        factor = self.rate / positive(rate, "rate")
        if self.rate == rate:
            return self
        metadata = {**self.metadata, "scaled_from_rate": self.metadata.get("scaled_from_rate", self.rate)}
        return dataclasses.replace(self, arrival_seconds=self.arrival_seconds * factor, metadata=metadata)

    def head(self, n: int) -> Workload:
        """The first n requests (all of them when n is larger)."""
        if n < 1:
            raise WorkloadError(f"head({n}) would keep no request; ask for 1 or more")
        return self.rows(0, n)

    def rows(self, first: int, last: int) -> Workload:
        """Requests first .. last - 1, at their own times."""
        return self._take(slice(first, last))

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


def positive(value: Any, name: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not (math.isfinite(number) and number > 0.0):
        raise WorkloadError(f"{name} {value!r} is not a positive finite number; give one such as 12.5")
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
        _refuse(~np.isfinite(array) | (array != np.floor(array)), name, array, "is not a whole number")
    return np.ascontiguousarray(array, dtype=dtype)


def _refuse(bad: NDArray[np.bool_], column: str, values: NDArray[Any], why: str) -> None:
    if bad.any():
        row = int(np.argmax(bad))
        raise WorkloadError(f"{column}, row {row}: {values[row]} {why}")
