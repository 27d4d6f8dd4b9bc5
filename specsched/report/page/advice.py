"""Settings to type into an engine, as a page: a section an engine, its lines ready to copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import advice as texts
from .frame import doubts, glossary, page, reproduce
from .html import Section, escape, paragraph, table

Row = Mapping[str, Any]
WORDS = ("user", "throughput", "captured size", "interval", "step profile")


def advice_page(document: Row, made_with: Row | None = None, command: str = "") -> str:
    """The document `specsched/advice/1` as one HTML page."""
    said = [texts.schedule_line(document), texts.memory_line(document)]
    sections = [
        Section(
            "Policies at this traffic", table(*texts.candidate_rows(document)) + "".join(map(paragraph, said))
        ),
        *(_engine(engine) for engine in document["engines"]),
        *doubts(document),
        *reproduce({"made_with": made_with}, command),
        glossary(WORDS),
    ]
    traffic = document["traffic"]
    asked = {
        "sla": f"What to type for {traffic['value']:g} tokens/s to {traffic['share']:.0%} of requests?",
        "users": f"What to type for {traffic['value']:g} users?",
        "rate": f"What to type for {traffic['value']:g} requests/s?",
    }[traffic["kind"]]
    return page(document["headline"], asked, "", sections, {"charts": {}}, ("page.js",))


def _engine(engine: Row) -> Section:
    """One engine: its settings with their worth, and the lines."""
    notes = "".join(map(paragraph, texts.setting_notes(engine)))
    body = (
        table(*texts.setting_rows(engine)) + notes + f"<pre>{escape(texts.paste_text(engine['paste']))}</pre>"
    )
    return Section(f"{engine['title']}: {texts.policy_said(engine)}", body)
