"""Put the real answer to the README's first question into the README, between its two marks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
QUESTION = ["simulate", "--trace", "qwen3-4b-chat", "--sla", "160"]
FIRST, LAST = "<!-- answer -->\n", "<!-- /answer -->"


def main() -> None:
    """Ask, and write the answer down."""
    command = [sys.executable, "-m", "specsched", *QUESTION]
    answer = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    text = README.read_text(encoding="utf-8")
    before, after = text.split(FIRST)[0], text.split(LAST)[1]
    README.write_text(f"{before}{FIRST}```\n{answer}```\n{LAST}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
