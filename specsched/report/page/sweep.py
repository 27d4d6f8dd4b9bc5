"""A sweep as a page: its table, and heat maps over the two axes with most values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import sweep as texts
from ..text import count
from . import figures
from .frame import doubts, glossary, page, reproduce
from .html import Section, chart, listed, paragraph, table

Row = Mapping[str, Any]
WORDS = ("user", "speed of a user", "p05, p50, p95", "throughput", "TPOT", "emitted per step", "lossless")
MEASURES = {
    "throughput": "Throughput, output tokens/s",
    "tps_user_p05": "Speed of a user, p05, tokens/s",
    "share_at_sla": "Share of requests at the SLA",
}


def sweep_page(summary: Row, command: str = "") -> str:
    """The summary `specsched/sweep/1` as one HTML page."""
    charts: dict[str, Any] = {}
    rows = summary.get("table") or []
    maps = "".join(_heat_map(rows, name, said, charts) for name, said in MEASURES.items())
    axes = [[name, ", ".join(map(str, values))] for name, values in summary["axes"].items()]
    sections = [
        Section("The grid", table(["axis", "values"], axes, words=True)),
        *([Section("Maps", maps)] if maps else []),
        *([Section("Every setting", table(*texts.table_rows(rows)))] if rows else []),
        *_failures(summary),
        *doubts(summary),
        *reproduce(summary, command),
        glossary(WORDS),
    ]
    asked = "What does every point of the grid do?"
    return page(
        texts.headline(summary), asked, summary["results"], sections, {"charts": charts}, ("page.js",)
    )


def _failures(summary: Row) -> list[Section]:
    if not summary["failed"]:
        return []
    said = paragraph(f"{count(summary['failed'])} points failed; --retry-failed repeats them.")
    return [Section("Failures", said + listed(texts.failure(row) for row in summary["failures"]))]


def _heat_map(rows: list[Row], measure: str, said: str, charts: dict[str, Any]) -> str:
    """One map for each setting of the axes that are not drawn; nothing where fewer than two vary."""
    held = [row for row in rows if row.get(measure) is not None]
    names = [name for name in (held[0] if held else {}) if name not in (*texts.HEADS, "points", "done")]
    values = {name: list(dict.fromkeys(str(row[name]) for row in held)) for name in names}
    varying = sorted((name for name in names if len(values[name]) > 1), key=lambda name: -len(values[name]))
    if len(varying) < 2:
        return ""
    across, down = ("load", next(n for n in varying if n != "load")) if "load" in varying else varying[:2]
    rest = [name for name in varying if name not in (across, down)]
    groups: dict[str, list[Row]] = {}
    for row in held:
        groups.setdefault(", ".join(f"{name} {row[name]}" for name in rest), []).append(row)
    shown = ""
    for number, (setting, group) in enumerate(groups.items()):
        key = f"{measure}-{number}"
        charts[key] = _figure(group, measure, across, down, values)
        shown += chart(key, f"{said}{': ' if setting else ''}{setting}, by {down} and {across}.")
    return shown


def _figure(
    rows: list[Row], measure: str, across: str, down: str, values: Mapping[str, list[str]]
) -> dict[str, Any]:
    cell = {(str(row[down]), str(row[across])): float(row[measure]) for row in rows}
    z = [[cell.get((y, x)) for x in values[across]] for y in values[down]]
    form = ".0%" if measure == "share_at_sla" else ",.0f"
    drawn = {
        **{"type": "heatmap", "x": [figures.label(x, 24) for x in values[across]], "z": z},
        **{"y": [figures.label(y, 24) for y in values[down]], "colorscale": "Cividis", "xgap": 2, "ygap": 2},
        "texttemplate": f"%{{z:{form}}}",
        "colorbar": {"thickness": 12, "tickformat": form, "tickfont": {"color": "@ink"}},
        "hovertemplate": f"{figures.label(across)} %{{x}}<br>{figures.label(down)} %{{y}}<br>%{{z:{form}}}"
        "<extra></extra>",
    }
    layout = {
        "xaxis": figures.axis("users or arrivals" if across == "load" else across, type="category"),
        "yaxis": figures.axis("", type="category", autorange="reversed"),
    }
    return {"data": [drawn], "layout": layout}
