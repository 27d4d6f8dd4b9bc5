"""Values of parsed JSON that must be something definite: each accessor refuses the rest, naming the place."""

from __future__ import annotations

import math
from typing import Any

from ..errors import FormatError

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
        raise FormatError(f"{where}: {value!r} is out of range ({least:g} to {most:g})")
    return float(value)


def integer(value: Any, where: str, least: int = 0, most: int = _LARGEST) -> int:
    """A whole number in [least, most]."""
    found = number(value, where, least, most)
    if found != int(found):
        raise FormatError(f"{where}: {value!r} is not a whole number")
    return int(found)


def text(value: Any, where: str) -> str:
    """A text."""
    if not isinstance(value, str):
        raise FormatError(f"{where}: expected a text, found {_kind(value)}")
    return value


def _kind(value: Any) -> str:
    names = {
        bool: "true/false",
        int: "a number",
        float: "a number",
        str: "a text",
        list: "a list",
        dict: "an object",
    }
    return "null" if value is None else names.get(type(value), type(value).__name__)
