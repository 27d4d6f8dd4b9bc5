"""Write docs/glossary.md from the words of reports; `--check` fails when it is stale (a test runs it)."""

from __future__ import annotations

import sys
from pathlib import Path

from specsched.report.page.words import WORDS

TARGET = Path(__file__).resolve().parent.parent / "docs" / "glossary.md"
HEAD = """# Words

Written by `python scripts/glossary.py` from the words of the report pages; a test fails when it is stale.
"""


def glossary() -> str:
    """The whole document."""
    return HEAD + "".join(f"\n**{word}**: {meaning}\n" for word, meaning in WORDS.items())


if __name__ == "__main__":
    if "--check" in sys.argv:
        stale = not TARGET.exists() or TARGET.read_text(encoding="utf-8") != glossary()
        sys.exit("docs/glossary.md is stale; run: python scripts/glossary.py" if stale else 0)
    TARGET.write_text(glossary(), encoding="utf-8")
