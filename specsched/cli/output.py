"""What commands print: the answer on stdout, everything else on stderr."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

# --------------------------------------------------------------------------- errors


def one_line(text: str) -> str:
    return " ".join(text.split())


# --------------------------------------------------------------------------- output


def command_line(ctx: click.Context) -> str:
    """The command as typed, to be written where its results are."""
    argv = ctx.find_root().obj or []
    return shlex.join(["specsched", *map(str, argv)])


def print_json(document: Any) -> None:
    """The answer as strict JSON (a NaN in it is a bug, never a value)."""
    click.echo(json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False))


def warn(messages: Iterable[str]) -> None:
    """Each distinct warning once, on stderr."""
    for message in dict.fromkeys(messages):
        click.echo(f"warning: {one_line(message)}", err=True)


def wrote(paths: Iterable[Path]) -> None:
    """Name the files written, on stderr."""
    for path in paths:
        click.echo(f"wrote {path}", err=True)
