"""Nothing out of a file reaches the HTML report as markup."""

from __future__ import annotations

import html
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fake_answers import answer
from matplotlib.text import Text
from profile_cases import small

from specsched.cli.app import main
from specsched.report.page import answer_page, figures, frame
from specsched.report.plots import dress, figure, png

EVIL = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'&"


def _answer() -> dict[str, Any]:
    """An answer with every text that a file may set turned into markup."""
    document = answer()
    for policy in document["policies"]:
        policy["binds"] = EVIL
    document["policies"][-1] |= {"policy": f"batch-table:{EVIL}"}
    document |= {"headline": EVIL, "trace": EVIL, "profile": EVIL, "warnings": [EVIL], "not_modelled": [EVIL]}
    document |= {"about": {"trace": EVIL, "profile": EVIL}, "recommended": f"batch-table:{EVIL}"}
    document["crossovers"] = [{"between": [1, 2], "to": EVIL, "from": EVIL, "concurrency": 2}]
    document["recommended_runs_in"] = {"engines": EVIL, "confidences": "recorded", "said": EVIL}
    document["made_with"] = {
        "versions": {EVIL: EVIL},
        "inputs": [{"input": EVIL, "name": EVIL, "bytes": 1, "sha256": EVIL}],
    }
    return document


def scripts_of(page: str) -> list[str]:
    return re.findall(r"<script", page.replace(frame.asset(frame.PLOTLY), ""))


def test_every_text_of_an_answer_is_escaped_in_its_page() -> None:
    page = answer_page(_answer(), f"specsched simulate --trace '{EVIL}'")
    assert html.escape(EVIL) in page
    assert len(scripts_of(page)) == len(scripts_of(answer_page(answer())))
    assert not re.search(r"<img[^>]* onerror", page)


def test_every_name_of_a_plan_is_escaped_in_its_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = "<script>alert(1)<img src=x onerror=alert(1)>\"'&"  # no slash: it names files too
    made = {"method": "measured", "source": name}
    profile = {**small(), "name": name, "gpu": {"name": name}, "provenance": made}
    (tmp_path / "p.json").write_text(json.dumps(profile))
    rows = "".join(f"{i * 0.5},3\n" for i in range(30))
    (tmp_path / f"{name}.csv").write_text("arrival_seconds,output_tokens\n" + rows)
    words = ["trace", "synth", "--acceptance", "0.8,0.5", "--requests", "8", "-o", f"{name}.parquet"]
    assert CliRunner().invoke(main, words).exit_code == 0
    words = ["plan", "--trace", f"{name}.parquet", "--profile", "p.json", "--sla", "20", "--requests", "20"]
    words += ["--arrivals", f"{name}.csv", "--policy", "off", "--calibration", "none", "--out", "out"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.stderr
    page = (tmp_path / "out" / "report.html").read_text()
    assert html.escape(name) in page
    assert "<script>alert" not in page
    assert not re.search(r"<img[^>]* onerror", page)


def test_texts_of_charts_hold_no_markup() -> None:
    """The library of charts reads `<b>` and `<a href>` in what it writes."""
    data = json.loads(re.findall(r'id="specsched-data">(.*?)</script>', answer_page(_answer()))[0])
    assert all("<" not in policy["label"] for policy in data["answer"]["policies"])
    assert "<" not in figures.label(EVIL)


def test_data_cannot_end_its_script() -> None:
    assert "<" not in frame.embedded({"</script>": ["<!--", math.nan, math.inf]})
    assert json.loads(frame.embedded({"a": ["<b>&", math.nan]})) == {"a": ["<b>&", None]}


@pytest.mark.parametrize("name", ["$\\frac{1}{", "$x_{", "a$b$c", "\x1b[31mred\x07", "x" * 5000])
def test_names_are_drawn_as_they_are(name: str) -> None:
    fig = figure(9.2, 9.2)
    axes = fig.subplots()
    axes.plot([1, 10, 100], [1, 2, 3], label=name)
    axes.set_xscale("log")
    dress(axes, "title", name, "x", "y")
    axes.legend()
    assert png(fig).startswith(b"\x89PNG")
    assert all(text.get_text().isprintable() and len(text.get_text()) < 200 for text in axes.findobj(Text))


def test_ticks_of_a_logarithmic_axis_stay_powers() -> None:
    fig = figure(4, 3)
    axes = fig.subplots()
    axes.plot([1, 10, 100], [1, 2, 3])
    axes.set_xscale("log")
    png(fig)
    assert all(label.get_parse_math() for label in axes.get_xticklabels())
