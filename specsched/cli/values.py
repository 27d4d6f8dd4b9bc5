"""Values of options: numbers in a range (never NaN), whole numbers, lists of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import click

Parameter = click.Parameter | None
Context = click.Context | None


# --------------------------------------------------------------------------- values


class Real(click.ParamType):  # type: ignore[type-arg]
    """A finite number in a range; NaN and infinity are never in it."""

    name = "number"

    def __init__(
        self, *, above: float | None = None, minimum: float | None = None, maximum: float | None = None
    ):
        self.above, self.minimum, self.maximum = above, minimum, maximum

    def convert(self, value: Any, param: Parameter, ctx: Context) -> float:
        """Parse one number, or fail with the range it should be in."""
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        low = (self.above is None or number > self.above) and (self.minimum is None or number >= self.minimum)
        if not math.isfinite(number) or not low or (self.maximum is not None and number > self.maximum):
            self.fail(f"{value!r} is not a finite number{self._range()}", param, ctx)
        return number

    def _range(self) -> str:
        parts = [
            f"above {self.above:g}" if self.above is not None else "",
            f"at least {self.minimum:g}" if self.minimum is not None else "",
            f"at most {self.maximum:g}" if self.maximum is not None else "",
        ]
        text = " and ".join(part for part in parts if part)
        return f" {text}" if text else ""


def milliseconds() -> Real:
    """A promised time: what a clock could tell, so that no seconds of it are 0 and no speed is infinite."""
    return Real(minimum=1e-9, maximum=1e15)


@dataclass(frozen=True)
class Promised:
    """A limit as typed."""

    milliseconds: float
    share: float | None  # its own; None: kept together with what else is promised


class Limit(click.ParamType):  # type: ignore[type-arg]
    """Milliseconds, and behind an @ the share of requests that must keep them by themselves: 500@0.99."""

    name = "limit"

    def convert(self, value: Any, param: Parameter, ctx: Context) -> Promised:
        """Parse the limit, or fail with what is wrong in it."""
        if isinstance(value, Promised):
            return value
        time, at, share = str(value).partition("@")
        if not time or (at and not share):
            self.fail(f"{value!r} is not milliseconds, or milliseconds@share: 500, 500@0.99", param, ctx)
        found = milliseconds().convert(time, param, ctx)
        return Promised(found, Real(above=0, maximum=1).convert(share, param, ctx) if at else None)


class Temperature(Real):
    """0 (greedy), or a temperature at which logits stay within float32."""

    LEAST = 1e-6

    def __init__(self) -> None:
        super().__init__(minimum=0)

    def convert(self, value: Any, param: Parameter, ctx: Context) -> float:
        """Parse the temperature, or fail with the range it should be in."""
        number = super().convert(value, param, ctx)
        if 0 < number < self.LEAST:
            self.fail(f"{value!r} is below {self.LEAST:g}; give 0, which is greedy", param, ctx)
        return number


class Whole(click.ParamType):  # type: ignore[type-arg]
    """A whole number of at least `minimum` (and at most `maximum`)."""

    name = "integer"

    def __init__(self, minimum: int, maximum: int = 10**12):
        self.minimum, self.maximum = minimum, maximum

    def convert(self, value: Any, param: Parameter, ctx: Context) -> int:
        """Parse one integer, or fail with the range it should be in."""
        try:
            number = int(value)
        except (TypeError, ValueError):
            self.fail(f"{value!r} is not a whole number", param, ctx)
        if not self.minimum <= number <= self.maximum:
            self.fail(f"{number} is not between {self.minimum} and {self.maximum}", param, ctx)
        return number


class Wholes(click.ParamType):  # type: ignore[type-arg]
    """A comma-separated list of distinct whole numbers, sorted: `1,2,4`."""

    name = "integers"

    def convert(self, value: Any, param: Parameter, ctx: Context) -> list[int]:
        """Parse the list, or fail with the item that is wrong."""
        if isinstance(value, list):
            return value
        each = Whole(1, 10**6)
        return sorted({each.convert(part.strip(), param, ctx) for part in str(value).split(",")})
