"""The part of a long workload that is run, and a short one made longer.

A fleet is built for the busiest part of its traffic, so a file too long to replay whole gives its busiest
window: the one whose requests bring most output tokens. A run too short for a steady state is lengthened:
drawn arrivals by drawing on, recorded ones by repeating them.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .arrivals import drawn
from .workload import Workload

LONGEST = 20_000  # requests of a file that one run replays whole; a longer one gives its busiest window
_FRACTION = 1e-9  # of a window: so near its end an arrival still counts as in it


class Portion(NamedTuple):
    """The part of a workload that is run: its requests, and what to say of it (None: it is the whole)."""

    workload: Workload
    document: dict[str, Any] | None
    warnings: list[str]


def demand(workload: Workload) -> NDArray[np.float64]:
    """float64[n]: what each request asks of a fleet: its output tokens, or 1 where the file has none."""
    tokens = workload.output_tokens
    return np.ones(len(workload)) if tokens is None else tokens.astype(np.float64)


def busiest(workload: Workload, seconds: float) -> tuple[int, int]:
    """[first, last) rows of the window of so many seconds that asks for most, from some arrival on."""
    at = workload.arrival_seconds
    ends = np.searchsorted(at, at + seconds * (1 - _FRACTION), side="right")
    total = np.concatenate(([0.0], np.cumsum(demand(workload))))
    first = int(np.argmax(total[ends] - total[:-1]))
    return first, int(ends[first])


def portion(workload: Workload, least_seconds: float, most: int) -> Portion:
    """The whole workload where it holds at most `most` requests, else its busiest window.

    The window holds about `most` requests, or lasts `least_seconds` where that is more: shorter runs reach no
    steady state. The busiest minutes of a file, not its first rows.
    """
    n = len(workload)
    span = float(workload.arrival_seconds[-1] - workload.arrival_seconds[0])
    if n <= most or span <= least_seconds:
        return Portion(workload, None, [])
    seconds = min(3600.0, span)
    while True:
        first, last = busiest(workload, seconds)
        if last - first <= most or seconds <= least_seconds:
            break
        seconds = max(seconds * most / (last - first) * 0.98, seconds / 4.0, least_seconds)
    start = float(workload.arrival_seconds[first])
    part = workload.rows(first, last)
    part = dataclasses.replace(part, arrival_seconds=part.arrival_seconds - start)
    whole, share = workload.rate, (last - first) / n
    document = {
        "window_start_seconds": start - float(workload.arrival_seconds[0]),
        "window_seconds": seconds,
        "requests": last - first,
        "of_requests": n,
        "share": share,
        "rate": (last - first) / seconds,
        "rate_of_file": whole,
        "file_seconds": span,
    }
    return Portion(part, document, [portion_line(document)])


def portion_line(document: dict[str, Any]) -> str:
    """One sentence: which window of the arrivals is run, and what share of them it is."""
    return (
        f"the arrivals are {document['of_requests']:,} over {_hours(document['file_seconds'])} hours "
        f"({document['rate_of_file']:.3g} requests/s on average): only their busiest window is simulated, "
        f"the {document['window_seconds']:.4g} s that begin {_hours(document['window_start_seconds'])} hours "
        f"in, with {document['rate']:.3g} requests/s and {document['share']:.2%} of the requests"
    )


def _hours(seconds: float) -> str:
    hours = seconds / 3600.0
    return f"{hours:,.0f}" if hours >= 1000.0 else f"{hours:.3g}"


def prolonged(workload: Workload, seconds: float, seed: int = 0) -> Workload:
    """The workload lasting at least `seconds`: drawn arrivals drawn on, recorded ones repeated.

    Repeats keep the rate: a mean gap lies between the end of one and the start of the next.
    """
    rate = workload.rate
    count = math.ceil(seconds * rate) + 1
    if count <= len(workload):
        return workload
    longer = drawn(workload, count)
    if longer is not None:
        return longer
    n = len(workload)
    at = workload.arrival_seconds - workload.arrival_seconds[0]
    period = float(at[-1]) * n / (n - 1)
    times = -(-count // n)
    copies: dict[str, Any] = {
        name: np.tile(getattr(workload, name), times)
        for name in ("prompt_tokens", "output_tokens", "domain")
        if getattr(workload, name) is not None
    }
    copies["arrival_seconds"] = (np.arange(times)[:, None] * period + at[None, :]).ravel()
    said = (
        f"the arrivals last {at[-1]:.3g} s, too short for a steady state: they are repeated {times} times, "
        "at the same rate"
    )
    metadata = {**workload.metadata, "repeated": times, "warnings": [*workload.warnings, said]}
    return dataclasses.replace(workload, request_ids=None, metadata=metadata, **copies)
