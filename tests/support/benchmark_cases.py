"""Benchmarks run by the plain engine of `reference_engine`, to learn from: speeds as a client would
report them."""

from __future__ import annotations

import numpy as np
from reference_engine import Engine, Setup

from specsched.formats.runs import Measured
from specsched.profile import StepProfile


def profile_of(**parts) -> StepProfile:
    """verify 5 ms, 6 ms at 64 tokens, 9 ms at 256, and on; what else is said."""
    verify = {"tokens": [1, 64, 256, 1024], "seconds": [0.005, 0.006, 0.009, 0.021], "lookup": "linear"}
    base = {"schema": "specsched/profile/1", "name": "true", "verify": {**verify, "beyond": "slope"}}
    base["provenance"] = {"method": "measured", "source": "a test"}
    return StepProfile.from_dict({**base, **parts})


def host(milliseconds, at=(1, 4, 16, 32)):
    return {"requests": list(at), "seconds": [1e-3 * m for m in milliseconds], "beyond": "slope"}


def run(profile, policy, users, rate=0.7, block=3, prompt=40, output=33, prompts=64, pause=0.0, seed=0):
    """One benchmark: `prompts` requests wait for `users` places. Every draft is accepted with `rate`."""
    rng = np.random.default_rng(seed)
    tried = rng.random((prompts, output - 1, block)) < rate
    accepted = np.cumprod(tried, axis=2).sum(axis=2)
    rows = [[([rate] * block, int(a)) for a in request] for request in accepted]
    name, _, parameter = policy.partition(":")
    setup = Setup(
        profile, block, rows, list(range(prompts)),
        requests=[(i, output - 1, prompt) for i in range(prompts)],
        arrival=[0.0] * prompts, measured=prompts, chunked=True, max_running=users,
    )  # fmt: skip
    done = Engine(setup, name, int(parameter) if parameter else None).run().everyone
    per_token = [(r.finish - r.ready) / (output - 1) for r in done]
    whole = max(r.finish or 0.0 for r in done) + pause * prompts / users
    drafts = name != "off"
    return Measured(
        source=f"{policy} at {users}", users=users, policy=policy, prompt_tokens=prompt, output_tokens=output,
        prompts=prompts, user=1.0 / float(np.median(per_token)), total=prompts * output / whole,
        conditional=(rate,) * block if drafts else None,
    )  # fmt: skip
