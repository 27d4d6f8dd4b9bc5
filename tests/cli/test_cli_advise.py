"""`specsched advise` from the command line: text, JSON, files, and traffic said in no way or in two."""

from __future__ import annotations

import json
from pathlib import Path

import engine_options
import pytest
from click.testing import CliRunner, Result

from specsched.cli.app import main

FEW = ["advise", "--trace", "code", "--requests", "40"]


def run(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def test_text_shows_the_engines_asked_for_and_json_all() -> None:
    shown = run(*FEW, "--concurrency", 16, "--engine", "sglang", "--model", "org/it's")
    assert shown.exit_code == 0, (shown.stderr, shown.exception)
    assert "sglang.launch_server" in shown.stdout
    assert "vllm serve" not in shown.stdout
    document = json.loads(run(*FEW, "--tpot-ms", 12.5, "--json").stdout)
    assert document["traffic"] == {"kind": "sla", "value": 80.0, "share": 0.95}
    assert [e["engine"] for e in document["engines"]] == ["vllm", "sglang", "trtllm"]
    engine_options.vllm(document["engines"][0]["paste"]["command"])
    engine_options.sglang(document["engines"][1]["paste"]["command"])
    engine_options.trtllm(document["engines"][2]["paste"]["command"])


def test_out_holds_the_page_the_lines_and_the_tables_they_name(tmp_path: Path) -> None:
    out = tmp_path / "advice for us"
    done = run(*FEW, "--concurrency", 64, "--out", out)
    assert done.exit_code == 0, (done.stderr, done.exception)
    document = json.loads((out / "advice.json").read_text())
    names = {path.name for path in out.iterdir()}
    assert {"report.html", "vllm.sh", "sglang.sh", "trtllm.sh", "trtllm.yaml"} <= names
    for engine in document["engines"]:
        assert set(engine["paste"]["tables"]) <= names
        assert (out / f"{engine['engine']}.sh").read_text().strip() == engine["paste"]["command"]
    if "sglang_sps.json" in names:
        engine_options.sglang_table(out / "sglang_sps.json")
    assert "What to type for 64 users?" in (out / "report.html").read_text()
    again = run(*FEW, "--concurrency", 64, "--out", out)
    assert again.exit_code != 0, "files that are there are not written over"


@pytest.mark.parametrize("traffic", [[], ["--sla", 50, "--rate", 2], ["--concurrency", 4, "--rate", 2]])
def test_the_traffic_is_said_in_one_way(traffic: list[object]) -> None:
    refused = run(*FEW, *traffic)
    assert refused.exit_code == 2
    assert "give the traffic by one of --sla, --concurrency, --rate" in refused.stderr
