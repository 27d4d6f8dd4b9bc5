"""What every command shares: errors as one line, number types that refuse NaN, progress, output.

stdout is the answer and nothing else; stderr has progress, warnings and errors. Exit codes: 0 an answer,
2 a request that cannot be answered as it stands, 130 interrupted.
"""

from __future__ import annotations

import difflib
import importlib
import json
import math
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import click

from ..errors import SpecschedError

Parameter = click.Parameter | None
Context = click.Context | None


# --------------------------------------------------------------------------- errors


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _fail(text: str, code: int = 2) -> NoReturn:
    click.echo(f"specsched: error: {_one_line(text)}", err=True)
    sys.exit(code)


def _quiet_exit() -> NoReturn:
    """The reader of our output went away (`| head`): leave without a word, as SIGPIPE would."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            os.dup2(devnull, stream.fileno())
        except (OSError, ValueError):  # a test runner's in-memory stream has no descriptor
            continue
    sys.exit(141)


class App(click.Group):
    """The top group: turns every foreseen error into one sentence on stderr and exit code 2."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which they were added: the main question first."""
        return list(self.commands)

    def main(self, args: Sequence[str] | None = None, **extra: Any) -> Any:  # type: ignore[override]
        """Run one command line; `args` default to the process's own."""
        argv = list(sys.argv[1:] if args is None else args)
        if not extra.pop("standalone_mode", True):
            return super().main(argv, standalone_mode=False, obj=argv, **extra)
        extra["prog_name"] = "specsched"
        try:
            code = super().main(argv, standalone_mode=False, obj=argv, **extra)
            sys.stdout.flush()
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message())
            code = 0
        except click.ClickException as error:
            _fail(_usage(error))
        except SpecschedError as error:
            _fail(str(error))
        except (KeyboardInterrupt, EOFError, click.Abort):
            click.echo("specsched: interrupted", err=True)
            sys.exit(130)
        except BrokenPipeError:
            _quiet_exit()
        except MemoryError:
            _fail("out of memory; ask for fewer --requests or a smaller --concurrency")
        except OSError as error:
            where = f" {error.filename}" if error.filename else ""
            _fail(f"the system refused{where}: {error.strerror or error}")
        sys.exit(code if isinstance(code, int) else 0)


def _usage(error: click.ClickException) -> str:
    """click's message with what to do next: the nearest name, else where the help is."""
    text = error.format_message().rstrip(".")
    context = getattr(error, "ctx", None)
    if "did you mean" in text.lower():
        return text
    path = context.command_path if context is not None else "specsched"
    return f"{text}; see '{path} --help'"


def nearest(name: str, names: Iterable[str]) -> str:
    """` did you mean 'x'?`, or nothing when no name is near."""
    near = difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)
    return f" did you mean {near[0]!r}?" if near else ""


