"""Notebooks run from top to bottom without warnings, and hold no outputs in git."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
# In a process of its own: a kernel's client starts an event loop and sockets whose clean-up warns late.
# Of what a kernel says on stderr only Python's warnings count, which the code of a cell can be blamed for.
EXECUTE = """
import sys
import nbformat
from nbclient import NotebookClient

notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=400, kernel_name="python3").execute(cwd=sys.argv[2])
outputs = [o for cell in notebook.cells for o in cell.get("outputs", [])]
said = [o.text for o in outputs if o.output_type == "stream" and o.name == "stderr"]
sys.exit("; ".join(text for text in said if "Warning: " in text) or 0)
"""


def test_there_are_three() -> None:
    assert len(NOTEBOOKS) == 3


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_outputs_are_stripped(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == [], f"{path.name}, {cell.id}: strip the outputs before committing"
            assert cell.execution_count is None, f"{path.name}, {cell.id}: strip the execution count"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_runs_from_top_to_bottom(path: Path, tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    command = [sys.executable, "-c", EXECUTE, str(path), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
