"""What the first second costs: the help, a first answer with all kernels compiled, and with none."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from rows import Row

ROOT = Path(__file__).parents[1]
FIRST = ["-m", "specsched", "simulate", "--trace", "qwen3-4b-chat", "--sla", "120"]
# What the answer is made with, imported and nothing more.
NEEDED = ["-c", "import click, matplotlib.figure, numba, pyarrow.parquet, scipy.special"]
_COMPILE = """
import time
import numpy as np
from numba import njit
begun = time.process_time()
@njit
def total(numbers):
    found = 0.0
    for x in numbers:
        found += x
    return found
total(np.ones(3))
print(time.process_time() - begun)
"""


def spent(arguments: list[str], **environment: str) -> float:
    """Processor seconds of a python of its own."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        check=True,
        capture_output=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def rows(full: bool = False) -> list[Row]:
    """Processor seconds, since a busy machine must not count; `full`: with nothing compiled too."""
    helped, click = (
        min(spent(arguments) for _ in range(5))
        for arguments in (["-m", "specsched", "--help"], ["-c", "import click"])
    )
    what = "first answer (simulate --sla, plots and page)"
    goal, met = "at most twice", helped <= 2 * click
    found = [Row("help", "specsched --help", helped, click, "s", "import click", goal, met)]
    with tempfile.TemporaryDirectory() as folder:
        out = [*FIRST, "--out", str(Path(folder) / "out")]
        if full:
            cold = spent(out, NUMBA_CACHE_DIR=str(Path(folder) / "numba"))
            summing = [sys.executable, "-c", _COMPILE]
            compiled = float(subprocess.run(summing, check=True, capture_output=True, text=True).stdout)
            against, goal = "compiling a sum", "25 s"
            found.append(Row("cold", f"{what}, never run", cold, compiled, "s", against, goal, cold <= 25))
        spent(out)  # compiled from here on
        warm, needed = (min(spent(arguments) for _ in range(2)) for arguments in (out, NEEDED))
    against, goal = "importing what it needs", "5 s"
    return [*found, Row("warm", f"{what}, compiled", warm, needed, "s", against, goal, warm <= 5)]
