"""Documents that cannot rot: the command-line reference is what the commands say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import specsched

ROOT = Path(specsched.__file__).parent.parent


def test_command_line_reference_is_up_to_date() -> None:
    check = [sys.executable, str(ROOT / "scripts" / "cli_reference.py"), "--check"]
    done = subprocess.run(check, cwd=ROOT, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
