"""The top group: its help, its version, the commands it holds, and errors as one line.

stdout is the answer and nothing else; stderr has progress, warnings and errors. Exit codes: 0 an answer,
1 a sweep with points that failed or an audit that found a leak, 2 a request that cannot be answered as it
stands, 130 interrupted.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any, NoReturn

import click

from ..errors import SpecschedError, nearest, plain
from .output import echo, one_line
from .progress import stopping_in_time

# Each stands in a module of its name; the main question first.
_COMMANDS = {
    "simulate": "How many users fit at a promised speed, under which policy.",
    "plan": "How many GPUs the traffic needs, and at what cost.",
    "advise": "Settings to type into the engine, and their worth.",
    "explain": "What keeps a policy from the hindsight reference.",
    "sweep": "Grids of runs, resumable, here or on a cluster.",
    "fit": "Step costs and acceptance from benchmark results.",
    "profile": "What a step costs: measured, composed, estimated.",
    "trace": "Record a trace, or synthesise one.",
    "calibrate": "Make the confidences of a trace honest; report.",
    "convert": "Files of other tools, read and written.",
    "inspect": "What a file holds, what is wrong with it, its picture.",
    "audit": "Does a policy look at what it must not?",
    "drafter": "Train a drafter, or run one and measure it.",
    "warmup": "Compile the kernels once, before the first answer.",
}


class Commands(MutableMapping[str, click.Command]):
    """The commands by name, each imported when it is asked for: the help of all must come at once."""

    def __init__(self) -> None:
        self._loaded: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._loaded:
            if name not in _COMMANDS:
                raise KeyError(name)
            self._loaded[name] = getattr(importlib.import_module(f".{name}", __package__), name)
        return self._loaded[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*_COMMANDS, *self._loaded]))

    def __len__(self) -> int:
        return len({*_COMMANDS, *self._loaded})


def _fail(text: str, code: int = 2) -> NoReturn:
    click.echo(f"specsched: error: {plain(one_line(text))}", err=True)
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
        """In the order of the list: the main question first."""
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """What each command is for, said without importing it."""
        if not isinstance(self.commands, Commands):
            super().format_commands(ctx, formatter)
            return
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))

    def main(self, args: Sequence[str] | None = None, **extra: Any) -> Any:  # type: ignore[override]
        """Run one command line; `args` default to the process's own."""
        argv = list(sys.argv[1:] if args is None else args)
        if not extra.pop("standalone_mode", True):
            return super().main(argv, standalone_mode=False, obj=argv, **extra)
        extra["prog_name"] = "specsched"
        try:
            with stopping_in_time():
                code = super().main(argv, standalone_mode=False, obj=argv, **extra)
                if sys.stdout is not None:  # closed by the caller (`>&-`)
                    sys.stdout.flush()
        except click.exceptions.NoArgsIsHelpError as error:
            echo(error.format_message())
            code = 0
        except click.ClickException as error:
            _fail(_usage(error))
        except SpecschedError as error:
            _fail(str(error))
        except (KeyboardInterrupt, click.Abort):
            click.echo("specsched: interrupted", err=True)
            sys.exit(130)
        except BrokenPipeError:
            _quiet_exit()
        except MemoryError:
            _fail("out of memory; give smaller inputs, fewer requests or shorter outputs")
        except OSError as error:
            where = f" {str(error.filename)[:120]}" if error.filename else ""
            _fail(f"the system refused{where}: {error.strerror or error}")
        sys.exit(code if isinstance(code, int) else 0)


def _usage(error: click.ClickException) -> str:
    """click's message with what to do next: the nearest name, else where the help is."""
    text = error.format_message().rstrip(".")
    context = getattr(error, "ctx", None)
    if "did you mean" in text.lower():
        return text
    path = context.command_path if context is not None else "specsched"
    unknown = re.search(r"No such command '(.*)'", text)  # click tells the nearest from 8.3.1 on
    if unknown and context is not None and isinstance(context.command, click.Group):
        near = nearest(unknown[1], context.command.commands)
        if near:
            return f"{text};{near}"
    return f"{text}; see '{path} --help'"


def _print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from ..version import VERSION

        click.echo(f"specsched {VERSION}")
        ctx.exit()


@click.group(cls=App, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Print the version.",
)
def main() -> None:
    """Plan speculative decoding: users per GPU at a promised speed, and the verification policy to run.

    Three inputs make an answer: a step profile (what a forward pass costs), a confidence trace (what the
    drafter proposes and the target accepts) and a workload (how requests arrive). Bundled profiles and traces
    go by name; `specsched inspect` lists them.

    \b
    First answer:
      specsched simulate --trace qwen3-4b-chat --sla 120
    How many GPUs for the traffic:
      specsched plan --trace qwen3-4b-chat --profile h100-sxm_qwen3-8b_bf16_tp1 --sla 80 --rate 50
    """


main.commands = Commands()
