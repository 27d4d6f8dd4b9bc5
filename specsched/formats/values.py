"""Values of parsed JSON that must be something definite: each accessor refuses the rest, naming the place."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..errors import FormatError, quoted
from ..files.reader import kind_of as _kind
from .opened import LONGEST_STEP, SHORTEST_STEP, FloatArray


def numbers(values: Any, where: str, *, positive: bool = True, at_least: int = 1) -> FloatArray:
    """float64[n] from a list of numbers or numeric strings; NaN, infinities, negatives and gaps are
    errors.
    """
    if not isinstance(values, list | tuple | np.ndarray):
        raise FormatError(f"{where}: expected a list of numbers, found {_kind(values)}")
    if len(values) < at_least:
        raise FormatError(f"{where}: {len(values)} values, at least {at_least} needed")
    out = np.empty(len(values))
    for i, value in enumerate(values):
        if isinstance(value, bool) or value is None:
            raise FormatError(f"{where}, row {i + 1}: expected a number, found {quoted(value)}")
        try:
            out[i] = float(value)
        except (TypeError, ValueError, OverflowError):
            raise FormatError(f"{where}, row {i + 1}: expected a number, found {quoted(value)}") from None
        if not out[i] < 1e15 or out[i] < 0 or (positive and out[i] == 0):
            wanted = "a finite number above 0" if positive else "a finite number, 0 or more"
            raise FormatError(
                f"{where}, row {i + 1}: {quoted(value)} is not {wanted}; measure or fill that point again"
            )
    return out


def whole(values: Any, where: str, *, rising: bool = True, at_least: int = 1) -> FloatArray:
    """int64[n] sizes, 1 or more, strictly rising unless `rising=False`: unsorted or repeated sizes are
    errors.
    """
    out = numbers(values, where, at_least=at_least)
    if out.max() >= 2**31:
        raise FormatError(f"{where}: {out.max():g} is not a size")
    if np.any(out != np.floor(out)):
        bad = int(np.flatnonzero(out != np.floor(out))[0])
        raise FormatError(f"{where}, row {bad + 1}: {out[bad]} is not a whole number")
    if rising:
        flat = np.flatnonzero(np.diff(out) <= 0)
        if flat.size:
            i = int(flat[0])
            raise FormatError(
                f"{where}, row {i + 2}: {int(out[i + 1])} follows {int(out[i])}; sizes must rise strictly: "
                "sort them and drop the repeated one"
            )
    return out.astype(np.int64)


def same_length(where: str, **columns: Any) -> None:
    """Raise `FormatError` unless all columns have one length."""
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{name} {n}" for name, n in lengths.items())
        raise FormatError(f"{where}: columns of different lengths ({shown}); truncated file?")


_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def step_seconds(seconds: FloatArray, where: str, unit: str = "s") -> FloatArray:
    """The seconds themselves, when they can be a decode step's; else a `FormatError` that names the likely
    unit.

    `unit` is what the file's key claims. Milliseconds written as seconds make steps of seconds to minutes;
    seconds written as milliseconds make steps of microseconds.
    """
    middle = float(np.median(seconds))
    if not SHORTEST_STEP <= middle <= LONGEST_STEP:
        wrong = "takes that long" if middle > LONGEST_STEP else "is that short"
        given = unit.partition(" ")[0]
        # The unit in which the same numbers would be most like steps, of 10 ms or so.
        sized = {name: middle * size / _UNITS[given] for name, size in _UNITS.items()}
        able = [name for name, step in sized.items() if SHORTEST_STEP <= step <= LONGEST_STEP]
        real = min(able, key=lambda name: abs(np.log(sized[name] / 0.01)), default=None)
        fix = (
            f"these look like {real} given as {unit}; convert them first" if real else "check the file's unit"
        )
        raise FormatError(f"{where}: a median step of {middle:.4g} s; no decode step {wrong}, {fix}")
    far = np.flatnonzero((seconds > 300 * middle) | (seconds < middle / 300))
    if far.size:
        i = int(far[0])
        raise FormatError(
            f"{where}, row {i + 1}: {seconds[i]:.4g} s beside a median of {middle:.4g} s; one row is in "
            "another unit"
        )
    return seconds


_LARGEST = 2**53


def mapping(value: Any, where: str) -> dict[str, Any]:
    """An object."""
    if not isinstance(value, dict):
        raise FormatError(f"{where}: expected an object, found {_kind(value)}")
    return value


def records(value: Any, where: str) -> list[dict[str, Any]]:
    """A list of objects."""
    if not isinstance(value, list):
        raise FormatError(f"{where}: expected a list of objects, found {_kind(value)}")
    return [mapping(item, f"{where}, entry {i}") for i, item in enumerate(value, 1)]


def need(row: dict[str, Any], key: str, where: str) -> Any:
    """The value under `key`."""
    if key not in row:
        raise FormatError(f"{where}: no {key}; the file was cut, or is of another version")
    return row[key]


def number(value: Any, where: str, least: float = 0.0, most: float = math.inf) -> float:
    """A finite number in [least, most]."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FormatError(f"{where}: expected a number, found {_kind(value)}")
    if not least <= value <= most or abs(value) >= 1e300:
        raise FormatError(f"{where}: {quoted(value)} is out of range ({least:g} to {most:g})")
    return float(value)


def integer(value: Any, where: str, least: int = 0, most: int = _LARGEST) -> int:
    """A whole number in [least, most]."""
    found = number(value, where, least, most)
    if found != int(found):
        raise FormatError(f"{where}: {quoted(value)} is not a whole number")
    return int(found)


def text(value: Any, where: str) -> str:
    """A text."""
    if not isinstance(value, str):
        raise FormatError(f"{where}: expected a text, found {_kind(value)}")
    return value


def truth(value: Any, where: str) -> bool:
    """true or false."""
    if not isinstance(value, bool):
        raise FormatError(f"{where}: expected true or false, found {_kind(value)}")
    return value
