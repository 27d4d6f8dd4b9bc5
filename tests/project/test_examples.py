"""Every example of every --help and of the documents is answered, on stand-in files where it names some.

docs/cli.md is written from the help texts (a test holds it to them), so its examples are theirs. What needs a
target to run, a GPU, a cluster or another tool's package is held to its options alone.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import specsched
from specsched.cli.app import main
from specsched.profile.roofline import roofline_profile
from specsched.trace import synthesise

ROOT = Path(specsched.__file__).parent.parent
DATA = ROOT / "tests" / "formats" / "data"
TEXT = "\n".join(p.read_text(encoding="utf-8") for p in [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))])
# An ellipsis or capitals stand for what a reader fills in.
_PLACEHOLDER = re.compile(r"\.\.\.|\[|\$|\b(IN|OUT|FILE|NAME|MODULE|TIME|GPU|MODEL)\b")
NOT_HERE = (
    *("drafter", "trace record", "--source compose", "--cluster", "warmup"),
    *("profile --gpu cpu", "profile --gpu h100 --model", "profile --engine", "take=steps"),
    # Their own tests run them: tests/audit, tests/cli/test_cli_fit.py, tests/project/test_extending.py.
    *("specsched audit mymodule", "specsched fit", "--policy mine:Policy"),
)
# Fewer requests and policies than the example asks for, where it names none: the same path, sooner.
SOONER = {
    "simulate": ["--requests", "40", "--policy", "off"],
    "plan": ["--requests", "80", "--policy", "off"],
}


def examples() -> list[str]:
    """Each command shown, once; a line that goes on behind a backslash is one command."""
    joined = TEXT.replace("\\\n", " ")
    shown = re.findall(r"^\s*(specsched [a-z].*)$", joined, flags=re.MULTILINE)
    shown += re.findall(r"`(specsched [a-z][^`\n]*)`", joined)
    whole = {" ".join(line.split()) for line in shown}
    # `specsched trace synth` in a sentence names a command; an example gives it something.
    given = re.compile(r"specsched inspect$|\S[ =][^-\s]\S*\.\w+|--\S+ [^-]")
    return sorted(line for line in whole if given.search(line) and not _PLACEHOLDER.search(line))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a file of every name that an example uses."""
    monkeypatch.chdir(tmp_path)
    for name in ("chat", "mine"):
        synthesise([0.8, 0.7, 0.6], requests=60, seed=3, name=name).save(tmp_path / f"{name}.parquet")
    for name in ("my.json", "mine.json"):
        roofline_profile("h100", "qwen3-8b").save(tmp_path / name)
    for name, source in {
        "sglang_table.json": "sglang_additive.json",
        "table.json": "sglang_1d.json",
        "sts.json": "sglang_sts.json",
        "metrics.txt": "vllm_metrics.txt",
        "after.txt": "vllm_metrics.txt",
        "sps.rounds.jsonl": "sglang_rounds.jsonl",
        "dump.json": "sglang_dump_cap_accept.json",
        "vllm.csv": "vllm_verify.csv",
        "vllm-draft.csv": "vllm_draft.csv",
    }.items():
        shutil.copy(DATA / source, tmp_path / name)
    (tmp_path / "off.csv").write_text("concurrency,tok_s_user\n1,90\n16,80\n64,50\n")
    rows = "".join(f"{0.1 * i:.1f},200,60\n" for i in range(120))
    (tmp_path / "azure.csv").write_text(f"arrival_seconds,prompt_tokens,output_tokens\n{rows}")
    (tmp_path / "grid.toml").write_text(
        'traces = ["chat.parquet"]\npolicies = ["off"]\nconcurrencies = [2]\n[run]\nrequests = 20\n'
    )
    shape = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32}
    shape |= {"intermediate_size": 14336, "vocab_size": 128256, "num_key_value_heads": 8}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    return tmp_path


@pytest.mark.parametrize("line", examples())
def test_an_example_is_answered(folder: Path, line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    if any(part in line for part in NOT_HERE):
        _options_exist(words)
        return
    if words[0] == "convert":
        # OUT must not be there yet: some stand-ins are another example's result.
        for word in words[2:3]:
            (folder / word).unlink(missing_ok=True)
    if "-o" in words:
        target = folder / words[words.index("-o") + 1]
        if target.name not in words[: words.index("-o")]:
            target.unlink(missing_ok=True)
    for option, value in zip(*[iter(SOONER.get(words[0], []))] * 2, strict=True):
        if option not in words:
            words += [option, value]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, (line, result.output[-600:])
    assert result.stdout.strip()


def _options_exist(words: list[str]) -> None:
    command: click.Command = main
    while words and isinstance(command, click.Group) and words[0] in command.commands:
        command = command.commands[words.pop(0)]
    options = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in words if word.startswith("-")} <= options


def test_there_are_examples() -> None:
    assert len(examples()) > 30
