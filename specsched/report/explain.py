"""Where the rest goes, as text: the parts between a policy and hindsight, and what confidences cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .tables import tail
from .text import count, decimal, grid, interval, paragraph, share


def explain_text(document: Mapping[str, Any]) -> str:
    """The document `specsched/explain/1` as text."""
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
    parts = grid(header, [first, *rows])
    confidences = grid(
        ["confidences", "tokens/s", "interval", "loss", "calibration\nerror"],
        [
            [
                row["confidences"],
                count(row["throughput"]),
                interval(row["interval"]),
                f"{row['loss']:+.1%}",
                decimal(100 * row["error"], 1) + " %",
            ]
            for row in document["confidences"]
        ],
    )
    return "\n\n".join([paragraph(_headline(document)), parts, confidences, "\n".join(tail(document))])


def _headline(document: Mapping[str, Any]) -> str:
    users, policy = count(document["concurrency"]), document["policy"]
    most = max(document["parts"], key=lambda part: part["tokens_per_second"])
    said = (
        f"With {users} users {policy} makes {count(document['throughput'])} tokens/s of the "
        f"{count(document['reference'])} of the hindsight reference"
    )
    if not document["gap"] > 0:
        return said + ": nothing lies between them."
    return said + f"; most of the rest is {most['cause']} ({count(most['tokens_per_second'])} tokens/s)."
