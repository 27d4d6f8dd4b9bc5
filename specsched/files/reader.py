"""Typed reading of parsed JSON: a refusal names the file, the key and the entry, and says what is wanted."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import SpecschedError, nearest, plain, quoted


def kind_of(value: object) -> str:
    """Name of a parsed value's type in JSON's own words, for messages."""
    if value is None:
        return "null"
    names = {bool: "true/false", int: "a number", float: "a number", str: "a text", list: "a list"}
    return names.get(type(value), "an object" if isinstance(value, Mapping) else type(value).__name__)


class Reader:
    """One JSON object being read strictly.

    `where` is what messages begin with (a file and the key path), `error` the exception class raised.
    """

    def __init__(self, document: Any, where: str, error: type[SpecschedError], prefix: str = "") -> None:
        self.where, self.error, self.prefix = where, error, prefix
        if not isinstance(document, Mapping):
            name = prefix.rstrip(".") or "the document"
            raise error(f"{where}: {name} is {kind_of(document)}; expected a JSON object {{...}}")
        self.document = document

    def fail(self, key: str, what: str) -> SpecschedError:
        """The error to raise: "<where>: <key path> <what>"."""
        return self.error(f"{self.where}: {self.prefix}{key} {what}")

    def only(self, known: Collection[str]) -> None:
        """Refuse keys that are not in `known`: a misspelt key must never be ignored in silence."""
        for key in self.document:
            if key not in known:
                hint = nearest(str(key), known) or f" known keys: {', '.join(known)}"
                raise self.fail(plain(str(key), 60), f"is not a key of this schema;{hint}")

    def has(self, key: str) -> bool:
        """True where the key is present and not null."""
        return self.document.get(key) is not None

    def block(self, key: str) -> Reader | None:
        """The object under `key`, or None where it is absent or null."""
        if not self.has(key):
            return None
        return Reader(self.document[key], self.where, self.error, f"{self.prefix}{key}.")

    def mapping(self, key: str) -> dict[str, Any]:
        """A free-form object (empty where absent), copied."""
        block = self.block(key)
        return dict(block.document) if block else {}

    def text(self, key: str, default: str | None = None, choices: Sequence[str] = ()) -> str:
        """A non-empty text, one of `choices` where they are given; required where `default` is None."""
        if not self.has(key):
            if default is None:
                raise self.fail(key, "is missing; it must be a text")
            return default
        value = self.document[key]
        if not isinstance(value, str) or not value.strip():
            raise self.fail(key, f"is {kind_of(value) if value != '' else 'empty'}; it must be a text")
        if choices and value not in choices:
            raise self.fail(key, f"is {quoted(value)}; it must be one of {', '.join(choices)}")
        return value

    def number(
        self,
        key: str,
        default: float | None = None,
        minimum: float = 0.0,
        below: float = math.inf,
        most: float = math.inf,
    ) -> float:
        """A finite number in [minimum, below) and at most `most`; required where `default` is None."""
        if not self.has(key):
            if default is None:
                raise self.fail(key, "is missing; it must be a number")
            return default
        return self._checked(key, self.document[key], minimum, below, most)

    def integer(self, key: str, default: int | None = None, minimum: int = 0, most: int = 2**53) -> int:
        """A whole number of `minimum` to `most`; required where `default` is None."""
        value = self.number(key, default, minimum, most=most)
        if value != int(value):
            raise self.fail(key, f"is {value:g}; it must be a whole number")
        return int(value)

    def numbers(self, key: str, minimum: float = 0.0, most: float = math.inf) -> np.ndarray:
        """A required non-empty list of finite numbers of `minimum` to `most`, as float64[n]."""
        if not self.has(key):
            raise self.fail(key, "is missing; it must be a list of numbers")
        values = self.document[key]
        if not isinstance(values, (list, tuple)):
            raise self.fail(key, f"is {kind_of(values)}; it must be a list of numbers")
        if not values:
            raise self.fail(key, "is empty; give at least one number, or leave the whole block out")
        return np.array(
            [self._checked(f"{key}[{i}]", v, minimum, most=most) for i, v in enumerate(values)], float
        )

    def rising(self, key: str, minimum: int = 0, most: float = 2**53) -> np.ndarray:
        """A required list of strictly rising whole numbers of at most `most`, as float64[n]."""
        values = self.numbers(key, minimum, most)
        for i, value in enumerate(values):
            if value != int(value):
                raise self.fail(f"{key}[{i}]", f"is {value:g}; it must be a whole number")
            if i and value <= values[i - 1]:
                what = "a duplicate of" if value == values[i - 1] else "below"
                raise self.fail(
                    f"{key}[{i}]",
                    f"is {value:g}, {what} the entry before it ({values[i - 1]:g}); "
                    "sort the list and keep each entry once (with its own seconds)",
                )
        return values

    def _checked(
        self,
        key: str,
        value: Any,
        minimum: float = 0.0,
        below: float = math.inf,
        most: float = math.inf,
    ) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
            raise self.fail(key, f"is {kind_of(value)}; it must be a number")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise self.fail(key, f"is {number}; it must be a finite number")
        if number < minimum or number >= below:
            bound = f"at least {minimum:g}" + (f" and below {below:g}" if below < math.inf else "")
            raise self.fail(key, f"is {number:g}; it must be {bound}")
        if number > most:
            raise self.fail(key, f"is {number:g}; it must be at most {most:g}: check the unit")
        return number
