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
from specsched.cli.app import main
from specsched.errors import SpecschedError, WorkloadError

ROOT = Path(specsched.__file__).parent.parent
TINY_PROFILE = {
    "schema": "specsched/profile/1",
    "name": "tiny",
    "verify": {"tokens": [1, 64, 4096], "seconds": [0.005, 0.006, 0.05]},
    "draft": {"requests": [1, 256], "seconds": [0.0005, 0.001], "block_size": 7},
    "provenance": {"method": "measured"},
}

METRICS = """vllm:spec_decode_num_drafts_total 100.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 80.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 40.0
"""


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
    (tmp_path / "magic").write_bytes(b"PAR1 and the rest of a trace")
    rates = {"schema": "specsched/acceptance/1", "conditional": [0.8, 0.5], "steps": 100}
    (tmp_path / "rates.json").write_text(json.dumps(rates))
    (tmp_path / "metrics.txt").write_text(METRICS)
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
    (["convert", "good.json", "good.json", "--force"], ["input"]),
    (["convert", "good.json", "rates.json"], ["rates.json", "--force"]),
    (["convert", "good.json", "out.parquet"], ["out.parquet", ".json"]),
    (["convert", "good.json", "out.json", "--to", "vllm"], ["out.json", ".csv"]),
    (["convert", "rates.json", "out.csv", "--to", "vllm"], ["an Acceptance cannot be written as 'vllm'"]),
    (["convert", "chat", "out.json"], ["out.json", ".parquet"]),
    (["convert", "array.json", "out.json"], ["array.json", "no known format"]),
    (["convert", "good.json", "out.json", "--to", "sglang-1d"], ["--requests"]),
    (["convert", "good.json", "out.json", "--to", "tensorflow"], ["tensorflow"]),
    (["convert", "good.json", "out.json", "--hint", "gpu_count=four"], ["gpu_count", "number"]),
    (["simulate", "--trace", "good.json", "--sla", "80"], ["good.json is a step profile", "swap"]),
    (["simulate", "--trace", "h100-sxm_qwen3-8b_bf16_tp1", "--sla", "80"], ["a step profile", "swap"]),
    (["simulate", "--trace", "chat", "--profile", "chat", "--sla", "80"], ["a confidence trace", "swap"]),
    (["simulate", "--trace", "chat", "--profile", "magic", "--sla", "80"], ["a confidence trace", "swap"]),
    (["simulate", "--trace", "rates.json", "--sla", "80"], ["trace synth --acceptance rates.json"]),
    (["simulate", "--trace", "metrics.txt", "--sla", "80"], ["trace synth --acceptance metrics.txt"]),
    (["simulate", "--trace", "chat", "--profile", "rates.json", "--sla", "80"], ["holds acceptance rates"]),
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


def test_convert_reads_bundled_names_and_writes_over_when_forced(files: Path) -> None:
    done = run("convert", "h100-sxm_qwen3-8b_bf16_tp1", "rates.json", "--force")
    assert done.exit_code == 0, done.output
    assert json.loads((files / "rates.json").read_text())["schema"] == "specsched/profile/1"
    done = run("convert", "metrics.txt", "new.json")
    assert done.stdout.startswith("metrics.txt: acceptance rates in the format of vllm-prometheus")


def test_convert_leaves_the_second_file_of_a_pair_alone(files: Path) -> None:
    (files / "out_draft.csv").write_text("keep me")
    refused(run("convert", "good.json", "out.csv", "--to", "vllm"), "out_draft.csv", "--force")
    assert (files / "out_draft.csv").read_text() == "keep me"
    assert not (files / "out.csv").exists()


@pytest.mark.parametrize("name", ["rates.json", "metrics.txt"])
def test_inspect_says_what_acceptance_files_hold(files: Path, name: str) -> None:
    shown = run("inspect", name)
    assert shown.exit_code == 0, shown.output
    assert "acceptance rates of 2 positions" in shown.stdout
    assert "emits 2.20" in shown.stdout  # 1 + 0.8 + 0.8 * 0.5
    assert f"trace synth --acceptance {name}" in shown.stdout
    assert json.loads(run("inspect", name, "--json").stdout)["survival"] == [0.8, 0.4]


def test_inspect_tells_the_two_acceptances_of_a_trace_apart() -> None:
    shown = run("inspect", "chat").stdout
    assert "per decoding step:  per row:" in shown


def test_objects_in_each_others_place_are_told_so() -> None:
    trace, profile = specsched.load_trace("chat"), specsched.load_profile("h100-sxm_qwen3-8b_bf16_tp1")
    for call in (
        lambda: specsched.simulate(profile, trace, policy="off", concurrency=1),  # type: ignore[arg-type]
        lambda: specsched.answer(profile, trace, 80.0),  # type: ignore[arg-type]
        lambda: specsched.load_profile(trace),  # type: ignore[arg-type]
    ):
        with pytest.raises(WorkloadError, match="swap the two"):
            call()
    with pytest.raises(WorkloadError, match="got int"):
        specsched.load_trace(3)  # type: ignore[arg-type]


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
    from specsched.cli.app import App

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
    from specsched.extras import extra_module

    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(SpecschedError, match=r"pip install 'specsched\[cluster\]'"):
        extra_module("distributed", "cluster", "--cluster")


def test_interrupt_ends_a_real_process_with_130() -> None:
    code = (
        "import time, sys\nfrom specsched.cli.app import App\ng = App('specsched')\n"
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
    names_its_output = {("convert",), ("audit",), ("warmup",)}  # one file that is named, or none
    for words, command in commands(main):
        options = {option for parameter in command.params for option in parameter.opts}
        if not hasattr(command, "commands") or words == ("profile",):
            wanted = {"--json"} if words in names_its_output else {"--json", "--out"}
            assert wanted <= options, words


def test_progress_shows_nothing_before_it_lasts(capsys: pytest.CaptureFixture[str]) -> None:
    from specsched.cli.progress import Progress

    with Progress() as progress:
        for done in range(5):
            progress(done, 5, "work")
    assert capsys.readouterr().err == ""


def test_an_interrupt_reaches_the_workers() -> None:
    from specsched.cli.progress import Progress

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
    from specsched.cli.progress import Progress

    clock = iter([0.0, 1.0, 16.0, 17.0, 40.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    with Progress() as progress:
        for done in range(4):
            progress(done, 4, "lagged:2")
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["1/4 runs, 16 s: lagged:2", "3/4 runs, 40 s: lagged:2"]
    clock = iter([0.0, 16.0])
    with Progress() as progress:
        progress(1, None, "lagged:2")
    assert capsys.readouterr().err == "1 run, 16 s: lagged:2\n"


def test_a_pause_of_seconds_given_as_milliseconds_is_refused() -> None:
    refused(run("simulate", "--trace", "chat", "--tpot-ms", "0.0125"), "80,000 tokens/s", "milliseconds")
