"""Settings that change nothing in a run, and why: told wherever a user gives one."""

from __future__ import annotations

from collections.abc import Collection

from .. import kernels
from ..profile import StepProfile
from ..schedule import POLICIES


def idle_settings(
    profile: StepProfile,
    given: Collection[str],
    *,
    prefill: str | None,
    sla: float | None,
    policies: Collection[str],
) -> dict[str, str]:
    """{setting: why it does nothing}, of the settings `given` (fields of `Serving`, and those of a question).

    prefill: None where it is settled later, by what the prompts cost.
    """
    memory = profile.kv_capacity_tokens() is not None
    captured = profile.capture_sizes is not None
    unpriced = "memory alone" if memory else "nothing"
    kinds = {policy.partition(":")[0] for policy in policies}
    codes = {POLICIES[kind].code for kind in kinds & POLICIES.keys()}
    never_stops = (
        not codes & {kernels.BYPASS, kernels.BATCH_TABLE},
        "does nothing where no policy stops drafting (bypass)",
    )
    reasons = {
        "batch_tokens": (
            prefill == "disaggregated",
            "does nothing without prefill chunked: prompts arrive prefilled",
        ),
        "context": (
            profile.attention is None and prefill == "disaggregated",
            f"changes {unpriced}: profile {profile.name!r} states no attention cost",
        ),
        "kv_reserve": (not memory, f"does nothing: profile {profile.name!r} does not say its memory"),
        "graph_bytes": (
            not (memory and captured),
            f"does nothing: profile {profile.name!r} captures no sizes, or does not say its memory",
        ),
        "sla_fraction": (sla is None, "does nothing without --sla"),
        "enabling_cost": (set(policies) == {"off"}, "does nothing where no policy drafts"),
        "idle_draft": never_stops,
        "catch_up": never_stops,
    }
    return {name: why for name, (idle, why) in reasons.items() if idle and name in given}