def extra_module(module: str, extra: str, what: str) -> ModuleType:
    """Import a room that needs an optional dependency; its absence is an error that names the pip extra."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] == "specsched":
            raise
        raise SpecschedError(
            f"{what} needs the Python package {error.name!r}; run: pip install 'specsched[{extra}]'"
        ) from None


# --------------------------------------------------------------------------- values


class Real(click.ParamType):
    """A finite number in a range; NaN and infinity are never in it."""

    name = "number"

    def __init__(
        self, *, above: float | None = None, minimum: float | None = None, maximum: float | None = None
    ):
        self.above, self.minimum, self.maximum = above, minimum, maximum

    def convert(self, value: Any, param: Parameter, ctx: Context) -> float:
        """Parse one number, or fail with the range it should be in."""
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        low = (self.above is None or number > self.above) and (self.minimum is None or number >= self.minimum)
        if not math.isfinite(number) or not low or (self.maximum is not None and number > self.maximum):
            self.fail(f"{value!r} is not a finite number{self._range()}", param, ctx)
        return number

    def _range(self) -> str:
        parts = [
            f"above {self.above:g}" if self.above is not None else "",
            f"at least {self.minimum:g}" if self.minimum is not None else "",
            f"at most {self.maximum:g}" if self.maximum is not None else "",
        ]
        text = " and ".join(part for part in parts if part)
        return f" {text}" if text else ""


class Whole(click.ParamType):
    """A whole number of at least `minimum` (and at most `maximum`)."""

    name = "integer"

    def __init__(self, minimum: int, maximum: int = 10**12):
        self.minimum, self.maximum = minimum, maximum

    def convert(self, value: Any, param: Parameter, ctx: Context) -> int:
        """Parse one integer, or fail with the range it should be in."""
        try:
            number = int(value)
        except (TypeError, ValueError):
            self.fail(f"{value!r} is not a whole number", param, ctx)
        if not self.minimum <= number <= self.maximum:
            self.fail(f"{number} is not between {self.minimum} and {self.maximum}", param, ctx)
        return number


class Wholes(click.ParamType):
    """A comma-separated list of distinct whole numbers, sorted: `1,2,4`."""

    name = "integers"

    def convert(self, value: Any, param: Parameter, ctx: Context) -> list[int]:
        """Parse the list, or fail with the item that is wrong."""
        if isinstance(value, list):
            return value
        each = Whole(1, 10**6)
        return sorted({each.convert(part.strip(), param, ctx) for part in str(value).split(",")})


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
        click.echo(f"warning: {_one_line(message)}", err=True)


def wrote(paths: Iterable[Path]) -> None:
    """Name the files written, on stderr."""
    for path in paths:
        click.echo(f"wrote {path}", err=True)


class Progress:
    """A bar on stderr for work that lasts: none before two seconds, plain lines where stderr is no terminal.

    Called as `progress(done, total, text)` from any thread; a context manager that leaves the line clean.
    With `workers`, the next call after an interrupt raises in its own thread too, so that they stop and are
    not waited for; a second interrupt ends the process at once (nothing else stops a compiling worker).
    """

    bar_after_seconds = 2.0
    line_every_seconds = 15.0

    def __init__(self, unit: str = "run", workers: bool = True) -> None:
        self._workers = workers
        self._unit = unit
        self._start = self._last_line = time.monotonic()
        self._bar: Any = None
        self._lock = threading.Lock()
        self._interrupted = False
        self._handler: Any = None

    def __call__(self, done: int, total: int | None, text: str = "") -> None:
        """Report that `done` of `total` units (None: not known) are finished; `text` says at what."""
        if self._interrupted:
            raise KeyboardInterrupt
        with self._lock:
            self._show(done, total, text)

    def _show(self, done: int, total: int | None, text: str) -> None:
        now = time.monotonic()
        if sys.stderr.isatty():
            if self._bar is not None or now - self._start >= self.bar_after_seconds:
                self._show_bar(done, total, text)
        elif now - self._last_line >= self.line_every_seconds:
            self._last_line = now
            count = f"{done}" if total is None else f"{done}/{total}"
            unit = self._unit if (done if total is None else total) == 1 else f"{self._unit}s"
            click.echo(f"{count} {unit}, {now - self._start:.0f} s: {text}", err=True)

    def _show_bar(self, done: int, total: int | None, text: str) -> None:
        if self._bar is None:
            from tqdm import tqdm

            self._bar = tqdm(total=total, unit=self._unit, leave=False, file=sys.stderr, dynamic_ncols=True)
        self._bar.total = total
        self._bar.set_description_str(text, refresh=False)
        self._bar.update(done - self._bar.n)

    def __enter__(self) -> Progress:
        listens = signal.getsignal(signal.SIGINT) is not signal.SIG_IGN  # as it is not under nohup
        if self._workers and listens and threading.current_thread() is threading.main_thread():
            self._handler = signal.signal(signal.SIGINT, self._interrupt)
        return self

    def _interrupt(self, number: int, frame: Any) -> None:
        if self._interrupted:
            os._exit(130)
        self._interrupted = True
        click.echo("specsched: stopping; interrupt again to stop at once", err=True)
        raise KeyboardInterrupt

    def __exit__(self, *exc: object) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)
        if self._bar is not None:
            self._bar.close()
