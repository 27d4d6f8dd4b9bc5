"""Serving engines in plain Python: the engine step of docs/architecture.md, to compare the loop with.

One object a request, one a rank, lists and sums made from scratch: nothing is kept up to date that could be
counted again. Plans are those of `reference`, or of `schedule` as an engine would call it; step costs are
`StepProfile.seconds` and `sps`.

    admit      waiting requests, first come first served, while places and KV memory allow
    plan       prefill chunks join; the policy chooses how many drafts of each request to verify
    execute    the clock moves by seconds(B, R, N); a group steps together
    commit     each request keeps min(verified, accepted) + 1 tokens; the finished leave
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import reference
from reference import Bypass, History

from specsched import schedule
from specsched.errors import ProfileError
from specsched.profile import StepProfile

READS_PRESENT = ("threshold", "early-stop", "global")  # these wait for the confidences: sync is paid


@dataclass
class Setup:
    """All that a run is given. Limits are per rank."""

    profile: StepProfile
    block: int
    rows: list[list[tuple[list[float], int]]]  # of each traced request: (confidences, accepted) a row
    goes_on_in: list[int]  # the traced request a longer output continues with
    requests: list[tuple[int, int, int]]  # traced request, tokens to decode, prompt tokens; in order
    arrival: list[float] = field(default_factory=list)  # open loop
    offsets: list[int] = field(default_factory=list)  # closed loop: tokens each user's first has behind it
    measured: int = 0
    warmup: int = 0  # open loop: requests before the measured window
    chunked: bool = False
    context: int | None = None
    max_running: int = 256
    batch_tokens: int = 8192
    kv_tokens: float = math.inf
    ranks: int = 1
    ranks_per_group: int = 1
    router: str = "least-outstanding"
    choices: list[list[int]] = field(default_factory=list)
    positions: list[list[int]] | None = None  # of a log: tokens of the request before each row; a row a step

    @property
    def closed(self) -> bool:
        return not self.arrival


@dataclass(eq=False)
class Request:
    number: int
    traced: int
    left: int
    prompt: int
    arrival: float
    to_prefill: int
    ready: float | None  # when its first anchor was there
    row: int = 0
    emitted: int = 0
    chunk: int = 0
    first_traced: int = 0
    user: int = 0
    rank: int = 0
    entered: int | None = None  # how many were admitted before it
    finish: float | None = None
    started: float | None = None  # when it first got a place
    delivered: list[float] = field(default_factory=list)  # when tokens of its came
    steps: int = 0
    verified: int = 0
    accepted: int = 0
    preempted: int = 0
    missed: int = 0  # tokens emitted since it was last drafted for

    @property
    def longest(self) -> float:
        """Seconds between two deliveries of its tokens, at most; the first anchor is the first of them."""
        times = [self.ready or 0.0, *self.delivered]
        return max((after - before for before, after in pairwise(times)), default=0.0)


@dataclass(eq=False)
class Rank:
    waiting: deque[Request] = field(default_factory=deque)
    running: list[Request] = field(default_factory=list)
    plans: list[tuple[list[int], list[list[float]]]] = field(default_factory=list)
    policy: Any = None
    decoding: list[Request] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    prefill: int = 0
    context: int = 0
    drafted: list[bool] = field(default_factory=list)  # for whom the step drafts
    missed: int = 0  # tokens of theirs that the drafter has to read first

    @property
    def tokens(self) -> int:
        return len(self.decoding) + sum(self.lengths)


@dataclass
class Window:
    """What is added up while the window is open."""

    start: float = 0.0
    end: float = 0.0
    steps: list[dict[str, Any]] = field(default_factory=list)  # of groups
    ranks: list[dict[str, Any]] = field(default_factory=list)  # of their ranks
    preemptions: int = 0
    blocked: int = 0
    full: int = 0


class Engine:
    """`Engine(setup, "lagged", 2).run()`; then `measured`, `log`, `window`, `everyone`."""

    def __init__(self, setup: Setup, name: str, parameter: Any = None, by: str = "oracle") -> None:
        self.setup, self.name, self.parameter = setup, name, parameter
        self.drafts = name != "off"
        self.gain = setup.profile.minimum_gain
        self.room = 1 + (setup.block if self.drafts else 0)  # KV a running request needs beside its context
        self.ranks = [Rank() for _ in range(setup.ranks)]
        for rank in self.ranks:
            if by == "schedule":
                rank.policy = _made(name, parameter, setup)
            elif name == "bypass":
                rank.policy = Bypass(**parameter)
            elif name == "history":
                rank.policy = History(parameter, setup.block)
        groups = setup.ranks // setup.ranks_per_group
        self.begun: list[float | None] = [None] * groups
        self.end = [math.inf] * groups
        self.everyone: list[Request] = []
        self.admitted = 0
        self.measured_from: int | None = None if setup.closed else 0
        self.open_window = False
        self.window = Window()
        self.log: list[tuple[float, ...]] = []
        self.kv_peak = 0

    # -- events ----------------------------------------------------------------------------------------

    def run(self) -> Engine:
        s = self.setup
        if s.closed:
            for user, offset in enumerate(s.offsets):
                first = self.inject(user % s.ranks, 0.0, user)
                first.emitted, first.left, first.row = offset, first.left - offset, self.row_at(first, offset)
        while self.unfinished():
            group = self.end.index(min(self.end))
            now = self.end[group]
            coming = len(self.everyone)
            if not s.closed and coming < len(s.arrival) and s.arrival[coming] <= now:
                self.arrive(s.arrival[coming])
                continue
            assert now < math.inf, "nothing runs and nothing arrives, but requests are unfinished"
            self.commit(group, now)
            for rank in self.of(group):
                self.admit(rank, now)
                self.plan(rank, now)
            self.execute(group, now)
        return self

    def row_at(self, request: Request, tokens: int) -> int:
        """The row of the step that an engine with so many tokens behind it was in."""
        if self.setup.positions is None:
            return tokens
        begun = [position <= tokens for position in self.setup.positions[request.traced]]
        return begun.count(True) - 1

    def unfinished(self) -> bool:
        s = self.setup
        if not s.closed:
            return len(self.everyone) < s.measured or any(r.finish is None for r in self.everyone)
        chosen = self.measured
        return len(chosen) < s.measured or any(r.finish is None for r in chosen)

    @property
    def measured(self) -> list[Request]:
        """Closed loop: the first so many admitted after warm-up. Open loop: all after warm-up."""
        s = self.setup
        if not s.closed:
            return self.everyone[s.warmup :]
        if self.measured_from is None:
            return []
        late = [r for r in self.everyone if r.entered is not None and r.entered >= self.measured_from]
        return sorted(late, key=lambda r: r.entered or 0)[: s.measured]

    def of(self, group: int) -> list[Rank]:
        n = self.setup.ranks_per_group
        return self.ranks[group * n : (group + 1) * n]

    def arrive(self, now: float) -> None:
        s, i = self.setup, len(self.everyone)
        if i == s.warmup:
            self.open_window, self.window.start = True, now
        if i == len(s.arrival) - 1:
            self.open_window, self.window.end = False, now
        outstanding = [len(r.waiting) + len(r.running) for r in self.ranks]
        if s.router == "round-robin":
            rank = i % s.ranks
        elif s.router == "two-choices" and s.ranks > 1:
            a, b = s.choices[i]
            rank = b if outstanding[b] < outstanding[a] else a
        else:
            rank = outstanding.index(min(outstanding))
        self.inject(rank, now, i)

    def inject(self, rank: int, now: float, user: int) -> Request:
        s, i = self.setup, len(self.everyone)
        traced, decode, prompt = s.requests[i % len(s.requests)]
        if s.chunked and s.context is not None:
            prompt = s.context  # what a request reads was prefilled
        to_prefill = prompt if s.chunked else 0
        ready = None if to_prefill else now
        new = Request(i, traced, decode, prompt, now, to_prefill, ready, first_traced=traced, user=user)
        new.rank = rank
        self.everyone.append(new)
        self.ranks[rank].waiting.append(new)
        group = rank // s.ranks_per_group
        if self.begun[group] is None:
            self.end[group] = min(self.end[group], now)
        return new

    # -- admit, plan, execute, commit --------------------------------------------------------------------

    def reads(self, request: Request) -> int:
        fixed = self.setup.context
        return request.prompt + request.emitted if fixed is None else fixed

    def kv(self, requests: list[Request]) -> int:
        return sum(self.reads(r) + self.room for r in requests)

    def admit(self, rank: Rank, now: float) -> None:
        s = self.setup
        while self.kv(rank.running) > s.kv_tokens:
            newest = max(rank.running, key=lambda r: r.number)
            rank.running.remove(newest)
            newest.to_prefill = newest.prompt + newest.emitted
            newest.preempted += 1
            rank.waiting.appendleft(newest)
            self.window.preemptions += self.open_window
        while rank.waiting and len(rank.running) < s.max_running:
            head = rank.waiting[0]
            if head.left == 0 and head.to_prefill == 0:  # its only token came with its prefill
                rank.waiting.popleft()
                self.enter(head, now)
                self.leave(head, now)
                continue
            if self.kv([*rank.running, head]) > s.kv_tokens:
                self.window.blocked += self.open_window
                break
            rank.running.append(rank.waiting.popleft())
            self.enter(head, now)
        if rank.waiting and len(rank.running) == s.max_running:
            self.window.full += self.open_window
        self.kv_peak = max(self.kv_peak, self.kv(rank.running))

    def enter(self, request: Request, now: float) -> None:
        if request.entered is None:
            request.entered, request.started = self.admitted, now
            self.admitted += 1

    def plan(self, rank: Rank, now: float) -> None:
        s = self.setup
        rank.decoding = [r for r in rank.running if r.to_prefill == 0]
        rank.context = sum(self.reads(r) for r in rank.decoding)
        left = s.batch_tokens - len(rank.decoding) * self.room
        for r in rank.running:
            if r.to_prefill > 0:
                r.chunk = min(max(left, 0), r.to_prefill)
                left -= r.chunk
                if r.chunk > 0:  # it attends to what of its request is in the cache already
                    rank.context += r.prompt + r.emitted - r.to_prefill
        rank.prefill = sum(r.chunk for r in rank.running)
        rank.drafted = []
        rank.lengths = self.lengths(rank, now) if rank.decoding else []
        rank.missed = sum(r.missed for r, yes in zip(rank.decoding, rank.drafted, strict=True) if yes)
        for r, yes in zip(rank.decoding, rank.drafted, strict=True):
            r.missed = 0 if yes else r.missed + 1

    def lengths(self, rank: Rank, now: float) -> list[int]:
        s, name, n = self.setup, self.name, len(rank.decoding)
        confidence = [s.rows[r.traced][r.row][0] for r in rank.decoding]
        accepted = [s.rows[r.traced][r.row][1] for r in rank.decoding]
        ids = [r.number for r in rank.decoding]
        rank.plans.append((ids, confidence))
        rank.drafted = [self.drafts] * n
        sync = name in READS_PRESENT
        top = n * (1 + s.block)
        sps = s.profile.sps(n, rank.context, top, rank.prefill, draft=self.drafts, sync=sync).tolist()
        if name in ("lagged", "early-stop") and s.profile.decision is not None:
            d = s.profile.decision  # the engine's own table, in plain Python
            base = 0.0 if d.requests is None else float(d.requests(n))
            sps = [1.0 / (base + float(d.tokens(max(b + rank.prefill, 1)))) for b in range(top + 1)]
        if name == "sla":
            speeds = [self.speed(r, now) for r in rank.decoding]
            if rank.policy is None:
                promised = self.parameter["sla"]
                weight = reference.weights(
                    speeds, promised, self.parameter.get("margin", 0.3), self.parameter.get("least", 0.3)
                )
                return reference.paced(rank.plans, sps, self.parameter.get("lag", 2), weight)
            rank.policy.pace(speeds)
        if rank.policy is not None:
            return self.called(rank, ids, confidence, accepted, sps)
        gain = self.gain
        if name == "off":
            return [0] * n
        if name == "fixed":
            return [int(self.parameter)] * n
        if name == "batch-table":
            k = next(k for first, last, k in self.parameter if first <= n <= (last or n))
            rank.drafted = [k > 0] * n  # a k of 0 is known beforehand
            return [k] * n
        if name == "threshold":
            return reference.threshold(confidence, self.parameter)
        if name == "early-stop":
            return reference.early_stop(confidence, sps)
        if name == "lagged":
            return reference.lagged(rank.plans, sps, int(self.parameter), gain)
        if name == "global":
            return reference.global_plan(confidence, sps, gain)
        known = [[float(k < n) for k in range(s.block)] for n in accepted]
        return reference.global_plan(known, sps, gain)

    def called(
        self,
        rank: Rank,
        ids: list[int],
        confidence: list[list[float]],
        accepted: list[int],
        sps: list[float],
    ) -> list[int]:
        """Plan by a policy that is called as an engine does: for whom to draft, what to verify, what came."""
        s, n = self.setup, len(ids)
        try:
            idle = 1.0 / s.profile.seconds(n + rank.prefill, n, rank.context, drafted=0)
        except ProfileError:
            idle = 0.0
        if isinstance(rank.policy, History):
            plan = rank.policy.plan(ids, sps, self.gain)
            rank.policy.settle(ids, plan, [min(n, a) for n, a in zip(plan, accepted, strict=True)])
            return plan
        drafted = [bool(x) for x in rank.policy.drafting(n, s.block, sps, idle)]
        if isinstance(rank.policy, Bypass):
            plan = rank.policy.plan(ids, confidence, sps, drafted, self.gain)
            rank.policy.settle(confidence, drafted, plan, accepted)
        else:
            lengths = rank.policy.plan(confidence, sps, ids=ids, accepted=accepted)
            plan = [int(x) for x in lengths]
            rank.policy.settle([min(n, a) for n, a in zip(plan, accepted, strict=True)])
        rank.drafted = drafted
        return plan

    def speed(self, request: Request, now: float) -> float:
        """Tokens/s of a request so far; 0 at its very start."""
        elapsed = now - (request.ready or 0.0)
        return request.emitted / elapsed if elapsed > 0.0 else 0.0

    def execute(self, group: int, now: float) -> None:
        largest = max(r.tokens + r.prefill for r in self.of(group))
        if largest == 0:
            self.begun[group], self.end[group] = None, math.inf
            return
        self.begun[group] = now
        self.end[group] = now + max(self.seconds(r, largest) for r in self.of(group))

    def seconds(self, rank: Rank, tokens: int) -> float:
        """Of one rank, in a pass padded to `tokens`; one that only prefills neither drafts nor syncs."""
        profile, n = self.setup.profile, len(rank.decoding)
        sync = self.name in READS_PRESENT
        if not self.drafts:
            return profile.seconds(tokens, n, rank.context, False, sync)
        if n > 0:
            drafted, sync = sum(rank.drafted), sync and any(rank.drafted)
            return profile.seconds(tokens, n, rank.context, True, sync, drafted=drafted, missed=rank.missed)
        return profile.seconds(tokens, 0, rank.context, draft=False) / (1.0 - profile.enabling_fraction)

    def commit(self, group: int, now: float) -> None:
        s, begun = self.setup, self.begun[group]
        if begun is not None:
            step = {"seconds": now - begun, "tokens": max(r.tokens + r.prefill for r in self.of(group))}
            if self.open_window:
                self.window.steps.append(step)
                self.window.end = now
            for index, rank in enumerate(self.ranks):
                if rank in self.of(group):
                    self.commit_rank(index, rank, begun, now)
        self.begun[group] = None
        initial = self.everyone[: len(s.offsets)]
        if self.measured_from is None and all(r.finish is not None for r in initial):
            self.measured_from, self.open_window = self.admitted, True
            self.window.start = self.window.end = now

    def commit_rank(self, index: int, rank: Rank, begun: float, now: float) -> None:
        s = self.setup
        emitted_all = kept_all = 0
        for r, length in zip(rank.decoding, rank.lengths, strict=True):
            kept = min(length, s.rows[r.traced][r.row][1])
            emitted = min(kept + 1, r.left)
            r.steps, r.verified, r.accepted = r.steps + 1, r.verified + length, r.accepted + kept
            r.delivered.append(now)
            emitted_all, kept_all = emitted_all + emitted, kept_all + kept
            r.emitted, r.left = r.emitted + emitted, r.left - emitted
            for _ in range(emitted if s.positions is None else 1):
                r.row += 1
                if r.row == len(s.rows[r.traced]):
                    r.traced, r.row = s.goes_on_in[r.traced], 0
        n, drafts = len(rank.decoding), sum(rank.lengths)
        shape = (begun, now - begun, index, n, rank.tokens, rank.prefill, rank.context, emitted_all, drafts)
        self.log.append(shape)
        if self.open_window:
            entry = {"requests": n, "emitted": emitted_all, "kept": kept_all, "drafts": drafts}
            self.window.ranks.append(entry | {"prefill": rank.prefill, "seconds": now - begun})
        for r in list(rank.running):
            r.to_prefill, r.chunk = r.to_prefill - r.chunk, 0
            if r.to_prefill == 0 and r.ready is None:
                r.ready = now
            if r.to_prefill == 0 and r.left == 0:
                rank.running.remove(r)
                self.leave(r, now)

    def leave(self, request: Request, now: float) -> None:
        request.finish = now
        if self.setup.closed:
            self.inject(request.rank, now, request.user)


def _made(name: str, parameter: Any, setup: Setup) -> schedule.Policy:
    if name == "batch-table":
        return schedule.BatchTable(parameter)
    if name == "sla":
        return schedule.Paced(**parameter)
    if name == "bypass":
        return schedule.Bypass(minimum_gain=setup.profile.minimum_gain, **parameter)
    spec = name if parameter is None else f"{name}:{parameter}"
    return schedule.make(spec, setup.block, setup.profile.minimum_gain)
