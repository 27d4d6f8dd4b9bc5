"""Errors that end with the fix: every message says what is wrong, where, and what to do.

The command line prints `str(error)` on stderr and exits with code 2; engine authors catch `SpecschedError`.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterable
from typing import TypeGuard


def nearest(name: str, names: Iterable[str]) -> str:
    """` did you mean 'x'?`, or nothing when no name is near."""
    import difflib

    near = difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)
    return f" did you mean {near[0]!r}?" if near else ""


def is_whole(value: object, least: int = 0, most: int = 2**63 - 1) -> TypeGuard[int]:
    """Whether `value` is a whole number in [least, most]: an int, numpy's too, and no boolean."""
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    return whole and least <= int(value) <= most  # type: ignore[call-overload]


MOST_CHARACTERS = 320


def plain(text: str, most: int = MOST_CHARACTERS) -> str:
    """`text` fit for one sentence: control characters and lone surrogates escaped, its middle left out where
    it is longer than `most` characters. The file comes first and the fix last, so both ends are kept.
    """
    if len(text) > 4 * most:
        text = f"{text[: 2 * most]}{text[-2 * most :]}"
    if not text.isprintable():
        text = "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)
    if len(text) <= most:
        return text
    head = (most - 5) * 11 // 20
    return f"{text[:head]} ... {text[head + 5 - most :]}"


def quoted(value: object, most: int = 60) -> str:
    """A value of a file as messages show it: its `repr`, shortened."""
    if isinstance(value, (list, dict, tuple)):
        return plain(
            f"{type(value).__name__} of {len(value)} entries" if len(value) > 20 else repr(value), most
        )
    return plain(repr(value[: 4 * most] if isinstance(value, str) else value), most)


class SpecschedError(Exception):
    """Base of every error this package raises on purpose; its text is printable and at most about 300
    characters long."""

    def __str__(self) -> str:
        return plain(super().__str__())


class ProfileError(SpecschedError):
    """A step profile is malformed, or too short for what was asked of it."""


class TraceError(SpecschedError):
    """A confidence trace is malformed or empty."""


class CalibrationError(SpecschedError):
    """A calibration file is malformed, or does not fit the trace."""


class WorkloadError(SpecschedError):
    """Arrivals, lengths or simulation settings that cannot be run."""


class PolicyError(SpecschedError):
    """An unknown policy, a parameter out of range, or confidences that are not probabilities."""


class FormatError(SpecschedError):
    """Somebody else's file that is unknown, ambiguous or broken."""


class UnknownFormat(FormatError):
    """A file that no reader of another tool's format takes for its own."""
