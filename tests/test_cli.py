"""The command line: refusals in one sentence with exit code 2, answers on stdout, talk on stderr."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

import specsched
from specsched.cli import main
from specsched.errors import SpecschedError

ROOT = Path(specsched.__file__).parent.parent
TINY_PROFILE = {
    "schema": "specsched/profile/1",
    "name": "tiny",
    "verify": {"tokens": [1, 64, 4096], "seconds": [0.005, 0.006, 0.05]},
    "draft": {"requests": [1, 256], "seconds": [0.0005, 0.001], "block_size": 7},
    "provenance": {"method": "measured"},
}


def run(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def refused(result: Result, *said: str) -> None:
    """Exit code 2, nothing on stdout, one sentence on stderr that says these things."""
    assert result.exit_code == 2, (result.output, result.exception)
    assert result.stdout == ""
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("specsched: error: ")
    assert "Traceback" not in result.stderr
    for words in said:
        assert words in lines[0], lines[0]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one good profile and many broken things, as the working folder."""
    monkeypatch.chdir(tmp_path)
    good = json.dumps(TINY_PROFILE)
    (tmp_path / "good.json").write_text(good)
    (tmp_path / "truncated.json").write_text(good[: len(good) // 2])
    (tmp_path / "empty.json").write_text("")
    (tmp_path / "array.json").write_text("[1, 2]")
    (tmp_path / "nan.json").write_text(good.replace("0.006", "NaN"))
    (tmp_path / "unsorted.json").write_text(good.replace("[1, 64, 4096]", "[64, 1, 4096]"))
    (tmp_path / "wrong_schema.json").write_text(good.replace("profile/1", "profile/9"))
    (tmp_path / "uneven.json").write_text(good.replace("0.006, ", ""))
    (tmp_path / "text.parquet").write_text("this is no parquet file")
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("keep me")
    (tmp_path / "calibration.json").write_text(
        json.dumps({"schema": "specsched/calibration/1", "method": "sts", "temperatures": [1.0, 1.0]})
    )
    (tmp_path / "grid.toml").write_text("this is = = no toml")
    return tmp_path


SIMULATE = ["simulate", "--trace", "chat", "--profile", "good.json", "--requests", "50"]

MALFORMED = [
    # words of the command line, what the sentence must say
    (["simulte"], ["simulte", "simulate"]),
    (["simulate", "--sla", "80"], ["--trace"]),
    (["simulate", "--trace", "chat"], ["--sla", "--concurrency"]),
    (["simulate", "--trace", "chat", "--slaa", "80"], ["--slaa", "--sla"]),
    (["simulate", "--trace", "nowhere.parquet", "--sla", "80"], ["nowhere.parquet", "chat"]),
    (["simulate", "--trace", "chaat", "--sla", "80"], ["did you mean 'chat'"]),
    (["simulate", "--trace", "folder", "--sla", "80"], ["folder"]),
    (["simulate", "--trace", "text.parquet", "--sla", "80"], ["text.parquet", "Parquet"]),
    (["simulate", "--trace", "chat", "--sla", "80", "--profile", "nowhere.json"], ["nowhere.json"]),
    (["simulate", "--trace", "chat", "--sla", "80", "--profile", "truncated.json"], ["truncated.json"]),
    (["simulate", "--trace", "chat", "--sla", "80", "--profile", "empty.json"], ["empty"]),
    (["simulate", "--trace", "chat", "--sla", "80", "--profile", "array.json"], ["array.json"]),
    (["simulate", "--trace", "chat", "--sla", "80", "--profile", "nan.json"], ["nan.json", "verify"]),
    (["simulate", "--trace", "chat", "--sla", "80", "--profile", "unsorted.json"], ["tokens"]),
    (["simulate", "--trace", "chat", "--sla", "80", "--profile", "wrong_schema.json"], ["profile/9"]),
    (["simulate", "--trace", "chat", "--sla", "80", "--profile", "uneven.json"], ["verify"]),
    ([*SIMULATE, "--sla", "0"], ["--sla", "above 0"]),
    ([*SIMULATE, "--sla", "-5"], ["--sla", "above 0"]),
    ([*SIMULATE, "--sla", "nan"], ["--sla", "finite"]),
    ([*SIMULATE, "--sla", "inf"], ["--sla", "finite"]),
    ([*SIMULATE, "--sla", "fast"], ["--sla", "'fast'"]),
    ([*SIMULATE, "--sla", "80", "--sla-fraction", "1.5"], ["--sla-fraction", "at most 1"]),
    ([*SIMULATE, "--sla", "80", "--requests", "0"], ["--requests"]),
    ([*SIMULATE, "--sla", "80", "--seed", "-1"], ["--seed"]),
    ([*SIMULATE, "--sla", "80", "--concurrency", "1,0"], ["--concurrency"]),
    ([*SIMULATE, "--sla", "80", "--concurrency", "1,,2"], ["--concurrency"]),
    ([*SIMULATE, "--sla", "80", "--policy", "laged"], ["laged", "lagged"]),
    ([*SIMULATE, "--sla", "80", "--policy", "fixed:0"], ["fixed", "0"]),
    ([*SIMULATE, "--sla", "80", "--policy", "fixed:99"], ["99"]),
    ([*SIMULATE, "--sla", "80", "--policy", "threshold:2"], ["threshold"]),
    ([*SIMULATE, "--sla", "80", "--policy", "lagged", "--policy", "lagged:2"], ["twice"]),
    ([*SIMULATE, "--sla", "80", "--calibration", "nowhere.json"], ["nowhere.json"]),
    ([*SIMULATE, "--sla", "80", "--calibration", "calibration.json"], ["2", "7"]),
    ([*SIMULATE, "--sla", "80", "--out", "file"], ["file", "folder"]),
    ([*SIMULATE, "--sla", "80", "--out", "file/below"], ["file"]),
    ([*SIMULATE, "--arrivals", "poisson:-3"], ["-3"]),
    ([*SIMULATE, "--arrivals", "poisson:nan"], ["nan"]),
    ([*SIMULATE, "--arrivals", "poisson"], ["poisson:RATE"]),
    ([*SIMULATE, "--arrivals", "nowhere.csv"], ["nowhere.csv"]),
    ([*SIMULATE, "--arrivals", "poisson:3", "--concurrency", "4"], ["exclude"]),
    ([*SIMULATE, "--concurrency", "4", "--block-size", "8"], ["8", "7"]),
    (["plan", "--trace", "chat", "--sla", "80"], ["--rate"]),
    (["plan", "--trace", "chat", "--sla", "80", "--rate", "-1"], ["--rate", "above 0"]),
    (["plan", "--trace", "chat", "--rate", "5"], ["--sla"]),
    (["plan", "--trace", "chat", "--sla", "80", "--rate", "5", "--gpu-cost", "0"], ["--gpu-cost"]),
    (
        ["plan", "--trace", "chat", "--sla", "80", "--rate", "5", "--arrivals", "poisson:5"],
        ["--rate", "both"],
    ),
    (["calibrate", "--trace", "chat", "-o", "folder"], ["folder"]),
    (["calibrate", "--trace", "text.parquet", "-o", "text.parquet"], ["input"]),
    (["calibrate", "--trace", "chat", "--method", "magic"], ["magic", "affine"]),
    (["calibrate", "--trace", "chat", "--holdout", "1"], ["--holdout"]),
    (["convert", "nowhere.json", "out.json"], ["nowhere.json"]),
    (["convert", "good.json", "good.json"], ["input"]),
    (["convert", "array.json", "out.json"], ["array.json", "no known format"]),
    (["convert", "good.json", "out.json", "--to", "sglang-1d"], ["--requests"]),
    (["convert", "good.json", "out.json", "--to", "tensorflow"], ["tensorflow"]),
    (["convert", "good.json", "out.json", "--hint", "gpu_count=four"], ["gpu_count", "number"]),
    (["inspect", "nowhere"], ["nowhere"]),
    (["inspect", "good.json", "--plot", "good.json"], ["input"]),
    (["profile"], ["--gpu"]),
    (["profile", "--gpu", "h10", "--source", "roofline", "-o", "p.json"], ["h10", "did you mean 'h100'"]),
    (
        ["profile", "--gpu", "h100", "--model", "qwen9", "--source", "roofline", "-o", "p.json"],
        ["qwen9", "qwen3"],
    ),
    (["profile", "--gpu", "h100", "--source", "guess"], ["guess"]),
    (
        ["profile", "fit-overhead", "--profile", "good.json", "--sweep", "nowhere.csv", "-o", "p.json"],
        ["nowhere.csv"],
    ),
    (["profile", "fit-overhead", "--profile", "good.json", "--sweep", "file"], ["-o"]),
    (["trace", "synth", "--acceptance", "0.8,1.7", "-o", "t.parquet"], ["1.7"]),
    (["trace", "synth", "--acceptance", "poetry", "-o", "t.parquet"], ["poetry", "chat"]),
    (["trace", "synth", "--acceptance", "chat"], ["-o"]),
    (["trace", "synth", "--acceptance", "chat", "-o", "t.csv"], [".parquet"]),
    (["trace", "record", "--drafter", "d", "--prompts", "nowhere.json", "-o", "t.parquet"], ["nowhere.json"]),
    (["drafter", "eval", "--drafter", "d", "--prompts", "nowhere.json"], ["nowhere.json"]),
    (["drafter", "train", "--text", "folder", "-o", "new"], ["folder", "shards"]),
    (["sweep", "nowhere.toml"], ["nowhere.toml"]),
    (["sweep", "grid.toml"], ["grid.toml"]),
]


@pytest.mark.parametrize(("words", "said"), MALFORMED, ids=lambda value: " ".join(value)[:90])
def test_malformed_input_is_refused_in_one_sentence(files: Path, words: list[str], said: list[str]) -> None:
    before = {path: path.read_bytes() for path in files.rglob("*") if path.is_file()}
    refused(run(*words), *said)
    after = {path: path.read_bytes() for path in files.rglob("*") if path.is_file()}
    assert after == before, "a refused command left something behind"


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write anywhere")
def test_unwritable_folder_is_refused_before_any_work(files: Path) -> None:
    (files / "folder").chmod(0o500)
    refused(run(*SIMULATE, "--sla", "80", "--out", "folder/new"), "permission")


def test_unwritable_folder_is_told_from_its_permissions(monkeypatch: pytest.MonkeyPatch, files: Path) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    refused(run(*SIMULATE, "--sla", "80", "--out", "folder/new"), "permission")


# --------------------------------------------------------------------------- how commands end


def failing(error: BaseException) -> Result:
    """The outcome of a command that raises `error`."""
    from specsched.cli.common import App

    group = App("specsched")

    @group.command()
    def work() -> None:
        raise error

    return CliRunner().invoke(group, ["work"])


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (SpecschedError("the curve\n  has a hole"), 2, "specsched: error: the curve has a hole"),
        (KeyboardInterrupt(), 130, "specsched: interrupted"),
        (click.Abort(), 130, "specsched: interrupted"),
        (MemoryError(), 2, "out of memory"),
        (PermissionError(13, "Permission denied", "x.json"), 2, "x.json"),
        (BrokenPipeError(), 141, ""),
    ],
)
def test_foreseen_errors_end_quietly(error: BaseException, code: int, said: str) -> None:
    result = failing(error)
    assert result.exit_code == code
    assert said in result.stderr
    assert "Traceback" not in result.stderr


