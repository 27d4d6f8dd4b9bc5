"""Without --profile: step costs of the model that the trace names, where they are bundled."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specsched import load_trace
from specsched.cli.inputs import DEFAULT_PROFILE, profile_of
from specsched.profile import load_profile
from specsched.simulator.mismatch import mismatch


@pytest.mark.parametrize(
    ("target", "model"),
    [
        ("Qwen/Qwen3-4B", "Qwen3-4B"),
        ("Qwen3-14B-Instruct", "Qwen3-14B"),
        ("SmolLM2-135M", None),
        ("Qwen3-0.6B", None),
        ("unknown", None),
        ("", None),
        (None, None),
    ],
)
def test_the_model_of_the_trace_chooses(target: str | None, model: str | None) -> None:
    trace = load_trace("chat")
    named = replace(trace, metadata={**trace.metadata, "target": target})
    chosen = profile_of(named)
    if model is None:
        assert chosen == DEFAULT_PROFILE
    else:
        profile = load_profile(chosen)
        assert profile.model["name"] == model
        assert mismatch(named, profile, trace.block_size) is None


def test_bundled_traces_of_a_bundled_model_need_no_warning() -> None:
    trace = load_trace("qwen3-4b-math")
    assert mismatch(trace, load_profile(profile_of(trace)), trace.block_size) is None
