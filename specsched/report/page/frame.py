"""The page around its sections: one file, nothing fetched, its scripts and data inside."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Any

from .. import tables
from .html import Section, escape, listed, pairs, table
from .worth import by_worth

Row = Mapping[str, Any]
# Nothing may be fetched, whatever a script of the page would like.
POLICY = (
    "default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'"
)
PLOTLY = "plotly-cartesian.min.js"


def asset(name: str) -> str:
    """The text of a file of report/assets."""
    return (resources.files("specsched.report") / "assets" / name).read_text(encoding="utf-8")


def page(
    title: str,
    question: str,
    subtitle: str,
    sections: Sequence[Section],
    data: Row,
    scripts: Sequence[str] = (),
) -> str:
    """The whole page. `title` is the answer in a sentence; `data` holds "charts" and what `scripts` need."""
    from ...version import VERSION

    contents = "".join(f'<li><a href="#{s.anchor}">{escape(s.title)}</a></li>' for s in sections)
    parts = "".join(
        f'<section id="{s.anchor}"><h2>{escape(s.title)}</h2>{s.body}</section>' for s in sections
    )
    code = "".join(f"<script>{asset(name)}</script>" for name in [PLOTLY, *scripts])
    return (
        '<!DOCTYPE html>\n<html lang="en" data-theme="light"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">'
        f"<title>{escape(title)}</title><style>{asset('page.css')}</style></head><body>"
        f'<header><p class="question">{escape(question)}</p>'
        '<button id="theme" type="button" class="no-print" hidden>light / dark</button></header>'
        f'<main><h1>{escape(title)}</h1><p class="inputs">{escape(subtitle)}</p>'
        f'<nav aria-label="contents"><ul>{contents}</ul></nav>'
        "<noscript><p>The charts need JavaScript; every figure of theirs is in the JSON file "
        "beside this page."
        f"</p></noscript>{parts}</main>"
        f'<script type="application/json" id="specsched-data">{embedded(data)}</script>{code}'
        f'<p class="small">specsched {escape(VERSION)}</p></body></html>\n'
    )


def embedded(data: Any) -> str:
    """JSON that no text in it can end: `<` and `&` are escaped; NaN and infinity are null."""
    text = json.dumps(_finite(data), allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(inside) for key, inside in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inside) for inside in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def doubts(document: Row) -> list[Section]:
    """Warnings, the weightiest first, and what is not modelled."""
    warnings = by_worth(document.get("warnings") or [])
    missing = document.get("not_modelled") or []
    missing = [missing] if isinstance(missing, str) else list(missing)
    body = f'<div class="warnings">{listed(warnings, ordered=True)}</div>' if warnings else ""
    if missing:
        body += f"<h3>Not modelled</h3>{listed(missing)}"
    return [Section("Assumptions and warnings", body)] if body else []


def origins(document: Row, command: str) -> list[Section]:
    """Where the inputs come from, and how to make the page again."""
    lines = [line.split(": ", 1) for line in tables.provenance_lines(document)]
    body = pairs((key, value) for key, value in lines)
    return [Section("Inputs", body), *reproduce(document, command)]


def reproduce(document: Row, command: str) -> list[Section]:
    """The command, the versions and the hashes of the inputs."""
    made = document.get("made_with") or {}
    body = f"<pre>{escape(command)}</pre>" if command else ""
    if made:
        body += pairs((name, str(value)) for name, value in made["versions"].items())
    if made.get("inputs"):
        rows = [[row["input"], row["name"], f"{row['bytes']:,}", row["sha256"]] for row in made["inputs"]]
        body += table(["input", "file", "bytes", "SHA-256"], rows, words=True)
    return [Section("Reproduce", body)] if body else []


def glossary(words: Iterable[str]) -> Section:
    """What the words of a page mean."""
    from .words import WORDS

    return Section("Words", pairs((word, WORDS[word]) for word in words))
