"""What commands print: the answer on stdout, everything else on stderr; nothing a terminal would obey."""

from __future__ import annotations

import contextlib
import sys
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from . import pipes


def printable(text: str) -> str:
    """`text` with what a terminal would obey written out (`\\x1b`), lines and tabs kept; our copies of pipes
    by the names the user gave."""
    for copy, given in pipes.names.items():
        text = text.replace(copy, given)
    if text.isascii() and text.replace("\n", "").isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else _written_out(c) for c in text)


def _written_out(character: str) -> str:
    """`\\n`-like escapes of one character; what separates words in some script stays."""
    return character if unicodedata.category(character) == "Zs" else repr(character)[1:-1]


def stdout_kept() -> contextlib.AbstractContextManager[Any]:
    """Inside the block, what somebody's policy prints goes to stderr: stdout is the answer."""
    return contextlib.redirect_stdout(sys.stderr)


def one_line(text: str) -> str:
    return " ".join(printable(text).split())


def echo(text: str, err: bool = False) -> None:
    """Print, on stdout or stderr, what may hold names and texts out of files."""
    click.echo(printable(text), err=err)


def command_line(ctx: click.Context) -> str:
    """The command as typed, to be written where its results are."""
    import shlex

    argv = ctx.find_root().obj or []
    return shlex.join(["specsched", *map(str, argv)])


def print_json(document: Any) -> None:
    """The answer as strict JSON (a NaN in it is a bug, never a value)."""
    import json

    text = json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False)
    # JSON itself escapes what is below 32, but not 127 to 159 nor half characters.
    if not text.isascii():
        text = "".join(c if c.isprintable() or c in "\n " else json.dumps(c)[1:-1] for c in text)
    click.echo(text.replace("\x7f", "\\u007f"))


def warn(messages: Iterable[str]) -> None:
    """Each distinct warning once, on stderr."""
    for message in dict.fromkeys(messages):
        click.echo(f"warning: {one_line(message)}", err=True)


def wrote(paths: Iterable[Path]) -> None:
    """Name the files written, on stderr."""
    for path in paths:
        echo(f"wrote {path}", err=True)
