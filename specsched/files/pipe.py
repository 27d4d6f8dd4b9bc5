"""What comes out of a pipe or a device, with a limit, and never waiting for a writer that does not come."""

from __future__ import annotations

import os
import select
import stat
import time

from ..errors import SpecschedError

MOST_BYTES = 256 << 20
WRITER_SECONDS = 5.0  # how long a named pipe may lack a writer


def read_pipe(path: str, error: type[SpecschedError], most: int = MOST_BYTES) -> bytes:
    """All that comes out of a pipe or device, at most `most` bytes; a pipe without a writer is refused."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as e:
        raise error(f"cannot read {path}: {e.strerror or e}; give a file") from None
    try:
        if os.isatty(fd):
            raise error(f"{path} is a terminal; give a file, or pipe one in")
        named = os.path.exists(os.path.realpath(path)) and stat.S_ISFIFO(os.fstat(fd).st_mode)
        return _drain(fd, path, error, most, named)
    finally:
        os.close(fd)


def _drain(fd: int, path: str, error: type[SpecschedError], most: int, named: bool) -> bytes:
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
                raise error(f"{path} gives more than {most >> 20} MB; pipes are read up to that")
        elif seen:
            return b"".join(parts)
        elif time.monotonic() - start > WRITER_SECONDS:
            raise error(f"nothing writes to the pipe {path}; start its writer, or give a file")
        else:
            time.sleep(0.05)
