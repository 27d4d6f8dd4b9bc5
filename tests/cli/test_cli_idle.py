"""Options that change nothing are told, and files of other tools are read or answered with a command."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from specsched.cli.app import main

DATA = Path(__file__).resolve().parents[1] / "formats" / "data"
SMALL = ["--concurrency", "2", "--requests", "30", "--policy", "off"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("vllm_verify.csv", "sglang_1d.json", "llamacpp_steps.jsonl", "sglang_sts.json"):
        shutil.copy(DATA / name, tmp_path / name)
    return tmp_path


def simulate(*words: str) -> Result:
    return CliRunner().invoke(main, ["simulate", *words, *SMALL])


def said(result: Result) -> str:
    return " ".join((result.stdout + result.stderr).split())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--batch-tokens", "300"], "--batch-tokens does nothing without prefill chunked"),
        (["--sla-fraction", "0.9"], "--sla-fraction does nothing without --sla"),
        (["--enabling-cost", "0.1"], "--enabling-cost does nothing where no policy drafts"),
        (
            ["--profile", "vllm_verify.csv", "--context", "900", "--prefill", "free"],
            "--context changes nothing",
        ),
        (["--idle-draft", "0.1"], "--idle-draft does nothing where no policy stops drafting"),
        (["--catch-up", "1"], "--catch-up does nothing where no policy stops drafting"),
        (["--profile", "vllm_verify.csv", "--kv-reserve", "0.2"], "--kv-reserve does nothing"),
        (["--profile", "vllm_verify.csv", "--graph-bytes", "9"], "--graph-bytes does nothing"),
    ],
)
def test_an_option_that_changes_nothing_is_told(folder: Path, words: list[str], sentence: str) -> None:
    result = simulate("--trace", "qwen3-4b-chat", *words)
    assert result.exit_code == 0, result.output
    assert sentence in said(result)


def test_options_that_work_are_not_spoken_of(folder: Path) -> None:
    result = simulate("--trace", "qwen3-4b-chat", "--prefill", "chunked", "--batch-tokens", "300")
    assert "does nothing" not in said(result)
    assert "changes nothing" not in said(simulate("--trace", "qwen3-4b-chat", "--context", "900"))


@pytest.mark.parametrize("table", ["vllm_verify.csv", "sglang_1d.json"])
def test_a_profile_of_another_tool_is_read_as_convert_would(folder: Path, table: str) -> None:
    result = simulate("--trace", "qwen3-4b-chat", "--profile", table)
    assert result.exit_code == 0, result.output
    assert f"{table} was read as " in said(result)
    converted = CliRunner().invoke(main, ["convert", table, "mine.json"])
    assert converted.exit_code == 0, converted.output
    same = simulate("--trace", "qwen3-4b-chat", "--profile", "mine.json")
    # The rows of the table of results are the same.
    assert [line for line in result.stdout.splitlines() if line.startswith("off")] == [
        line for line in same.stdout.splitlines() if line.startswith("off")
    ]


def test_a_log_of_another_tool_is_read_as_a_trace(folder: Path) -> None:
    result = simulate("--trace", "llamacpp_steps.jsonl", "--calibration", "none")
    assert result.exit_code == 0, result.output
    assert "llamacpp_steps.jsonl was read as llamacpp" in said(result)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--trace", "cal.json"], "give it as --calibration cal.json"),
        (["--trace", "qwen3-4b-chat", "--profile", "cal.json"], "give it as --calibration cal.json"),
        (["--trace", "qwen3-4b-chat", "--profile", "answer.json"], "is an answer of this package"),
        (["--trace", "vllm_verify.csv"], "give it as --profile vllm_verify.csv"),
        (["--trace", "qwen3-4b-chat", "--profile", "llamacpp_steps.jsonl"], "--trace llamacpp_steps.jsonl"),
        (["--trace", "sglang_sts.json"], "`specsched convert sglang_sts.json calibration.json`"),
    ],
)
def test_files_in_each_others_place_name_what_to_type(folder: Path, words: list[str], sentence: str) -> None:
    assert CliRunner().invoke(main, ["convert", "sglang_sts.json", "cal.json"]).exit_code == 0
    (folder / "answer.json").write_text('{"schema": "specsched/answer/1"}')
    result = simulate(*words)
    assert result.exit_code == 2
    assert sentence in said(result)


def test_convert_and_inspect_agree_on_drafting_and_on_a_flat_table(folder: Path) -> None:
    (folder / "flat.json").write_text(
        '{"sample_batch_tokens": [1, 64, 512], "sample_steps_per_sec": [100.0, 100.0, 100.0]}'
    )
    converted = said(CliRunner().invoke(main, ["convert", "flat.json", "mine.json"]))
    inspected = said(CliRunner().invoke(main, ["inspect", "mine.json"]))
    assert "nothing can be trimmed" in converted
    assert "nothing can be trimmed" in inspected
    assert "the cost of drafting is inside" in converted
    assert "drafting inside, so what off would cost is unknown" in inspected
    assert "drafting costs nothing" not in inspected


def test_fixed_without_a_number_is_the_block_that_is_replayed(folder: Path) -> None:
    words = ["--trace", "qwen3-4b-chat", "--sla", "80", "--policy", "fixed", "--block-size", "5"]
    result = CliRunner().invoke(
        main, ["simulate", *words, "--concurrency", "4", "--requests", "30", "--json"]
    )
    assert result.exit_code == 0, result.output
    assert [row["policy"] for row in json.loads(result.stdout)["policies"]] == ["fixed:5"]


@pytest.mark.parametrize("name", ["vllm_verify.csv", "sglang_1d.json", "llamacpp_steps.jsonl"])
def test_a_file_of_another_tool_is_inspected_as_convert_would_read_it(folder: Path, name: str) -> None:
    result = CliRunner().invoke(main, ["inspect", name])
    assert result.exit_code == 0, result.output
    assert f"{name} was read as " in said(result)
