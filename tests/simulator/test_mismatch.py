"""A trace of another model, blocks of another length, contexts the model does not have: said, and first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specsched.errors import WorkloadError
from specsched.profile import StepProfile
from specsched.simulator import simulate
from specsched.simulator.mismatch import mismatch, same_model
from specsched.simulator.warnings import trace_and_profile_warnings
from specsched.trace import Trace
from specsched.workload import Workload


def profile(name: str = "Qwen3-8B", block: int = 3, max_context: int = 0, **parts: Any) -> StepProfile:
    return StepProfile.from_dict(
        {
            "schema": "specsched/profile/1",
            "name": "p",
            "model": {"name": name, "max_context": max_context},
            "verify": {"tokens": [1, 512], "seconds": [0.01, 0.02]},
            "draft": {"requests": [1, 64], "seconds": [0.001, 0.002], "block_size": block},
            **parts,
        }
    )


def trace(target: str = "Qwen/Qwen3-8B", prompt: int = 50, length: int = 20) -> Trace:
    request = np.repeat(np.arange(30), length)
    return Trace.from_arrays(
        request=request,
        position=np.tile(np.arange(length), 30),
        confidence_logit=np.zeros((len(request), 3), np.float32),
        accepted=np.tile([0, 1, 2, 3, 0], len(request) // 5),
        domain="chat",
        prompt_tokens=prompt,
        metadata={"target": target, "licence": "CC0-1.0"},
    )


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("Qwen/Qwen3-8B", "Qwen3-8B", True),
        ("synthetic, Qwen3-4B", "Qwen3-4B", True),
        ("Qwen3-4B-Instruct-2507", "qwen3-4b", True),
        ("smollm2", "HuggingFaceTB/SmolLM2-135M-Instruct", True),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "Llama-3.1-8B", True),
        ("Qwen3-8B-FP8", "Qwen3-8B", True),
        ("smollm2", "Qwen3-8B", False),
        ("Qwen3-4B", "Qwen3-8B", False),
        ("Qwen3-30B-A3B", "Qwen3-32B", False),
        ("Llama-2-70B", "Llama-3-70B", False),
    ],
)
def test_names_of_one_model(one: str, other: str, same: bool) -> None:
    assert same_model(one, other) is same
    assert same_model(other, one) is same


def test_one_warning_comes_first_and_names_both() -> None:
    said = trace_and_profile_warnings(trace("SmolLM2-135M"), profile(block=7), 3)
    assert "SmolLM2-135M" in said[0]
    assert "Qwen3-8B" in said[0]
    assert "blocks of 7; blocks of 3" in said[0]
    assert sum("SmolLM2" in text or "blocks of 7" in text for text in said) == 1


def test_nothing_is_said_where_all_fits_or_is_not_known() -> None:
    assert mismatch(trace(), profile(), 3) is None
    assert mismatch(trace("unknown"), profile(), 3) is None
    assert mismatch(trace(), profile("unknown"), 3) is None


def test_another_block_is_said_without_an_attention_cost_too() -> None:
    assert "blocks of 7" in str(mismatch(trace(), profile(block=7), 3))


def test_a_context_the_model_does_not_have_is_refused() -> None:
    with pytest.raises(WorkloadError, match=r"context of 5,000 tokens is more than max_context 4,096"):
        simulate(trace(), profile(max_context=4096), "off", concurrency=2, requests=20, context=5000)
    simulate(trace(), profile(max_context=4096), "off", concurrency=2, requests=20, context=4096)


def test_requests_longer_than_the_model_are_counted() -> None:
    # 30 of 40 requests of 5,000 + 20 tokens; the others fit.
    load = Workload(
        name="w",
        arrival_seconds=np.arange(40.0),
        prompt_tokens=np.array([100] * 10 + [5000] * 30),
        output_tokens=np.full(40, 20),
    )
    said = simulate(trace(), profile(max_context=4096), "off", workload=load).warnings
    assert sum("75% of the requests are longer (up to 5,0" in text for text in said) == 1
    closed = simulate(trace(prompt=5000), profile(max_context=4096), "off", concurrency=2, requests=20)
    assert any("100% of the requests are longer" in text for text in closed.warnings)
    assert not any(
        "longer" in text for text in simulate(trace(), profile(), "off", concurrency=2, requests=20).warnings
    )


def test_a_flat_table_says_that_nothing_can_be_trimmed_by_it() -> None:
    flat = profile(verify={"tokens": [1, 512], "seconds": [0.01, 0.01]})
    assert any("nothing can be trimmed" in text for text in trace_and_profile_warnings(trace(), flat, 3))


def test_steps_timed_with_drafting_inside_charge_off() -> None:
    notes = {"method": "imported", "notes": "Whole steps were timed: the cost of drafting is inside."}
    inside = profile(draft=None, provenance=notes)
    said = " ".join(trace_and_profile_warnings(trace(), inside, 3))
    assert "drafting inside: what off would cost is unknown" in said
    assert "states no draft cost" not in said
