"""JSON and TOML read strictly: size, depth and digits bounded, no lone surrogates, no number JSON lacks."""

from __future__ import annotations

import json
import math
import os
import re
import stat
import tomllib
from pathlib import Path
from typing import Any

from ..errors import SpecschedError, plain
from .pipe import read_pipe

MOST_BYTES = 256 << 20
DEEPEST = 100
MOST_DIGITS = 40
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_HUGE = re.compile(r"[eE]\+?[0-9]{3}|[0-9]{300}")


class _Bad(ValueError):
    """A value that is refused while a document is parsed."""


def read_bytes(path: str | os.PathLike[str], error: type[SpecschedError], most: int = MOST_BYTES) -> bytes:
    """All bytes of a file of at most `most` bytes, pipes too; raises `error` naming it."""
    try:
        if stat.S_ISFIFO(os.stat(path).st_mode):
            return read_pipe(os.fspath(path), error, most)
        with open(path, "rb") as stream:
            raw = stream.read(most + 1)
    except IsADirectoryError:
        raise error(f"{path} is a folder; give one file") from None
    except (OSError, ValueError) as e:
        why = getattr(e, "strerror", None) or "its name is not one a file can have"
        raise error(f"cannot read {path}: {why}; check the path and its permissions") from None
    if len(raw) > most:
        raise error(
            f"{path} is larger than {most >> 20} MB, the most that is read of such a file; give a part"
        )
    return raw


def read_text(path: str | os.PathLike[str], error: type[SpecschedError], most: int = MOST_BYTES) -> str:
    """The UTF-8 text of a file, a byte-order mark dropped; raises `error` naming it."""
    raw = read_bytes(path, error, most)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise error(f"{path} is not UTF-8 text (byte {e.start}); save it as UTF-8") from None


def read_json(path: str | os.PathLike[str], error: type[SpecschedError], finite: bool = True) -> Any:
    """Parse a JSON file; raises `error` with the position where the text stops making sense.

    `finite`: refuse NaN and infinities, which Python writes and JSON does not have, by their key.
    """
    text = read_text(path, error)
    if not text.strip():
        raise error(f"{path} is empty; expected JSON")
    return parse_json(text, str(path), error, finite)


def parse_json(text: str, where: str, error: type[SpecschedError], finite: bool = True) -> Any:
    """The value of a JSON text; raises `error` that begins with `where`."""
    try:
        value = json.loads(text, parse_int=_whole)
    except json.JSONDecodeError as e:
        end = e.pos >= len(text.rstrip()) - 1
        what = "is not JSON: it ends too early (truncated?)" if end else f"is not JSON: {e.msg}"
        raise error(
            f"{where}, line {e.lineno} column {e.colno}: {what}; fetch or write the file again"
        ) from None
    except RecursionError:
        raise error(_deep(where)) from None
    except _Bad as e:
        raise error(f"{where}: {e}; write the file again") from None
    if text.count("[") + text.count("{") > DEEPEST and _depth(value) > DEEPEST:
        raise error(_deep(where))
    if _SURROGATE.search(text):
        _refuse_surrogates(value, where, error)
    if finite and ("NaN" in text or "Infinity" in text or _HUGE.search(text)):
        refuse_infinite(value, where, error)
    return value


def read_toml(path: str | os.PathLike[str], error: type[SpecschedError]) -> dict[str, Any]:
    """Parse a TOML file; raises `error` naming it."""
    text = read_text(path, error, 16 << 20)
    try:
        document = tomllib.loads(text)
    except RecursionError:
        raise error(_deep(str(path))) from None
    except ValueError as e:
        long = "integer string conversion" in str(e)
        why = "a number of thousands of digits" if long else plain(str(e), 120)
        raise error(f"{path} is not TOML: {why}; correct that line") from None
    if _depth(document) > DEEPEST:
        raise error(_deep(str(path)))
    for key, value in _leaves(document):
        if isinstance(value, int) and abs(value) >= 2**63:
            raise error(f"{path}: {key} is a whole number of more than 63 bits; give a smaller one")
    return document


def refuse_infinite(value: Any, where: str, error: type[SpecschedError]) -> None:
    """Raise `error` naming the first key of a parsed document that holds NaN or an infinity."""
    for key, found in _leaves(value):
        if isinstance(found, float) and not math.isfinite(found):
            raise error(
                f"{where}: {key or 'the value'} is {found}; JSON knows finite numbers alone: write one"
            )


def _refuse_surrogates(value: Any, where: str, error: type[SpecschedError]) -> None:
    for key, found in _leaves(value):
        for one in (key, found):
            if isinstance(one, str) and any("\ud800" <= c <= "\udfff" for c in one):
                raise error(f"{where}: {key} holds half a character (a lone surrogate); write it as UTF-8")


def _leaves(value: Any) -> list[tuple[str, Any]]:
    """(key path, value) of everything that is no container, in order."""
    found: list[tuple[str, Any]] = []
    todo: list[tuple[str, Any]] = [("", value)]
    while todo:
        key, one = todo.pop()
        if isinstance(one, dict):
            todo += [(f"{key}.{k}" if key else str(k), v) for k, v in reversed(one.items())]
            found += [(f"{key}.{k}" if key else str(k), None) for k in one]
        elif isinstance(one, list):
            todo += [(f"{key}[{i}]", v) for i, v in reversed(list(enumerate(one)))]
        else:
            found.append((key, one))
    return found


def _depth(value: Any) -> int:
    level, depth = [value], 0
    while level and depth <= DEEPEST:
        depth += 1
        level = [
            child
            for one in level
            for child in (one.values() if isinstance(one, dict) else one)
            if isinstance(child, (dict, list))
        ]
    return depth


def _whole(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise _Bad(
            f"a number of {len(digits)} digits ({digits[:20]}...), more than the {MOST_DIGITS} allowed"
        )
    return int(digits)


def _deep(where: str) -> str:
    return f"{where}: nested more than {DEEPEST} levels deep; write it with fewer"


def is_file(path: str | os.PathLike[str]) -> bool:
    """Whether something readable is at `path`: a file, or a pipe; False for names no file can have."""
    try:
        return Path(path).exists() and not Path(path).is_dir()
    except (OSError, ValueError):
        return False
