"""One run: a trace, a profile and a policy in, `SimResult` out.

`simulate` validates, lays the inputs out as arrays, lets `kernels.run_engine` replay them, and sums up.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import kernels
from ..calibration import Calibration
from ..errors import ProfileError, WorkloadError
from ..kernels import state as columns
from ..profile import StepProfile, load_profile
from ..profile.tables import NO_LIMIT, ProfileTables
from ..randomness import check_seed, generator
from ..schedule import History, Lagged, Policy
from ..trace import Trace, load_trace
from .backlog import backlog, steadiness_warnings
from .mismatch import long_requests, prefill_twice, refuse_long_context
from .noise import widened
from .outside import SAMPLED, outside_steps
from .own import Own, policy_of, replay_own
from .replay import ROUTE, Replay
from .requests import Requests, closed_loop, open_loop
from .result import SimResult, summarise
from .warnings import run_warnings, trace_and_profile_warnings

if TYPE_CHECKING:
    from ..workload import Workload
from .serving import MAX_RUNNING, ROUTERS, Serving, kv_capacity, require_whole, serving_of


def simulate(
    trace: Trace | str | os.PathLike[str],
    profile: StepProfile | str | os.PathLike[str],
    policy: str | Policy | Any = "lagged",
    concurrency: int | None = None,
    requests: int = 2000,
    seed: int = 0,
    calibration: Calibration | None = None,
    *,
    workload: Workload | None = None,
    block_size: int | None = None,
    serving: Serving | None = None,
    log_steps: int = 4096,
    **serving_options: Any,
) -> SimResult:
    """Replay a trace under a policy and a load.

    Parameters
    ----------
    trace, profile : objects, paths or bundled names.
    policy : name (`lagged:2`, `fixed:3`, ...; docs/architecture.md, Policies) or a policy of `schedule`; or
        one of your own, as an object or `MODULE:NAME`, which is slower (docs/extending.md).
    concurrency : users of the closed loop; give this or `workload`, not both.
    requests : measured requests of the closed loop: the first so many admitted after warm-up.
    calibration : applied to the logits; None replays σ(logit) and fits nothing.
    workload : arrivals (open loop) instead of `concurrency`.
    block_size : replay shorter blocks than the trace holds.
    serving : a `Serving`, or its fields as keywords: `prefill` (disaggregated | chunked), `context` (tokens
        every request reads; default prompt + position), `max_running` (default 256 with arrivals),
        `batch_tokens` (most tokens in a pass with prefill in it), `kv_reserve` (share of memory kept free),
        `graph_bytes` (memory each captured size takes, all GPUs together),
        `kv_tokens` (KV capacity itself, instead of the profile's), `replicas`, `ranks_per_group`, `router`,
        `warmup` (share of arrivals before the measured window).
    log_steps : rows kept of the step log; a longer run keeps every n-th step.

    Warm-up of the closed loop lasts until every user's first, staggered request has ended.
    Raises WorkloadError, PolicyError, TraceError, ProfileError (a step that has no cost).
    """
    trace = trace if isinstance(trace, Trace) else load_trace(trace)
    profile = profile if isinstance(profile, StepProfile) else load_profile(profile)
    replay = Replay.of(trace, calibration, block_size)
    policy = policy_of(policy, replay.block_size)
    serving = serving_of(serving, serving_options)
    if (concurrency is None) == (workload is None):
        raise WorkloadError("give either concurrency (closed loop) or workload (arrivals), and not both")
    check_seed(seed)
    if workload is None:
        require_whole("concurrency", concurrency, 1)
        require_whole("requests", requests, 1)
        users = int(concurrency) * serving.replicas  # type: ignore[arg-type]
        coming = closed_loop(replay, users, requests, seed)
    else:
        coming = open_loop(replay, trace, workload, seed)
        requests = len(coming.arrival)
    run = Run(replay, profile, serving, coming, requests, log_steps)
    result = run.result(policy, seed, trace.confidence_sees_token)
    if result.backlog is not None:
        result.warnings[:0] = steadiness_warnings(result.backlog, result.policy)
    result.warnings[:0] = [
        *trace_and_profile_warnings(trace, profile, replay.block_size),
        *coming.warnings,
    ]
    return result


class Run:
    """One load, ready to be replayed under any policy by `result`; used directly by sweeps and plans."""

    def __init__(
        self,
        replay: Replay,
        profile: StepProfile,
        serving: Serving,
        coming: Requests,
        requests: int,
        log_steps: int = 0,
        tables: ProfileTables | None = None,
    ) -> None:
        if serving.prefill == "chunked" and serving.context is not None:
            coming = coming.with_prompts(serving.context)  # what is read was prefilled
        self.replay, self.profile, self.serving, self.coming = replay, profile, serving, coming
        self.measured, self.log_steps = requests, max(log_steps, 0)
        self.closed = len(coming.arrival) == 0
        users = len(coming.offset) // serving.replicas
        self.max_running = serving.max_running or (users if self.closed else MAX_RUNNING)
        self.kv_capacity = kv_capacity(profile, serving)  # without a drafter
        largest = self.max_running * (1 + replay.block_size) + serving.batch_tokens
        if tables is None or len(tables.verify) <= largest or len(tables.overhead) <= self.max_running:
            tables = profile.tables(largest, self.max_running)
        self.tables = tables
        refuse_long_context(profile, serving.context)
        self._refuse_what_never_fits(self.kv_capacity)
        self.doubts = prefill_twice(profile, serving.prefill)
        self.doubts += [] if serving.context is not None else self._too_long()

    def _too_long(self) -> list[str]:
        """What must be said of requests longer than the model's context; in a closed loop, traced ones."""
        traced = self.replay.length + self.replay.prompt_tokens if self.closed else None
        return long_requests(self.profile, self.coming, traced)

    def _refuse_what_never_fits(self, capacity: int) -> None:
        block = self.replay.block_size
        fixed = self.serving.context
        need = fixed if fixed is not None else self.coming.requests[:, 1:].sum(axis=1)
        longest = int(np.max(need)) + 1 + block
        if longest > capacity:
            raise WorkloadError(
                f"{self.coming.where}: a request needs {longest} KV tokens (context, and room for a block of "
                f"{block}) but an engine of {self.profile.label} holds {capacity}; lower the context "
                "or the lengths, or use a profile with more memory"
            )

    def result(
        self, policy: Policy, seed: int, sees_token: bool = False, bootstrap: bool = True
    ) -> SimResult:
        """Replay under one policy; the same `Run` gives every policy the same requests.

        `bootstrap` False leaves the intervals out: they cost as much as a short run.
        """
        policy = policy_of(policy, self.replay.block_size)
        capacity = kv_capacity(self.profile, self.serving, policy.drafts)
        if capacity < self.kv_capacity:
            self._refuse_what_never_fits(capacity)
        state = self._new_state(policy)
        status = self._replayed(policy, seed, state, capacity)
        count, real = state.counts, state.sums
        if status == kernels.REFUSED:
            raise ProfileError(self.profile.refusal(int(count[columns.REFUSED_TOKENS])))
        arrays = self._measured_arrays(state)
        summary = summarise(
            arrays,
            count,
            real,
            closed=self.closed,
            prefilled_here=self.serving.prefill == "chunked",
            seed=seed if bootstrap else None,
            competes=policy.weighs_costs,
        )
        log = state.log[: count[columns.RECORDED]]
        begin, end = float(real[columns.W_START]), float(real[columns.W_END])
        summary["outside_steps"] = outside_steps(self.profile, policy, log, begin, end)
        trend = None
        if not self.closed and self.measured > 1:
            trend = backlog(state.times[:, columns.ARRIVAL], state.times[:, columns.FINISH])
        result = SimResult(
            policy=policy.name,
            lossless=policy.lossless(sees_token),
            summary=summary,
            warnings=[
                *self.doubts,
                *run_warnings(summary, policy, sees_token, capacity, self.profile),
            ],
            replay=self.replay,
            arrays=arrays,
            log=log if self.log_steps > 1 else log[:0],
            log_stride=int(count[columns.STRIDE]),
            counts=self._counts(state),
            backlog=trend,
        )
        if "intervals" in summary:
            found, weighs = summary["intervals"], policy.weighs_costs
            summary["intervals"] = widened(found, result, self.profile, self.serving, weighs)
        return result

    def _replayed(self, policy: Policy, seed: int, state: kernels.State, capacity: int) -> int:
        block = self.replay.block_size
        plan = policy.kernel_plan(self.max_running, block, self.profile.minimum_gain)
        world, settings = self._world(seed), self._settings(capacity)
        tables = self.tables if policy.engines_own else self.tables._replace(decides=False)
        if isinstance(policy, Own):
            assert self.replay.confidence is not None  # dropped by studies of bundled policies alone
            return replay_own(policy, world, settings, plan, tables, state, self.replay.confidence)
        scratch = kernels.make_scratch(self.max_running, block)
        return int(kernels.run_engine(world, settings, plan, tables, state, scratch))

    def _counts(self, state: kernels.State) -> dict[str, float]:
        """Totals of the whole run, warm-up and drain included: what the laws are stated on."""
        k, count = columns, state.counts
        inside = np.isnan(state.times[:, k.FINISH]) if not self.closed else np.ones(len(state.jobs), bool)
        return {
            "injected": int(count[k.INJECTED]),
            "finished": int(count[k.FINISHED]),
            "running": int(state.rank[:, k.RUNNING].sum()),
            "waiting": int(state.rank[:, k.WAITING].sum()),
            "emitted": int(count[k.EMITTED]),
            "emitted_by_unfinished": int(state.jobs[inside, k.J_EMITTED].sum()),
            "steps": int(count[k.STEPS]),
            "preempted": int(count[k.PREEMPTED]),
            "kv_peak": int(count[k.KV_PEAK]),
            "in_system_area": float(state.sums[k.IN_SYSTEM_AREA]),
            "last_change": float(state.sums[k.LAST_CHANGE]),
        }

    def _measured_arrays(self, state: kernels.State) -> dict[str, np.ndarray]:
        k = columns
        measured = slice(0 if self.closed else self._warmup(), None)
        times, facts = state.times[measured], state.facts[measured]
        return {
            "arrival_seconds": times[:, k.ARRIVAL],
            "ready_seconds": times[:, k.READY],
            "finish_seconds": times[:, k.FINISH],
            "started_seconds": times[:, k.STARTED],
            "longest_gap_seconds": times[:, k.LONGEST],
            "traced": facts[:, k.F_TRACED],
            "tokens": facts[:, k.F_TOKENS],
            "steps": facts[:, k.F_STEPS],
            "verified": facts[:, k.F_VERIFIED],
            "accepted": facts[:, k.F_ACCEPTED],
            "preemptions": facts[:, k.F_PREEMPTED],
        }

    def _warmup(self) -> int:
        return min(int(self.serving.warmup * self.measured), self.measured - 1)

    def _new_state(self, policy: Policy) -> kernels.State:
        s = self.serving
        jobs = len(self.coming.offset) if self.closed else self.measured
        lag = policy.lag if isinstance(policy, Lagged) else 0
        habit = self.replay.block_size if isinstance(policy, History) else 0
        groups = s.replicas // s.ranks_per_group
        # A log that nobody asked for is kept short, to tell what lies outside the measured points.
        rows = self.log_steps if self.log_steps > 1 else SAMPLED
        return kernels.make_state(self.measured, jobs, s.replicas, groups, self.max_running, lag, rows, habit)

    def _settings(self, capacity: int) -> kernels.Settings:
        s, limit = self.serving, self.profile.graph_limit
        return kernels.Settings(
            closed=self.closed,
            warmup=0 if self.closed else self._warmup(),
            router=ROUTERS.index(s.router),
            group_size=s.ranks_per_group,
            max_running=self.max_running,
            kv_capacity=capacity,
            context=-1 if s.context is None else int(s.context),
            chunked=s.prefill == "chunked",
            batch_tokens=s.batch_tokens,
            capture_limit=NO_LIMIT if limit is None else limit,
            row_a_step=self.replay.row_a_step,
        )

    def _world(self, seed: int) -> kernels.World:
        s, replay, coming = self.serving, self.replay, self.coming
        choices = np.empty((0, 2), dtype=np.int32)
        if s.router == "two-choices" and not self.closed:
            choices = generator(seed, ROUTE).integers(0, s.replicas, size=(self.measured, 2), dtype=np.int32)
        return kernels.World(
            survival=replay.survival,
            accepted=replay.accepted,
            traced=np.ascontiguousarray(np.stack([replay.start, replay.rows, coming.next_request], axis=1)),
            requests=coming.requests,
            arrival=coming.arrival,
            offset=np.stack([coming.offset, coming.offset_rows], axis=1),
            choices=choices,
        )
