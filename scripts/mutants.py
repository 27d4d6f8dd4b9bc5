"""Small faults put into the code one at a time: does a test notice? (`make mutants`)

`mutants.toml` holds them: a file, a piece of its text, what stands there instead, and the tests of which one
must fail. Each is tried in a copy of the checkout, never in the checkout itself. One line a mutant comes out:

    killed     a test failed
    hung       the tests did not end within the time limit: they would fail at pytest's own
    SURVIVED   every test passed: the fault would go unnoticed
    STALE      the old text does not occur exactly once: the table speaks of code that is gone
    BROKEN     no test ran (a syntax error, say): no fault at all

Exit code 1 unless all were killed or hung. The tests must pass on the unchanged copy, or nothing is tried.
Mutants of the kernels run without compiling them (NUMBA_DISABLE_JIT=1): compiling takes longer than testing.
"""

from __future__ import annotations

import argparse
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLE = Path(__file__).with_suffix(".toml")
FIRST_RUN = 900.0  # seconds for the tests on the unchanged copy, which compiles the kernels


@dataclass(frozen=True)
class Mutant:
    """One fault: `old` of `file` becomes `new`; one of `tests` must fail. `what` says what is wrong then."""

    what: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    compiled: bool  # whether the kernels are compiled for its tests


def read_table(path: Path = TABLE) -> list[Mutant]:
    """The mutants of `[[group]]`s (tests, compiled) and their `mutants` (what, file, old, new)."""
    return [
        Mutant(m["what"], m["file"], m["old"], m["new"], tuple(group["tests"]), group.get("compiled", True))
        for group in tomllib.loads(path.read_text())["group"]
        for m in group.get("mutants", [])
    ]


def copy_checkout(to: Path) -> None:
    """What git knows or would add; the checkout's compiled kernels too, which hold while their text does."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)
    compiled = ROOT / "specsched/kernels/__pycache__"
    if compiled.is_dir():
        shutil.copytree(compiled, to / "specsched/kernels/__pycache__")


def run_tests(folder: Path, tests: tuple[str, ...], compiled: bool, limit: float) -> int | None:
    """Exit code of pytest in `folder`; None when the time limit ended it."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    if not compiled:
        environment["NUMBA_DISABLE_JIT"] = "1"
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    command += ["--hypothesis-profile=mutants", *tests]
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=output, stderr=output, start_new_session=True
        )
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # its own group: tests start processes of their own
            process.wait()
            return None


def verdict(mutant: Mutant, folder: Path, limit: float) -> str:
    """Try one mutant in a copy, and put the copy right again."""
    path = folder / mutant.file
    text = path.read_text() if path.is_file() else ""
    if text.count(mutant.old) != 1:
        return "STALE"
    path.write_text(text.replace(mutant.old, mutant.new))
    try:
        code = run_tests(folder, mutant.tests, mutant.compiled, limit)
    finally:
        path.write_text(text)
    if code is None:
        return "hung"
    return {0: "SURVIVED", 1: "killed"}.get(code, "BROKEN")


def unchanged_passes(folder: Path, mutants: list[Mutant]) -> bool:
    """Whether all tests pass before anything is changed."""
    for compiled in (True, False):
        tests = tuple(dict.fromkeys(t for m in mutants if m.compiled is compiled for t in m.tests))
        if tests and run_tests(folder, tests, compiled, FIRST_RUN) != 0:
            print(f"tests fail before anything is changed (compiled: {compiled}): {' '.join(tests)}")
            return False
    return True


def try_all(mutants: list[Mutant], folders: list[Path], limit: float) -> dict[str, list[Mutant]]:
    """Verdicts of all mutants, each folder in use by one at a time."""
    free: queue.SimpleQueue[Path] = queue.SimpleQueue()
    for folder in folders:
        free.put(folder)
    found: dict[str, list[Mutant]] = {}
    lock = threading.Lock()

    def one(mutant: Mutant) -> None:
        folder, begun = free.get(), time.monotonic()
        try:
            told = verdict(mutant, folder, limit)
        finally:
            free.put(folder)
        with lock:
            found.setdefault(told, []).append(mutant)
            print(f"{told:9} {time.monotonic() - begun:5.1f} s  {mutant.file}: {mutant.what}", flush=True)

    with ThreadPoolExecutor(len(folders)) as pool:
        list(pool.map(one, mutants))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "words", nargs="*", help="try only mutants whose file or description holds one of these"
    )
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time, each in a copy of its own")
    parser.add_argument(
        "--limit", type=float, default=120.0, help="seconds that the tests of a mutant may take"
    )
    parser.add_argument("--table", type=Path, default=TABLE, help="another table than mutants.toml")
    asked = parser.parse_args()
    mutants = [
        m
        for m in read_table(asked.table)
        if not asked.words or any(word in f"{m.file}: {m.what}" for word in asked.words)
    ]
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        folders = [Path(name) / str(i) for i in range(max(1, min(asked.jobs, len(mutants))))]
        for folder in folders:
            copy_checkout(folder)
        if not unchanged_passes(folders[0], mutants):
            return 1
        kernels = "specsched/kernels/__pycache__"
        for folder in folders[1:]:
            shutil.copytree(folders[0] / kernels, folder / kernels, dirs_exist_ok=True)
        found = try_all(mutants, folders, asked.limit)
    killed, hung = len(found.pop("killed", [])), len(found.get("hung", []))
    print(f"\n{killed} of {len(mutants)} mutants killed, {hung} hung")
    for told, which in sorted(found.items()):
        for mutant in which:
            print(f"{told}  {mutant.file}: {mutant.what}")
            print(f"    - {mutant.old.strip()}")
            print(f"    + {mutant.new.strip()}")
    return 0 if killed + hung == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main())
