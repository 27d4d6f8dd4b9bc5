"""Warnings in the order of what they are worth: what moves the answer most comes first."""

from __future__ import annotations

import re
from collections.abc import Iterable

# What each may move, from a factor to a percent or two; the first pattern that matches counts.
_ORDER = (
    r"backlog|more arrives than|steady",  # not an answer at all
    r"no cost for passes|extrapolated|past the (last|end)|below the first",  # outside what was measured
    r"prefill (is left out|.*counted twice)",  # up to a factor
    r"right for neither|step costs of|acceptance for",  # inputs of two models
    r"is synthetic|invented",  # no drafter behind the acceptance
    r"roofline|composed|stub|estimated",  # no measured step
    r"no host time|overhead",
    r"sequential|engine's log|approximation",
    r"longer .* than max_context",
    r"priced at nothing|understated",
    r"uncalibrated|confidence",
)
_PATTERNS = [re.compile(pattern) for pattern in _ORDER]


def by_worth(warnings: Iterable[str]) -> list[str]:
    """Each warning once, the weightiest first; those of no known kind in the middle, in their own order."""
    known = len(_PATTERNS)

    def rank(text: str) -> float:
        found = next((i for i, pattern in enumerate(_PATTERNS) if pattern.search(text)), None)
        return known / 2 if found is None else float(found)

    return sorted(dict.fromkeys(warnings), key=rank)
