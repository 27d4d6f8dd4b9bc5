"""Nothing out of a file reaches the HTML report as markup."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from matplotlib.text import Text
from profile_cases import small

from specsched.cli.app import main
from specsched.report.page import answer_page
from specsched.report.plots import dress, figure, png

EVIL = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'&"


def _answer() -> dict[str, object]:
    speed = {"p05": 50.0, "p50": 60.0, "mean": 61.0}
    row = {"concurrency": 4, "tps_user": speed, "throughput": 200.0, "emitted_per_step": 1.5}
    policy = {
        "policy": EVIL, "lossless": True, "capacity": 4, "capacity_interval": [3, 5], "capacity_per_gpu": 4.0,
        "throughput_at_capacity": 200.0, "binds": EVIL, "at_capacity": row, "curve": [row], "pockets": [],
        "hindsight_share": 0.9,
    }  # fmt: skip
    return {
        "headline": EVIL, "trace": EVIL, "profile": EVIL, "sla_fraction": 0.95, "sla_tps": 50.0,
        "policies": [policy], "recommended": EVIL, "warnings": [EVIL], "not_modelled": [EVIL],
        "crossovers": [{"between": [1, 2], "to": EVIL, "from": EVIL}],
        "about": {"trace": EVIL, "profile": EVIL},
        "gpus_per_engine": 1,
    }  # fmt: skip


def test_every_text_of_an_answer_is_escaped_in_its_page() -> None:
    page = answer_page(_answer(), b"png", b"png", f"specsched simulate --trace '{EVIL}'")
    assert html.escape(EVIL) in page
    assert "<script" not in page
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
    page = (tmp_path / "out" / "plan.html").read_text()
    assert html.escape(name) in page
    assert "<script" not in page
    assert not re.search(r"<img[^>]* onerror", page)


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
