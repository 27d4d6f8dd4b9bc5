"""What of an answer may be deployed: which engines run a policy, and whether its confidences exist."""

from __future__ import annotations

from typing import Literal

from ..documents.shared import RunsIn
from ..schedule import POLICIES, Policy
from ..trace import Trace


def decides_by_confidences(policy: str) -> bool:
    """Whether a policy (its name) reads the drafter's confidences."""
    return POLICIES.get(policy.split(":")[0], Policy).reads_confidence


def runs_in(policy: str, trace: Trace) -> RunsIn:
    """{engines: where this policy runs today, confidences: whether the trace's are real, said: one line}."""
    engines = POLICIES.get(policy.split(":")[0], Policy).runs_in
    needs, made_up = decides_by_confidences(policy), trace.synthetic
    said = f"{policy} runs in {engines}."
    if needs and made_up:
        said += (
            " It decides by confidences, and those of this trace are invented: record a trace with a "
            "confidence head before deploying it."
        )
    elif needs:
        said += " It decides by confidences: the drafter must give one for every draft token."
    confidences: Literal["not needed", "invented", "recorded"]
    confidences = "not needed" if not needs else "invented" if made_up else "recorded"
    return {"engines": engines, "confidences": confidences, "said": said}
