"""What of an answer may be deployed: which engines run a policy, and whether its confidences exist."""

from __future__ import annotations

from typing import Literal

from ..documents.shared import RunsIn
from ..trace import Trace

# As of the versions this project reads formats of (docs/formats.md).
_ENGINES = {
    "off": "every engine",
    "fixed": "every engine that drafts (vLLM, SGLang, TensorRT-LLM): their number of speculative tokens",
    "batch-table": "engines with a table from batch size to draft length (older vLLM: dynamic)",
    "lagged": "vLLM from 0.32 (enable_adaptive_verification), SGLang (DSpark, ragged verify mode compact) "
    "and TensorRT-LLM (enable_confidence_scheduling)",
    "early-stop": "ROCm/ATOM",
}
_NOBODY = "no released engine: it needs a scheduler of your own"


def decides_by_confidences(policy: str) -> bool:
    """Whether a policy (its name) reads the drafter's confidences."""
    return policy.split(":")[0] not in ("off", "fixed", "batch-table", "hindsight")


def runs_in(policy: str, trace: Trace) -> RunsIn:
    """{engines: where this policy runs today, confidences: whether the trace's are real, said: one line}."""
    kind = policy.split(":")[0]
    engines = _ENGINES.get(kind, _NOBODY)
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
