"""What a drafter was measured to do, as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .text import decimal, grid, paragraph, share

Row = Mapping[str, Any]


def drafter_text(found: Row, target: str, drafter: str) -> str:
    """The answer of `specsched drafter eval`."""
    return f"{paragraph(headline(found, target, drafter))}\n\n{_positions(found)}"


def headline(found: Row, target: str, drafter: str) -> str:
    """Tokens a round, and over how much text, in a sentence."""
    tokens = sum(len(sample["output_ids"]) for sample in found["samples"])
    return (
        f"{drafter} on {target}: {decimal(found['tau'], 2)} tokens a round (bonus included), over "
        f"{len(found['samples']):,} samples and {tokens:,} tokens."
    )


def training_text(measured: Row, drafter: str) -> str:
    """The answer of `specsched drafter train`: the held-out side, by domain."""
    if not measured:
        return f"{drafter} is trained; no text was held out to measure it on."
    blocks = [f"{drafter} is trained; on text held out of the training:"]
    for domain, row in measured.items():
        blocks.append(
            f"{domain}: {row['tau']:.2f} tokens a round, {row['anchors']:,} anchors\n{_positions(row)}"
        )
    return "\n\n".join(blocks)


def _positions(row: Row) -> str:
    return grid(*position_rows(row))


def position_rows(row: Row) -> tuple[list[str], list[list[str]]]:
    """Header and cells, a row a position."""
    rates = row["conditional_acceptance"]
    header = ["position", "accepted if\nthe one before", "AUC", "ECE"]
    columns = [row.get(key) or [None] * len(rates) for key in ("auc", "ece")]
    return header, [
        [str(k + 1), share(rate), decimal(columns[0][k], 3), decimal(columns[1][k], 3)]
        for k, rate in enumerate(rates)
    ]
