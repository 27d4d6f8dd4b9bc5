"""What stands behind an answer, from its inputs: the step profile, the confidences, the memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...profile.lint import cliffs, knee
from ..text import count, decimal, share
from . import figures
from .html import Section, chart, pairs, paragraph, table

if TYPE_CHECKING:
    from ...calibration import Calibration
    from ...profile import StepProfile
    from ...trace import Trace

Row = Mapping[str, Any]
GIB = 1 << 30
_MOST_CLIFFS = 12


@dataclass(frozen=True)
class Background:
    """The inputs of an answer. calibration: the one that was used, None for raw confidences."""

    trace: Trace
    profile: StepProfile
    calibration: Calibration | None = None


def sections_of(background: Background | None, document: Row, charts: dict[str, Any]) -> list[Section]:
    """Sections on the profile, the confidences and the memory; their charts are put into `charts`."""
    if background is None:
        return []
    return [
        profile_section(background.profile, charts),
        confidence_section(background.trace, background.calibration, charts),
        *memory_section(background, document),
    ]


def profile_section(profile: StepProfile, charts: dict[str, Any]) -> Section:
    """The cost of a pass, its knee and its cliffs."""
    flat = knee(profile)
    jumps: list[dict[str, Any]] = [
        {"before": c.before, "after": c.after, "ratio": c.ratio, "kind": c.kind} for c in cliffs(profile)
    ]
    charts["profile"] = figures.profile_figure(profile, flat, jumps)
    method = profile.provenance.get("method", "of unknown origin")
    said = f"{profile.name} ({method}): " + (
        f"nearly flat to about {count(flat)} tokens, the knee" if flat else "without a knee in its range"
    )
    said += f"; {len(jumps)} cliffs." if jumps else "; no cliffs."
    body = paragraph(said) + chart(
        "profile", "What a pass costs by the tokens in it: without context, host time and drafting."
    )
    if jumps:
        rows = [
            [count(c["before"]), count(c["after"]), f"x {c['ratio']:.2f}", str(c["kind"])]
            for c in sorted(jumps, key=lambda c: -c["ratio"])[:_MOST_CLIFFS]
        ]
        body += table(["cliff: tokens", "to", "pass takes", "because of"], rows)
    return Section("The step profile", body)


def confidence_section(trace: Trace, calibration: Calibration | None, charts: dict[str, Any]) -> Section:
    """How far blocks are accepted, and how honest confidences are before and after calibration."""
    charts["acceptance"] = figures.acceptance_figure(figures.acceptance_of(trace))
    body = chart("acceptance", f"How far the blocks of {trace.name} are accepted, by domain.")
    held = [] if calibration is None else calibration.held_out_requests.tolist()
    known = bool(held) and set(held) <= set(trace.request_ids.tolist())
    shown = trace.select(held) if known else trace
    where = "requests not used for the fit" if known else "all requests"
    charts["reliability-raw"] = figures.reliability_figure(shown, None)
    body += chart("reliability-raw", f"Raw confidences against what was accepted ({where}).")
    if calibration is not None:
        charts["reliability"] = figures.reliability_figure(shown, calibration)
        body += chart("reliability", f"After calibration by {calibration.method} ({where}).")
    return Section("Acceptance and confidences", body)


def memory_section(background: Background, document: Row) -> list[Section]:
    """How much KV memory there is, and how much of it the recommended policy's users hold."""
    profile, settings = background.profile, document.get("settings") or {}
    reserve = settings.get("kv_reserve", 0.1)
    tokens = profile.kv_capacity_tokens(reserve)
    if tokens is None:
        return []
    drafting = document.get("recommended") != "off"
    if drafting:
        tokens = profile.kv_capacity_tokens(reserve, drafting=True) or 0
    rows = [
        ("GPU memory", f"{profile.gpu.get('memory_bytes', 0) * profile.gpus / GIB:,.0f} GiB"),
        ("weights of the target", f"{profile.model.get('weight_bytes', 0) / GIB:,.1f} GiB"),
        *([("weights of the drafter", _known(profile.draft_weight_bytes))] if drafting else []),
        ("kept free", share(reserve)),
        ("KV cache of a token", f"{(profile.kv_bytes(drafting) or 0) / 1024:,.0f} KiB"),
        ("KV cache holds", f"{count(tokens)} tokens"),
    ]
    context = settings.get("context")
    if context is None:
        lengths = background.trace.lengths
        prompt = background.trace.prompt_tokens[background.trace.starts]
        # A request is seen for as long as it decodes, so long ones count for their length.
        context = float(((prompt + lengths / 2.0) * lengths).sum() / lengths.sum())
    rows.append(("mean context of a user", f"{count(context)} tokens (estimated from the trace's lengths)"))
    for row in document.get("policies") or []:
        if row["policy"] == document.get("recommended") and row.get("capacity"):
            used = row["capacity"] * context
            said = f"{count(used)} tokens, {share(used / tokens)} of the cache"
            rows.append((f"{decimal(row['capacity'], 0)} users of {row['policy']} hold about", said))
    return [Section("Memory", pairs(rows))]


def _known(size: int | None) -> str:
    """A size in GiB, or that it is unknown and not counted."""
    return "unknown, not counted" if size is None else f"{size / GIB:,.1f} GiB"
