"""The speed of one user without drafts, in the setting of a measured sweep: prompts, outputs, prefill."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..profile import StepProfile
from ..schedule import make
from .replay import Replay
from .requests import closed_loop
from .run import Run
from .serving import Serving

_PASSES = 2  # measured requests for every user


def speed_without_drafts(
    profile: StepProfile, users: int, prompt_tokens: int, output_tokens: int, serving: Serving
) -> float:
    """Median tokens/s of a user in a closed loop of `users` whose requests all have these lengths.

    Starts are staggered, so that prompts join the steps of the others at random times, as they do in a
    benchmark that keeps its users busy.
    """
    replay = Replay(
        survival=np.zeros((output_tokens, 1)),
        accepted=np.zeros(output_tokens, dtype=np.int16),
        start=np.zeros(1, dtype=np.int64),
        length=np.full(1, output_tokens, dtype=np.int64),
        prompt_tokens=np.full(1, prompt_tokens, dtype=np.int64),
        request_ids=np.zeros(1, dtype=np.int64),
        domain=np.zeros(1, dtype=np.int64),
        domain_names=("sweep",),
    )
    measured = max(_PASSES * users, 20)
    # The loads that memory did not bound were measured: it must not bound them here either.
    serving = replace(serving, kv_tokens=users * (prompt_tokens + output_tokens + 2))
    run = Run(replay, profile, serving, closed_loop(replay, users, measured, 0), measured)
    arrays = run.result(make("off", block_size=1), 0, bootstrap=False).arrays
    return float(np.median(arrays["tokens"] / (arrays["finish_seconds"] - arrays["ready_seconds"])))
