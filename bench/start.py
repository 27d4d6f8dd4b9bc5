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


def rows() -> list[Row]:
    """Processor seconds, since a busy machine must not count."""
    helped, click = (
        min(spent(arguments) for _ in range(5))
        for arguments in (["-m", "specsched", "--help"], ["-c", "import click"])
    )
    with tempfile.TemporaryDirectory() as folder:
        out = [*FIRST, "--out", str(Path(folder) / "out")]
        cache = str(Path(folder) / "numba")
        cold = spent(out, NUMBA_CACHE_DIR=cache)
        warm, needed = float("inf"), float("inf")
        for _ in range(3):
            warm = min(warm, spent(out, NUMBA_CACHE_DIR=cache))
            needed = min(needed, spent(NEEDED))
    compiled = float(
        subprocess.run([sys.executable, "-c", _COMPILE], check=True, capture_output=True, text=True).stdout
    )
    what = "first answer (simulate --sla, plots and page)"
    return [
        Row(
            "help",
            "specsched --help",
            helped,
            click,
            "s",
            "import click",
            "at most twice",
            helped <= 2 * click,
        ),
        Row("warm", f"{what}, compiled", warm, needed, "s", "importing what it needs", "5 s", warm <= 5),
        Row("cold", f"{what}, never run", cold, compiled, "s", "compiling a sum", "25 s", cold <= 25),
    ]
