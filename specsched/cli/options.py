"""Options that several commands share: --json, --out, files to write."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ..errors import SpecschedError

# --------------------------------------------------------------------------- options


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--json`: the answer as JSON on stdout."""
    return click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")(command)


def out_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--out DIR`: the answer's files."""
    return click.option(
        "--out",
        type=click.Path(path_type=Path),
        callback=lambda ctx, param, value: writable_folder(value),
        metavar="DIR",
        help="Also write the answer's files (JSON, plots, page) to this folder.",
    )(command)


def file_option(*names: str, what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """An option that names a file to write, refused before any work when it cannot be written."""
    return click.option(
        *names,
        type=click.Path(path_type=Path),
        callback=lambda ctx, param, value: writable_file(value),
        metavar="FILE",
        help=what,
    )


def writable_folder(path: Path | None) -> Path | None:
    """`path` if files may be written there now or once it is made; nothing is created yet."""
    if path is None:
        return None
    if path.exists() and not path.is_dir():
        raise SpecschedError(f"--out {path} is a file; give a folder")
    _check_writable(path)
    return path


def writable_file(path: Path | None) -> Path | None:
    """`path` if a file of that name may be written; nothing is created yet."""
    if path is None:
        return None
    if path.is_dir():
        raise SpecschedError(f"{path} is a folder; give the name of a file in it")
    _check_writable(path.absolute().parent)
    return path


def _check_writable(folder: Path) -> None:
    parent = folder.absolute()
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir():
        raise SpecschedError(f"cannot write to {folder}: {parent} is not a folder; choose another place")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise SpecschedError(f"cannot write to {folder}: no permission in {parent}; choose another place")


def not_over_input(output: Path | None, *inputs: str | os.PathLike[str]) -> None:
    """Refuse an output that is one of the command's own inputs."""
    for source in inputs:
        if output is not None and output.exists() and Path(source).exists() and output.samefile(source):
            raise SpecschedError(f"{output} is the input; write to another file")
