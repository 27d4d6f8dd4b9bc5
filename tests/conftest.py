"""Hypothesis profiles: `fast` at the desk (the default), `ci` with more examples (`--hypothesis-profile=ci`).

Both draw the same examples on every run, so that a failure is never a matter of luck.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

_QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large]

settings.register_profile(
    "fast", max_examples=60, deadline=None, derandomize=True, suppress_health_check=_QUIET
)
settings.register_profile(
    "ci", max_examples=600, deadline=None, derandomize=True, suppress_health_check=_QUIET
)
settings.load_profile("fast")
