"""The commands answering: stdout is the answer, JSON is strict, the same words give the same bytes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from specsched.cli.app import main
from specsched.cli.progress import COMPILING

FEW = ["--requests", "40", "--concurrency", "1,16", "--policy", "off", "--policy", "lagged"]
QUESTION = ["simulate", "--trace", "qwen3-4b-chat", "--sla", "120", *FEW]


def run(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def answered(*words: object) -> Result:
    result = run(*words)
    assert result.exit_code == 0, (result.stderr, result.exception)
    return result


def strict(text: str) -> dict[str, Any]:
    """The JSON of an answer, in which no NaN or infinity is allowed."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} in an answer")

    return json.loads(text, parse_constant=refuse)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --------------------------------------------------------------------------- simulate


def test_the_text_begins_with_the_conclusion_and_ends_with_the_doubts() -> None:
    text = answered(*QUESTION).stdout
    first = text.split("\n\n")[0]
    assert "120 tokens/s" in first
    assert "lagged:2" in first
    for words in ("warning: ", "not modelled: ", "profile: ", "trace: ", "calibration: sts, fitted on 200"):
        assert words in text


def test_json_is_the_documented_answer_and_the_same_bytes_again() -> None:
    first = answered(*QUESTION, "--json")
    answer = strict(first.stdout)
    assert answer["schema"] == "specsched/answer/1"
    documented = {"sla_tps", "sla_fraction", "profile", "trace", "gpus_per_engine", "recommended", "warnings"}
    assert documented | {"policies"} <= answer.keys()
    for policy in answer["policies"]:
        assert {
            "policy",
            "lossless",
            "capacity",
            "capacity_interval",
            "capacity_per_gpu",
            "binds",
        } <= policy.keys()
        assert {"pockets", "throughput_at_capacity", "curve"} <= policy.keys()
        row = policy["curve"][0]
        assert {"concurrency", "throughput", "tps_user", "emitted_per_step"} <= row.keys()
        assert {"verify_tokens_per_request", "rejected_share"} <= row.keys()
        assert {"mean", "p05", "p50"} <= row["tps_user"].keys()
    said = [line for line in first.stderr.splitlines() if line != COMPILING]
    assert [f"warning: {text}" for text in answer["warnings"]] == said
    assert answered(*QUESTION, "--json", "--workers", "1").stdout == first.stdout


def test_fail_under_is_an_exit_code_and_no_other_answer(folder: Path) -> None:
    plain = answered(*QUESTION, "--json")
    carried = json.loads(plain.stdout)
    most = max(row["capacity"] for row in carried["policies"] if row["policy"] == carried["recommended"])
    for fewest, code in ((most, 0), (most + 1, 1)):
        result = CliRunner().invoke(main, [*QUESTION, "--json", "--fail-under", str(fewest)])
        assert result.exit_code == code
        assert json.loads(result.stdout)["policies"] == carried["policies"]
    assert f"{most} users are fewer than --fail-under {most + 1}" in result.stderr


def test_out_writes_the_files_and_the_command_that_made_them(folder: Path) -> None:
    result = answered(*QUESTION, "--out", "new/answer")
    names = ["answer.json", "load.png", "pareto.png", "report.html"]
    assert sorted(path.name for path in (folder / "new/answer").iterdir()) == names
    assert (
        "specsched simulate --trace qwen3-4b-chat --sla 120"
        in (folder / "new/answer/report.html").read_text()
    )
    assert all(f"wrote new/answer/{name}" in result.stderr for name in names)


def test_raw_confidences_are_called_so() -> None:
    answer = strict(answered(*QUESTION, "--calibration", "none", "--json").stdout)
    assert answer["calibration"]["method"] == "none"
    assert any("uncalibrated" in warning for warning in answer["warnings"])


def test_an_sla_nobody_reaches_is_an_answer() -> None:
    result = answered("simulate", "--trace", "qwen3-4b-chat", "--sla", "1e6", *FEW)
    assert "misses the SLA even with one user" in result.stdout
    assert not re.search(r"\bnan\b", result.stdout, re.IGNORECASE)


def test_runs_at_loads_need_no_sla() -> None:
    result = answered("simulate", "--trace", "qwen3-4b-chat", *FEW)
    assert len([line for line in result.stdout.splitlines() if line.startswith("lagged:2")]) == 6
    document = strict(answered("simulate", "--trace", "qwen3-4b-chat", *FEW, "--json").stdout)
    assert document["schema"] == "specsched/runs/1"
    assert [(row["policy"], row["concurrency"]) for row in document["runs"]] == [
        (policy, load) for policy in ("off", "lagged:2") for load in (1, 16)
    ]


