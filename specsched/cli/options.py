"""Options that several commands share (--json, --out, --force, files to write), and commands guarded.

Before a command runs, what it will write is held against what it reads and what is there (`files.output`);
inputs that are pipes are read once, into a file of our own (`pipes`).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from ..errors import SpecschedError
from .pipes import spooled

_FORCE = "specsched.force"
_MOST_LISTED = 2000  # files of an input folder that are protected


class OutputFile(click.Path):
    """The path of a file to write."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)


class OutputFolder(click.Path):
    """The path of a folder to write files in."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)


class Command(click.Command):
    """A command whose outputs are held against its inputs, and what is there, before any work."""

    def invoke(self, ctx: click.Context) -> Any:
        """Read the pipes among the inputs, guard the outputs, run."""
        return _guarded(self, ctx, super().invoke)


class Group(click.Group):
    """A group of such commands, which may be one itself (`specsched profile`)."""

    command_class = Command

    def invoke(self, ctx: click.Context) -> Any:
        """As `Command.invoke`, unless one of its commands is asked for: that one is guarded then."""
        if ctx.args or getattr(ctx, "_protected_args", None):
            return super().invoke(ctx)
        return _guarded(self, ctx, super().invoke)


def _guarded(command: click.Command, ctx: click.Context, invoke: Callable[[click.Context], Any]) -> Any:
    from ..files.output import check_output, protecting

    outputs = {p.name for p in command.params if isinstance(p.type, OutputFile | OutputFolder)}
    if len(command.params) == len(outputs):
        return invoke(ctx)
    given = {name: value for name, value in ctx.params.items() if name not in outputs}
    ctx.params.update({name: spooled(value, ctx) for name, value in given.items()})
    folder = ctx.params.get("out")
    read = [path for name in given for path in paths_in(ctx.params[name])]
    with protecting(read, folder if isinstance(folder, Path) else None, ctx.meta.get(_FORCE, False)):
        for param in command.params:
            value = ctx.params.get(param.name or "")
            if isinstance(param.type, OutputFile) and value is not None:
                check_output(value)
        return invoke(ctx)


def paths_in(value: Any) -> Iterator[str]:
    """Every file that the value of an option may mean: a path, one behind `name:` or `name=`, in a folder."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from paths_in(item)
    elif isinstance(value, str | os.PathLike):
        text = os.fspath(value)
        for part in {text, text.partition(":")[2], text.partition("=")[2], text.split(":")[0]}:
            try:
                if not part or not os.path.exists(part):
                    continue
                yield part
                if os.path.isdir(part):
                    with os.scandir(part) as entries:
                        yield from (entry.path for entry in itertools.islice(entries, _MOST_LISTED))
            except (OSError, ValueError):
                continue


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--json`: the answer as JSON on stdout."""
    return click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")(command)


def force_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--force`: write over files that are there, inputs excepted."""

    def keep(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        ctx.meta[_FORCE] = bool(value) or ctx.meta.get(_FORCE, False)

    return click.option(
        "--force", is_flag=True, expose_value=False, callback=keep, help="Write over files that exist."
    )(command)


def out_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--out DIR`: the answer's files; and `--force`."""
    return click.option(
        "--out",
        type=OutputFolder(),
        callback=lambda ctx, param, value: writable_folder(value),
        metavar="DIR",
        help="Also write the answer's files (JSON, plots, page) to this folder.",
    )(force_option(command))


def file_option(*names: str, what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """An option that names a file to write, refused before any work when it cannot be written."""
    return click.option(*names, type=OutputFile(), metavar="FILE", help=what)


def check_outputs(folder: Path | None, *names: str) -> None:
    """Refuse, before any work, files of `--out` that are inputs or would be lost."""
    from ..files.output import check_output

    if folder is not None:
        for name in names:
            check_output(folder / name)


def writable_folder(path: Path | None) -> Path | None:
    """`path` if files may be written there now or once it is made; nothing is created yet."""
    if path is None:
        return None
    if path.exists() and not path.is_dir():
        raise SpecschedError(f"--out {path} is a file; give a folder")
    from ..files.output import check_output

    check_output(path / "answer.json", own=True)
    return path
