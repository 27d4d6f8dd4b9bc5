"""Inputs that are pipes (`<(command)`, `/dev/stdin`, a FIFO): read once, into a file of our own."""

from __future__ import annotations

import os
import re
import select
import shutil
import stat
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from ..errors import SpecschedError

MOST_BYTES = 256 << 20
WRITER_SECONDS = 5.0  # how long a named pipe may lack a writer
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
    content = read_pipe(path)
    folder = tempfile.mkdtemp(prefix="specsched-")
    ctx.call_on_close(lambda: shutil.rmtree(folder, ignore_errors=True))
    suffix = ".parquet" if content.startswith(b"PAR1") else ".gz" if content.startswith(b"\x1f\x8b") else ""
    name = Path(path).name
    copy = str(Path(folder) / (name if name.endswith(suffix) else name + suffix))
    Path(copy).write_bytes(content)
    names[copy] = path
    return copy


def read_pipe(path: str, most: int = MOST_BYTES) -> bytes:
    """All that comes out of a pipe or device, at most `most` bytes; a pipe without a writer is refused."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as e:
        raise SpecschedError(f"cannot read {path}: {e.strerror or e}; give a file") from None
    try:
        if os.isatty(fd):
            raise SpecschedError(f"{path} is a terminal; give a file, or pipe one in")
        named = os.path.exists(os.path.realpath(path)) and stat.S_ISFIFO(os.fstat(fd).st_mode)
        return _drain(fd, path, most, named)
    finally:
        os.close(fd)


def _drain(fd: int, path: str, most: int, named: bool) -> bytes:
    parts: list[bytes] = []
    size, seen, start = 0, not named, time.monotonic()
    while True:
        try:
            part = os.read(fd, 1 << 20)
        except BlockingIOError:  # a writer is there and has nothing to say yet
            seen = True
            select.select([fd], [], [], 1.0)
            continue
        if part:
            parts.append(part)
            size, seen = size + len(part), True
            if size > most:
                raise SpecschedError(f"{path} gives more than {most >> 20} MB; pipes are read up to that")
        elif seen:
            return b"".join(parts)
        elif time.monotonic() - start > WRITER_SECONDS:
            raise SpecschedError(f"nothing writes to the pipe {path}; start its writer, or give a file")
        else:
            time.sleep(0.05)