def test_arrivals_say_who_reaches_the_sla_and_when_the_first_token_comes() -> None:
    words = [
        "simulate",
        "--trace",
        "qwen3-4b-chat",
        "--arrivals",
        "poisson:50",
        "--sla",
        "100",
        "--policy",
        "lagged",
    ]
    result = answered(*words, "--requests", "60", "--prefill", "chunked", "--json")
    row = strict(result.stdout)["runs"][0]
    assert 0.0 <= row["share_at_sla"] <= 1.0
    assert row["ttft_seconds"]["p50"] > 0.0
    assert strict(result.stdout)["arrivals_requests"] > 60, "a run too short to settle is lengthened"
    assert "no time to settle" not in result.stderr


def test_limits_are_promised_together_in_simulate_and_plan_alike() -> None:
    """The same words in both; what is promised stands in the sentence, the tables and the document."""
    limits = ["--ttft-ms", "400", "--itl-ms", "90@0.98", "--e2e-ms", "9000", "--sla-fraction", "0.9"]
    few = ["--requests", "60", "--policy", "off", "--policy", "fixed:3"]
    words = ["--trace", "qwen3-4b-chat", *limits, *few]
    stated = {"ttft_seconds": 0.4, "itl_seconds": 0.09, "e2e_seconds": 9.0, "shares": {"itl": 0.98}}
    promise = "with the first token in 400 ms, no pause over 90 ms (for 98%) and the last token in 9 s"
    for command, more in (
        ("simulate", ["--tpot-ms", "10", "--concurrency", "4,40"]),
        ("simulate", ["--sla", "100", "--arrivals", "poisson:20"]),
        ("plan", ["--sla", "100", "--rate", "20"]),
    ):
        text = " ".join(answered(command, *words, *more).stdout.split())
        assert promise in text
        assert "Good requests, which keep all that is promised at once" in text
        assert "TTFT" in text
        document = strict(answered(command, *words, *more, "--json").stdout)
        assert document["limits"] == stated
        assert document["sla_tps"] == 100.0
        rows = document.get("policies") or document["runs"]
        for row in rows:
            assert set(row["goodput"]["shares"]) == {"speed", "ttft", "itl", "e2e"}
        assert (document.get("prefill") or document["settings"]["prefill"]) == "chunked"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--sla", "100", "--ttft-ms", "0"], "0' is not a finite number at least 1e-09"),
        (["--sla", "100", "--e2e-ms", "9@1.5"], "1.5' is not a finite number above 0 and at most 1"),
        (["--sla", "100", "--itl-ms", "9@"], "is not milliseconds, or milliseconds@share"),
        (["--sla", "100", "--ttft-ms", "300", "--prefill", "disaggregated"], "add prefill chunked"),
        (["--ttft-ms", "300"], "give --sla S or --tpot-ms MS"),
    ],
)
def test_limits_that_cannot_be_kept_are_refused(words: list[str], said: str) -> None:
    result = CliRunner().invoke(main, ["simulate", "--trace", "qwen3-4b-chat", *words])
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())
    assert not result.stdout


def test_a_policy_that_is_not_lossless_is_called_so() -> None:
    result = answered("simulate", "--trace", "qwen3-4b-chat", "--sla", "120", *FEW, "--policy", "global")
    row = next(line for line in result.stdout.splitlines() if line.startswith("global"))
    assert row.endswith("NO")
    assert "policy global is not lossless" in " ".join(result.stdout.split())


# --------------------------------------------------------------------------- plan and sweep


def test_plan_counts_gpus_and_their_cost(folder: Path) -> None:
    words = [
        "plan",
        "--trace",
        "qwen3-4b-chat",
        "--sla",
        "80",
        "--rate",
        "2",
        "--requests",
        "60",
        "--gpu-cost",
        "2.5",
    ]
    few = ["--policy", "off", "--policy", "fixed:3"]
    result = answered(*words, *few, "--out", "plan", "--currency", "EUR")
    concluded = " ".join(result.stdout.split("\n\n")[0].split())
    assert "need 1 GPU" in concluded
    assert " EUR per million output tokens" in concluded
    assert "marginal: " in result.stdout
    assert sorted(path.name for path in (folder / "plan").iterdir()) == [
        "plan.json",
        "plan.png",
        "report.html",
    ]
    document = strict((folder / "plan/plan.json").read_text())
    assert document["schema"] == "specsched/plan/1"
    assert all(row["cost_per_hour"] == 2.5 * row["gpus"] for row in document["policies"])


def test_sweep_goes_on_where_it_stopped(folder: Path) -> None:
    axes = 'traces = ["qwen3-4b-chat"]\npolicies = ["off", "lagged"]\nconcurrencies = [1, 4]\n'
    (folder / "grid.toml").write_text(f"{axes}[run]\nrequests = 20\n")
    first = strict(answered("sweep", "grid.toml", "--out", "grid", "--json").stdout)
    assert (first["points"], first["ran"], first["failed"]) == (4, 4, 0)
    assert Path(first["results"]).is_file()
    again = answered("sweep", "grid.toml", "--out", "grid")
    assert "4 of 4 points" in again.stdout
    header = next(line for line in again.stdout.splitlines() if line.startswith("policy "))
    assert "tokens/s" in header
    assert sum(line.startswith(("off ", "lagged:2 ")) for line in again.stdout.splitlines()) == 4
    assert "0 ran now" in again.stdout


