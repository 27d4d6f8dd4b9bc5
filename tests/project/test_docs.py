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


@pytest.mark.parametrize("script", ["cli_reference.py", "performance.py"])
def test_written_documents_are_up_to_date(script: str) -> None:
    check = [sys.executable, str(ROOT / "scripts" / script), "--check"]
    done = subprocess.run(check, cwd=ROOT, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr


def test_the_glossary_is_up_to_date_and_defines_what_pages_use() -> None:
    check = [sys.executable, str(ROOT / "scripts" / "glossary.py"), "--check"]
    done = subprocess.run(check, cwd=ROOT, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr


def test_the_site_lists_every_page_and_the_job_is_the_example() -> None:
    listed = set(re.findall(r"^\s+- .*: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE))
    assert listed == {path.name for path in (ROOT / "docs").glob("*.md")}
    shown = re.search(r"```yaml\n(.*?)```", (ROOT / "docs" / "ci.md").read_text(), flags=re.DOTALL)
    assert shown
    assert shown[1] == (ROOT / "examples" / "capacity.yml").read_text()


def test_python_of_the_tutorial_runs(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    for block in re.findall(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL):
        exec(compile(block, "docs/tutorial.md", "exec"), {})
    assert " users per " in capsys.readouterr().out


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


def test_python_of_the_page_on_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    for block in re.findall(r"^```python\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL):
        exec(compile(block, "docs/python.md", "exec"), names)
    shown = re.search(r"print\(lengths\)   # (.*)", page)
    assert shown
    assert capsys.readouterr().out.splitlines()[-3:] == shown[1].split(", "), "two whole blocks, then a trim"
    assert names["answer"]["schema"] == "specsched/answer/1"  # type: ignore[index]


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) < 150


def test_links_of_the_readme_lead_somewhere() -> None:
    for link in re.findall(r"\]\(([^)]+)\)", README):
        assert (ROOT / link).is_file(), link
