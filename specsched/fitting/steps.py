"""A benchmark as its sequence of steps, so that a candidate profile prices it without running it again.

A closed benchmark holds a number of requests that wait for a number of places, all there at once. Which
requests share a step, and which prompts join it, then depends on the text alone, not on what a step costs,
unless the policy weighs costs. So the simulator runs once, and any profile prices the steps it took; the
times are those it would give itself, to rounding. (A policy that weighs costs is run again for each
candidate; only derivatives are taken along its last schedule, to which they are blind in first order at a
best budget.)"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from ..errors import SpecschedError
from ..profile import StepProfile
from ..profile.tables import ProfileTables
from ..simulator import Serving, simulate
from ..trace import Trace
from ..workload import Workload


@dataclass(frozen=True)
class Setting:
    """How a benchmark was run: `prompts` requests of equal lengths wait for `users` places.

    `prefill`: chunked (prompts join the steps) or disaggregated (they cost these steps nothing).
    """

    users: int
    prompt_tokens: int
    output_tokens: int
    prompts: int
    prefill: str = "chunked"
    batch_tokens: int = 8192


@dataclass(frozen=True, eq=False)
class Steps:
    """What each step of a benchmark did: int64[n] each, and for each request int64[m] the step after which
    its first token was there (`ready`) and its last (`finish`)."""

    setting: Setting
    drafting: bool
    requests: np.ndarray
    tokens: np.ndarray  # anchors and drafts
    prefill: np.ndarray
    context: np.ndarray
    ready: np.ndarray
    finish: np.ndarray
    decoded: np.ndarray  # tokens of each request
    request_steps: np.ndarray  # steps of each request

    @property
    def most_tokens(self) -> int:
        """Tokens of the largest pass."""
        return int((self.tokens + self.prefill).max())

    @property
    def most_decoding(self) -> int:
        """Anchors and drafts of the largest pass."""
        return int(self.tokens.max())

    @property
    def length(self) -> float:
        """Tokens of a step of a request."""
        return float(self.decoded.sum() / self.request_steps.sum())

    @property
    def verified(self) -> float:
        """Tokens verified of a request and step, its anchor included."""
        return float(self.tokens.sum() / self.requests.sum())

    def seconds(self, tables: ProfileTables) -> np.ndarray:
        """float64[n]: what each step costs, as the engine loop adds it up (`StepProfile`)."""
        x, y, slope = tables.attention_x, tables.attention_y, tables.attention_slope
        at = np.clip(np.searchsorted(x, self.context, side="right") - 1, 0, len(x) - 1)
        attention = y[at] + slope[at] * np.maximum(self.context - x[at], 0.0)
        base = tables.bias + attention + tables.overhead[self.requests]
        passes = self.tokens + self.prefill
        if self.drafting:
            base = base + tables.draft[self.requests]
        cost = base + tables.verify[passes]
        if self.drafting and tables.enabling_fraction > 0.0:
            cost = cost / (1.0 - tables.enabling_fraction)
        return np.where(passes > 0, cost, 0.0)

    def speeds(self, tables: ProfileTables, pause: float = 0.0) -> tuple[float, float]:
        """(tokens/s of a user: 1 / median time per token; tokens/s of all, drain and pauses included).

        `pause`: seconds between two requests of a place.
        """
        clock = np.concatenate([[0.0], np.cumsum(self.seconds(tables))])
        per_token = (clock[self.finish] - clock[self.ready]) / self.decoded
        s = self.setting
        whole = clock[-1] + pause * s.prompts / s.users
        return 1.0 / float(np.median(per_token)), s.prompts * s.output_tokens / whole


@cache
def unit_profile() -> StepProfile:
    """Every step takes one second: times are numbers of steps."""
    verify = {"tokens": [1], "seconds": [1.0], "lookup": "linear", "beyond": "clamp"}
    return StepProfile.from_dict({"schema": "specsched/profile/1", "name": "unit", "verify": verify})


def steps_of(trace: Trace, profile: StepProfile, policy: str, setting: Setting) -> Steps:
    """Run the benchmark once; `profile` matters to policies that weigh costs alone."""
    s = setting
    apart = s.prefill == "disaggregated" or s.prompt_tokens == 0
    prompt = 1 if apart else s.prompt_tokens
    load = Workload(
        name="benchmark",
        arrival_seconds=np.zeros(s.prompts),
        prompt_tokens=np.full(s.prompts, prompt),
        output_tokens=np.full(s.prompts, s.output_tokens),
    )
    # The loads that memory did not bound were measured: it must not bound them here either.
    room = s.users * (s.prompt_tokens + s.output_tokens + trace.block_size + 2)
    serving = Serving(
        prefill="chunked", max_running=s.users, warmup=0.0, batch_tokens=s.batch_tokens, kv_tokens=room
    )
    most = s.prompts * (s.output_tokens + 1 + -(-prompt // s.batch_tokens))
    result = simulate(trace, profile, policy, workload=load, serving=serving, log_steps=most)
    if result.log_stride != 1:
        raise SpecschedError("the steps of a benchmark were not all kept; give fewer prompts")
    log = result.log
    ends = log[:, 0] + log[:, 1]
    a = result.arrays
    requests, prefill = log[:, 3].astype(np.int64), log[:, 5].astype(np.int64)
    context = log[:, 6].astype(np.int64)
    if apart:  # the one token stands for a prompt that other engines prefilled
        prefill, context = np.zeros_like(prefill), context + requests * (s.prompt_tokens - 1)
    slack = 1e-9 * max(1.0, float(ends[-1]))
    return Steps(
        setting=s,
        drafting=policy != "off",
        requests=requests,
        tokens=log[:, 4].astype(np.int64),
        prefill=prefill,
        context=np.maximum(context, 0),
        ready=np.searchsorted(ends, a["ready_seconds"] + slack, side="right"),
        finish=np.searchsorted(ends, a["finish_seconds"] + slack, side="right"),
        decoded=a["tokens"].astype(np.int64),
        request_steps=a["steps"].astype(np.int64),
    )
