"""Hypothesis profiles: `fast` at the desk (the default), `ci` with more examples (`--hypothesis-profile=ci`),
`mutants` as fast, but content with any failing example.

Both draw the same examples on every run, so that a failure is never a matter of luck. Without torch the tests
that need it are left out.
"""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from hypothesis import HealthCheck, Phase, settings

_QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large]

settings.register_profile(
    "fast", max_examples=60, deadline=None, derandomize=True, suppress_health_check=_QUIET
)
settings.register_profile(
    "ci", max_examples=600, deadline=None, derandomize=True, suppress_health_check=_QUIET
)
settings.register_profile("mutants", settings.get_profile("fast"), phases=[Phase.explicit, Phase.generate])
settings.load_profile("fast")

NEED_TORCH = ["torch_side/*", "cli/test_cli_torch.py", "project/test_validation.py"]
collect_ignore_glob = [] if find_spec("torch") else NEED_TORCH


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if collect_ignore_glob:
        terminalreporter.write_line(f"torch is not installed: left out are {', '.join(NEED_TORCH)}")
