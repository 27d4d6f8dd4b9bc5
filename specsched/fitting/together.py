"""The speed of a user without drafts in a benchmark whose prompts all wait at its start.

A client with a maximum concurrency (`vllm bench serve`, ...) sends as many requests as it may at once; of
equal lengths they stay in step, and prompts meet the decoding of few others. `simulator.undrafted` has the
opposite: users who began at different times, whose prompts join the steps of all the others.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from ..profile import StepProfile
from .cases import prompts_of
from .steps import Setting, Steps, steps_of, unit_profile
from .texts import plain_trace


def together(
    prompt_tokens: int, output_tokens: int, prefill: str, batch_tokens: int
) -> Callable[[StepProfile, int], float]:
    """(profile, users) -> tokens/s of one user: what `profile.overhead.fit_overhead` replays.

    The benchmark is simulated once for each load; any profile prices its steps.
    """

    @cache
    def steps(users: int) -> Steps:
        setting = Setting(users, prompt_tokens, output_tokens, prompts_of(users), prefill, batch_tokens)
        return steps_of(plain_trace(output_tokens), unit_profile(), "off", setting)

    def speed(profile: StepProfile, users: int) -> float:
        found = steps(users)
        return found.speeds(profile.tables(found.most_tokens, users))[0]

    return speed
