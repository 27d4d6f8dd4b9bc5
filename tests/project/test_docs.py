"""Documents that cannot rot: the command-line reference, and what the README shows."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

import specsched
from specsched.cli.app import main

ROOT = Path(specsched.__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("script", ["cli_reference.py"])
def test_written_documents_are_up_to_date(script: str) -> None:
    check = [sys.executable, str(ROOT / "scripts" / script), "--check"]
    done = subprocess.run(check, cwd=ROOT, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr


def fences(language: str, page: str = README) -> list[str]:
    """The fenced blocks of a page in a language (empty: plain)."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", ["README.md", "docs/engines.md"])
def test_commands_of_the_page_exist(name: str) -> None:
    page = (ROOT / name).read_text(encoding="utf-8")
    shown = re.findall(r"^(specsched .*)$", "\n".join(fences("", page)), flags=re.MULTILINE)
    shown += re.findall(r"`(specsched [^`]*)`", page)
    assert len(shown) >= 10
    for line in shown:
        words = shlex.split(line, comments=True)[1:]
        command: click.Command = main
        while words and isinstance(command, click.Group) and words[0] in command.commands:
            command = command.commands[words.pop(0)]
        assert command is not main, f"{line}: no such command"
        if words:
            options = {option for parameter in command.params for option in parameter.opts}
            assert {word for word in words if word.startswith("-")} <= options | {"--help"}, line


def test_python_of_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in fences("python"):
        exec(compile(block, "README.md", "exec"), names)
    shown = re.search(r"print\(lengths\)   # (.*)", README)
    assert shown
    assert capsys.readouterr().out.splitlines()[-3:] == shown[1].split(", "), "two whole blocks, then a trim"
    assert names["answer"]["schema"] == "specsched/answer/1"  # type: ignore[index]


def test_links_of_the_readme_lead_somewhere() -> None:
    for link in re.findall(r"\]\(([^)]+)\)", README):
        assert (ROOT / link).is_file(), link
