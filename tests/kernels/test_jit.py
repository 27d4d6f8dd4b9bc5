"""The cache of compiled kernels: one stamp over the folder, so that a change anywhere compiles all again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numba.core.errors import TypingError

from specsched import kernels
from specsched.kernels import jit as jit_module

PROBE = """
import numpy as np
import kernels
lengths = np.empty(1, np.int64)
kernels.threshold(np.array([[0.5, 0.4]]), 0.45, lengths)
print(lengths[0], sum(kernels.threshold.stats.cache_hits.values()))
"""


@pytest.fixture
def run(tmp_path: Path):
    """Run PROBE in a copy of the package's folder: (what it planned, how often the cache was used)."""
    folder = tmp_path / "kernels"
    shutil.copytree(Path(kernels.__file__).parent, folder, ignore=shutil.ignore_patterns("__pycache__"))
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}

    def probe() -> tuple[int, int]:
        done = subprocess.run(
            [sys.executable, "-c", PROBE], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        planned, hits = done.stdout.split()
        return int(planned), int(hits)

    probe.folder = folder  # type: ignore[attr-defined]
    return probe


def test_a_callee_changed_in_another_file_is_never_served_stale(run) -> None:
    # A caller in budget.py of a callee that stands in order.py.
    order, budget = run.folder / "order.py", run.folder / "budget.py"
    order.write_text(order.read_text() + "\n\n@jit\ndef least(theta):\n    return theta\n")
    text = budget.read_text().replace(">= theta:", ">= least(theta):")
    assert text != budget.read_text()
    budget.write_text(text.replace("from .order import (", "from .order import (\n    least,"))
    assert run() == (1, 0)
    assert run() == (1, 1), "an unchanged folder is served from the cache"
    before = order.read_text()
    order.write_text(before.replace("return theta", "return theta - 0.1"))
    assert run() == (2, 0), "the changed callee counts"
    order.write_text(before)
    assert run()[0] == 1, "and so does changing it back"


def test_without_a_place_for_the_stamp_nothing_is_cached(monkeypatch: pytest.MonkeyPatch) -> None:

    class Stampless:
        _cache = object()

    made: list[dict[str, object]] = []

    def fake(**options: object):
        made.append(options)
        return lambda function: Stampless()

    monkeypatch.setattr(jit_module, "njit", fake)
    jit_module.jit(lambda: None)
    assert [options.get("cache", False) for options in made] == [True, False]


def test_every_kernel_carries_the_stamp() -> None:
    stamped = [kernels.run_engine, kernels.early_stop, kernels.recall, kernels.plan_top_k, kernels.survival]
    assert {k._cache._cache_file._source_stamp for k in stamped} == {jit_module.folder_stamp()}


def _sum_of_ones(n: int) -> float:
    ones = np.ones(n)
    return float(ones[0] + ones[n - 1])


@pytest.mark.parametrize("kind", ["jit", "inner", "part"])
def test_a_kernel_that_allocates_does_not_compile(kind: str) -> None:
    """Without numba's runtime there is nothing to count references with, and nothing to allocate by."""
    with pytest.raises(TypingError, match="ones"):
        getattr(jit_module, kind)(_sum_of_ones)(3)
