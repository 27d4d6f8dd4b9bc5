"""Where the rest goes, as text: the parts between a policy and hindsight, and what confidences cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .tables import tail
from .text import count, decimal, grid, interval, paragraph, share


def explain_text(document: Mapping[str, Any]) -> str:
    """The document `specsched/explain/1` as text."""
    parts, confidences = grid(*part_rows(document)), grid(*confidence_rows(document))
    return "\n\n".join([paragraph(headline(document)), parts, confidences, "\n".join(tail(document))])


def part_rows(document: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of what each cause takes, one after the other gone."""
    rows = [
        [
            f"{part['cause']}: {part['said']}",
            f"{part['tokens_per_second']:+,.0f}",
            share(part["share"]),
            count(part["throughput"]),
            interval(part["interval"]),
        ]
        for part in document["parts"]
    ]
    first = [document["policy"], "", "", count(document["throughput"]), interval(document["interval"])]
    header = ["one cause after the other gone", "tokens/s", "of the\ngap", "then\nin all", "interval"]
    return header, [first, *rows]


def confidence_rows(document: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the same policy with other confidences."""
    header = ["confidences", "tokens/s", "interval", "loss", "calibration\nerror"]
    return header, [
        [
            row["confidences"],
            count(row["throughput"]),
            interval(row["interval"]),
            f"{row['loss']:+.1%}",
            decimal(100 * row["error"], 1) + " %",
        ]
        for row in document["confidences"]
    ]


def headline(document: Mapping[str, Any]) -> str:
    """The answer in a sentence."""
    users, policy = count(document["concurrency"]), document["policy"]
    most = max(document["parts"], key=lambda part: part["tokens_per_second"])
    said = (
        f"With {users} users {policy} makes {count(document['throughput'])} tokens/s of the "
        f"{count(document['reference'])} of the hindsight reference"
    )
    if not document["gap"] > 0:
        return said + ": nothing lies between them."
    return said + f"; most of the rest is {most['cause']} ({count(most['tokens_per_second'])} tokens/s)."
