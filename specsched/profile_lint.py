"""Findings about a valid step profile: what deserves a look before answers are built on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .profile import StepProfile


def lint_profile(profile: StepProfile) -> list[str]:
    """One sentence per finding, most serious first."""
    return []
