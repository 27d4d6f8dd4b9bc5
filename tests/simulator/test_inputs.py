"""What a run is given: settings never dropped, warnings said once, costs at the edge of a curve."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from specsched.errors import WorkloadError
from specsched.planner import answer, plan, runs
from specsched.profile import StepProfile
from specsched.simulator import Serving, simulate
from specsched.trace import Trace
from specsched.workload import Workload

LINE = {"tokens": [1, 64], "seconds": [0.001, 0.064]}


def profile(**parts: Any) -> StepProfile:
    document = {"schema": "specsched/profile/1", "name": "line", "verify": LINE}
    return StepProfile.from_dict({**document, **parts})


def trace(requests: int = 30, tokens: int = 6, prompt: int = 0) -> Trace:
    n = requests * tokens
    return Trace.from_arrays(
        np.repeat(np.arange(requests), tokens), np.tile(np.arange(tokens), requests),
        np.zeros((n, 2)), np.ones(n), prompt_tokens=prompt,
    )  # fmt: skip


ENTRIES: dict[str, Callable[..., Any]] = {
    "simulate": lambda **more: simulate(trace(), profile(), "off", 2, 20, **more),
    "answer": lambda **more: answer(trace(), profile(), 10.0, policies=["off"], requests=20, **more),
    "plan": lambda **more: plan(trace(), profile(), 10.0, rate=1.0, policies=["off"], requests=20, **more),
    "runs": lambda **more: runs(trace(), profile(), ["off"], concurrency=[2], requests=20, **more),
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_no_setting_is_dropped_in_silence(entry: str) -> None:
    call = ENTRIES[entry]
    with pytest.raises(WorkloadError, match="prefill beside it"):
        call(serving=Serving(), prefill="chunked")
    with pytest.raises(WorkloadError, match="no setting 'prefil'; did you mean 'prefill'"):
        call(prefil="chunked")
    with pytest.raises(WorkloadError, match="no setting 'prefil'"):
        call(serving=Serving(), prefil="chunked")


@pytest.mark.parametrize("entry", ["answer", "plan", "runs"])
def test_settings_in_one_object_and_as_keywords_are_the_same(entry: str) -> None:
    whole = ENTRIES[entry](serving=Serving(prefill="chunked", batch_tokens=64))
    assert whole == ENTRIES[entry](prefill="chunked", batch_tokens=64)
    assert "prefill" not in " ".join(whole["not_modelled"])


def test_warnings_of_a_workload_are_said_once() -> None:
    told = Workload("told", np.arange(20.0), metadata={"warnings": ["the clock has whole seconds"]})
    said = simulate(trace(), profile(), "off", workload=told).warnings
    assert said.count("the clock has whole seconds") == 1


@pytest.mark.parametrize("attention", [None, {"kv_tokens": [0, 100], "seconds": [0.0, 0.001]}])
def test_a_draft_cost_of_another_block_size_is_told_with_and_without_attention(attention: Any) -> None:
    draft = {"requests": [1, 4], "seconds": [0.001, 0.002], "block_size": 7}
    said = " ".join(simulate(trace(), profile(draft=draft, attention=attention), "fixed", 2, 20).warnings)
    assert "draft cost of profile 'line' is for blocks of 7; blocks of 2 are replayed" in said
    assert ("states no attention cost" in said) == (attention is None)


def test_a_step_that_only_prefills_has_the_overhead_of_no_decoding_request() -> None:
    """One request of 40 prompt tokens, then 6 decoded: the first step is overhead(0) + verify(40)."""
    costs = profile(overhead={"requests": [0, 1, 4], "seconds": [0.002, 0.5, 0.6]})
    one = Workload("one", np.array([0.0]), prompt_tokens=np.array([40]), output_tokens=np.array([7]))
    result = simulate(trace(1), costs, "off", workload=one, prefill="chunked", warmup=0.0, log_steps=100)
    assert result.steps["seconds"].iloc[0] == pytest.approx(0.002 + 0.040)
    assert result.steps["seconds"].iloc[1] == pytest.approx(0.5 + 0.001)
    assert result.steps["seconds"].iloc[0] == costs.seconds(40, 0, 0, draft=False)
