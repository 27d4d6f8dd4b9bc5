"""A calibration as text: what was fitted, and how honest the confidences are before and after."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .text import decimal, grid, paragraph

if TYPE_CHECKING:
    from ..calibration import Calibration

EXPLAINED = (
    "ECE is that of the survival (the running product) against 'accepted this far', 20 bins; the "
    "floor is what "
    "perfect calibration would show with this many anchors: a difference below it means nothing."
)


def calibration_text(calibration: Calibration, warnings: list[str]) -> str:
    """Headline, a row a position, warnings."""
    report = calibration.report.get("held_out") or calibration.report.get("fit")
    lines = [paragraph(headline(calibration, report)), grid(*position_rows(calibration, report))]
    if report:
        lines.append(paragraph(EXPLAINED))
    lines += [paragraph(warning, "warning: ") for warning in warnings]
    return "\n\n".join(lines)


def headline(calibration: Calibration, report: dict[str, Any] | None) -> str:
    """What calibration did to the largest error, in a sentence."""
    about = calibration.about.get("trace") or "a trace"
    if not report:
        return f"A {calibration.method} calibration of {calibration.block_size} positions, without a report."
    before = max(row["ece_before"] for row in report["positions"])
    after = max(row["ece_after"] for row in report["positions"])
    where = (
        "requests held out of the fit"
        if calibration.report.get("held_out")
        else "the requests it was fitted on"
    )
    return (
        f"On {report['requests']:,} {where} of {about} ({report['rows']:,} anchors) the largest calibration "
        f"error of a position goes from {100 * before:.1f}% to {100 * after:.1f}% ({calibration.method})."
    )


def position_rows(
    calibration: Calibration, report: dict[str, Any] | None
) -> tuple[list[str], list[list[str]]]:
    """Header and cells, a row a position."""
    shifted = bool(calibration.shifts.any())
    header = ["position", "temperature", *(["shift"] if shifted else [])]
    header += [
        "accepted\nthis far",
        "ECE %\nbefore",
        "\nafter",
        "\nfloor",
        "AUC\nbefore",
        "\nafter",
        "Brier\nbefore",
        "\nafter",
    ]
    rows = []
    for k, temperature in enumerate(calibration.temperatures):
        row = report["positions"][k] if report else {}
        cells = [str(k + 1), decimal(float(temperature), 3)]
        cells += [decimal(float(calibration.shifts[k]), 3)] if shifted else []
        cells += [_percent(row.get("accepted_share"))]
        cells += [_percent(row.get(key)) for key in ("ece_before", "ece_after", "noise_floor")]
        cells += [
            decimal(row.get(key), 3) for key in ("auc_before", "auc_after", "brier_before", "brier_after")
        ]
        rows.append(cells)
    return header, rows


def _percent(value: float | None) -> str:
    return decimal(None if value is None else 100 * value, 1)
