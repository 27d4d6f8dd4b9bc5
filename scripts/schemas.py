"""Write the JSON Schemas of the documents, into the package and docs/schemas/. `--check`: only compare."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from specsched.documents import DOCUMENTS, json_schema

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = (ROOT / "specsched" / "documents" / "schemas", ROOT / "docs" / "schemas")


def texts() -> dict[Path, str]:
    """What each file must hold."""
    made = {name: json.dumps(json_schema(name), indent=2, ensure_ascii=False) + "\n" for name in DOCUMENTS}
    return {folder / f"{name}.json": text for folder in FOLDERS for name, text in made.items()}


def stale() -> list[Path]:
    """Files that are missing, or hold something else."""
    return [p for p, text in texts().items() if not p.is_file() or p.read_text(encoding="utf-8") != text]


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        sys.exit(
            "".join(f"{path}: not what the types say; run scripts/schemas.py\n" for path in stale()) or None
        )
    for path, text in texts().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
