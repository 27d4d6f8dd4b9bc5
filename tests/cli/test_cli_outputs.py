"""What commands write, and what they print of names out of files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import specsched
from specsched.cli.app import main
from specsched.cli.output import printable

ROOT = Path(specsched.__file__).parent.parent
PROFILE = {
    "schema": "specsched/profile/1",
    "name": "tiny",
    "verify": {"tokens": [1, 64, 4096], "seconds": [0.005, 0.006, 0.05]},
    "provenance": {"method": "measured"},
}
CALIBRATION = {"schema": "specsched/calibration/1", "method": "sts", "temperatures": [1.0, 1.0]}
RATES = {"schema": "specsched/acceptance/1", "conditional": [0.8, 0.5], "steps": 100}


def run(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("profile", "answer", "runs", "plan"):
        (tmp_path / f"{name}.json").write_text(json.dumps(PROFILE))
    for name in ("acceptance", "trace"):
        (tmp_path / f"{name}.json").write_text(json.dumps(RATES))
    (tmp_path / "calibration.json").write_text(json.dumps(CALIBRATION))
    (tmp_path / "off.csv").write_text("concurrency,tok_s_user\n1,120\n16,100\n64,60\n")
    return tmp_path


LOAD = ["--trace", "chat", "--requests", "40", "--policy", "off"]


@pytest.mark.parametrize(
    "words",
    [
        ["inspect", "profile.json", "--out", "."],
        ["inspect", "calibration.json", "--out", "."],
        ["inspect", "acceptance.json", "--out", "."],
        ["inspect", "profile.json", "--plot", "profile.json", "--force"],
        ["simulate", *LOAD, "--profile", "answer.json", "--sla", "20", "--out", "."],
        ["simulate", *LOAD, "--profile", "runs.json", "--concurrency", "1", "--out", ".", "--force"],
        ["plan", *LOAD, "--profile", "plan.json", "--sla", "20", "--rate", "1", "--out", "."],
        ["trace", "synth", "--acceptance", "trace.json", "--out", "."],
        [
            "profile",
            "fit-overhead",
            "--profile",
            "profile.json",
            "--sweep",
            "off.csv",
            "-o",
            "off.csv",
            "--force",
        ],
        ["convert", "profile.json", "profile.json", "--force"],
    ],
)
def test_an_output_is_never_an_input(folder: Path, words: list[str]) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    done = run(*words)
    assert done.exit_code == 2
    assert "is the input" in done.stderr
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize(
    "words",
    [
        ["inspect", "profile.json", "--plot", "notes.txt"],
        ["profile", "--gpu", "h100", "--source", "roofline", "-o", "notes.txt"],
        ["trace", "synth", "--acceptance", "0.8,0.5", "-o", "notes.parquet"],
        ["calibrate", "--trace", "chat", "-o", "notes.txt"],
        ["calibrate", "--trace", "chat", "--plot", "notes.txt"],
        ["convert", "profile.json", "notes.json", "--to", "sglang"],
        ["inspect", "calibration.json", "--out", "other"],
        ["drafter", "train", "--target", "tiny", "--text", "other", "-o", "other"],
    ],
)
def test_what_exists_is_written_over_with_force_alone(folder: Path, words: list[str]) -> None:
    (folder / "other").mkdir()
    for name in ("notes.txt", "notes.parquet", "notes.json", "other/calibration.json", "other/config.json"):
        (folder / name).write_text("years of work")
    (folder / "other" / "a.npz").write_text("")
    done = run(*words)
    assert done.exit_code == 2
    assert "--force" in done.stderr or "is the input" in done.stderr
    for name in ("notes.txt", "notes.parquet", "notes.json", "other/calibration.json", "other/config.json"):
        assert (folder / name).read_text() == "years of work"


def test_force_writes_over_and_an_earlier_answer_needs_none(folder: Path) -> None:
    (folder / "notes.txt").write_text("old")
    assert run("inspect", "profile.json", "--plot", "notes.txt", "--force").exit_code == 0
    assert (folder / "notes.txt").read_bytes().startswith(b"\x89PNG")
    for _ in range(2):
        done = run("inspect", "profile.json", "--out", "out")
        assert done.exit_code == 0, done.stderr


@pytest.mark.parametrize("name", ["../../escaped", "{outside}/escaped", "a/b", "..\\c"])
def test_a_profile_s_name_stays_in_out(
    folder: Path, name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    name = name.format(outside=outside)  # an absolute name, anywhere else
    (folder / "in" / "deep").mkdir(parents=True)
    config = {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "_name_or_path": name,
        "hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 8,
        "head_dim": 128, "intermediate_size": 3072, "vocab_size": 32000,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    before = {path for path in folder.rglob("*")}
    done = run(
        "profile", "--gpu", "h100", "--model", "config.json", "--source", "roofline", "--out", "in/deep"
    )
    assert done.exit_code == 0, done.stderr
    made = {path for path in folder.rglob("*")} - before
    assert {path.parent for path in made} == {folder / "in" / "deep"}
    assert list(outside.iterdir()) == []


def test_the_answer_is_printed_where_its_files_cannot_be_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("specsched.files.output.os.replace", full)
    done = run("inspect", "profile.json", "--json", "--out", "out")
    assert done.exit_code == 2
    assert json.loads(done.stdout)["name"] == "tiny"
    assert "profile.json: No space left on device" in done.stderr
    assert list((folder / "out").iterdir()) == []


ESCAPES = "a\x1b]0;OWNED\x07\x1b[2J\x9b31mb\x7f\u202ec"


def test_names_out_of_files_do_not_command_the_terminal(folder: Path) -> None:
    document = {
        **PROFILE,
        "name": ESCAPES,
        "gpu": {"name": ESCAPES},
        "provenance": {"method": "measured", "source": ESCAPES},
    }
    (folder / "escape.json").write_text(json.dumps(document))
    for words in (["inspect", "escape.json"], ["inspect", "escape.json", "--json"], ["inspect", "\x1b[31mx"]):
        done = run(*words)
        for text in (done.stdout, done.stderr):
            assert all(c.isprintable() or c in "\n\t" for c in text), repr(text)
    assert json.loads(run("inspect", "escape.json", "--json").stdout)["name"] == ESCAPES


def test_printable_leaves_what_is_harmless() -> None:
    text = "plain\n\tπ 日本語 no\u00a0break"
    assert printable(text) == text
    assert printable("\x1b[31m\udcff\u2028") == "\\x1b[31m\\udcff\\u2028"


def test_pipes_are_read_once(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    writer = threading.Thread(target=lambda: (folder / "pipe").write_text(json.dumps(PROFILE)))
    writer.start()
    done = run("inspect", "pipe", "--json")
    writer.join()
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["name"] == "tiny"


def test_a_pipe_without_a_writer_is_refused_by_its_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specsched.files.pipe.WRITER_SECONDS", 0.0)
    os.mkfifo(folder / "pipe")
    for words in (
        ["inspect", "pipe"],
        ["simulate", *LOAD, "--concurrency", "1", "--policy", "batch-table:pipe"],
        ["convert", "profile.json", "out.json", "--hint", "draft=pipe"],
    ):
        done = run(*words)
        assert done.exit_code == 2
        assert "nothing writes to the pipe pipe" in done.stderr


def test_an_endless_device_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specsched.files.pipe.read_pipe.__defaults__", (1 << 20,))
    done = run("inspect", "/dev/zero")
    assert done.exit_code == 2
    assert "/dev/zero gives more than 1 MB" in done.stderr


def test_many_rates_are_no_name_of_a_file(folder: Path) -> None:
    done = run("trace", "synth", "--acceptance", ",".join(["0.9"] * 60), "--requests", "5", "-o", "t.parquet")
    assert done.exit_code == 0, done.stderr
    long = "x" * 5000
    for words in (
        ["inspect", long],
        ["simulate", "--trace", long, "--sla", "20"],
        ["simulate", *LOAD, "--profile", long, "--sla", "20"],
        ["simulate", "--trace", "chat", "--sla", "20", "--calibration", long],
        ["simulate", *LOAD, "--requests", "9" * 4000],
        ["simulate", *LOAD, "--policy", f"fixed:{'9' * 4000}", "--concurrency", "1"],
        ["inspect", f"--{long}"],
        [long],
    ):
        done = run(*words)
        assert done.exit_code == 2
        assert "Traceback" not in done.stderr
        assert len(done.stderr) < 500


@pytest.mark.parametrize("words", [["--sla", "1e-320", "--rate", "2"], ["--sla", "20", "--rate", "1e308"]])
def test_a_trial_of_endless_requests_is_refused_by_its_options(folder: Path, words: list[str]) -> None:
    done = run("plan", *LOAD, "--calibration", "none", *words)
    assert done.exit_code == 2
    assert "--rate" in done.stderr
    assert "--sla" in done.stderr


@pytest.mark.parametrize("address", ["tls://127.0.0.1:1", "ucx://127.0.0.1:1", "nonsense://x"])
def test_a_cluster_without_certificates_is_refused_in_a_sentence(folder: Path, address: str) -> None:
    pytest.importorskip("distributed")
    (folder / "grid.toml").write_text(
        'traces = ["chat"]\npolicies = ["off"]\nconcurrencies = [1]\n[run]\nrequests = 20\n'
    )
    done = run("sweep", "grid.toml", "--out", "grid", "--cluster", address)
    assert done.exit_code == 2
    assert address in done.stderr


def test_a_closed_standard_output_is_no_traceback() -> None:
    done = subprocess.run(
        f"{sys.executable} -m specsched --version >&-", shell=True, capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode in (0, 2)
    assert "Traceback" not in done.stderr


def test_one_interrupt_ends_what_never_hands_control_back() -> None:
    # A key derivation of minutes stands for a compiler: Python's own handler runs after it alone.
    probe = (
        "import hashlib, click\n"
        "from specsched.cli import app\n"
        "@click.command()\n"
        "def stuck():\n"
        "    print('begun', flush=True)\n"
        "    hashlib.pbkdf2_hmac('sha512', b'', b'', 2**31 - 1)\n"
        "app.main.add_command(stuck)\n"
        "app.main(['stuck'])\n"
    )
    run = subprocess.Popen(
        [sys.executable, "-c", probe],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        # Tests that a shell runs in the background inherit an interrupt that is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        assert run.stdout is not None
        assert run.stdout.readline() == "begun\n"
        time.sleep(0.1)
        run.send_signal(signal.SIGINT)
        _, said = run.communicate(timeout=60)
    finally:
        run.kill()
    assert run.returncode == 130
    assert "interrupted" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    "words",
    [
        ["simulate", *LOAD[:4], "--profile", "profile.json", "--concurrency", "2", "--calibration", "none"],
        [
            "plan",
            *LOAD[:4],
            "--profile",
            "profile.json",
            "--sla",
            "20",
            "--rate",
            "1",
            "--calibration",
            "none",
        ],
    ],
    ids=lambda words: words[0],
)
def test_what_a_policy_prints_is_no_part_of_the_answer(folder: Path, words: list[str]) -> None:
    (folder / "talking.py").write_text(
        "print('imported')\n\ndef plan(confidence, sps, history):\n    print('planned')\n"
        "    return (confidence > 0.5).sum(1)\n"
    )
    sys.modules.pop("talking", None)
    done = run(*words, "--workers", "1", "--policy", "talking:plan", "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["schema"].startswith("specsched/")
    assert "imported" in done.stderr
    assert "planned" in done.stderr


@pytest.mark.parametrize("option", ["--ttft-ms", "--itl-ms", "--e2e-ms", "--tpot-ms"])
@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "1e-323", "1e308", "", "x"])
def test_times_that_no_clock_tells_are_refused_by_their_option(folder: Path, option: str, value: str) -> None:
    """A number of milliseconds so small that it is no seconds at all was refused by a name nobody typed."""
    sla = [] if option == "--tpot-ms" else ["--sla", "20"]
    done = run("simulate", *LOAD, "--profile", "profile.json", *sla, option, value)
    assert done.exit_code == 2
    assert option in done.stderr


@pytest.mark.parametrize("value", ["5@", "@", "@0.5", "5@0", "5@1.1", "5@nan", "5@0.5@0.5"])
def test_shares_of_limits_are_refused_by_their_option(folder: Path, value: str) -> None:
    done = run("plan", *LOAD, "--profile", "profile.json", "--sla", "20", "--rate", "1", "--e2e-ms", value)
    assert done.exit_code == 2
    assert "--e2e-ms" in done.stderr


def test_inspect_says_what_is_wrong_with_another_tools_file(folder: Path) -> None:
    """Not that it is none of ours, where a reader knows it."""
    (folder / "atom.json").write_text(
        json.dumps({"sps_table": [200.0] * 9, "sts_temperatures": [1.0], "draft_width": 3})
    )
    done = run("inspect", "atom.json")
    assert done.exit_code == 2
    assert "atom.json: 1 temperatures for a draft_width of 3" in done.stderr
