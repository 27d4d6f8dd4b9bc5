"""Where every write is decided: what may be written over, how a file is replaced, and what a failure says.

    atomic_write   a temporary file beside the target, renamed over it when it is whole
    protecting     for the length of a command: its inputs, and what was there before, are not written over

A link is written through, an existing file keeps its mode, a file without any permission to write is refused
(to root too), a pipe or a device is written into and never replaced.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import secrets
import stat
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from ..errors import SpecschedError

_READER_SECONDS = 3.0  # how long a pipe may lack a reader
_LONGEST_NAME = 120
_MOST_LOOKED_AT = 64 << 20  # bytes of a file that is asked whether it is an earlier answer
_ANSWERS = ("answer", "plan", "runs", "eval")
FORCE = "choose another name, or add --force"


class WriteError(SpecschedError):
    """A file could not be written, or must not be written over."""


@dataclass
class Protected:
    """What a running command must not write over.

    inputs: (device, inode) of every file given to it; folder: its `--out`, where it replaces its own earlier
    answers; force: the user said --force. `made` are the files it wrote itself.
    """

    inputs: dict[tuple[int, int], str] = field(default_factory=dict)
    folder: Path | None = None
    force: bool = False
    made: set[str] = field(default_factory=set)

    def refuse(self, path: Path) -> None:
        """Raise WriteError where `path` is an input, or a file that would be lost."""
        try:
            there = os.stat(path)
        except OSError:
            return
        if (there.st_dev, there.st_ino) in self.inputs:
            raise WriteError(f"{path} is the input; write to another file")
        if not stat.S_ISREG(there.st_mode) or there.st_size == 0 or self.force:
            return
        if os.path.realpath(path) in self.made:
            return
        if self.folder is not None and path.parent == self.folder and _earlier_answer(path):
            return
        raise WriteError(f"{path} exists already and would be lost; {FORCE}")


_protected: list[Protected] = []


@contextlib.contextmanager
def protecting(
    inputs: Iterable[str | os.PathLike[str]], folder: Path | None = None, force: bool = False
) -> Iterator[Protected]:
    """Inside the block no input is written over, and what exists only with `force`."""
    known: dict[tuple[int, int], str] = dict(_protected[-1].inputs) if _protected else {}
    for given in inputs:
        with contextlib.suppress(OSError, ValueError):
            found = os.stat(given)
            if stat.S_ISREG(found.st_mode):
                known[found.st_dev, found.st_ino] = str(given)
    guard = Protected(known, folder, force)
    _protected.append(guard)
    try:
        yield guard
    finally:
        _protected.remove(guard)


def check_output(path: str | os.PathLike[str], own: bool = False) -> None:
    """Raise WriteError, before any work, where `atomic_write` of `path` could not succeed or would lose
    something. `own`: a file of the command's own folder, which it may replace."""
    path = Path(path)
    if _protected and not own:
        _protected[-1].refuse(path)
    try:
        kind = os.stat(path)
    except FileNotFoundError:
        _check_folder(Path(os.path.realpath(path)).parent, path)
        return
    except OSError as e:
        raise _failed(path, e) from None
    if stat.S_ISDIR(kind.st_mode):
        raise WriteError(f"{path} is a folder; give the name of a file in it")
    if stat.S_ISBLK(kind.st_mode):
        raise WriteError(f"{path} is a disk; give the name of a file")
    if not kind.st_mode & 0o222 or not os.access(path, os.W_OK):
        raise WriteError(f"{path} is read-only; choose another name, or change its permissions")
    if stat.S_ISREG(kind.st_mode) and not _is_standard(kind):
        _check_folder(Path(os.path.realpath(path)).parent, path)


def _check_folder(folder: Path, target: Path) -> None:
    """Refuse a folder where no file can be made; one that does not exist yet is looked for above."""
    parent = folder
    while not os.path.lexists(parent):
        parent = parent.parent
    if not parent.is_dir():
        raise WriteError(f"cannot write to {target}: {parent} is not a folder; choose another place")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise WriteError(f"cannot write to {target}: no permission in {parent}; choose another place")


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str], mode: str = "w", own: bool = False) -> Iterator[IO[Any]]:
    """A stream whose content becomes the file `path` only when the block ends without an error.

    `own`: the file stands in a folder that belongs to the writer, which may replace it unasked. Raises
    WriteError naming the file.
    """
    path = Path(path)
    check_output(path, own)
    try:
        kind = os.stat(path) if os.path.exists(path) else None
        if kind is not None and (not stat.S_ISREG(kind.st_mode) or _is_standard(kind)):
            with _into(path, mode, kind) as stream:
                yield stream
            return
        target = Path(os.path.realpath(path))
        target.parent.mkdir(parents=True, exist_ok=True)
        with _beside(target, mode, kind) as stream:
            yield stream
    except BrokenPipeError:
        raise
    except OSError as e:
        raise _failed(path, e) from None
    if _protected:
        _protected[-1].made.add(os.path.realpath(path))


