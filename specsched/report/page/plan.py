"""The answer of `plan` as a page: GPUs, cost, the fleet by size and by hour, what more would buy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...documents.promise import with_limits
from .. import plan as plans
from ..text import share
from . import figures
from .answer import policy_rows, waited_sections
from .background import Background, sections_of
from .frame import doubts, glossary, origins, page
from .html import Section, chart, listed, paragraph, table

Row = Mapping[str, Any]
WORDS = (
    "user",
    "speed of a user",
    "SLA",
    "p05, p50, p95",
    "interval",
    "throughput",
    "TTFT",
    "TPOT",
    "ITL",
    "end-to-end",
    "goodput",
    "draft, block",
    "emitted per step",
    "verification",
    "captured size",
    "lossless",
)


def plan_page(document: Row, command: str = "", background: Background | None = None) -> str:
    """The document `specsched/plan/1` as one HTML page."""
    charts: dict[str, Any] = {"fleet": fleet_figure(document)}
    header, speeds = plans.speed_rows(document)
    marginal = plans.marginal_lines(document)
    sections = [
        Section("GPUs", _gpus(document)),
        *([Section("In that fleet", table(header, speeds))] if speeds else []),
        *waited_sections(document, plans.held_rows(document)),
        *_by_hour(document, charts),
        *([Section("What would change the answer", listed(marginal))] if marginal else []),
        Section("The policies", table(*policy_rows(document["policies"]), words=True)),
        *sections_of(background, document, charts),
        *doubts(document),
        *origins(document, command),
        glossary(WORDS),
    ]
    subtitle = f"{document['trace']} on {document['profile']}; {document['rate']:.4g} requests/s"
    asked = (
        f"How many GPUs carry {document['rate']:.4g} requests/s with "
        f"{share(document['sla_fraction'])} of them "
        f"at {document['sla_tps']:g} tokens/s or faster{with_limits(document.get('limits'))}, and under "
        "which policy?"
    )
    return page(document["headline"], asked, subtitle, sections, {"charts": charts}, ("page.js",))


def _gpus(document: Row) -> str:
    cost = document.get("gpu_cost_per_hour")
    notes = plans.notes(document)
    if cost is not None:
        currency = document.get("currency") or "the currency of --gpu-cost"
        notes.append(f"cost: at {cost:g} {currency} a GPU hour, assumed as given.")
    return (
        paragraph(plans.traffic_line(document))
        + table(*plans.fleet_rows(document))
        + "".join(paragraph(note, "small") for note in notes)
        + chart("fleet", "Share of the requests that get what was promised, by the GPUs of the fleet.")
    )


def fleet_figure(document: Row) -> dict[str, Any]:
    """Share of the requests at the promise against GPUs, a line for each policy, with its interval."""
    names = [row["policy"] for row in document["policies"]]
    looks = dict(zip(names, figures.policy_looks(names), strict=True))
    data = []
    for row in plans.by_gpus(document):
        look, curve = looks[row["policy"]], sorted(row["curve"], key=lambda point: point["gpus"])
        shares = [point["share_at_sla"] for point in curve]
        bounds = [point["share_interval"] for point in curve]
        leads = row["policy"] == document.get("recommended")
        drawn = figures.line(
            row["policy"], [point["gpus"] for point in curve], shares, look["colour"], points=True,
            width=3.2 if leads else 1.8, dash="solid" if row["lossless"] else "dash",
            hovertemplate=f"<b>{look['label']}</b><br>%{{x}} GPUs<br>%{{y:.1%}} get what was "
            "promised<extra></extra>",
        )  # fmt: skip
        drawn["marker"] |= {"symbol": look["symbol"]}
        drawn["error_y"] = {
            **{"type": "data", "symmetric": False, "color": look["colour"], "thickness": 1.4, "width": 4},
            "array": [max(high - at, 0.0) for at, (_, high) in zip(shares, bounds, strict=True)],
            "arrayminus": [max(at - low, 0.0) for at, (low, _) in zip(shares, bounds, strict=True)],
        }
        data.append(drawn)
    wanted = document["sla_fraction"]
    mark = {
        **{"type": "line", "xref": "paper", "yref": "y", "x0": 0, "x1": 1, "y0": wanted, "y1": wanted},
        "line": {"color": "@ink", "width": 1.4, "dash": "dash"},
    }
    layout = {
        "xaxis": figures.axis("GPUs", type="log", dtick=0.30103, tickformat=",d"),
        "yaxis": figures.axis("share of requests that get it", range=[0, 1.05], tickformat=".0%"),
        "shapes": [mark],
    }
    return {"data": data, "layout": layout}


def _by_hour(document: Row, charts: dict[str, Any]) -> list[Section]:
    hours = document.get("hours")
    if not hours:
        return []
    at = [row["start"] or row["start_seconds"] / 3600.0 for row in hours["table"]]
    bars = {
        **{
            "type": "bar",
            "x": at,
            "y": [row["gpus"] for row in hours["table"]],
            "name": "following the traffic",
        },
        **{
            "marker": {"color": figures.BLUE},
            "customdata": [round(row["rate"], 3) for row in hours["table"]],
        },
        "hovertemplate": "%{x}<br>%{y} GPUs<br>%{customdata} requests/s<extra></extra>",
    }
    peak = {
        **{"type": "scatter", "mode": "lines", "name": "for the peak", "x": [at[0], at[-1]]},
        **{"y": [hours["gpus_peak"]] * 2, "line": {"color": "@ink", "dash": "dash", "width": 1.6}},
    }
    dated = any(row["start"] for row in hours["table"])
    layout = {
        "xaxis": figures.axis("" if dated else "hours from the first arrival"),
        "yaxis": figures.axis("GPUs", rangemode="tozero"),
    }
    charts["hours"] = {"data": [bars, peak], "layout": layout}
    body = paragraph(plans.hours_line(hours)) + chart(
        "hours", "GPUs that each hour needs, against the fleet of the peak."
    )
    return [Section("By the hour", body + table(*plans.hours_rows(hours)))]
