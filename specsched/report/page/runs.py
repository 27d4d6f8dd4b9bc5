"""Runs at given loads or over arrivals as a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import runs as texts
from . import figures
from .answer import policy_rows, waited_sections
from .background import Background, sections_of
from .frame import doubts, glossary, origins, page
from .html import Section, chart, paragraph, table

Row = Mapping[str, Any]
WORDS = (
    "user",
    "speed of a user",
    "p05, p50, p95",
    "interval",
    "throughput",
    "TTFT",
    "TPOT",
    "ITL",
    "end-to-end",
    "goodput",
    "ISL, OSL",
    "draft, block",
    "emitted per step",
    "verification",
    "lossless",
)


def runs_page(document: Row, command: str = "", background: Background | None = None) -> str:
    """The document `specsched/runs/1` as one HTML page."""
    closed = document["arrivals"] == "closed"
    charts: dict[str, Any] = {"throughput": _figure(document, closed)}
    distinct = list({row["policy"]: row for row in document["runs"]}.values())
    arrivals = "".join(paragraph(line) for line in texts.arrivals_line(document))
    shown = (
        chart("throughput", "Throughput against the speed of a user (p05): a line a policy, a dot a load.")
        if closed
        else chart("throughput", "The speed of users under these arrivals: from p05 over the median to p95.")
    )
    sections = [
        Section("Speeds", arrivals + table(*texts.speed_rows(document)) + shown),
        *waited_sections(document, texts.named(document)),
        Section("What a step does", table(*texts.step_rows(document["runs"]))),
        Section("The policies", table(*policy_rows(distinct), words=True)),
        *sections_of(background, document, charts),
        *doubts(document),
        *origins(document, command),
        glossary(WORDS),
    ]
    load = "with the users given" if closed else f"under arrivals {document['arrivals']}"
    asked = f"What does one engine do {load}, policy by policy?"
    subtitle = f"{document['trace']} on {document['profile']}"
    return page(texts.headline(document), asked, subtitle, sections, {"charts": charts}, ("page.js",))


def _figure(document: Row, closed: bool) -> dict[str, Any]:
    names = list(dict.fromkeys(row["policy"] for row in document["runs"]))
    looks = dict(zip(names, figures.policy_looks(names), strict=True))
    data = []
    for name in names:
        rows = [row for row in document["runs"] if row["policy"] == name and row["tps_user"]]
        data.append(_load_line(name, rows, looks[name]) if closed else _spread(name, rows, looks[name]))
    speed = figures.axis("tokens/s of a user" + (" (p05)" if closed else ""), rangemode="tozero")
    if not closed:
        return {"data": data, "layout": {"xaxis": speed, "yaxis": figures.axis("", type="category")}}
    throughput = figures.axis("output tokens/s of one engine", rangemode="tozero")
    return {"data": data, "layout": {"xaxis": speed, "yaxis": throughput}}


def _load_line(name: str, rows: list[Row], look: Row) -> dict[str, Any]:
    drawn = figures.line(
        name, [row["tps_user"]["p05"] for row in rows], [row["throughput"] for row in rows], look["colour"],
        points=True, customdata=[row["concurrency"] for row in rows],
        hovertemplate=f"<b>{look['label']}</b><br>%{{customdata}} users<br>%{{x:.1f}} tokens/s per user"
        "<br>%{y:,.0f} tokens/s in all<extra></extra>",
    )  # fmt: skip
    drawn["marker"] |= {"symbol": look["symbol"]}
    return drawn


def _spread(name: str, rows: list[Row], look: Row) -> dict[str, Any]:
    """The median with bars to p05 and p95."""
    speeds = [row["tps_user"] for row in rows]
    drawn = figures.line(
        name, [s["p50"] for s in speeds], [], look["colour"], points=True, size=9,
        hovertemplate=f"<b>{look['label']}</b><br>median %{{x:.1f}} tokens/s<extra></extra>",
    )  # fmt: skip
    drawn |= {"y": [look["label"]] * len(speeds), "mode": "markers", "showlegend": False}
    drawn["error_x"] = {
        **{"type": "data", "symmetric": False, "color": look["colour"], "thickness": 2.4, "width": 7},
        "array": [s["p95"] - s["p50"] for s in speeds],
        "arrayminus": [s["p50"] - s["p05"] for s in speeds],
    }
    return drawn
