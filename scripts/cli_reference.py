"""Write docs/cli.md from the commands themselves; `--check` fails when the file is stale (a test runs it)."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from specsched.cli.app import main

TARGET = Path(__file__).resolve().parent.parent / "docs" / "cli.md"
HEAD = """# The command line

Written by `python scripts/cli_reference.py` from the commands themselves; a test fails when it is stale.
stdout is the answer; progress, warnings and errors go to stderr. Exit codes: 0 an answer, 1 a sweep with
points that failed or an audit that found a leak, 2 a request that cannot be answered as it stands (one
sentence says why), 130 interrupted.
"""


def commands(command: click.Command, words: str = "specsched") -> Iterator[tuple[str, click.Command]]:
    """The command and all below it, in the order of the help."""
    yield words, command
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, f"{words} {name}")


def section(words: str, command: click.Command) -> str:
    """One command as markdown: what it does, its examples, a table of its options."""
    arguments = " ".join(
        parameter.make_metavar(click.Context(command))
        for parameter in command.params
        if isinstance(parameter, click.Argument)
    )
    kind = " COMMAND" if hasattr(command, "commands") else ""
    usage = f"    {words} [OPTIONS]{' ' if arguments else ''}{arguments}{kind}"
    help_text = inspect.cleandoc(command.help or "")
    lines = [f"## `{words}`", "", usage, *(block(text) for text in help_text.split("\n\n"))]
    rows = list(options(command))
    if rows:
        lines += ["", "| option | what it does | default |", "|---|---|---|", *rows]
    return "\n".join(lines)


def block(paragraph: str) -> str:
    """A paragraph of a help text; in what click must not rewrap, indented lines become a fence."""
    if not paragraph.startswith("\b\n"):
        return f"\n{paragraph}"
    lines = []
    for line in paragraph.splitlines()[1:]:
        indented = line.startswith("  ")
        if indented and (not lines or lines[-1] == ""):
            lines.append("```")
        elif not indented:
            lines += [*(["```"] if lines else []), "", line, ""]
            continue
        lines.append(line[2:])
    return "\n".join([*lines, "```"])


def options(command: click.Command) -> Iterator[str]:
    """The option table's rows."""
    context = click.Context(command)
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            names = ", ".join(f"`{name}`" for name in parameter.opts)
            metavar = "" if parameter.is_flag else f" `{parameter.make_metavar(context)}`"
            about, _, default = (parameter.help or "").partition("[default: ")
            if not default and parameter.show_default:
                default = str(parameter.default)
            elif parameter.required:
                default = "required"
            cells = (f"{names}{metavar}", about.strip(), default.rstrip("]"))
            yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def reference() -> str:
    """The whole document."""
    return HEAD + "\n" + "\n\n".join(section(*item) for item in commands(main)) + "\n"


if __name__ == "__main__":
    if "--check" in sys.argv:
        stale = not TARGET.exists() or TARGET.read_text(encoding="utf-8") != reference()
        sys.exit("docs/cli.md is stale; run: python scripts/cli_reference.py" if stale else 0)
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(reference(), encoding="utf-8")