@contextlib.contextmanager
def _beside(target: Path, mode: str, before: os.stat_result | None) -> Iterator[IO[Any]]:
    """A temporary file in the folder of `target`, renamed over it at the end; mode and owner are kept."""
    temporary = target.parent / f".specsched-{secrets.token_hex(8)}.tmp"
    # Made by open(), so that the system applies the umask: reading it means setting it for all threads.
    fd = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0), 0o666)
    try:
        with os.fdopen(fd, mode, encoding=None if "b" in mode else "utf-8") as stream:
            if before is not None:
                with contextlib.suppress(OSError):  # another's file in a shared folder stays readable to us
                    os.chown(temporary, before.st_uid, before.st_gid)
                os.chmod(temporary, stat.S_IMODE(before.st_mode))
            yield stream
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


@contextlib.contextmanager
def _into(path: Path, mode: str, kind: os.stat_result) -> Iterator[IO[Any]]:
    """All at once, at the end, into what is no plain file: a pipe, a device, the standard output."""
    whole: IO[Any] = io.BytesIO() if "b" in mode else io.StringIO()
    yield whole
    content = whole.getvalue()  # type: ignore[attr-defined]
    data = content if isinstance(content, bytes) else content.encode("utf-8")
    for standard in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            standard.flush()
    flags = os.O_WRONLY | getattr(os, "O_BINARY", 0)
    fd = _reader_of(path) if stat.S_ISFIFO(kind.st_mode) else os.open(path, flags | os.O_APPEND)
    with os.fdopen(fd, "wb") as stream:
        stream.write(data)


def _reader_of(path: Path) -> int:
    """A pipe opened for writing; refused where nobody comes to read it."""
    start = time.monotonic()
    while True:
        try:
            fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as e:
            if e.errno != errno.ENXIO:
                raise
            if time.monotonic() - start > _READER_SECONDS:
                raise WriteError(f"nobody reads the pipe {path}; start its reader first") from None
            time.sleep(0.05)
            continue
        os.set_blocking(fd, True)
        return fd


def _is_standard(kind: os.stat_result) -> bool:
    """Whether the file is where our standard output or error already goes."""
    for number in (1, 2):
        with contextlib.suppress(OSError):
            ours = os.fstat(number)
            if (ours.st_dev, ours.st_ino) == (kind.st_dev, kind.st_ino):
                return True
    return False


def _failed(path: Path, e: OSError) -> WriteError:
    fix = {
        errno.ENOSPC: "free some space, or choose another disk",
        errno.EDQUOT: "free some space, or choose another disk",
        errno.EFBIG: "raise the limit on the size of files, or choose another place",
        errno.ENAMETOOLONG: "choose a shorter name",
    }.get(e.errno or 0, "choose a folder you may write to")
    return WriteError(f"cannot write {path}: {e.strerror or e}; {fix}")


@contextlib.contextmanager
def damaged(path: Path, error: type[SpecschedError], fix: str) -> Iterator[None]:
    """Reading a file that we wrote ourselves, to resume from: whatever fails in the block is a damage of it.

    Library texts are left out: some advise to load the file unsafely.
    """
    try:
        yield
    except SpecschedError:
        raise
    except Exception as e:
        raise error(f"{path} is damaged ({type(e).__name__}); {fix}") from None


def write_json(path: str | os.PathLike[str], document: Any, own: bool = False) -> None:
    """Write JSON atomically: two-space indent, no NaN (a NaN in a result is a bug, not a value)."""
    text = json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False)
    with atomic_write(path, own=own) as stream:
        stream.write(text + "\n")


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Write bytes atomically."""
    with atomic_write(path, "wb") as stream:
        stream.write(content)


def file_name(name: str) -> str:
    """`name` as the name of one file: a separator, a space or a control character becomes `-`, no leading
    dot, at most 120 characters."""
    kept = "".join(c if c.isalnum() or c in "._+-=,@" else "-" for c in name)
    return kept.lstrip(".-")[:_LONGEST_NAME].rstrip(".-") or "unnamed"


def _earlier_answer(path: Path) -> bool:
    """Whether the file is one that an earlier run of the same command would have left under this name."""
    try:
        if path.stat().st_size > _MOST_LOOKED_AT:
            return False
        content = path.read_bytes()
    except OSError:
        return False
    if path.suffix == ".png":
        return content.startswith(b"\x89PNG") and b"Software\x00specsched" in content[:4096]
    if path.suffix == ".html":
        return b'<p class="small">specsched ' in content[-200:]
    if path.suffix != ".json":
        return False
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return False
    if not isinstance(document, dict):
        return False
    if "schema" not in document:  # what `inspect` says of a file
        return document.get("kind") == path.stem and "lint" in document and "warnings" in document
    # A profile or a calibration is an input of other commands, never one answer among others.
    schema = str(document["schema"])
    return path.stem in _ANSWERS and schema.startswith(f"specsched/{path.stem}/")