def test_a_bug_keeps_its_traceback() -> None:
    assert isinstance(failing(ZeroDivisionError("a bug")).exception, ZeroDivisionError)


def test_missing_extra_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from specsched.cli.common import extra_module

    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(SpecschedError, match=r"pip install 'specsched\[cluster\]'"):
        extra_module("distributed", "cluster", "--cluster")


def test_interrupt_ends_a_real_process_with_130() -> None:
    code = (
        "import time, sys\nfrom specsched.cli.common import App\ng = App('specsched')\n"
        "@g.command()\ndef work():\n    print('ready', flush=True)\n    time.sleep(60)\ng(['work'])"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, talk = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in talk


def test_broken_pipe_is_quiet() -> None:
    command = f"'{sys.executable}' -m specsched inspect | head -n 1"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr == ""


# --------------------------------------------------------------------------- help and version


def commands(
    command: click.Command, words: tuple[str, ...] = ()
) -> list[tuple[tuple[str, ...], click.Command]]:
    found = [(words, command)]
    for name, child in getattr(command, "commands", {}).items():
        found += commands(child, (*words, name))
    return found


@pytest.mark.parametrize(
    ("words", "command"), commands(main), ids=lambda v: " ".join(v) if isinstance(v, tuple) else ""
)
def test_every_command_has_help_with_an_example(words: tuple[str, ...], command: click.Command) -> None:
    result = run(*words, "--help")
    assert result.exit_code == 0
    assert f"specsched {' '.join(words)}".strip() in result.stdout.split("Options:")[0].split("Usage:")[1]
    for parameter in command.params:
        if isinstance(parameter, click.Option) and parameter.name != "help":
            assert parameter.help, f"{parameter.opts} of {words} has no help"
    if not hasattr(command, "commands"):
        assert f"  specsched {' '.join(words)}" in result.stdout, "no example"


def test_version() -> None:
    result = run("--version")
    assert result.stdout == f"specsched {specsched.__version__}\n"


def test_no_arguments_show_the_help() -> None:
    result = run()
    assert result.exit_code == 0
    assert "Commands:" in result.stdout


def test_answers_are_documented_with_json_and_out() -> None:
    names_its_output = {("convert",), ("warmup",)}  # the one as an argument, the other has none
    for words, command in commands(main):
        options = {option for parameter in command.params for option in parameter.opts}
        if not hasattr(command, "commands") or words == ("profile",):
            wanted = {"--json"} if words in names_its_output else {"--json", "--out"}
            assert wanted <= options, words


def test_progress_shows_nothing_before_it_lasts(capsys: pytest.CaptureFixture[str]) -> None:
    from specsched.cli.common import Progress

    with Progress() as progress:
        for done in range(5):
            progress(done, 5, "work")
    assert capsys.readouterr().err == ""


def test_an_interrupt_reaches_the_workers() -> None:
    from specsched.cli.common import Progress

    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a background job starts with it ignored
    progress = Progress()
    try:
        with pytest.raises(KeyboardInterrupt), progress:
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    with ThreadPoolExecutor(1) as pool, pytest.raises(KeyboardInterrupt):
        pool.submit(progress, 1, 1, "work").result()


def test_progress_writes_plain_lines_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from specsched.cli.common import Progress

    clock = iter([0.0, 1.0, 16.0, 17.0, 40.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    with Progress() as progress:
        for done in range(4):
            progress(done, 4, "lagged:2")
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["1/4 runs, 16 s: lagged:2", "3/4 runs, 40 s: lagged:2"]
