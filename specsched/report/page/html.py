"""Pieces of a page: everything that comes from a file is escaped here."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple


class Section(NamedTuple):
    """One part of a page, listed in its contents; `title` is text, `body` markup."""

    title: str
    body: str

    @property
    def anchor(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")


def escape(text: Any) -> str:
    return html.escape(str(text))


def paragraph(text: str, kind: str = "") -> str:
    attribute = f' class="{kind}"' if kind else ""
    return f"<p{attribute}>{escape(text)}</p>"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], words: bool = False) -> str:
    """A table; a first cell that ends in ` *` marks the row that leads. `words`: of text, not of figures."""
    head = "".join(f'<th scope="col">{escape(title)}</th>' for title in header)
    body = []
    for cells in rows:
        lead = ' class="lead"' if cells[0].endswith(" *") else ""
        shown = "".join(f'<td class="no">{c}</td>' if c == "NO" else f"<td>{escape(c)}</td>" for c in cells)
        body.append(f"<tr{lead}>{shown}</tr>")
    kind = ' class="words"' if words else ""
    whole = f"<table{kind}><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
    return f'<div class="scroll" tabindex="0" role="region" aria-label="table">{whole}</div>'


def listed(items: Iterable[str], ordered: bool = False) -> str:
    tag = "ol" if ordered else "ul"
    return f"<{tag}>" + "".join(f"<li>{escape(item)}</li>" for item in items) + f"</{tag}>"


def pairs(rows: Iterable[tuple[str, str]]) -> str:
    """A list of names and values."""
    return "<dl>" + "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in rows) + "</dl>"


def chart(name: str, says: str, tall: bool = False) -> str:
    """A chart of the page's data by its name, and what it shows."""
    kind = "plot tall" if tall else "plot"
    return (
        f'<figure><div class="{kind}" data-chart="{escape(name)}" role="img" '
        f'aria-label="{escape(says)}"></div>'
        f"<figcaption>{escape(says)}</figcaption></figure>"
    )
