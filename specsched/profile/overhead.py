"""overhead(R): what a start-up cost table misses of every real step, fitted from a measured run without
drafts.

Host work, sampling and synchronisation are in no kernel table, yet on one published system they were about
√R ms,
so that the table alone promised 2.6 times the throughput at 256 users. A sweep without speculation measures
the
whole step directly: seconds = 1 / (tokens/s of one user), since each step gives each user one token.
"""

from __future__ import annotations

import csv
import itertools
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ProfileError
from .profile import StepProfile

_CONCURRENCY = ("concurrency", "requests", "users", "num_reqs", "batch_size")
_SPEED = ("tok_s_user", "tps_user", "tokens_per_second_per_user", "tokens_s_user")
_OFF_ARMS = ("nospec", "no-spec", "off", "none", "baseline", "no_spec")


def read_sweep(path: str | os.PathLike[str], arm: str | None = None) -> tuple[np.ndarray, np.ndarray]:
    """(requests int64[n] rising, tokens/s/user float64[n]) of a sweep CSV; lines that begin with # are
    comments.

    Columns `concurrency` and `tok_s_user`, or other usual spellings. With a column `arm` only the rows
    without
    speculation count (`arm`, or one of nospec, off, baseline, ...). Rows whose column `clipped` is 1 are
    left out.
    Repeated concurrencies are averaged as step times. Raises `ProfileError`.
    """
    rows = _rows(Path(path))
    columns = list(rows[0])
    load, speed = _column(columns, _CONCURRENCY, path), _column(columns, _SPEED, path)
    if "arm" in columns:
        arms = sorted({row["arm"].strip() for row in rows})
        wanted = [arm] if arm is not None else [a for a in arms if a.lower() in _OFF_ARMS]
        if len(wanted) != 1 or wanted[0] not in arms:
            raise ProfileError(
                f"{path}: which rows are without speculation? arms: {', '.join(arms)}; give one of them as "
                "arm"
            )
        rows = [row for row in rows if row["arm"].strip() == wanted[0]]
    steps: dict[int, list[float]] = {}
    for number, row in enumerate(rows, 1):
        if str(row.get("clipped") or "0").strip() not in ("0", ""):
            continue
        users = _number(row[load], f"{path}, row {number}: {load}")
        if users != int(users):
            raise ProfileError(f"{path}, row {number}: {load} is {users:g}; it must be a whole number")
        steps.setdefault(int(users), []).append(1.0 / _number(row[speed], f"{path}, row {number}: {speed}"))
    if not steps:
        raise ProfileError(f"{path}: no usable row; every one is clipped")
    requests = np.array(sorted(steps))
    return requests, np.array([1.0 / (math.fsum(steps[r]) / len(steps[r])) for r in requests])


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(f"cannot read {path}: {error}; give a CSV of a run without speculation") from None
    rows = list(csv.DictReader([line for line in lines if not line.startswith("#")], skipinitialspace=True))
    if not rows:
        raise ProfileError(f"{path} holds no rows; expected columns concurrency, tok_s_user")
    if any(None in row or None in row.values() for row in rows):
        raise ProfileError(f"{path}: a row has more or fewer fields than the header; truncated?")
    return rows


def _column(columns: Sequence[str], names: Sequence[str], path: Any) -> str:
    found = [name for name in names if name in columns]
    if not found:
        raise ProfileError(f"{path}: no column {' or '.join(names)}; there are {', '.join(columns)}")
    return found[0]


