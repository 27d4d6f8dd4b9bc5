"""`profile fit-overhead` at the command line: the sweep's own setting, and flags that would do nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from specsched.cli.app import main
from specsched.profile import StepProfile

LINES = ["concurrency,tok_s_user", "1,110", "8,90", "32,60"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a table that prices attention, one that does not, and a sweep."""
    monkeypatch.chdir(tmp_path)
    verify = {"tokens": [1, 64, 8192], "seconds": [0.005, 0.006, 0.1], "lookup": "linear", "beyond": "slope"}
    parts = {"schema": "specsched/profile/1", "name": "t", "verify": verify}
    StepProfile.from_dict(parts).save(tmp_path / "table.json")
    attention = {"kv_tokens": [0, 100000], "seconds": [0.0, 0.01]}
    StepProfile.from_dict({**parts, "attention": attention}).save(tmp_path / "attention.json")
    (tmp_path / "off.csv").write_text("\n".join(LINES) + "\n")
    return tmp_path


def fit(table: str, *words: str) -> Result:
    given = ["profile", "fit-overhead", "--profile", table, "--sweep", "off.csv", "-o", "real.json"]
    return CliRunner().invoke(main, [*given, *words])


@pytest.mark.parametrize(
    ("table", "words", "sentence"),
    [
        ("attention.json", [], "attention is counted twice"),
        ("table.json", ["--batch-tokens", "512"], "--batch-tokens does nothing without --prompt-tokens"),
        ("table.json", ["--prefill", "chunked"], "--prefill does nothing without --prompt-tokens"),
        ("table.json", ["--prompt-tokens", "100"], "give --output-tokens too"),
        ("table.json", ["--context", "9", "--prompt-tokens", "100"], "give it or --prompt-tokens, not both"),
        ("table.json", ["--arm", "nope"], "no column arm"),
        (
            "table.json",
            [
                "--prompt-tokens",
                "9",
                "--output-tokens",
                "9",
                "--prefill",
                "disaggregated",
                "--batch-tokens",
                "512",
            ],
            "--batch-tokens does nothing without --prefill chunked",
        ),
    ],
)
def test_what_would_count_twice_or_do_nothing_is_refused(
    folder: Path, table: str, words: list[str], sentence: str
) -> None:
    result = fit(table, *words)
    assert result.exit_code == 2
    assert sentence in " ".join(result.stderr.split())
    assert not (folder / "real.json").exists()


def test_the_table_of_loads_is_shown_and_kept(folder: Path) -> None:
    result = fit("attention.json", "--prompt-tokens", "200", "--output-tokens", "50")
    assert result.exit_code == 0, result.output
    assert "table alone" in result.stdout
    overhead = json.loads((folder / "real.json").read_text())["fit"]["overhead"]
    assert overhead["measured_tok_s_user"] == pytest.approx([110.0, 90.0, 60.0])
    # Three loads show no noise: all are met in the sweep's own setting.
    assert overhead["refitted_tok_s_user"] == pytest.approx([110.0, 90.0, 60.0], rel=3e-3)


def test_prompts_that_are_not_given_are_asked_for(folder: Path) -> None:
    assert "the prompt length of the sweep is not given" in " ".join(fit("table.json").stderr.split())
    assert "is not given" not in fit("table.json", "--context", "100").stderr


def test_a_context_that_changes_nothing_is_told(folder: Path) -> None:
    assert "--context changes nothing" in " ".join(fit("table.json", "--context", "900").stderr.split())
