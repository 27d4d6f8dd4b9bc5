"""What is doubtful about a run: its trace, its profile, what happened in it."""

from __future__ import annotations

from typing import Any

from ..profile import StepProfile
from ..profile.lint import drafting_inside
from ..profile.tables import NO_LIMIT
from ..profile.trimming import trimming
from ..schedule import Policy
from ..trace import Trace
from . import intervals
from .mismatch import mismatch
from .outside import outside_warning


def trace_and_profile_warnings(trace: Trace, profile: StepProfile, block_size: int) -> list[str]:
    """What the inputs make doubtful about any answer; that they do not fit together comes first."""
    first = [mismatch(trace, profile, block_size), profile.provenance_warning, trimming(profile, block_size)]
    warnings = [w for w in first if w] + list(trace.warnings)
    if drafting_inside(profile):
        warnings.append(
            f"steps of profile {profile.name!r} were timed with drafting inside: what off would cost is "
            "unknown; "
            "off is charged for drafting too, so the gain over off is overstated (`specsched fit` finds "
            "it from a "
            "run without drafts)"
        )
    elif profile.draft is None:
        warnings.append(
            f"profile {profile.name!r} states no draft cost: if its steps were timed with a drafter, off is "
            "charged for it too and the gain over off is overstated; if not, drafting is counted as free"
        )
    if profile.attention is None:
        warnings.append(f"profile {profile.name!r} states no attention cost: context makes no step slower")
    elif profile.provenance.get("attention"):
        warnings.append(
            f"attention of profile {profile.name!r} is assumed: {profile.provenance['attention']}"
        )
    kernels_only = profile.provenance.get("method") in ("composed", "roofline") and not profile.bias_seconds
    if profile.overhead is None or kernels_only:
        warnings.append(
            f"profile {profile.name!r} holds no host time: real steps are slower, most at many requests; "
            "`specsched profile fit-overhead` adds it from a measured run"
        )
    return warnings


def run_warnings(
    summary: dict[str, Any], policy: Policy, sees_token: bool, kv_tokens: int, profile: StepProfile
) -> list[str]:
    """What this run makes doubtful about its own figures."""
    warnings = []
    proved = policy.lossless(sees_token)
    if proved is None:
        warnings.append(
            f"policy {policy.name} is your own: that the text stays the target's is not proved; "
            f"`specsched audit {policy.name}` searches it for a leak. It is planned in Python, which is slow"
        )
    elif not proved:
        why = "the confidences see the drafted token" if sees_token else "it decides on the present draft"
        warnings.append(f"policy {policy.name} is not lossless at temperature > 0: {why}")
    if policy.pays_sync and not profile.sync_seconds:
        warnings.append(
            f"policy {policy.name} waits for the present confidences, which profile {profile.name!r} prices "
            "at nothing (sync_seconds 0): its cost is understated"
        )
    if summary["extrapolated_steps"]:
        share = summary["extrapolated_steps"] / max(summary["steps"], 1)
        warnings.append(
            f"{policy.name}: {share:.1%} of steps lie past the last point of profile {profile.name!r}"
        )
    warnings += outside_warning(profile, policy.name, summary["outside_steps"])
    if summary["distinct_requests"] < intervals.FEWEST_REQUESTS:
        warnings.append(
            f"only {summary['distinct_requests']} distinct traced requests: intervals are rough; "
            f"record {intervals.FEWEST_REQUESTS} or more"
        )
    waited = summary["blocked_steps"] + summary["preemptions"]
    if waited and policy.drafts and kv_tokens != NO_LIMIT and not profile.knows_drafter_memory:
        warnings.append(
            f"{policy.name} filled the KV memory, and profile {profile.name!r} does not say how much of it "
            "the drafter takes: fewer users fit"
        )
    if kv_tokens == NO_LIMIT:
        warnings.append(f"profile {profile.name!r} does not say its memory: KV capacity is not modelled")
    return warnings
