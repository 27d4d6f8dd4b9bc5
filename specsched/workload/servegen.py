"""ServeGen client windows (Alibaba, Apache-2.0) as a generator of arrivals.

Each row says how one client behaved over one window of ten minutes: requests per second, the coefficient of
variation of its gaps, and the family fitted to them (Gamma or Weibull; p1 shape, p2 scale in seconds). Here
every window keeps its recorded number of requests; their gaps are drawn from the family at the fitted shape
and stretched to fill the window. The fitted scale is not used: with very small shapes it contradicts the
rate.
"""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import WorkloadError, quoted
from ..randomness import SERVEGEN, generator
from .blocks import open_bytes

WINDOW_SECONDS = 600.0
# A client sends at most 10,000 requests a second: beyond it a column is in another unit or damaged.
MOST = {"client": 2**53, "t_s": 1e11, "rate_rps": 1e4, "p1": 1e9}


def generate(file: Path, requests: int | None, seed: int) -> tuple[NDArray[np.float64], dict[str, Any]]:
    """Arrivals float64[n] in seconds, sorted, time 0 the start of the earliest window, and their metadata.

    Windows are drawn in order of time, until `requests` arrivals are there or the file ends.
    """
    client, start, rate, shape, weibull = _read(file)
    order = np.lexsort((client, start))
    origin = start.min()
    counts = np.rint(rate * WINDOW_SECONDS).astype(np.int64)
    parts: list[NDArray[np.float64]] = []
    total = 0
    for time in np.unique(start):
        rows = order[np.searchsorted(start[order], time) : np.searchsorted(start[order], time, side="right")]
        window = [
            time
            - origin
            + WINDOW_SECONDS
            * _fractions(int(counts[i]), shape[i], weibull[i], seed, int(client[i]), int(time))
            for i in rows
            if counts[i] > 0
        ]
        if window:
            # Rounding may carry a moment to the window's end, which is the next window's start.
            end = np.nextafter(time - origin + WINDOW_SECONDS, 0.0)
            parts.append(np.minimum(np.sort(np.concatenate(window)), end))
            total += len(parts[-1])
        if requests is not None and total >= requests:
            break
    if total == 0:
        raise WorkloadError(f"{file}: every client window has a rate of 0; nothing to serve")
    metadata = {
        "format": "ServeGen client windows",
        "source": file.name,
        "clients": len(np.unique(client)),
        "windows": len(start),
        "seed": seed,
        "warnings": [f"{file.name}: arrivals are drawn from fitted client windows, not a log of requests"],
    }
    return np.concatenate(parts), metadata


def _fractions(
    count: int, shape: float, weibull: bool, seed: int, client: int, time: int
) -> NDArray[np.float64]:
    """`count` moments in [0, 1] of a window, from count + 1 gaps of the family scaled to sum to 1."""
    draw = generator(seed, SERVEGEN, client, time)
    # Logarithms where powers overflow: a Weibull gap of shape k is E**(1/k) with E exponential.
    if weibull:
        logs = np.log(draw.standard_exponential(count + 1)) / shape
        gaps = np.exp(logs - logs.max())
    else:
        gaps = draw.standard_gamma(shape, count + 1)
        if gaps.sum() <= 0.0:
            gaps[draw.integers(count + 1)] = 1.0
    clock = np.cumsum(gaps)
    out: NDArray[np.float64] = clock[:-1] / clock[-1]
    return out


_MOST_LINE = 1 << 20


def _lines(file: Path, raw: Any) -> Iterator[str]:
    """Lines of a CSV as text; one of more than a megabyte is refused before it fills the memory."""
    for number in itertools.count():
        line = raw.readline(_MOST_LINE)
        if not line:
            return
        if len(line) == _MOST_LINE:
            raise WorkloadError(
                f"{file}, line {number + 1}: longer than 1 MB; is it a CSV of client windows?"
            )
        yield line.decode("utf-8-sig" if number == 0 else "utf-8")


def _read(file: Path) -> tuple[Any, ...]:
    """Columns client int64, t_s, rate_rps, shape float64 and is-Weibull bool, one entry a window."""
    numbers: list[tuple[float, ...]] = []
    families: list[bool] = []
    with open_bytes(file) as raw:
        for row, record in enumerate(csv.DictReader(_lines(file, raw)), start=1):
            values = []
            for name in ("client", "t_s", "rate_rps", "p1"):
                cell = record.get(name)
                try:
                    value = float(cell)  # type: ignore[arg-type]
                except (TypeError, ValueError):
                    value = math.nan
                if (
                    not math.isfinite(value)
                    or not 0.0 <= value < MOST[name]
                    or (name == "p1" and value == 0.0)
                ):
                    raise WorkloadError(
                        f"{file}, row {row}: {name} {quoted(cell)} is not a number from 0 to {MOST[name]:g}"
                    )
                values.append(value)
            family = (record.get("family") or "").strip().lower()
            if family not in ("gamma", "weibull"):
                raise WorkloadError(
                    f"{file}, row {row}: family {quoted(record.get('family'))} is neither Gamma nor Weibull"
                )
            numbers.append(tuple(values))
            families.append(family == "weibull")
    if not numbers:
        raise WorkloadError(f"{file} holds no client window; nothing to serve")
    client, start, rate, shape = np.array(numbers).T
    return client.astype(np.int64), start, rate, shape, np.array(families)
