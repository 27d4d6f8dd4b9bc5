"""Where the inputs of an answer come from, a line each."""

from __future__ import annotations

import re
from typing import Any

from ..documents.shared import About
from ..profile import StepProfile
from ..trace import Trace


def about(trace: Trace, profile: StepProfile) -> About:
    """Where the inputs come from, a line each."""
    of = trace.metadata
    made = "synthetic" if trace.synthetic else "recorded" if trace.mode == "dense" else "an engine's log"
    parts = [
        made,
        f"{len(trace.request_ids):,} requests, {len(trace):,} anchors, block {trace.block_size}",
        ""
        if trace.synthetic
        else " on ".join(_brief(of[key]) for key in ("drafter", "target") if of.get(key)),
        f"temperature {of['temperature']:g}" if isinstance(of.get("temperature"), (int, float)) else "",
    ]
    source = profile.provenance
    origin = [
        source.get("method") or "of unknown origin",
        _brief(source.get("source", "")),
        source.get("date"),
    ]
    return {
        "profile": "; ".join(str(part) for part in origin if part),
        "trace": "; ".join(part for part in parts if part),
    }


def _brief(text: Any) -> str:
    """The first words of a description: what it names, without the particulars."""
    return re.split(r"[,(:;]", str(text), maxsplit=1)[0].strip()
