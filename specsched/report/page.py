"""One self-contained HTML page (plots inline, nothing fetched) and the files of `--out`."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..files.output import atomic_write, write_json
from . import plan, tables
from .plots import hours_png, load_png, pareto_png, plan_png
from .text import share

Row = Mapping[str, Any]

STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; color: #222;
       max-width: 62rem; margin: 2.5rem auto; padding: 0 1.25rem; }
h1 { font-size: 1.55rem; line-height: 1.3; margin: 0 0 .4rem; }
h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem; }
.inputs, figcaption, .small { color: #666; font-size: .9rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem; }
th, td { padding: .35rem .75rem; text-align: right; white-space: nowrap; }
th { vertical-align: bottom; font-weight: 600; border-bottom: 2px solid #222; white-space: pre-line; }
td { border-bottom: 1px solid #e4e4e4; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
tr.lead td { font-weight: 600; background: #eef6fb; }
.no { color: #a33c00; font-weight: 600; }
figure { margin: 1.2rem 0; }
img { max-width: 100%; height: auto; }
.warnings { border-left: 4px solid #E69F00; background: #fff8e8; padding: .6rem 1rem; margin: 1rem 0; }
.warnings ul { margin: .2rem 0; padding-left: 1.2rem; }
pre { background: #f5f5f5; padding: .7rem 1rem; overflow-x: auto; font-size: .88rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1.2rem; font-size: .92rem; }
dt { color: #666; } dd { margin: 0; overflow-wrap: anywhere; }
@media print { body { margin: 0; max-width: none; } .scroll { overflow: visible; } }
"""


def _escape(text: Any) -> str:
    return html.escape(str(text))


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{_escape(title)}</th>" for title in header)
    body = []
    for cells in rows:
        lead = ' class="lead"' if cells[0].endswith(" *") else ""
        shown = "".join(f'<td class="no">{c}</td>' if c == "NO" else f"<td>{_escape(c)}</td>" for c in cells)
        body.append(f"<tr{lead}>{shown}</tr>")
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
    return f'<div class="scroll">{table}</div>'


def _picture(png: bytes, caption: str) -> str:
    data = base64.b64encode(png).decode("ascii")
    return (
        f'<figure><img alt="{_escape(caption)}" src="data:image/png;base64,{data}">'
        f"<figcaption>{_escape(caption)}</figcaption></figure>"
    )


def _list(items: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{_escape(item)}</li>" for item in items) + "</ul>"


def _doubts(document: Row) -> str:
    warnings = list(dict.fromkeys(document.get("warnings") or []))
    parts = [f'<div class="warnings"><strong>Warnings</strong>{_list(warnings)}</div>'] if warnings else []
    missing = document.get("not_modelled")
    if missing:
        parts.append(f"<h2>Not modelled</h2>{_list([missing] if isinstance(missing, str) else missing)}")
    return "".join(parts)


def _origins(document: Row, command: str) -> str:
    pairs = [line.split(": ", 1) for line in tables.provenance_lines(document)]
    described = "".join(f"<dt>{_escape(key)}</dt><dd>{_escape(value)}</dd>" for key, value in pairs)
    again = f"<h2>Reproduce</h2><pre>{_escape(command)}</pre>" if command else ""
    return f"<h2>Inputs</h2><dl>{described}</dl>{again}"


def _page(title: str, subtitle: str, body: Iterable[str]) -> str:
    from ..version import VERSION

    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_escape(title)}</title><style>{STYLE}</style></head><body>"
        f'<h1>{_escape(title)}</h1><p class="inputs">{_escape(subtitle)}</p>'
        f'{"".join(body)}<p class="small">specsched {_escape(VERSION)}</p></body></html>\n'
    )


