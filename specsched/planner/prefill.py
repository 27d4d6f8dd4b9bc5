"""Whether the engine prefills its own prompts, where nobody said.

The rule: where prefilling would take the engine more than MATTERS of the time it decodes, at the load of
the answer, prompts are prefilled in chunks that join the decode steps. Where they take less they arrive
prefilled; where the profile does not price passes that long, or its overhead may hold prefill already, they
do too, and the first warning gives the size.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..profile import StepProfile
from ..simulator import Serving
from ..simulator.mismatch import prefill_twice
from ..simulator.noise import prefill_token_seconds
from ..simulator.prefill import MATTERS, Load, left_out
from .capacity import Question, Search, clamps, ladder
from .inputs import Inputs

TYPICAL_PASS = 64.0  # tokens of a decoding pass, where none has run yet
PROBE = 200  # requests of the runs that estimate the load
NEAR = 0.1  # to which the load is searched


def prompt_tokens(given: Inputs, prompts: Any = None) -> float:
    """Mean tokens of a request to prefill: those read where the context is fixed, else the prompt's."""
    fixed = given.serving.context
    if fixed is not None:
        return float(fixed)
    return float((given.replay.prompt_tokens if prompts is None else prompts).mean())


def load_of(given: Inputs, summary: dict[str, Any], said: str, engines: int = 1, **own: Any) -> Load:
    """The load that a run of so many engines had. own: `prompts`, `lengths` of its requests (tokens)."""
    lengths = own["lengths"] if own.get("lengths") is not None else given.replay.length
    rate = summary["throughput"] / engines / float(lengths.mean())
    return Load(rate, summary["tokens_per_pass"], prompt_tokens(given, own.get("prompts")), said)


def probe(given: Inputs, sla_tps: float, share: float, requests: int, seed: int, **own: Any) -> Load:
    """The load that the best of the policies carries at the SLA, roughly, prompts arriving prefilled."""
    serving = replace(given.serving, prefill="disaggregated", replicas=1, ranks_per_group=1)
    few = min(requests, PROBE)
    question = Question(given.replay, given.profile, serving, sla_tps, share, few, seed, given.sees_token)
    loads, rungs = [], ladder(question)
    for policy in given.policies:
        search = Search(question, policy)
        users = max(1, search.first_failure(rungs, near=NEAR)[0])
        result = search.at(users).result
        if result is not None:
            name = f"about {users} users of {policy.name}"
            loads.append((users, load_of(given, result.summary, name, **own)))
    return max(loads, key=lambda pair: pair[0], default=(0, Load(0.0, 1.0, 0.0, "no load")))[1]


def settle(given: Inputs, load: Load) -> tuple[Inputs, list[str]]:
    """The inputs with prefill as the rule has it at this load, and what must be said of that first.

    What was asked for stays.
    """
    if given.prefill_asked:
        return given, []
    share = load.share(given.profile)
    if share < MATTERS and _priced(given.profile, given.serving, load):
        return given, []
    if not _priced(given.profile, given.serving, load):
        return given, _unpriced(given, load)
    said = (
        f"prompts of {load.prompt:,.0f} tokens (mean) are prefilled by the engine itself: at {load.said} "
        f"that takes about {share:.0%} of its decoding time, and from {MATTERS:.0%} on it is counted; where "
        "other engines prefill, --prefill disaggregated leaves it out"
    )
    return given._replace(serving=replace(given.serving, prefill="chunked")), [said]


def prices_prefill(profile: StepProfile, tokens: float = TYPICAL_PASS) -> bool:
    """Whether a chunk of a prompt makes a pass of so many tokens longer."""
    return prefill_token_seconds(profile, tokens) > 0.0 and not clamps(profile)


def _priced(profile: StepProfile, serving: Serving, load: Load) -> bool:
    """Whether passes with chunks have a cost that rises, and no fitted overhead may hold them already."""
    return prices_prefill(profile, load.tokens) and not prefill_twice(profile, "chunked")


def _unpriced(given: Inputs, load: Load) -> list[str]:
    """Prompts that cannot be priced: their size beside what is decoded, where it is not negligible."""
    mean = float(given.replay.length.mean())
    if load.prompt * load.rate <= 0.0:
        return []
    why = (
        "whose fitted overhead may hold it already"
        if prefill_twice(given.profile, "chunked")
        else "which prices no pass that long"
    )
    return [
        f"prefill is left out: at {load.said} prompts of {load.prompt:,.0f} tokens (mean) are "
        f"{load.rate * load.prompt:,.0f} tokens/s to prefill beside {load.rate * mean:,.0f} decoded, and not "
        f"priced by profile {given.profile.name!r}, {why}"
    ]


def left_out_by_request(given: Inputs, load: Load) -> list[str]:
    """What must be said where prompts were asked to arrive prefilled although prefilling them is much."""
    if not given.prefill_asked or given.serving.prefill != "disaggregated":
        return []
    return left_out(given.profile, load)
