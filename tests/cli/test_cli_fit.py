"""`specsched fit` at the command line: files of benchmarks in, a profile and a trace out."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
from benchmark_cases import host, profile_of, run
from click.testing import CliRunner, Result

from specsched import documents
from specsched.cli.app import main
from specsched.formats.runs import Measured
from specsched.profile import load_profile
from specsched.trace import load_trace

TRUE = profile_of(
    overhead=host([0.5, 1.0, 2.0, 2.8]),
    draft={"requests": [1, 32], "seconds": [0.0012, 0.002], "block_size": 3},
)


def serve(measured: Measured, **more: object) -> dict[str, object]:
    """The run as `vllm bench serve` would save it."""
    n, out = measured.prompts or 0, measured.output_tokens or 0
    document: dict[str, object] = {
        "tokenizer_id": "m", "request_rate": "inf",
        "max_concurrency": measured.users, "completed": n, "failed": 0,
        "total_input_tokens": n * (measured.prompt_tokens or 0), "total_output_tokens": n * out,
        "request_throughput": (measured.total or 0) / out, "output_throughput": measured.total,
        "mean_tpot_ms": 1e3 / (measured.user or 1), "median_tpot_ms": 1e3 / (measured.user or 1),
    }  # fmt: skip
    if measured.conditional is not None:
        rate = measured.conditional[0]
        document |= {
            "spec_decode_acceptance_length": 1 + rate + rate**2 + rate**3, "spec_decode_num_drafts": 1000,
            "spec_decode_draft_tokens": 3000,
            "spec_decode_per_position_acceptance_rates": [rate, rate**2, rate**3],
        }  # fmt: skip
    return document | more


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two results of vLLM's client at one load, without drafts and with 3, and a table of the pass alone."""
    monkeypatch.chdir(tmp_path)
    Path("off.json").write_text(json.dumps(serve(run(TRUE, "off", 8))))
    Path("k3.json").write_text(json.dumps(serve(run(TRUE, "fixed:3", 8))))
    profile_of(draft={"requests": [1, 32], "seconds": [0.001, 0.002], "block_size": 3}).save("table.json")
    return tmp_path


def fit(*words: str) -> Result:
    return CliRunner().invoke(main, ["fit", *words])


def test_two_files_of_vllm_and_a_table(folder: Path) -> None:
    told = fit(
        "off.json", "k3.json", "--profile", "table.json", "--policy", "lagged:1", "--out", "o", "--json"
    )
    assert told.exit_code == 0, told.output
    document = json.loads(told.stdout)
    jsonschema.Draft202012Validator(documents.shipped("fit")).validate(document)
    assert {r["policy"] for r in document["runs"]} == {"off", "fixed:3"}
    assert [p["policy"] for p in document["predictions"]] == ["lagged:1"]
    profile, trace = load_profile("o/profile.json"), load_trace("o/trace.parquet")
    real = TRUE.seconds(8, 8, 0, draft=False)
    assert abs(profile.seconds(8, 8, 0, draft=False) / real - 1) < 0.05
    assert trace.block_size == 3
    assert Path("o/fit.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads(Path("o/fit.json").read_text()) == document
    text = fit("off.json", "--profile", "table.json").output
    assert "by the runs" in text
    assert "warning: no run drafted" in text


def test_a_table_of_arms_and_what_they_ran(folder: Path) -> None:
    rows = ["arm,concurrency,tok_s_user,tok_s_total,clipped"]
    for arm, policy in (("nospec", "off"), ("mine", "fixed:3")):
        for users in (1, 16):
            measured = run(TRUE, policy, users)
            rows.append(f"{arm},{users},{measured.user},{measured.total},0")
    Path("sweep.csv").write_text("\n".join([*rows, "mine,32,1,1,1"]) + "\n")
    lengths = ("--prompt-tokens", "40", "--output-tokens", "33", "--prompts", "64")
    unsaid = fit("sweep.csv", "--profile", "table.json", *lengths)
    assert unsaid.exit_code == 2
    assert "which policy is arm 'mine'" in unsaid.output
    said = fit("sweep.csv", "--profile", "table.json", "--arm", "mine=fixed:3", *lengths, "-o", "p.json")
    assert said.exit_code == 0, said.output
    assert "1 rows are clipped" in said.output
    assert fit("sweep.csv", "--profile", "table.json", "--arm", "mine=skip", *lengths).exit_code == 0
    assert (
        "no arm or file of that name"
        in fit("sweep.csv", "--arm", "nine=off", "--arm", "mine=off", *lengths).output
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"failed": 40}, "40 requests failed"),
        ({"completed": 0}, "no request was completed"),
        ({"output_throughput": 1e6}, "in another unit, or counts prompt tokens"),
        ({"max_concurrency": None}, "how many users at once"),
    ],
)
def test_broken_results_end_with_one_sentence(folder: Path, change: dict[str, object], said: str) -> None:
    Path("bad.json").write_text(json.dumps(serve(run(TRUE, "off", 8), **change)))
    told = fit("bad.json", "--profile", "table.json")
    assert told.exit_code == 2
    assert said in told.output
    assert told.output.count("\n") == 1
    assert len(told.output) < 360


def test_without_a_beginning_it_says_what_would_settle_it(folder: Path) -> None:
    told = fit("off.json", "k3.json")
    assert told.exit_code == 2
    assert "not told apart by these runs" in told.output
    assert fit("off.json", "--gpu", "h100").exit_code == 2
    assert fit("table.json").exit_code == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["off.json", "./off.json"], "./off.json is given twice|off.json is given twice"),
        (["off.json", "--judge", "./off.json"], "did not see"),
        (["off.json", "--judge", "other/off.json"], "two files of one name; rename one"),
    ],
)
def test_no_file_counts_twice(folder: Path, words: list[str], said: str) -> None:
    Path("other").mkdir()
    Path("other/off.json").write_text(Path("off.json").read_text())
    told = fit(*words, "--profile", "table.json")
    assert told.exit_code == 2
    assert re.search(said, told.output)


def test_a_fit_is_judged_by_a_file_it_did_not_see(folder: Path) -> None:
    told = fit("off.json", "--profile", "table.json", "--judge", "k3.json", "--json")
    assert told.exit_code == 2  # nothing fitted was drafted
    assert "k3.json: it drafted, and no run drafted" in told.output
    Path("k3b.json").write_text(json.dumps(serve(run(TRUE, "fixed:3", 4))))
    told = fit("off.json", "k3.json", "--profile", "table.json", "--judge", "k3b.json", "--json")
    assert told.exit_code == 0, told.output
    document = json.loads(told.stdout)
    jsonschema.validate(document, documents.shipped("fit"))
    assert document["judged"]["fitted_on"] == ["off.json", "k3.json"]
    assert [row["what"] for row in document["judged"]["runs"]] == ["user", "total"]
    told = fit("off.json", "k3.json", "--profile", "table.json", "--judge", "k3.json")
    assert told.exit_code == 2
    assert "did not see" in told.output
