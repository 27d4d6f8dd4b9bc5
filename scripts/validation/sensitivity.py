"""Which input a capacity depends on: each one moved by 10 %, on the synthetic chat trace and the bundled
H100 profile.

Every variant replays the same requests with the same random numbers, so that differences are the input's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

import specsched as ss
from specsched.calibration import Calibration
from specsched.planner.capacity import Question, Search
from specsched.profile import StepProfile
from specsched.schedule import make
from specsched.simulator import Serving
from specsched.simulator.replay import Replay
from specsched.trace import Trace
from specsched.trace.settings import FIGURE_2

from .common import Settings, percent, rounded, table

PROFILE, TRACE, SLA = "h100-sxm_qwen3-8b_bf16_tp1", "qwen3-4b-chat", 120.0
POLICIES = ("off", "fixed:7", "lagged:2")


@dataclasses.dataclass(frozen=True)
class Inputs:
    """All that a capacity depends on."""

    profile: StepProfile
    trace: Trace
    calibration: Calibration
    lag: int = 2
    context: int | None = None


def chat(factor: float, requests: int) -> Trace:
    """The bundled synthetic chat trace, its conditional acceptances times `factor`; at 1 the very same
    bytes."""
    return ss.synthesise(
        [min(p * factor, 0.999) for p in FIGURE_2["chat"]],
        requests=requests,
        output_tokens=180.0,
        prompt_tokens=120.0,
        seed=1,
        name=TRACE,
    )


def scaled(profile: StepProfile, blocks: dict[str, float]) -> StepProfile:
    """`profile` with the seconds of these blocks times a factor."""
    document = profile.to_dict()
    for name, factor in blocks.items():
        if document.get(name):
            document[name] = {**document[name], "seconds": [s * factor for s in document[name]["seconds"]]}
    return StepProfile.from_dict(document)


def longer(profile: StepProfile, factor: float) -> StepProfile:
    """`profile` as if every request read `factor` times its context."""
    document = profile.to_dict()
    assert profile.attention is not None
    points = sorted({max(1, round(n / factor)) for n in document["attention"]["kv_tokens"]})
    seconds = [float(profile.attention(n * factor)) for n in points]
    document["attention"] = {**document["attention"], "kv_tokens": points, "seconds": seconds}
    return StepProfile.from_dict(document)


def host_time(profile: StepProfile, milliseconds: float) -> StepProfile:
    """`profile` with that many ms times the square root of R added to its overhead."""
    document = profile.to_dict()
    requests = sorted({int(r) for r in np.geomspace(1, 512, 30)})
    own = (
        profile.overhead(np.array(requests, float))
        if profile.overhead is not None
        else np.zeros(len(requests))
    )
    seconds = [float(o + 1e-3 * milliseconds * np.sqrt(r)) for o, r in zip(own, requests, strict=True)]
    document["overhead"] = {"requests": requests, "seconds": seconds, "beyond": "slope"}
    return StepProfile.from_dict(document)


def capacity(inputs: Inputs, policy: str, near: int | None, requests: int) -> int:
    """Users at the SLA; `near` is where to begin to look (the capacity of the inputs as they are)."""
    replay = Replay.of(inputs.trace, inputs.calibration)
    serving = Serving(context=inputs.context)
    question = Question(replay, inputs.profile, serving, SLA, 0.95, requests, 0)
    search = Search(question, make(policy, block_size=replay.block_size))
    first = max(1, int(0.6 * near)) if near else 1
    while first > 1 and not search.at(first).passes(0.95):
        first //= 2
    rungs = [first]
    while rungs[-1] < 600:
        rungs.append(max(rungs[-1] + 1, int(rungs[-1] * 1.1)))
    return search.first_failure(rungs, "share")[0]


def variants(base: Inputs, count: int, fit_requests: np.ndarray) -> Iterator[tuple[str, str, Inputs]]:
    """(input, change, inputs) of every row."""
    p = base.profile
    for sign, factor in (("-10 %", 0.9), ("+10 %", 1.1)):
        passes = {"verify": factor, "eager": factor, "attention": factor}
        yield "step cost (verify, attention)", sign, dataclasses.replace(base, profile=scaled(p, passes))
        yield "draft cost", sign, dataclasses.replace(base, profile=scaled(p, {"draft": factor}))
        moved = chat(factor, count)
        held = moved.select(np.setdiff1d(moved.request_ids, fit_requests))
        calibration = ss.fit_sts(moved)
        yield "acceptance", sign, dataclasses.replace(base, trace=held, calibration=calibration)
        heated = dataclasses.replace(base.calibration, temperatures=base.calibration.temperatures * factor)
        yield "calibration temperature", sign, dataclasses.replace(base, calibration=heated)
        yield "overhead(R)", sign, dataclasses.replace(base, profile=scaled(p, {"overhead": factor}))
        yield "context (about 200 tokens)", sign, dataclasses.replace(base, profile=longer(p, factor))
    yield "lag", "1 instead of 2", dataclasses.replace(base, lag=1)
    yield "lag", "4 instead of 2", dataclasses.replace(base, lag=4)
    yield (
        "no calibration",
        "raw",
        dataclasses.replace(
            base,
            calibration=dataclasses.replace(base.calibration, temperatures=np.ones(base.trace.block_size)),
        ),
    )
    yield "host time", "+0.1 √R ms", dataclasses.replace(base, profile=host_time(p, 0.1))
    yield "host time", "+1 √R ms", dataclasses.replace(base, profile=host_time(p, 1.0))
    yield "context", "4,096 tokens", dataclasses.replace(base, context=4096)


def run(settings: Settings) -> dict[str, Any]:
    """Capacities of the inputs as they are, and their change under every variant."""
    count, requests = (60, 60) if settings.quick else (400, 600)
    policies = POLICIES[-1:] if settings.quick else POLICIES
    whole = chat(1.0, count)
    calibration = ss.fit_sts(whole)
    held = whole.select(calibration.held_out_requests)
    base = Inputs(ss.load_profile(PROFILE), held, calibration)
    own = {policy: capacity(base, policy, None, requests) for policy in policies}
    found = []
    for name, change, inputs in variants(base, count, calibration.fit_requests):
        if settings.quick and name not in ("draft cost", "lag"):
            continue
        row: dict[str, Any] = {"input": name, "change": change}
        for policy in policies:
            asked = policy if not policy.startswith("lagged") else f"lagged:{inputs.lag}"
            row[policy] = capacity(inputs, asked, own[policy], requests)
        found.append(row)
    return rounded(
        {"profile": PROFILE, "trace": TRACE, "sla": SLA, "requests": requests, "base": own, "rows": found}
    )


def text(numbers: dict[str, Any]) -> str:
    """The section of the document."""
    policies = list(numbers["base"])
    merged: dict[str, dict[str, dict[str, Any]]] = {}
    for row in numbers["rows"]:
        merged.setdefault(row["input"], {})[row["change"]] = row
    body = [["as they are", "", *(numbers["base"][p] for p in policies)]]
    for name, changes in merged.items():
        for change, row in changes.items():
            moved = (f"{row[p]} ({row[p] - numbers['base'][p]:+d})" for p in policies)
            body.append([name, change, *moved])
    own = numbers["base"][policies[-1]]
    size = {
        name: max(abs(row[policies[-1]] - own) / own for row in changes.values())
        for name, changes in merged.items()
        if {"-10 %", "+10 %"} <= changes.keys()
    }
    order = sorted(size, key=lambda name: -size[name])
    listed = ", ".join(f"{name} {percent(size[name], False)}" for name in order)
    return f"""Users one engine carries at {numbers["sla"]:g} tokens/s for 95 % of requests:
`{numbers["trace"]}` on `{numbers["profile"]}`, {numbers["requests"]} measured requests a load, the same
ones and the
same random numbers in every row. The interval that noise alone leaves is about ±10 % (README); the rows are
paired, so
their differences are finer than that.

{table(["input", "change", *policies], body)}

- Largest change of {policies[-1]}'s capacity for 10 % of an input: {listed}.
- What is *missing* from an input matters more than its last 10 %: host time that grows as √R ms, as one
  published engine has it,
  or a context of 4,096 tokens instead of 200, each halve the answer. Measure those first.
- Without drafts the answer is far more sensitive than with them: at this speed a step of one token may
  hardly take
  longer than the shortest step there is, and the curve of cost is flat there.
- Calibration, and a lag of 1 or 4 for 2, hardly move a capacity where confidences are as good as these. (Raw
  confidences are {policies[-1]} with every temperature 1.)
"""
