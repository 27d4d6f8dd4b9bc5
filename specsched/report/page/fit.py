"""What `specsched fit` found, as a page: measured against fitted, each unknown, predictions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import fit as texts
from . import figures
from .frame import doubts, glossary, page, reproduce
from .html import Section, chart, listed, paragraph, table

Row = Mapping[str, Any]
WORDS = ("user", "speed of a user", "throughput", "TPOT", "emitted per step", "interval", "step profile")


def fit_page(found: dict[str, Any], made_with: Row | None = None, command: str = "") -> str:
    """The document `specsched/fit/1` as one HTML page."""
    charts = {what: _figure(found, what) for what in ("user", "total")}
    runs = table(*texts.run_rows(found["runs"])) + paragraph(texts.errors_line(found["errors"]), "small")
    shown = chart("user", "Speed of a user by load: dots measured, lines fitted, dashed lines predicted.")
    shown += chart("total", "Throughput by load, likewise.")
    predicted = table(*texts.prediction_rows(found["predictions"])) if found["predictions"] else ""
    judged = ""
    if found.get("judged"):
        judged = table(*texts.judged_rows(found["judged"]["runs"]))
        judged += paragraph(texts.judged_line(found["judged"]), "small")
    sections = [
        Section("Measured and fitted", shown + runs),
        *([Section("Judged by runs that the fit did not see", judged)] if judged else []),
        *([Section("Predicted", predicted)] if predicted else []),
        Section("Found", table(*texts.unknown_rows(found["unknowns"]))),
        *([Section("Assumed", listed(found["assumed"]))] if found["assumed"] else []),
        *doubts(found),
        *reproduce({"made_with": made_with}, command),
        glossary(WORDS),
    ]
    asked = "What do these benchmark runs say of the engine and the drafter?"
    return page(found["headline"], asked, "", sections, {"charts": charts}, ("page.js",))


def _figure(found: Row, what: str) -> dict[str, Any]:
    data: list[dict[str, Any]] = []
    arms = list(dict.fromkeys((row["policy"], row["text"]) for row in found["runs"]))
    predicted = list(dict.fromkeys(row["policy"] for row in found["predictions"]))
    for i, (policy, text) in enumerate(arms):
        rows = [r for r in found["runs"] if (r["policy"], r["text"], r["what"]) == (policy, text, what)]
        rows.sort(key=lambda row: int(row["users"]))
        name, colour = policy + (f", {text}" if text else ""), texts.COLOURS[i % len(texts.COLOURS)]
        users = [row["users"] for row in rows]
        hover = "%{x:,} users<br>%{y:,.1f} tokens/s"
        fitted = figures.line(
            f"{name}, fitted", users, [r["fitted"] for r in rows], colour, hovertemplate=hover
        )
        dots = figures.line(
            f"{name}, measured", users, [r["measured"] for r in rows], colour, hovertemplate=hover
        )
        data += [fitted, {**dots, "mode": "markers"}]
    for i, policy in enumerate(predicted):
        rows = [row for row in found["predictions"] if row["policy"] == policy]
        colour = texts.COLOURS[(len(arms) + i) % len(texts.COLOURS)]
        said = figures.line(
            f"{policy}, predicted", [r["users"] for r in rows], [r[what] for r in rows], colour, dash="dash"
        )
        bounds = [row[f"{what}_interval"] for row in rows]
        said["error_y"] = {
            **{"type": "data", "symmetric": False, "color": colour, "thickness": 1.4, "width": 4},
            "array": [high - row[what] for row, (_, high) in zip(rows, bounds, strict=True)],
            "arrayminus": [row[what] - low for row, (low, _) in zip(rows, bounds, strict=True)],
        }
        data.append(said)
    layout = {
        "xaxis": figures.axis("users", type="log", dtick=0.30103, tickformat=",d"),
        "yaxis": figures.axis("output tokens/s" + (" of a user" if what == "user" else ""), type="log"),
    }
    return {"data": data, "layout": layout}
