"""Nothing out of a file reaches the HTML report as markup."""

from __future__ import annotations

import html
import re

import pytest
from matplotlib.text import Text

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
