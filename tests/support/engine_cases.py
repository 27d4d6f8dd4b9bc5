"""Whole runs to test the engine with: small traces, jagged profiles, every way of serving; by hypothesis."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import profile_cases
from hypothesis import strategies as st
from reference_engine import Engine, Setup

from specsched import schedule
from specsched.calibration.metrics import sigmoid
from specsched.profile import StepProfile
from specsched.profile.tables import NO_LIMIT
from specsched.simulator import Serving, SimResult, simulate
from specsched.simulator.replay import Replay
from specsched.simulator.requests import Requests, closed_loop, open_loop
from specsched.simulator.run import Run
from specsched.simulator.serving import ROUTERS
from specsched.trace import Trace
from specsched.workload import Workload

LOGITS = [-800.0, -2.0, -0.5, 0.0, 0.5, 1.0, 1.0, 2.0, 2.0, 4.0, 800.0]  # ties, and confidences 0 and 1


@dataclass
class Case:
    """One run but for its policy. `users` per rank of a closed loop, or a `workload`."""

    trace: Trace
    profile: StepProfile
    serving: dict[str, Any]
    users: int | None = None
    workload: Workload | None = None
    requests: int = 1
    seed: int = 0

    @property
    def replay(self) -> Replay:
        return Replay.of(self.trace)

    @property
    def coming(self) -> Requests:
        if self.workload is not None:
            return open_loop(self.replay, self.trace, self.workload, self.seed)
        users = int(self.users or 0) * self.serving.get("replicas", 1)
        return closed_loop(self.replay, users, self.requests, self.seed)

    def run(self, policy: tuple[str, Any], **more: Any) -> SimResult:
        """The jitted loop, through the front door; every step is logged."""
        options: dict[str, Any] = {"workload": self.workload, "seed": self.seed, "log_steps": 1 << 14}
        if self.workload is None:
            options |= {"concurrency": self.users, "requests": self.requests}
        return simulate(self.trace, self.profile, policy_of(policy), **(options | self.serving | more))

    def expected(self, policy: tuple[str, Any], by: str = "oracle") -> Engine:
        """The naive engine on the same inputs."""
        return Engine(self.setup(), *policy, by=by).run()

    def setup(self) -> Setup:
        replay, coming, serving = self.replay, self.coming, Serving(**self.serving)
        n = self.requests if self.workload is None else len(coming.arrival)
        run = Run(replay, self.profile, serving, coming, n)
        confidence = sigmoid(self.trace.confidence_logit).tolist()
        accepted = self.trace.accepted.tolist()
        rows = list(zip(confidence, accepted, strict=True))
        spans = list(zip(self.trace.starts, self.trace.lengths, strict=True))
        log = self.trace.mode == "sequential"
        where = [(self.trace.position[at : at + n] - self.trace.position[at]).tolist() for at, n in spans]
        return Setup(
            profile=self.profile,
            block=self.trace.block_size,
            rows=[rows[at : at + n] for at, n in spans],
            goes_on_in=coming.next_request.tolist(),
            requests=[tuple(row) for row in coming.requests.tolist()],
            arrival=coming.arrival.tolist(),
            offsets=coming.offset.tolist(),
            measured=n,
            warmup=min(int(serving.warmup * n), n - 1) if self.workload is not None else 0,
            chunked=serving.prefill == "chunked",
            context=serving.context,
            max_running=run.max_running,
            batch_tokens=serving.batch_tokens,
            kv_tokens=math.inf if run.kv_capacity == NO_LIMIT else run.kv_capacity,
            ranks=serving.replicas,
            ranks_per_group=serving.ranks_per_group,
            router=serving.router,
            choices=run._world(self.seed).choices.tolist(),
            positions=where if log else None,
        )


def policy_of(policy: tuple[str, Any]) -> str | schedule.Policy:
    name, parameter = policy
    if name == "batch-table":
        return schedule.BatchTable(parameter)
    if name == "sla":
        return schedule.Paced(**parameter)
    if name == "bypass":
        return schedule.Bypass(**parameter)
    return name if parameter is None else f"{name}:{parameter}"


def policies(block: int) -> list[tuple[str, Any]]:
    """Every policy, those with a parameter at more than one."""
    table = [[1, 2, block], [3, 3, 0], [4, None, min(1, block)]]
    more = [("fixed", block), ("threshold", 0.3), ("threshold", 0.9), ("lagged", 1), ("lagged", 3)]
    plain = [("off", None), ("fixed", 1), ("early-stop", None), ("lagged", 2), ("global", None)]
    # These stop and probe within the few steps of a small run.
    quick = {"lag": 1, "window": 6, "least": 1, "gain": 0.0, "share": 0.6, "rows": 1}
    slower = {"lag": 2, "window": 20, "least": 3, "share": 0.3, "rows": 2}
    stops = [("bypass", quick), ("bypass", slower)]
    paced = [("sla", {"sla": s, "lag": lag}) for s, lag in ((3.0, 1), (20.0, 2))]
    return [
        *plain,
        *more,
        *stops,
        *paced,
        ("history", 2),
        ("history", 32),
        ("hindsight", None),
        ("batch-table", table),
    ]


@st.composite
def small_profiles(draw: st.DrawFn, refuses: bool = True) -> StepProfile:
    """Jagged within the few tokens that small runs need: stairs, captured sizes and their limit, eager."""
    document = draw(profile_cases.profiles())
    document["verify"] |= draw(profile_cases.curves("tokens", 1, 40))
    if "capture" in document:
        sizes = sorted(draw(st.sets(st.integers(1, 40), min_size=1, max_size=6)))
        document["capture"] = {"sizes": sizes, "limit": draw(st.integers(sizes[0], 45))}
        document["eager"] = draw(profile_cases.curves("tokens", 1, 60))
        if refuses and draw(st.integers(0, 3)) == 0:
            del document["eager"]
    if "attention" in document:
        document["attention"] = draw(profile_cases.curves("kv_tokens", 0, 120))
    for key in ("overhead", "draft"):
        if key in document:
            document[key] = draw(profile_cases.curves("requests", int(key == "draft"), 8))
    document["scheduler"]["minimum_gain"] = draw(st.sampled_from([0.0, 0.0, 0.05, 0.5]))
    if draw(st.integers(0, 2)) == 0:
        document["scheduler"]["table"] = draw(profile_cases.decisions())
    return StepProfile.from_dict(document)


@st.composite
def small_traces(draw: st.DrawFn, most_requests: int = 5, most_rows: int = 9) -> Trace:
    block = draw(st.integers(1, 4))
    lengths = draw(st.lists(st.integers(1, most_rows), min_size=1, max_size=most_requests))
    n = sum(lengths)
    logit = draw(st.lists(st.sampled_from(LOGITS), min_size=n * block, max_size=n * block))
    accepted = draw(st.lists(st.integers(0, block), min_size=n, max_size=n))
    prompts = draw(st.lists(st.integers(0, 12), min_size=len(lengths), max_size=len(lengths)))
    position = np.concatenate([np.arange(length) for length in lengths])
    log = draw(st.booleans())
    if log:  # an engine's: a row a step, each some tokens after the one before
        gaps = draw(st.lists(st.integers(1, 5), min_size=n, max_size=n))
        position = np.concatenate([np.cumsum(part) for part in np.split(gaps, np.cumsum(lengths)[:-1])])
    return Trace.from_arrays(
        request=np.repeat(np.arange(len(lengths)), lengths),
        position=position,
        confidence_logit=np.array(logit).reshape(n, block),
        accepted=accepted,
        prompt_tokens=np.repeat(prompts, lengths),
        metadata={"licence": "CC0", "mode": "sequential" if log else "dense"},
    )


@st.composite
def servings(draw: st.DrawFn, longest: int, block: int) -> dict[str, Any]:
    """Prefill, context, memory pressure, replicas, groups, routers: any combination."""
    replicas = draw(st.sampled_from([1, 1, 1, 2, 3, 4]))
    groups = [k for k in range(1, replicas + 1) if replicas % k == 0]
    context = draw(st.sampled_from([None, None, None, 0, 7]))
    need = (longest if context is None else context) + 1 + block
    return {
        "prefill": draw(st.sampled_from(["disaggregated", "chunked"])),
        "context": context,
        "max_running": draw(st.sampled_from([None, None, 1, 2, 3])),
        "batch_tokens": draw(st.sampled_from([1, 3, 8, 30])),
        "kv_tokens": draw(st.sampled_from([None, need, need + 5, 2 * need, 3 * need])),
        "replicas": replicas,
        "ranks_per_group": draw(st.sampled_from(groups)),
        "router": draw(st.sampled_from(ROUTERS)),
        "warmup": draw(st.sampled_from([0.0, 0.1, 0.5])),
    }


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Up to a dozen requests: bursts, ties and gaps; lengths their own or the trace's, 1 token ones too."""
    n = draw(st.integers(1, 12))
    gaps = draw(st.lists(st.sampled_from([0.0, 0.0, 1e-3, 0.05, 0.7, 30.0]), min_size=n, max_size=n))
    lengths = {}
    for key, least in (("prompt_tokens", 0), ("output_tokens", 1)):
        if draw(st.booleans()):
            lengths[key] = np.array(draw(st.lists(st.integers(least, 14), min_size=n, max_size=n)))
    return Workload("drawn", np.cumsum(gaps), **lengths)


