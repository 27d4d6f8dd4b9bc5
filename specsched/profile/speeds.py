"""A measured sweep without speculation: tokens/s of one user by load, and the lengths of its requests."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ProfileError, quoted
from ..files.strict import read_text
from ..files.table import read_columns

_CONCURRENCY = ("concurrency", "requests", "users", "num_reqs", "batch_size")
_SPEED = ("tok_s_user", "tps_user", "tokens_per_second_per_user", "tokens_s_user", "tok_s_user_p50")
_PROMPT = ("prompt_tokens", "input_tokens", "input_len", "isl")
_OUTPUT = ("output_tokens", "output_len", "osl")
_LEFT_OUT = ("clipped", "capacity_limited")
_OFF_ARMS = ("nospec", "no-spec", "off", "none", "baseline", "no_spec", "autoregressive")


@dataclass(frozen=True, eq=False)
class Sweep:
    """Speeds by load; `requests` rises strictly. `noise`: relative scatter of repeated loads, None without.

    `prompt_tokens`, `output_tokens`: lengths of its requests where the file says them.
    """

    requests: np.ndarray  # int64[n]
    speeds: np.ndarray  # float64[n], tokens/s of one user
    source: str
    noise: float | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None

    @classmethod
    def given(cls, requests: Sequence[int], speeds: Sequence[float]) -> Sweep:
        """A sweep of bare numbers; raises `ProfileError`."""
        loads, values = np.asarray(requests, dtype=np.int64), np.asarray(speeds, dtype=np.float64)
        if loads.shape != values.shape or loads.ndim != 1 or not len(loads):
            raise ProfileError(f"a sweep needs as many speeds as loads, got {loads.shape} and {values.shape}")
        fine = (
            (np.isfinite(values) & (values > 0)).all() and (loads >= 1).all() and (np.diff(loads) > 0).all()
        )
        if not fine:
            raise ProfileError("a sweep needs strictly rising loads of at least 1 and finite speeds above 0")
        return cls(loads, values, "given points")


_MOST_USERS = 10**6  # loads beyond it are no engine's


def read_sweep(path: str | os.PathLike[str], arm: str | None = None) -> Sweep:
    """The sweep of a CSV; lines that begin with # are comments.

    Columns `concurrency` and `tok_s_user`, or other usual spellings. With a column `arm` only the rows
    without speculation count (`arm`, or one of nospec, off, baseline, ...). Rows whose column `clipped` or
    `capacity_limited` is 1 are left out. Repeated concurrencies are averaged as step times. Raises
    `ProfileError`.
    """
    rows = _rows(Path(path))
    columns = list(rows[0])
    load, speed = _column(columns, _CONCURRENCY, path), _column(columns, _SPEED, path)
    rows = _of_arm(rows, arm, path)
    steps: dict[int, list[float]] = {}
    used = []
    for number, row in enumerate(rows, 1):
        if any(str(row.get(name) or "0").strip().lower() not in ("0", "", "false") for name in _LEFT_OUT):
            continue
        users = _number(row[load], f"{path}, row {number}: {load}")
        if users > _MOST_USERS:
            raise ProfileError(
                f"{path}, row {number}: {load} is {users:g}, above {_MOST_USERS}; check the cell"
            )
        if users != int(users):
            raise ProfileError(f"{path}, row {number}: {load} is {users:g}; it must be a whole number")
        steps.setdefault(int(users), []).append(1.0 / _number(row[speed], f"{path}, row {number}: {speed}"))
        used.append(row)
    if not steps:
        raise ProfileError(f"{path}: no usable row; every one is clipped")
    requests = np.array(sorted(steps))
    speeds = np.array([1.0 / (math.fsum(steps[r]) / len(steps[r])) for r in requests])
    return Sweep(
        requests,
        speeds,
        Path(path).name,
        _noise(steps),
        _length(used, columns, _PROMPT, path),
        _length(used, columns, _OUTPUT, path),
    )


def _of_arm(rows: list[dict[str, str]], arm: str | None, path: Any) -> list[dict[str, str]]:
    if "arm" not in rows[0]:
        if arm is not None:
            raise ProfileError(f"{path} has no column arm, so its rows cannot be chosen by {arm!r}")
        return rows
    arms = sorted({row["arm"].strip() for row in rows})
    wanted = [arm] if arm is not None else [a for a in arms if a.lower() in _OFF_ARMS]
    if len(wanted) != 1 or wanted[0] not in arms:
        raise ProfileError(
            f"{path}: which rows are without speculation? arms: {', '.join(arms)}; give one of them as arm"
        )
    return [row for row in rows if row["arm"].strip() == wanted[0]]


def _noise(steps: dict[int, list[float]]) -> float | None:
    """Relative scatter of the mean of repeats, pooled over loads; None where no load was repeated."""
    squares, degrees = 0.0, 0
    for values in steps.values():
        mean = math.fsum(values) / len(values)
        squares += sum((v / mean - 1.0) ** 2 for v in values)
        degrees += len(values) - 1
    count = sum(len(v) for v in steps.values()) / len(steps)
    return math.sqrt(squares / degrees / count) if degrees else None


def _length(rows: list[dict[str, str]], columns: list[str], names: Sequence[str], path: Any) -> int | None:
    found = [name for name in names if name in columns]
    if not found:
        return None
    values = {_number(row[found[0]], f"{path}: {found[0]}") for row in rows}
    if len(values) > 1:
        shown = ", ".join(f"{v:g}" for v in sorted(values)[:4])
        raise ProfileError(f"{path}: {found[0]} differs by row ({shown}); keep the rows of one setting")
    return round(values.pop())


def _rows(path: Path) -> list[dict[str, str]]:
    columns = read_columns(path, read_text(path, ProfileError, 64 << 20), ProfileError)
    rows = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    if not rows:
        raise ProfileError(
            f"{path} holds no rows; expected CSV with columns concurrency, tok_s_user (a benchmark's "
            "own result goes to `specsched fit`)"
        )
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
        raise ProfileError(f"{where} is {quoted(text)}; it must be a number") from None
    if not (math.isfinite(value) and value > 0):
        raise ProfileError(f"{where} is {text.strip()}; it must be a finite number above 0")
    return value
