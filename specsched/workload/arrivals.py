"""Drawn arrivals (Poisson, bursty), and arrivals as the command line names them."""

from __future__ import annotations

import math
import os

import numpy as np
from numpy.typing import NDArray

from ..errors import WorkloadError
from ..randomness import ARRIVALS, BLOCK, PHASE, check_seed, generator
from .file import load_workload
from .workload import GENERATED, GRAMMAR, MOST_REQUESTS, Workload, positive


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
    rate = positive(rate, "rate")
    if not 0.0 <= cv <= 100.0:
        raise WorkloadError(f"burstiness (CV) {cv!r} is not between 0 and 100; 1 is Poisson, 3 is bursty")
    if (requests is None) == (seconds is None):
        raise WorkloadError(f"{name}: give either the number of requests or the seconds to draw, not both")
    expected = float(requests) if requests is not None else positive(seconds, "seconds") * rate
    if requests is not None and requests < 1:
        raise WorkloadError(f"{name}: {requests} requests asked; ask for 1 or more")
    if expected > MOST_REQUESTS:
        raise WorkloadError(
            f"{name}: about {expected:.3g} requests do not fit (at most {MOST_REQUESTS:.3g}); "
            "ask for fewer seconds or a lower rate"
        )
    shape = 1.0 / (cv * cv) if cv > 1e-6 else math.inf
    times = renewal_times(shape, check_seed(seed), requests, None if requests is not None else expected)
    if len(times) == 0:
        raise WorkloadError(f"{name}: no request arrives within {seconds:g} s; ask for more seconds")
    metadata = {"format": GENERATED, "rate": rate, "burstiness": cv, "seed": int(seed)}
    return Workload(name=name, arrival_seconds=times / rate, metadata=metadata)


def parse_arrivals(
    spec: str, requests: int | None = None, seconds: float | None = None, seed: int = 0
) -> Workload | None:
    """The workload of `closed | poisson:RATE | gamma:RATE:CV | FILE`; None for the closed loop.

    `requests` (or `seconds`) says how many to draw, and they run at the very rate that is named: as
    drawn, few bursty gaps miss it by a half. A file is read whole.
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
        made = _renewal(spec, numbers[0], cv, requests, None if requests is not None else seconds, seed)
        return made.scaled(numbers[0]) if requests is not None and requests > 1 else made
    if not os.path.exists(spec):
        raise WorkloadError(f"arrivals {spec!r}: no such file, and no generator of that name; use {GRAMMAR}")
    workload = load_workload(spec, seed=seed)
    return workload if seconds is None else workload.between(0.0, seconds)


def drawn(workload: Workload, requests: int) -> Workload | None:
    """So many requests of the draw that `workload` is a part of, at its rate; None where it was not drawn."""
    if workload.recorded or workload.output_tokens is not None or workload.prompt_tokens is not None:
        return None
    made = workload.metadata
    more = _renewal(workload.name, made["rate"], made["burstiness"], requests, None, made["seed"])
    return more.scaled(workload.rate)


def form_example(kind: str) -> str:
    """One correct spelling of a generator, for messages and help texts."""
    return {"poisson": "poisson:12.5", "gamma": "gamma:12.5:3"}[kind]


def renewal_times(
    shape: float, seed: int, count: int | None = None, horizon: float | None = None
) -> NDArray[np.float64]:
    """Event times of a stationary renewal process with unit mean gap and gamma gaps of this shape.

    float64[count], or every event up to `horizon`. `shape` = inf spaces events evenly. The first gap has the
    equilibrium law U * length-biased gap, so the expected number of events in [0, t] is t for every shape
    (Cox, Renewal Theory, 1962, section 5.2). Draws come in fixed blocks: shorter runs are prefixes of longer
    ones.
    """
    phase = generator(seed, PHASE)
    even = np.isinf(shape)
    biased = 1.0 if even else phase.standard_gamma(shape + 1.0) / shape
    clock = phase.random() * biased
    parts: list[NDArray[np.float64]] = []
    total = block = 0
    while (total < count) if count is not None else (clock <= horizon):  # type: ignore[operator]
        size = BLOCK if count is None else min(BLOCK, count - total)
        times = np.ones(size + 1)
        if not even:
            times[1:] = generator(seed, ARRIVALS, block).standard_gamma(shape, size) / shape
        times[0] = clock
        np.cumsum(times, out=times)
        parts.append(times[:-1])
        clock = float(times[-1])
        total += size
        block += 1
    times = np.concatenate(parts) if parts else np.empty(0)
    stop = count if horizon is None else int(np.searchsorted(times, horizon, side="right"))
    return np.ascontiguousarray(times[:stop])
