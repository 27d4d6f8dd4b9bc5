"""Inputs that are pipes (`<(command)`, `/dev/stdin`, a FIFO): read once, into a file of our own."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Any

import click

_BEHIND = re.compile(r"(?P<before>[\w.-]+[:=])(?P<path>[^:]+)(?P<after>(:\d+)*)")

# What our copies stand for, so that messages name what the user gave.
names: dict[str, str] = {}


def spooled(value: Any, ctx: click.Context) -> Any:
    """The value of an option with every pipe in it replaced by a file that holds what came out of it."""
    if isinstance(value, tuple):
        return tuple(spooled(item, ctx) for item in value)
    if isinstance(value, list):
        return [spooled(item, ctx) for item in value]
    if not isinstance(value, str | os.PathLike):
        return value
    text = os.fspath(value)
    if _is_pipe(text):
        return type(value)(_copy(text, ctx)) if isinstance(value, str) else Path(_copy(text, ctx))
    behind = _BEHIND.fullmatch(text) if isinstance(value, str) else None
    if behind and _is_pipe(behind["path"]):
        return f"{behind['before']}{_copy(behind['path'], ctx)}{behind['after']}"
    return value


def _is_pipe(path: str) -> bool:
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def _copy(path: str, ctx: click.Context) -> str:
    import shutil
    import tempfile

    from ..errors import SpecschedError
    from ..files.pipe import read_pipe

    content = read_pipe(path, SpecschedError)
    folder = tempfile.mkdtemp(prefix="specsched-")
    ctx.call_on_close(lambda: shutil.rmtree(folder, ignore_errors=True))
    suffix = ".parquet" if content.startswith(b"PAR1") else ".gz" if content.startswith(b"\x1f\x8b") else ""
    name = Path(path).name
    copy = str(Path(folder) / (name if name.endswith(suffix) else name + suffix))
    Path(copy).write_bytes(content)
    names[copy] = path
    return copy
