"""How much longer an engine would work if it prefilled its prompts itself, estimated."""

from __future__ import annotations

from typing import NamedTuple

from ..profile import StepProfile
from .noise import prefill_token_seconds

MATTERS = 0.1  # share of its decoding time from which on prefill is not left out unsaid


class Load(NamedTuple):
    """A load at which prefill is estimated: requests/s of one engine, and tokens of a decoding pass."""

    rate: float
    tokens: float
    prompt: float  # mean tokens to prefill
    said: str  # "103 users of lagged:2"

    def share(self, profile: StepProfile) -> float:
        """Time of prefilling over time of decoding; 0 where the profile does not price it."""
        return self.rate * self.prompt * prefill_token_seconds(profile, self.tokens)


def left_out(profile: StepProfile, load: Load) -> list[str]:
    """What must be said where prompts arrive prefilled although prefilling them is much."""
    share = load.share(profile)
    if share < MATTERS:
        return []
    return [
        f"prefill is left out: with prompts of {load.prompt:,.0f} tokens (mean) it would take the engine "
        f"about {share:.0%} more of its time at {load.said} (an estimate); --prefill chunked prices it, "
        "unless other engines prefill"
    ]
