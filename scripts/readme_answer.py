"""Put the real answer to the README's first question into the README, and its picture beside it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
QUESTION = ["simulate", "--trace", "qwen3-4b-chat", "--sla", "160"]
PICTURE = ROOT / "docs" / "figures" / "readme.png"
FIRST, LAST = "<!-- answer -->\n", "<!-- /answer -->"


def main() -> None:
    """Ask, and write the answer and its picture down."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "specsched", *QUESTION, "--out", folder]
        answer = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
        shutil.copy(Path(folder) / "pareto.png", PICTURE)
    text = README.read_text(encoding="utf-8")
    before, after = text.split(FIRST)[0], text.split(LAST)[1]
    README.write_text(f"{before}{FIRST}```\n{answer}```\n{LAST}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
