"""From a run to a profile: the fitted blocks, raw samples, what it was measured on, how well the sum fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...profile import StepProfile
from ...version import VERSION
from . import host
from .fit import blocks
from .run import Run

LICENCE = "Apache-2.0"


def assemble(
    document: dict[str, Any],
    run: Run,
    block_size: int,
    drafter: str,
    before: dict[str, Any],
    notes: str,
    said: Sequence[str] = (),
    memory: Mapping[str, int] | None = None,
) -> StepProfile:
    """The profile of a run: fitted blocks, raw samples, what it was measured on and how well the sum fits.

    document: name, gpu, model and what else is known beforehand; before: conditions at the start;
    said: warnings beside those of the run, which stay in the profile; memory: what the drafter takes
    (`Drafter.memory`).
    """
    fitted, pass_error = blocks(run.samples)
    document = {"schema": "specsched/profile/1", "parallel": {"tensor": 1, "data": 1}} | document | fitted
    if document["draft"] is not None:
        document["draft"] |= {"block_size": block_size, "drafter": drafter} | dict(memory or {})
    document["provenance"] = {
        "method": "measured",
        "source": "timed on this machine by `specsched profile --source measure`",
        "licence": LICENCE,
        "date": host.today(),
        "tool": f"specsched {VERSION}",
        "host": before,
        "notes": " ".join([notes, *said, *run.notes]),
        "warnings": [*said, *run.notes],
    }
    profile = StepProfile.from_dict(document, document["name"])
    error = np.abs(_whole_steps(profile, run) if _has_steps(run) else pass_error)
    document["fit"] = {
        "median_relative_error": round(float(np.median(error)), 5),
        "p90_relative_error": round(float(np.quantile(error, 0.9)), 5),
        "max_relative_error": round(float(error.max()), 5),
        "samples": len(error),
        "planned": run.planned,
        "stopped": run.stopped,
        "out_of_memory": len(run.dropped),
        "failed": len(run.failed),
        "spread": None if run.spread is None else round(run.spread, 5),
        "drift": None if run.drift is None else round(run.drift, 5),
    }
    document["samples"] = [s.to_dict() for s in sorted(run.samples, key=lambda s: s.order)]
    document["samples"] += [s.to_dict() | {"kind": "anchor"} for s in run.anchors]
    return StepProfile.from_dict(document, document["name"])


def _has_steps(run: Run) -> bool:
    return any(s.point.kind in ("step", "plain") for s in run.samples)


def _whole_steps(profile: StepProfile, run: Run) -> np.ndarray:
    """Predicted / measured - 1 of the medians of whole engine steps."""
    errors = []
    for s in run.samples:
        if s.point.kind in ("step", "plain"):
            measured = float(np.median(np.sum(list(s.seconds.values()), axis=0)))
            predicted = profile.seconds(
                s.point.tokens, s.point.requests, s.context_tokens, draft=s.point.kind == "step"
            )
            errors.append(predicted / measured - 1.0)
    return np.array(errors)
