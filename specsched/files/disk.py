"""Finding and reading files: bundled names, JSON with clear errors.

A bundled name is a file of `profiles/`, `traces/` or `models/`: beside the package in a checkout,
inside it (`specsched/_bundled/`) when installed from a wheel.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ..errors import SpecschedError, nearest
from .strict import read_json as read_json


def one_line_lists(value: Any, indent: str = "") -> str:
    """JSON with two-space indent in which a list stays on one line unless it holds objects."""
    inner = indent + "  "
    if isinstance(value, dict) and value:
        items = (f"{inner}{json.dumps(k)}: {one_line_lists(v, inner)}" for k, v in value.items())
        return "{\n" + ",\n".join(items) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(v, dict) for v in value):
        return "[\n" + ",\n".join(inner + json.dumps(v, allow_nan=False) for v in value) + f"\n{indent}]"
    return json.dumps(value, allow_nan=False, ensure_ascii=False)


_PACKAGE = Path(__file__).resolve().parent.parent


def bundled_dir(kind: str) -> Path:
    """Folder of bundled files; `kind` is "profiles", "traces" or "models"."""
    installed = _PACKAGE / "_bundled" / kind
    return installed if installed.is_dir() else _PACKAGE.parent / kind


def bundled_names(kind: str, suffix: str) -> list[str]:
    """Sorted names (without `suffix`) of the bundled files of one kind."""
    return sorted(p.name.removesuffix(suffix) for p in bundled_dir(kind).glob(f"*{suffix}"))


def resolve(name: str | os.PathLike[str], kind: str, suffix: str, error: type[SpecschedError]) -> Path:
    """Path of a user's file, else of a bundled one (`chat.parquet` and `chat` both work).

    Raises `error` naming the nearest bundled names when neither exists.
    """
    path = Path(name)
    if os.path.isfile(path):  # False, not an error, for a text too long to be a name
        return path
    if os.path.isdir(path):
        raise error(f"{path} is a folder, not a {suffix} file; give the path of one file")
    stem = path.name.removesuffix(suffix)
    bundled = bundled_dir(kind) / f"{stem}{suffix}"
    # Only a bare name may mean a bundled file: a mistyped path must never silently become another file.
    if path.parent == Path() and os.path.isfile(bundled):
        return bundled
    names = bundled_names(kind, suffix)
    raise error(
        f"no file {str(name)!r} and no bundled {kind} of that name;{nearest(stem, names)} "
        f"bundled {kind}: {', '.join(names) or 'none'}"
    )