def answer_page(answer: Row, pareto: bytes, load: bytes, command: str = "") -> str:
    """The answer of `simulate --sla` as one HTML page; `pareto` and `load` are PNG bytes."""
    fraction = share(answer["sla_fraction"])
    target = f"{fraction} of requests at {answer['sla_tps']:g} tokens/s or faster"
    subtitle = f"{answer['trace']} on {answer['profile']}; {target}"
    crossings = tables.crossover_lines(answer)
    body = [
        _doubts({"warnings": answer.get("warnings")}),
        "<h2>Users one engine carries</h2>",
        _table(*tables.capacity_rows(answer)),
        *(f'<p class="small">{_escape(note)}</p>' for note in tables.notes(answer)),
        _picture(
            pareto,
            "Each line is one policy from light load (right) to heavy (left); a ring marks its capacity at "
            "the SLA. Dashed: not lossless.",
        ),
        "<h2>What a step does at that load</h2>",
        _table(*tables.step_rows(answer)),
        *([f"<h2>Crossovers</h2>{_list(crossings)}"] if crossings else []),
        _picture(load, "Throughput and tokens verified per request as users are added; bars: 95% intervals."),
        _doubts({"not_modelled": answer.get("not_modelled")}),
        _origins(answer, command),
    ]
    return _page(answer["headline"], subtitle, body)


def plan_page(document: Row, picture: bytes, command: str = "", by_hour: bytes | None = None) -> str:
    """The answer of `plan` as one HTML page; `picture` and `by_hour` are PNG bytes."""
    header, speeds = plan.speed_rows(document)
    marginal = plan.marginal_lines(document)
    body = [
        _doubts({"warnings": document.get("warnings")}),
        "<h2>GPUs</h2>",
        f"<p>{_escape(plan.traffic_line(document))}</p>",
        _table(*plan.fleet_rows(document)),
        *(f'<p class="small">{_escape(note)}</p>' for note in plan.notes(document)),
        *(["<h2>In that fleet</h2>", _table(header, speeds)] if speeds else []),
        *([_list(marginal)] if marginal else []),
        _picture(picture, "Share of the requests that get what was promised, by size of the fleet."),
        *(_by_hour(document["hours"], by_hour) if by_hour is not None else []),
        _doubts({"not_modelled": document.get("not_modelled")}),
        _origins(document, command),
    ]
    subtitle = f"{document['trace']} on {document['profile']}; {document['rate']:.4g} requests/s"
    return _page(document["headline"], subtitle, body)


def _by_hour(hours: Row, picture: bytes) -> list[str]:
    return [
        "<h2>By the hour</h2>",
        f"<p>{_escape(plan.hours_line(hours))}</p>",
        _table(*plan.hours_rows(hours)),
        _picture(picture, "GPUs that each hour needs, against the fleet of the peak."),
    ]


def _write_bytes(path: Path, content: bytes) -> Path:
    with atomic_write(path, "wb") as stream:
        stream.write(content)
    return path


def _write_text(path: Path, content: str) -> Path:
    with atomic_write(path) as stream:
        stream.write(content)
    return path


def write_answer(answer: Row, folder: Path, command: str = "") -> list[Path]:
    """Write `answer.json`, `pareto.png`, `load.png` and `report.html` to a folder; returns their paths."""
    pareto, load = pareto_png(answer), load_png(answer)
    page = answer_page(answer, pareto, load, command)
    write_json(folder / "answer.json", answer)
    return [
        folder / "answer.json",
        _write_bytes(folder / "pareto.png", pareto),
        _write_bytes(folder / "load.png", load),
        _write_text(folder / "report.html", page),
    ]


def write_runs(document: Row, folder: Path, command: str = "") -> list[Path]:
    """Write `runs.json` to a folder; returns its path."""
    write_json(folder / "runs.json", {**document, "command": command})
    return [folder / "runs.json"]


def write_plan(document: Row, folder: Path, command: str = "") -> list[Path]:
    """Write `plan.json`, `plan.png`, `plan.html` and, of recorded hours, `hours.png`; returns their paths."""
    picture = plan_png(document)
    by_hour = hours_png(document["hours"]) if document.get("hours") else None
    page = plan_page(document, picture, command, by_hour)
    write_json(folder / "plan.json", document)
    return [
        folder / "plan.json",
        _write_bytes(folder / "plan.png", picture),
        *([_write_bytes(folder / "hours.png", by_hour)] if by_hour is not None else []),
        _write_text(folder / "plan.html", page),
    ]
