"""The report: its figures are the answer's, its conclusion comes first, its page fetches nothing."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from fake_answers import answer, plan

from specsched.report import page, plots, tables
from specsched.report import plan as plans
from specsched.report.page import frame


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return answer()


@pytest.fixture(scope="module")
def written(document: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("answer")
    paths = page.write_answer(document, folder, "specsched simulate --trace 'a b' --sla 120")
    assert sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in paths)
    return {path.name: path.read_bytes() for path in paths}


# --------------------------------------------------------------------------- text


def test_the_conclusion_comes_first(document: dict[str, Any]) -> None:
    text = tables.answer_text(document)
    assert text.startswith(document["headline"])
    assert "\n\n" in text
    assert max(map(len, text.splitlines())) <= 100


def test_every_policy_has_its_figures_in_both_tables(document: dict[str, Any]) -> None:
    text = tables.answer_text(document)
    for policy in document["policies"]:
        rows = [
            line
            for line in text.splitlines()
            if line.startswith(policy["policy"] + " ") and " carries " not in line
        ]
        assert len(rows) == 2, policy["policy"]
        low, high = policy["capacity_interval"]
        for shown in (f"{policy['capacity']}", f"{low} ~ {high}", f"{policy['throughput_at_capacity']:,.0f}"):
            assert shown in rows[0]
        at = next(row for row in policy["curve"] if row["concurrency"] == policy["capacity"])
        for shown in (f"{at['emitted_per_step']:.2f}", f"{at['verify_tokens_per_request']:.2f}", "90%"):
            assert shown in rows[1]


def test_most_users_first_and_the_recommended_marked(document: dict[str, Any]) -> None:
    order = [policy["capacity"] for policy in tables.by_capacity(document)]
    assert order == sorted(order, reverse=True)
    _, rows = tables.capacity_rows(document)
    assert [row[0] for row in rows if row[0].endswith(" *")] == [document["recommended"] + " *"]


def test_a_lossy_policy_is_called_so() -> None:
    document = answer()
    document["policies"][-1] |= {"policy": "global", "lossless": False}
    _, rows = tables.capacity_rows(document)
    assert {row[0].split()[0]: row[-1] for row in rows}["global"] == "NO"
    assert '<td class="no">NO</td>' in page.answer_page(document)


def test_doubts_and_origins_are_shown(document: dict[str, Any]) -> None:
    text = tables.answer_text(document)
    assert "warning: the profile is composed" in text
    assert "not modelled: prefill" in text
    assert "profile: h100-sxm_qwen3-8b_bf16_tp1 (composed)" in text
    assert "trace: qwen3-4b-chat (synthetic)" in text
    assert "calibration: sts, fitted on 1,000 requests; the other 999 are replayed" in text
    assert "between 12 and 16 users lagged:2 overtakes fixed:7 in throughput" in text


def test_an_sla_nobody_reaches_is_shown_without_invented_figures() -> None:
    document = answer(sla=5000.0)
    text = tables.answer_text(document)
    row = next(line for line in text.splitlines() if line.startswith("fixed:1 "))
    assert row.split()[1] == "0"
    assert "fixed:1 misses the SLA even with one user: its 5th percentile is " in text
    assert "nan" not in text.lower()
    plots.pareto_png(document)
    plots.load_png(document)


def test_pockets_are_told() -> None:
    document = answer()
    document["policies"][0]["pockets"] = [[200, 210], [230, 230]]
    assert "off meets the SLA again at 200 to 210, 230 users" in tables.answer_text(document)


@pytest.mark.parametrize("value", [None, float("nan"), float("inf")])
def test_nothing_is_a_dash(value: Any) -> None:
    assert tables.count(value) == tables.decimal(value) == tables.share(value) == "-"


def test_grid_aligns_every_column() -> None:
    lines = tables.grid(["a", "two\nlines"], [["x", "1"], ["longer", "12,345"]]).splitlines()
    assert lines == ["           two", "a        lines", "------  ------", "x            1", "longer  12,345"]


def test_a_table_wider_than_the_terminal_goes_on_below_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    from specsched.report import text

    header, rows = ["name", *"abcdefgh"], [["one", *("1234567" for _ in range(8))]]
    whole = text.grid(header, rows)
    monkeypatch.setattr(text, "_columns", lambda: 40)
    narrow = text.grid(header, rows)
    assert max(map(len, narrow.splitlines())) <= 40 < max(map(len, whole.splitlines()))
    assert narrow.count("one") == len(narrow.split("\n\n")) == 2
    assert narrow.count("1234567") == whole.count("1234567") == 8


def test_warnings_stand_in_order_of_what_they_are_worth() -> None:
    from specsched.report.page.worth import by_worth

    said = [
        "policy early-stop waits for the present confidences, which profile 'p' prices at nothing",
        "profile 'p' is composed from separately measured kernels, not measured as a step",
        "something that nobody knows",
        "trace 't' is synthetic: no drafter was run to make it",
        "profile 'p' has no cost for passes that off needs at 3 users",
    ]
    found = by_worth([*said, said[0]])
    assert sorted(found) == sorted(said), "each once, none lost"
    assert [found.index(said[i]) for i in (4, 3, 1, 0)] == sorted(found.index(said[i]) for i in (4, 3, 1, 0))


# --------------------------------------------------------------------------- plots


def test_plots_are_png_and_the_same_bytes_again(document: dict[str, Any], written: dict[str, bytes]) -> None:
    for name, draw in (("pareto.png", plots.pareto_png), ("load.png", plots.load_png)):
        assert written[name].startswith(b"\x89PNG")
        assert draw(document) == written[name]


def test_plots_leave_the_global_backend_alone(document: dict[str, Any]) -> None:
    import matplotlib

    before = matplotlib.get_backend()
    plots.pareto_png(document)
    assert matplotlib.get_backend() == before


def test_policies_can_be_told_apart() -> None:
    names = ["off", "fixed:1", "fixed:7", "threshold:0.3", "early-stop", "lagged:2", "lagged:4", "global"]
    look = plots.styles(names)
    assert len({(style["color"], style["alpha"]) for style in look.values()}) == len(names)
    assert len({style["marker"] for style in look.values()}) == len(names)


def test_the_speed_axis_is_the_percentile_of_the_sla() -> None:
    assert plots.speed_key(0.95)[0] == "p05"
    assert plots.speed_key(0.5)[0] == "p50"


# --------------------------------------------------------------------------- page and files


class Links(HTMLParser):
    """Collects everything a page would fetch, and checks that its tags close."""

    void = frozenset({"meta", "img", "br", "link", "input", "!doctype"})

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href", "data", "action")]
        if tag not in self.void:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def whole_and_alone(text: str) -> None:
    """Tags close, links stay on the page, a policy forbids fetching (the library of charts left aside)."""
    own = text.replace(frame.asset(frame.PLOTLY), "")
    assert len(own) < len(text) < 5_000_000
    links = Links()
    links.feed(own)
    assert links.open == []
    assert all(link.startswith("#") for link in links.fetched)
    assert {link[1:] for link in links.fetched} <= set(re.findall(r'id="([^"]+)"', own))
    assert not re.search(r"https?://|@import|url\(", own)
    assert "default-src &#x27;none&#x27;" in own


def test_the_page_is_whole_and_fetches_nothing(written: dict[str, bytes]) -> None:
    whole_and_alone(written["report.html"].decode())


def test_the_page_has_conclusion_tables_doubts_and_command(
    document: dict[str, Any], written: dict[str, bytes]
) -> None:
    text = written["report.html"].decode()
    assert f"<h1>{document['headline']}</h1>" in text
    assert text.count("<table") >= 4
    assert "specsched simulate --trace &#x27;a b&#x27; --sla 120" in text
    for words in ("Assumptions and warnings", "Not modelled", "Reproduce", "composed", "plotly.js"):
        assert words in text


def test_names_cannot_inject_markup() -> None:
    document = answer()
    document["trace"] = document["headline"] = "<script>alert(1)</script>"
    assert "<script>alert" not in page.answer_page(document)


def test_the_json_is_the_answer(document: dict[str, Any], written: dict[str, bytes]) -> None:
    assert json.loads(written["answer.json"]) == document


def test_a_failure_leaves_the_old_files(document: dict[str, Any], tmp_path: Path) -> None:
    page.write_answer(document, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    broken = {**document, "policies": [{**document["policies"][0], "curve": []}]}
    with pytest.raises((ValueError, IndexError, KeyError)):
        page.write_answer(broken, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


# --------------------------------------------------------------------------- plan


def test_the_plan_counts_gpus_cheapest_first() -> None:
    text = plans.plan_text(plan())
    assert text.startswith("305.8 requests/s need 5 GPUs")
    names = [row[0] for row in plans.fleet_rows(plan())[1]]
    assert names == ["lagged:2 *", "off", "fixed:7"], "fewest GPUs first, the hopeless last"
    row = next(line for line in text.splitlines() if line.startswith("lagged:2 *"))
    assert row.split()[2:] == ["5", "4", "~", "6", "5", "57.3", "speed", "97%", "12.50", "0.059", "yes"]
    assert "fixed:7 misses the SLA however many GPUs it gets (speed)." in text
    assert "one more engine adds 67.8" in " ".join(text.split())
    assert "calibration: none: raw confidences, all 400 requests replayed" in text
    assert max(map(len, text.splitlines())) <= 112


def test_a_plan_nobody_can_keep_shows_no_empty_table(tmp_path: Path) -> None:
    document = plan()
    document |= {"policies": document["policies"][1:2], "recommended": None, "marginal": None}
    assert "In that fleet" not in plans.plan_text(document)
    assert len(page.write_plan(document, tmp_path)) == 3
    assert "In that fleet" not in (tmp_path / "report.html").read_text()


def test_the_plan_page_is_whole_and_fetches_nothing(tmp_path: Path) -> None:
    page.write_plan(plan(), tmp_path, "specsched plan --rate 300")
    whole_and_alone((tmp_path / "report.html").read_text())
    assert json.loads((tmp_path / "plan.json").read_text()) == plan()
    assert plots.plan_png(plan()) == (tmp_path / "plan.png").read_bytes()


def test_the_page_of_a_fit_is_whole() -> None:
    run = {"source": "f", "policy": "off", "text": None, "error": 0.01, "left_out_error": 0.02}
    runs = [
        {**run, "users": users, "what": what, "measured": 90.0, "fitted": 91.0}
        for users in (1, 8)
        for what in ("user", "total", "length")
    ]
    predicted = {"policy": "lagged:2", "users": 8, "user": 120.0, "user_interval": [110.0, 130.0]}
    predicted |= {"total": 960.0, "total_interval": [900.0, 1000.0], "verified": 3.0}
    unknown = {"label": "host <b>", "value": 1.0, "unit": "ms", "interval": [0.5, 2.0], "determined": "yes"}
    errors = {"median": 0.01, "p90": 0.02, "left_out_median": 0.02, "left_out_p90": 0.03, "noise_factor": 1.0}
    document = {"headline": "It fits.", "unknowns": [unknown], "runs": runs, "errors": errors}
    document |= {"predictions": [predicted], "assumed": ["that"], "warnings": ["this"]}
    text = page.fit_page(document)
    whole_and_alone(text)
    assert "host &lt;b&gt;" in text
