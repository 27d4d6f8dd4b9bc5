"""A sweep with prompts is refitted in its own setting: prefill is not counted twice."""

from __future__ import annotations

import pytest

from specsched.profile import StepProfile
from specsched.profile.overhead import fit_overhead
from specsched.simulator import Serving
from specsched.simulator.undrafted import speed_without_drafts

CHUNKED = Serving(prefill="chunked")
LOADS = (1, 4, 16, 64)


def profile(per_token: float = 2e-5, overhead: float = 0.0, attention: float = 0.0) -> StepProfile:
    """Steps of 5 ms + `per_token` a token + `overhead` * sqrt(R) + `attention` a KV token."""
    roots = [1, 4, 9, 16, 25, 36, 49, 64, 81, 100, 144, 196, 256]
    parts = {
        "verify": {"tokens": [1, 100000], "seconds": [0.005 + per_token, 0.005 + 100000 * per_token]},
        "overhead": {"requests": roots, "seconds": [overhead * r**0.5 for r in roots]},
        "attention": {"kv_tokens": [0, 10**6], "seconds": [0.0, attention * 10**6]},
    }
    return StepProfile.from_dict({"schema": "specsched/profile/1", "name": "p", **parts})


@pytest.mark.parametrize("users", [1, 8, 32])
def test_the_speed_is_that_of_steps_with_their_share_of_prefill(users):
    prompt, output = 500, 100
    speed = speed_without_drafts(profile(), users, prompt, output, CHUNKED)
    # In the long run a step decodes one token a user, and prefills prompt / output tokens for each of them.
    # A user's own prefill is not in its speed, which matters where there are few users.
    others = (users - 1) * (prompt + output) / output + 1
    assert 1.0 / speed == pytest.approx(0.005 + 2e-5 * others, rel=0.04)


def test_without_chunks_it_is_the_step_at_the_mean_context():
    model = profile(attention=1e-8)
    speed = speed_without_drafts(model, 16, 1000, 200, Serving())
    mean = 16 * (1000 + 100)
    assert 1.0 / speed == pytest.approx(model.seconds(16, 16, mean, draft=False), rel=0.005)


def test_prefill_of_the_sweep_is_not_counted_twice():
    truth, bare = profile(overhead=1e-3), profile()
    prompt, output = 1000, 200
    speeds = [speed_without_drafts(truth, r, prompt, output, CHUNKED) for r in LOADS]

    def replay(candidate: StepProfile, users: int) -> float:
        return speed_without_drafts(candidate, users, prompt, output, CHUNKED)

    fitted = fit_overhead(bare, (LOADS, speeds), replay=replay)
    twice = fit_overhead(bare, (LOADS, speeds), context=0.0)
    for users in (1, 16, 24, 48, 64):
        right = speed_without_drafts(truth, users, prompt, output, CHUNKED)
        assert replay(fitted, users) == pytest.approx(right, rel=0.02)
    # Held at one speed, the double count carries little more than half of the users.
    assert replay(twice, 64) < 0.8 * speeds[-1]


def test_attention_of_the_sweep_is_not_counted_twice():
    truth, bare = profile(overhead=1e-3, attention=2e-8), profile(attention=2e-8)

    def replay(candidate: StepProfile, users: int) -> float:
        return speed_without_drafts(candidate, users, 4000, 200, Serving())

    fitted = fit_overhead(bare, (LOADS, [replay(truth, r) for r in LOADS]), replay=replay)
    for users in LOADS:
        assert replay(fitted, users) == pytest.approx(replay(truth, users), rel=0.005)
        assert float(fitted.overhead(users)) == pytest.approx(1e-3 * users**0.5, rel=0.05)


def test_an_overhead_of_unknown_prompts_is_doubted_where_chunks_are_priced():
    from specsched.simulator.mismatch import prefill_twice

    loads = (LOADS, [1.0 / (0.006 + 1e-3 * r**0.5) for r in LOADS])
    bare = StepProfile.from_dict({**profile().to_dict(), "attention": None})
    unknown = fit_overhead(bare, loads)
    assert "counted twice" in prefill_twice(unknown, "chunked")[0]
    assert not prefill_twice(unknown, "disaggregated")
    assert not prefill_twice(fit_overhead(bare, loads, context=500.0), "chunked")
    replayed = fit_overhead(bare, loads, replay=lambda p, r: 1.0 / p.seconds(r, r, 0, draft=False))
    assert not prefill_twice(replayed, "chunked")
    assert not prefill_twice(bare, "chunked")
