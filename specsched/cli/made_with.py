"""What an answer was made with: versions, and the hashes of its inputs."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import click

from ..documents.shared import InputFile, MadeWith
from .options import OutputFile, OutputFolder, paths_in
from .output import printable

_MOST_FILES = 24  # of all inputs together: a folder of weights has many
_PACKAGES = ("numpy", "numba", "torch")
_BUNDLED = {"trace": ("traces", ".parquet"), "profile": ("profiles", ".json"), "table": ("profiles", ".json")}


def made_with(**chosen: str) -> MadeWith:
    """The versions and the inputs of the running command; `chosen`: what it took where nothing was given."""
    from ..version import VERSION

    versions = {"specsched": VERSION, "Python": platform.python_version(), "system": platform.platform()}
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {"versions": versions, "inputs": list(_inputs(chosen))}


def _inputs(chosen: dict[str, str]) -> Iterator[InputFile]:
    context = click.get_current_context()
    seen: set[Path] = set()
    for param in context.command.params:
        value = context.params.get(param.name or "") or chosen.get(param.name or "")
        if value is None or isinstance(param.type, OutputFile | OutputFolder):
            continue
        found = [Path(text) for text in paths_in(value)] or _bundled(param.name or "", str(value))
        for path in found:
            if path in seen or not path.is_file() or len(seen) >= _MOST_FILES:
                continue
            seen.add(path)
            yield {
                "input": max(param.opts, key=len).lstrip("-"),
                "name": printable(path.name if path.is_absolute() else str(path)),
                "bytes": path.stat().st_size,
                "sha256": _sha256(path),
            }


def _bundled(option: str, name: str) -> list[Path]:
    """The bundled file that an option names, where it names none of the user's."""
    from ..files.disk import bundled_dir

    if option not in _BUNDLED:
        return []
    folder, suffix = _BUNDLED[option]
    return [bundled_dir(folder) / f"{name.removesuffix(suffix)}{suffix}"]


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