@st.composite
def cases(draw: st.DrawFn, closed: bool | None = None, refuses: bool = True) -> Case:
    """Any run at all; `closed` True or False: of that kind; `refuses`: the profile may lack a step's cost."""
    trace = draw(small_traces())
    is_closed = draw(st.booleans()) if closed is None else closed
    case = Case(trace, draw(small_profiles(refuses)), {}, seed=draw(st.integers(0, 3)))
    if is_closed:
        case.users, case.requests = draw(st.integers(1, 4)), draw(st.integers(1, 8))
    else:
        case.workload = draw(workloads())
    longest = int(case.coming.requests[:, 1:].sum(axis=1).max())
    case.serving = draw(servings(longest, trace.block_size))
    return case


def rows_of(result: SimResult) -> list[tuple[Any, ...]]:
    """Measured requests as the jitted loop reports them."""
    keys = ("traced", "arrival_seconds", "ready_seconds", "finish_seconds", "tokens", "steps", "verified")
    more = ("accepted", "preemptions", "started_seconds", "longest_gap_seconds")
    columns = [result.arrays[key].tolist() for key in (*keys, *more)]
    return list(zip(*columns, strict=True))


def rows_expected(engine: Engine) -> list[tuple[Any, ...]]:
    """Measured requests as the naive engine has them."""
    return [
        (
            r.first_traced,
            r.arrival,
            r.ready,
            r.finish,
            r.emitted,
            r.steps,
            r.verified,
            r.accepted,
            r.preempted,
            r.started,
            r.longest,
        )
        for r in engine.measured
    ]
