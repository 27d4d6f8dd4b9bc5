"""What must be said of an answer of any kind: its inputs' warnings, its confidences, what is not modelled."""

from __future__ import annotations

from ..simulator import Serving
from ..simulator.warnings import trace_and_profile_warnings
from .deployment import decides_by_confidences
from .inputs import Inputs
from .prefill import prices_prefill


def input_warnings(given: Inputs) -> list[str]:
    """What trace, profile, calibration and confidences make doubtful, whatever is asked of them."""
    said = trace_and_profile_warnings(given.trace, given.profile, given.replay.block_size)
    if given.note["method"] == "none":
        said.append("confidences are used raw, uncalibrated")
    if given.limits.ttft_seconds is not None and not prices_prefill(given.profile):
        said.append(
            f"profile {given.profile.name!r} prices no pass as long as a prompt: prompts are prefilled "
            "for next to nothing, and their times to the first token are too short"
        )
    readers = [p.name for p in given.policies if decides_by_confidences(p.name)]
    if readers and given.trace.synthetic:
        verb = "decides" if len(readers) == 1 else "decide"
        said.append(
            f"{_listed(readers)} {verb} by confidences, and those of trace {given.trace.name!r} are invented "
            "(synthetic), not a drafter's"
        )
    return said


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def left_out(serving: Serving, *more: str) -> list[str]:
    """What is not modelled, for the line that says so; `more`: what this kind of question adds."""
    said = ["network and detokenisation", "prefix caching", "failures and restarts"]
    said += ["other tenants of the GPU", *more]
    if serving.prefill == "disaggregated":
        said.insert(0, "prefill and the GPUs it needs (prompts arrive prefilled)")
    return said
