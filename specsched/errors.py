"""Errors that end with the fix: every message says what is wrong, where, and what to do.

The command line prints `str(error)` on stderr and exits with code 2; engine authors catch `SpecschedError`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, names: Iterable[str]) -> str:
    """` did you mean 'x'?`, or nothing when no name is near."""
    near = difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)
    return f" did you mean {near[0]!r}?" if near else ""


class SpecschedError(Exception):
    """Base of every error this package raises on purpose."""


class ProfileError(SpecschedError):
    """A step profile is malformed, or too short for what was asked of it."""


class TraceError(SpecschedError):
    """A confidence trace is malformed or empty."""


class CalibrationError(SpecschedError):
    """A calibration file is malformed, or does not fit the trace."""


class WorkloadError(SpecschedError):
    """Arrivals, lengths or simulation settings that cannot be run."""


class PolicyError(SpecschedError):
    """An unknown policy, a parameter out of range, or confidences that are no probabilities."""


class FormatError(SpecschedError):
    """Somebody else's file that is unknown, ambiguous or broken."""
