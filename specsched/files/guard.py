"""The one place where errors of libraries and of damaged content become one sentence that names the file."""

from __future__ import annotations

import csv
import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import SpecschedError, plain


@contextmanager
def reading(path: str | os.PathLike[str], error: type[SpecschedError], what: str = "file") -> Iterator[None]:
    """Within the block, whatever is wrong with the content of `path` is raised as `error` naming the file.

    `what`: the kind of file in words ("sweep", "GGUF file"). A SpecschedError that does not name the file
    gets its name put before it. Nothing but reading and checking the file belongs in the block.
    """
    try:
        yield
    except SpecschedError as e:
        if plain(Path(path).name) in str(e):
            raise
        raise type(e)(f"{os.fspath(path)}: {e}") from None
    except MemoryError:
        raise error(
            f"{os.fspath(path)}: this {what} needs more memory than there is; is it damaged?"
        ) from None
    except Exception as e:
        raise error(f"{os.fspath(path)}: {sentence(e, what)}") from None


def sentence(e: BaseException, what: str = "file") -> str:
    """What an error of a library says about a damaged file, in our words, with what to do."""
    if isinstance(e, RecursionError):
        return f"this {what} is nested too deeply; write it again with fewer levels"
    if isinstance(e, UnicodeDecodeError):
        return f"this {what} holds text that is not UTF-8 (byte {e.start}); save it as UTF-8"
    if isinstance(e, (EOFError, zlib.error)) or type(e).__name__ == "BadGzipFile":
        return f"this {what} is compressed and damaged or cut short; fetch it again"
    if isinstance(e, csv.Error):
        return (
            f"this {what} is not a CSV ({_first(e)}); write it again with quotes that match and plain lines"
        )
    if isinstance(e, OSError) and e.strerror:
        return f"this {what} cannot be read: {e.strerror}; check the path and its permissions"
    if isinstance(e, (KeyError, IndexError)):
        return f"this {what} lacks the entry {_first(e)}; it is damaged or of another version: fetch it again"
    if isinstance(e, struct.error):
        return f"this {what} is damaged or cut short; fetch it again"
    return f"not a readable {what} ({_first(e)}); truncated? fetch or write it again"


def _first(e: BaseException) -> str:
    """The first line of a library's message, shortened."""
    lines = str(e).splitlines() or [type(e).__name__]
    return plain(lines[0].strip().rstrip(".;"), 100)