def test_a_sweep_with_failed_points_answers_and_ends_with_exit_code_1(folder: Path) -> None:
    (folder / "broken.json").write_text('{"schema": "specsched/profile/1"}')
    axes = 'traces = ["qwen3-4b-chat"]\nprofiles = ["broken.json"]\npolicies = ["off"]\nconcurrencies = [1]\n'
    (folder / "grid.toml").write_text(axes)
    result = run("sweep", "grid.toml", "--out", "grid")
    assert result.exit_code == 1
    assert "1 failed" in result.stdout
    assert "Traceback" not in result.stderr


# --------------------------------------------------------------------------- inputs


def test_inspect_lists_what_is_bundled() -> None:
    listed = strict(answered("inspect", "--json").stdout)
    assert "qwen3-4b-chat" in listed["traces"]
    assert all(name in answered("inspect").stdout for name in listed["profiles"])


@pytest.mark.parametrize("name", ["h100-sxm_qwen3-8b_bf16_tp1", "qwen3-4b-chat"])
def test_inspect_shows_findings_and_a_picture(folder: Path, name: str) -> None:
    result = answered("inspect", name, "--plot", "picture.png")
    assert result.stdout.startswith(f"{name}: ")
    assert "warning: " in result.stdout
    assert (folder / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert strict(answered("inspect", name, "--json").stdout)["name"] == name


def test_a_trace_of_censored_rates_says_that_they_may_be_too_high_or_too_low(folder: Path) -> None:
    rates = {"schema": "specsched/acceptance/1", "conditional": [0.8, 0.7], "steps": 100, "censored": True}
    (folder / "rates.json").write_text(json.dumps(rates | {"source": "counters"}))
    made = answered("trace", "synth", "--acceptance", "rates.json", "--requests", "40", "-o", "mine.parquet")
    assert "too high or too low" in " ".join((made.stdout + made.stderr).split())
    assert "too high or too low" in " ".join(answered("inspect", "mine.parquet").stdout.split())


def test_trace_synth_then_calibrate_then_simulate(folder: Path) -> None:
    made = answered("trace", "synth", "--acceptance", "0.8,0.7,0.6", "--requests", "40", "-o", "mine.parquet")
    assert "synthetic" in made.stdout
    fitted = answered("calibrate", "--trace", "mine.parquet", "-o", "mine.json", "--plot", "mine.png")
    assert "temperature" in fitted.stdout
    assert (folder / "mine.png").read_bytes().startswith(b"\x89PNG")
    assert answered("inspect", "mine.json").stdout
    words = [
        "simulate",
        "--trace",
        "mine.parquet",
        "--calibration",
        "mine.json",
        "--sla",
        "100",
        *FEW,
        "--json",
    ]
    answer = strict(answered(*words).stdout)
    assert answer["calibration"]["replayed"] == 40
    assert any("synthetic" in warning for warning in answer["warnings"])


def test_profile_estimated_converted_and_corrected(folder: Path) -> None:
    made = answered(
        "profile", "--gpu", "h100", "--model", "qwen3-8b", "--source", "roofline", "-o", "roof.json"
    )
    assert "roofline" in made.stdout
    assert "kind" not in answered("inspect", "roof.json").stderr
    answered("convert", "roof.json", "sglang.json", "--to", "sglang")
    back = answered("convert", "sglang.json", "back.json", "--hint", "gpu=H100")
    assert "in the format of sglang" in back.stdout
    (folder / "off.csv").write_text("concurrency,tok_s_user\n1,120\n16,100\n64,60\n")
    fitted = answered(
        *("profile", "fit-overhead", "--profile", "roof.json", "--sweep", "off.csv"),
        *("--prompt-tokens", "100", "--output-tokens", "50", "-o", "real.json"),
    )
    assert "wrote real.json" in fitted.stderr
    assert json.loads((folder / "real.json").read_text())["overhead"]["seconds"][0] > 0.0


def test_a_profile_is_not_written_over_unasked(folder: Path) -> None:
    words = ["profile", "--gpu", "h100", "--source", "roofline"]
    answered(*words)
    written = next(folder.glob("*.json"))
    before = written.read_bytes()
    again = run(*words)
    assert again.exit_code == 2
    assert "--force" in again.stderr
    assert written.read_bytes() == before


def test_warmup_says_how_long_it_took() -> None:
    assert strict(answered("warmup", "--json").stdout)["seconds"] >= 0.0
