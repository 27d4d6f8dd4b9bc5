"""Prefill that nobody spoke of: counted where it matters and has a price, told first where it has none."""

from __future__ import annotations

from typing import Any

import pytest
from planner_oracle import line

from specsched.planner import answer, plan, runs
from specsched.simulator import Limits
from specsched.simulator.prefill import MATTERS
from specsched.trace import synthesise

FEW: dict[str, Any] = {"policies": ["off"], "calibration": None, "workers": 1, "requests": 40}


def trace(prompt: int) -> Any:
    return synthesise([0.5], requests=40, output_tokens=[40] * 40, prompt_tokens=[prompt] * 40)


def steep(**more: Any) -> Any:
    """10 ms a pass and 20 µs a token, measured to 8,192 tokens."""
    verify = {"tokens": [1, 8192], "seconds": [0.01002, 0.17384]}
    return line(verify=verify | more, draft=None)


def ask(kind: str, prompt: int, profile: Any = None, **more: Any) -> Any:
    profile = profile or steep()
    if kind == "answer":
        return answer(trace(prompt), profile, 60.0, **FEW, **more)
    if kind == "plan":
        return plan(trace(prompt), profile, 60.0, rate=40.0, **FEW, **more)
    load = {"concurrency": [30]} if kind == "runs" else {"arrivals": "poisson:40"}
    return runs(trace(prompt), profile, **load, **FEW, **more)


def prefill(document: Any) -> str:
    out: str = document.get("prefill") or document["settings"]["prefill"]
    return out


@pytest.mark.parametrize("kind", ["answer", "plan", "runs", "arrivals"])
def test_prompts_that_matter_are_prefilled_here_unless_asked_otherwise(kind: str) -> None:
    """Long prompts: chunked, and the first warning says so; short ones, or by request: not."""
    long = ask(kind, 800)
    assert prefill(long) == "chunked"
    assert "--prefill disaggregated" in long["warnings"][0]
    assert not any("prefill" in left for left in long["not_modelled"])
    short = ask(kind, 1)
    assert prefill(short) == "disaggregated"
    assert not any("prefill" in said for said in short["warnings"])
    free = ask(kind, 800, prefill="free")
    assert prefill(free) == "disaggregated"
    assert free["warnings"][0].startswith("prefill is left out")


def test_the_rule_is_the_share_of_the_engines_time() -> None:
    """Chunks of n tokens cost 20 µs each: counted from requests/s * n * 20 µs = MATTERS on."""
    plain = ask("runs", 1, prefill="disaggregated")["runs"][0]["throughput"] / 40.0
    edge = MATTERS / (plain * 20e-6)
    assert prefill(ask("runs", int(0.9 * edge))) == "disaggregated"
    assert prefill(ask("runs", int(1.1 * edge))) == "chunked"


@pytest.mark.parametrize("kind", ["answer", "plan", "runs"])
def test_prompts_without_a_price_are_told_first_with_their_size(kind: str) -> None:
    document = ask(kind, 800, steep(beyond="clamp"))
    assert prefill(document) == "disaggregated"
    assert "tokens/s to prefill beside" in document["warnings"][0]


def test_a_time_to_the_first_token_needs_no_word_about_prefill() -> None:
    assert prefill(ask("plan", 10, limits=Limits(5.0))) == "chunked"
