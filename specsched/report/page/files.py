"""Files as pages: a step profile, a trace, a calibration, and what a drafter was measured to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .. import calibration as calibrations
from .. import drafter as drafters
from .. import inspection as inspections
from . import figures
from .background import confidence_section, profile_section
from .frame import doubts, glossary, page, reproduce
from .html import Section, chart, listed, pairs, paragraph, table

if TYPE_CHECKING:
    from ...calibration import Calibration
    from ...profile import StepProfile
    from ...trace import Trace

Row = Mapping[str, Any]


def profile_page(profile: StepProfile, found: Row, made_with: Row | None = None, command: str = "") -> str:
    """A step profile; `found` is what `inspection.inspect_profile` says of it."""
    charts: dict[str, Any] = {}
    sections = [
        Section("What it is", pairs(inspections.profile_facts(found))),
        profile_section(profile, charts),
        *_drafting(found, charts),
        *_findings(found),
        *reproduce({"made_with": made_with}, command),
        glossary(("step profile", "captured size", "knee", "cliff", "draft, block", "verification")),
    ]
    return page(
        inspections.profile_headline(found), "What does one step cost?", "", sections, {"charts": charts},
        ("page.js",),
    )  # fmt: skip


def _drafting(found: Row, charts: dict[str, Any]) -> list[Section]:
    shares = found["draft_share"]
    if not shares:
        return []
    drawn = figures.line(
        "drafting", [row["requests"] for row in shares], [row["share"] for row in shares], figures.BLUE,
        points=True, hovertemplate="%{x:,} requests<br>%{y:.1%}<extra></extra>",
    )  # fmt: skip
    layout = {
        "xaxis": figures.axis("requests in the step", type="log", dtick=0.30103, tickformat=",d"),
        "yaxis": figures.axis("drafting's share of a step", rangemode="tozero", tickformat=".0%"),
    }
    charts["drafting"] = {"data": [drawn], "layout": layout}
    says = "Share of a step spent drafting: whole blocks, 1,024 tokens of context for each request."
    return [Section("Drafting", chart("drafting", says))]


def _findings(found: Row) -> list[Section]:
    lint = list(found.get("lint") or [])
    return [*doubts(found), *([Section("Findings", listed(lint))] if lint else [])]


def trace_page(trace: Trace, found: Row, made_with: Row | None = None, command: str = "") -> str:
    """A trace; `found` is what `inspection.inspect_trace` says of it."""
    charts: dict[str, Any] = {}
    sections = [
        Section("What it is", pairs(inspections.trace_facts(found))),
        confidence_section(trace, None, charts),
        Section("By position", table(*inspections.trace_rows(found))),
        *_findings(found),
        *reproduce({"made_with": made_with}, command),
        glossary(("draft, block", "accepted", "emitted per step", "confidence", "calibration")),
    ]
    asked = "What does the drafter propose, and what does its target accept?"
    return page(inspections.trace_headline(found), asked, "", sections, {"charts": charts}, ("page.js",))


def calibration_page(
    trace: Trace,
    calibration: Calibration,
    warnings: list[str],
    made_with: Row | None = None,
    command: str = "",
) -> str:
    """A calibration and the trace that it was fitted on."""
    charts: dict[str, Any] = {}
    report = calibration.report.get("held_out") or calibration.report.get("fit")
    by_position = table(*calibrations.position_rows(calibration, report)) + paragraph(
        calibrations.EXPLAINED, "small"
    )
    sections = [
        Section("By position", by_position),
        confidence_section(trace, calibration, charts),
        *doubts({"warnings": warnings}),
        *reproduce({"made_with": made_with}, command),
        glossary(("confidence", "calibration", "accepted", "draft, block")),
    ]
    said, asked = calibrations.headline(calibration, report), "How honest are the confidences?"
    return page(said, asked, trace.name, sections, {"charts": charts}, ("page.js",))


def drafter_page(
    found: Row, target: str, drafter: str, made_with: Row | None = None, command: str = ""
) -> str:
    """What `drafter eval` measured."""
    shares: list[float] = []
    for rate in found["conditional_acceptance"]:
        shares.append((shares[-1] if shares else 1.0) * (rate or 0.0))
    charts = {"acceptance": figures.acceptance_figure({drafter: shares})}
    body = chart("acceptance", "Share of the blocks accepted up to each position.")
    sections = [
        Section("By position", table(*drafters.position_rows(found)) + body),
        *reproduce({"made_with": made_with}, command),
        glossary(("draft, block", "accepted", "emitted per step", "confidence", "calibration")),
    ]
    said, asked = drafters.headline(found, target, drafter), "How much of its drafts is accepted?"
    return page(said, asked, "", sections, {"charts": charts}, ("page.js",))
