"""What importing costs. The levels of imports are contracts of pyproject.toml (`make lint`)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import specsched

ROOT = Path(specsched.__file__).parent
HEAVY = {"torch", "numba", "pandas", "matplotlib", "scipy", "pyarrow", "numpy"}


@pytest.mark.parametrize(
    "code", ["import specsched", "import specsched.cli", "import specsched; dir(specsched)"]
)
def test_importing_loads_nothing_heavy(code: str) -> None:
    probe = f"{code}\nimport sys\nprint(*sorted({HEAVY!r} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []


def test_help_of_every_command_loads_nothing_heavy() -> None:
    probe = (
        "import sys, io, contextlib\n"
        "from specsched.cli import main\n"
        "def show(command, words):\n"
        "    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):\n"
        "        main([*words, '--help'])\n"
        "    for name, child in getattr(command, 'commands', {}).items():\n"
        "        show(child, [*words, name])\n"
        "show(main, [])\n"
        f"print(*sorted({HEAVY!r} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []


@pytest.mark.parametrize(
    "command",
    [
        "simulate --trace chat --policy off --concurrency 1 --requests 20",
        "simulate --trace chat --policy fixed:1 --concurrency 2 --requests 20 --sla 50 --json",
        "simulate --trace chat --policy off --arrivals poisson:5 --requests 20",
    ],
)
def test_a_run_without_files_loads_nothing_of_plots_and_pages(command: str) -> None:
    never = {"torch", "pandas", "matplotlib", "scipy.stats", "scipy.optimize", "pyarrow.compute", "tqdm"}
    never |= {"specsched.report.plots", "specsched.report.page", "specsched.formats", "specsched.torch_side"}
    probe = (
        "import sys, io, contextlib\n"
        "from specsched.cli import main\n"
        "said = io.StringIO()\n"
        "with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):\n"
        f"    main({command.split()!r})\n"
        "assert said.getvalue()\n"
        f"print(*sorted({never!r} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []


def test_public_names_are_there_and_hide_no_module() -> None:
    modules = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or path.is_dir()}
    for name in specsched.__all__:
        assert getattr(specsched, name).__name__ == name
        assert name in dir(specsched)
    assert not modules & set(specsched.__all__), "a public name that is also a module hides it"
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        specsched.nonsense  # noqa: B018
