"""Counters of other tools at the command line: converted, inspected, as JSON, as documented."""

from __future__ import annotations

import json
from pathlib import Path

import client_cases
import jsonschema
from click.testing import CliRunner

from specsched import documents
from specsched.calibration import load_calibration
from specsched.cli.app import main
from specsched.cli.inputs import load_given
from specsched.profile import load_profile

DOCS = Path(__file__).resolve().parents[2] / "docs" / "formats.md"


def sample(name: str) -> str:
    """The sample that docs/formats.md shows for a format."""
    text = DOCS.read_text(encoding="utf-8")
    return text.split(f"```jsonl {name}\n")[1].split("```")[0]


def test_the_documented_sample_of_vllm_requests_converts_and_is_inspected(tmp_path: Path) -> None:
    path, out = tmp_path / "vllm-requests.jsonl", tmp_path / "rates.json"
    path.write_text(sample("vllm-requests.jsonl"))
    made = CliRunner().invoke(main, ["convert", str(path), str(out)])
    assert made.exit_code == 0, made.output
    seen = CliRunner().invoke(main, ["inspect", str(path), "--json"])
    assert seen.exit_code == 0, seen.output
    for document in (json.loads(out.read_text()), json.loads(seen.stdout)):
        # Histograms [4, 3, 2, 1] and [1, 1, 0, 2]: 9, 5 and 3 of 14 steps got past positions 1, 2 and 3.
        assert [round(14 * rate) for rate in document["survival"]] == [9, 5, 3]
        assert document["censored"] is False


def test_a_benchmark_without_counters_is_shown_and_sent_to_fit(tmp_path: Path) -> None:
    path = tmp_path / "benchmarks.json"
    path.write_text(json.dumps(client_cases.guidellm()))
    seen = CliRunner().invoke(main, ["inspect", str(path), "--json"])
    assert seen.exit_code == 0, seen.output
    document = json.loads(seen.stdout)
    jsonschema.validate(document, documents.shipped("inspection"))
    assert (document["kind"], document["tool"]) == ("benchmark", "GuideLLM")
    assert document["runs"][0]["users"] == client_cases.USERS
    text = CliRunner().invoke(main, ["inspect", str(path)]).stdout
    assert "specsched fit" in text
    assert "--arm" in text
    made = CliRunner().invoke(main, ["convert", str(path), str(tmp_path / "x.json")])
    assert made.exit_code == 2
    assert "specsched fit" in made.output


def test_a_file_of_two_parts_gives_the_one_that_is_wanted(tmp_path: Path) -> None:
    """ATOM keeps temperatures and step costs together; SGLang's dump is a trace and the times of its
    steps."""
    text = DOCS.read_text(encoding="utf-8").split("```json atom.json\n")[1].split("```")[0]
    path, out = tmp_path / "atom.json", tmp_path / "c.json"
    path.write_text(text)
    assert load_given(str(path), "profile", load_profile).seconds(6, 2, 0) == 1 / 160
    made = CliRunner().invoke(main, ["convert", str(path), str(out), "--hint", "take=temperatures"])
    assert made.exit_code == 0, made.output
    assert load_calibration(out).temperatures.tolist() == [1.4, 1.2]
    dump = Path(__file__).resolve().parents[1] / "formats" / "data" / "sglang_dump_cap_accept.json"
    profile = load_given(str(dump), "profile", load_profile)
    assert profile.provenance["tool"] == "sglang-dump"
