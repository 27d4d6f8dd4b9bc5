"""What lies between a policy and the hindsight reference, as a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import explain as texts
from .frame import doubts, glossary, page, reproduce
from .html import Section, table

Row = Mapping[str, Any]
WORDS = ("user", "throughput", "confidence", "calibration", "interval", "step profile")


def explain_page(document: Row, made_with: Row | None = None, command: str = "") -> str:
    """The document `specsched/explain/1` as one HTML page."""
    sections = [
        Section("One cause after the other gone", table(*texts.part_rows(document))),
        Section("The same policy with other confidences", table(*texts.confidence_rows(document))),
        *doubts(document),
        *reproduce({"made_with": made_with}, command),
        glossary(WORDS),
    ]
    asked = f"What keeps {document['policy']} from the hindsight reference?"
    return page(texts.headline(document), asked, "", sections, {"charts": {}}, ("page.js",))
