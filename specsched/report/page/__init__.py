"""Self-contained HTML pages, and the files of `--out`: a page, the JSON, the plots.

html        markup, everything escaped
frame       the page around its sections; its scripts and data lie inside, nothing is fetched
answer, plan, runs, sweep, fit, explain, advice, files    a page each of a document, or of a file
background  profile, confidences and memory behind an answer
figures     charts as plain figures, drawn by report/assets/page.js
words       the glossary;  worth: warnings in order
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...files.output import atomic_write, write_bytes, write_json
from ..plots import hours_png, load_png, pareto_png, plan_png
from .advice import advice_page
from .answer import answer_page
from .background import Background
from .explain import explain_page
from .files import calibration_page, drafter_page, profile_page, trace_page
from .fit import fit_page
from .plan import plan_page
from .runs import runs_page
from .sweep import sweep_page

__all__ = [
    "Background",
    "advice_page",
    "answer_page",
    "calibration_page",
    "drafter_page",
    "explain_page",
    "fit_page",
    "plan_page",
    "profile_page",
    "runs_page",
    "sweep_page",
    "trace_page",
    "write_answer",
    "write_page",
    "write_plan",
    "write_runs",
]
Row = Mapping[str, Any]
PAGE = "report.html"  # in every folder of `--out`


def write_page(folder: Path, content: str) -> Path:
    """Write a page to a folder; returns its path."""
    path = folder / PAGE
    with atomic_write(path) as stream:
        stream.write(content)
    return path


def _write(folder: Path, content: dict[str, bytes]) -> list[Path]:
    for name, picture in content.items():
        write_bytes(folder / name, picture)
    return [folder / name for name in content]


def write_answer(
    answer: Row, folder: Path, command: str = "", background: Background | None = None
) -> list[Path]:
    """Write `report.html`, `answer.json`, `pareto.png` and `load.png` to a folder; returns their paths."""
    page = answer_page(answer, command, background)
    pictures = {"pareto.png": pareto_png(answer), "load.png": load_png(answer)}
    write_json(folder / "answer.json", answer)
    return [write_page(folder, page), folder / "answer.json", *_write(folder, pictures)]


def write_runs(
    document: Row, folder: Path, command: str = "", background: Background | None = None
) -> list[Path]:
    """Write `report.html` and `runs.json` to a folder; returns their paths."""
    page = runs_page(document, command, background)
    write_json(folder / "runs.json", {**document, "command": command})
    return [write_page(folder, page), folder / "runs.json"]


def write_plan(
    document: Row, folder: Path, command: str = "", background: Background | None = None
) -> list[Path]:
    """Write `report.html`, `plan.json`, `plan.png` and, of recorded hours, `hours.png`; returns the paths."""
    page = plan_page(document, command, background)
    pictures = {"plan.png": plan_png(document)}
    if document.get("hours"):
        pictures["hours.png"] = hours_png(document["hours"])
    write_json(folder / "plan.json", document)
    return [write_page(folder, page), folder / "plan.json", *_write(folder, pictures)]