def _number(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ProfileError(f"{where} is {text!r}; it must be a number") from None
    if not (math.isfinite(value) and value > 0):
        raise ProfileError(f"{where} is {text.strip()}; it must be a finite number above 0")
    return value


def fit_overhead(
    profile: StepProfile,
    sweep: str | os.PathLike[str] | tuple[Sequence[int], Sequence[float]],
    context: float = 0.0,
    arm: str | None = None,
) -> StepProfile:
    """`profile` with overhead(R) such that its steps without drafts are those of the sweep.

    `sweep`: a CSV (`read_sweep`) or (requests, tokens/s/user). `context`: mean tokens of context per
    request during the
    sweep, for profiles that price attention. The curve goes through every measured point (never below 0:
    where
    the profile is already slower than the measurement its overhead is 0, and the fit error says by how much).
    Below the first and between points it is linear; past the last it follows √R, written out to four times
    the
    last load. Raises `ProfileError` where the profile has no cost for a load.
    """
    requests, speed = read_sweep(sweep, arm) if not isinstance(sweep, tuple) else _given(*sweep)
    measured = 1.0 / speed
    bare = StepProfile.from_dict({**profile.to_dict(), "overhead": None})
    table = np.array([bare.seconds(int(r), int(r), r * context, draft=False) for r in requests])
    missing = measured - table
    extra = np.maximum(missing, 0.0)
    predicted = table + extra
    error = np.abs(measured / predicted - 1.0)
    sizes, seconds = _drawn_out(requests, extra)
    provenance = dict(profile.provenance)
    source = sweep if isinstance(sweep, str | os.PathLike) else "given points"
    note = (
        f"overhead(R) fitted from a sweep without speculation ({Path(source).name}, {len(requests)} loads, "
        f"{requests[0]}..{requests[-1]} requests): the table alone promised up to "
        f"{(measured / table).max():.2f} times the measured speed."
    )
    provenance["notes"] = " ".join(filter(None, [str(provenance.get("notes") or ""), note]))
    document = profile.to_dict()
    document["overhead"] = {"requests": sizes, "seconds": seconds, "beyond": "slope"}
    document["provenance"] = provenance
    document["fit"] = {
        **(profile.fit or {}),
        "overhead": {
            "median_relative_error": float(np.median(error)),
            "max_relative_error": float(error.max()),
            "left_out_max_relative_error": _left_out(requests, table, extra, measured),
            "samples": len(requests),
        },
    }
    return StepProfile.from_dict(document)


def _left_out(
    requests: np.ndarray, table: np.ndarray, extra: np.ndarray, measured: np.ndarray
) -> float | None:
    """Largest error at an inner load predicted from the others alone: what the curve is worth between
    points.
    """
    worst = None
    for i in range(1, len(requests) - 1):
        others = np.delete(np.arange(len(requests)), i)
        guess = table[i] + _between(float(requests[i]), requests[others], extra[others])
        worst = max(worst or 0.0, abs(measured[i] / guess - 1.0))
    return worst if worst is None else float(worst)


def _given(requests: Sequence[int], speed: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    loads, values = np.asarray(requests, dtype=np.int64), np.asarray(speed, dtype=np.float64)
    if loads.shape != values.shape or loads.ndim != 1 or not len(loads):
        raise ProfileError(f"a sweep needs as many speeds as loads, got {loads.shape} and {values.shape}")
    if not (np.isfinite(values) & (values > 0)).all() or (loads < 1).any() or (np.diff(loads) <= 0).any():
        raise ProfileError("a sweep needs strictly rising loads of at least 1 and finite speeds above 0")
    return loads, values


def _between(at: float, requests: np.ndarray, seconds: np.ndarray) -> float:
    """Overhead between measured loads: linear in √R, the shape it was seen to have; √R growth past the
    ends.
    """
    first, last = int(requests[0]), int(requests[-1])
    if at < first:
        return float(seconds[0]) * math.sqrt(at / first)
    if at > last:
        return float(seconds[-1]) * math.sqrt(at / last)
    return float(np.interp(math.sqrt(at), np.sqrt(requests), seconds))


def _drawn_out(requests: np.ndarray, seconds: np.ndarray) -> tuple[list[int], list[float]]:
    """The curve from 1 to four times the last load, with enough points that a linear reader follows √R."""
    last = int(requests[-1])
    doublings = [1 << k for k in range((4 * last).bit_length())]
    sizes = sorted({*map(int, requests), *(d for d in doublings if d < 4 * last), 4 * last})
    halfway = {round(math.sqrt(a * b)) for a, b in itertools.pairwise(sizes)}
    sizes = sorted({*sizes, *halfway})
    return sizes, [_between(r, requests, seconds) for r in sizes]
