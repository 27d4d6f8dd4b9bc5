"""The best setup of one engine: policy, captured sizes and places; and what it does by itself.

What is advised is never worse than the default by its own simulation: the default is among the setups that it
is chosen from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from ...schedule import BatchTable, Fixed, Policy
from ...simulator import SimResult
from ...simulator.result import reaches
from .bench import Bench, Setup
from .candidates import Considered, runs_there
from .engines import TRTLLM, VLLM, Engine, default_seqs, default_sizes, in_tokens
from .lengths import Row, cut

LOADS = (
    1,
    1.4,
    3,
    7,
    16,
)  # parts of the users at which captured sizes are compared: they must serve low loads too
CLOSE = 0.005  # of the best: what a drafter, a schedule or confidences must gain to be worth having
HEADROOM = 1.25  # over the most requests that arrivals brought at once


@dataclass(frozen=True)
class Ask:
    """What is asked for one engine."""

    bench: Bench
    engine: Engine
    method: str
    rows: list[Row]  # of the schedule
    considered: list[Considered]
    sla_tps: float | None

    @property
    def block(self) -> int:
        return self.bench.given.replay.block_size

    @property
    def limit(self) -> int:
        """Largest pass, in tokens, that the profile prices as captured."""
        return self.bench.given.profile.graph_limit or 0

    @property
    def thins(self) -> bool:
        """Whether fewer sizes are worth a thought: they are known to take memory."""
        return self.bench.given.serving.graph_bytes > 0

    @property
    def whole(self) -> Policy:
        """What an engine does that is only told to draft."""
        return Fixed(self.block)

    def score(self, setup: Setup, users: int) -> float:
        return self.bench.score(self.bench.run(setup, users))

    def places(self, policy: Policy) -> int | None:
        """The engine's own limit of requests; None: memory."""
        return default_seqs(self.engine, self.bench.given.profile, policy.drafts)

    def holds(self, setup: Setup, users: int) -> bool:
        """Whether so many users of this setup get the SLA."""
        result = self.bench.run(setup, users)
        return share_at(result, self.sla_tps or 0.0) >= self.bench.share


@dataclass(frozen=True)
class Chosen:
    """The setups of one engine: advised, and as it is when told only to draft whole blocks."""

    policy: Policy
    users: int  # at which setups are compared
    advised: Setup
    default: Setup
    considered: Considered  # the policy's own row
    default_users: int  # that the default carries at the SLA; else `users`

    @property
    def seqs(self) -> int:
        assert self.advised.seqs is not None
        return self.advised.seqs


def choose(ask: Ask) -> Chosen:
    """The best policy that the engine has, its places and captured sizes; and the default beside it."""
    able = [c for c in ask.considered if _can(ask, c.policy)]
    whole = next(c for c in able if c.policy.name == ask.whole.name)
    best = _simplest(able, whole)
    places = ask.places(whole.policy)
    default = Setup(whole.policy, own_sizes(ask, whole.policy, places), places)
    if ask.sla_tps is not None:
        held = min(whole.users, default.seqs or whole.users)
        kept = _carried(ask, default, held)
        setup, users = _sized(ask, best.policy, max(1, best.users))
        users = _carried(ask, setup, users)
        if users < kept:
            best, setup, users = whole, default, kept
        users = max(1, users)
        return Chosen(best.policy, users, replace(setup, seqs=users), default, best, kept)
    setup, users = _sized(ask, best.policy, max(1, best.users))
    alike = replace(default, seqs=setup.seqs)
    if ask.score(alike, users) > ask.score(setup, users):
        best, setup = whole, alike
    return Chosen(best.policy, users, setup, default, best, users)


def _simplest(able: list[Considered], whole: Considered) -> Considered:
    """The first policy, simple ones first, that is close to the best and no worse than the default."""
    best = max(able, key=lambda c: c.rank)

    def close(c: Considered) -> bool:
        return all(
            mine >= theirs - CLOSE * abs(theirs) for mine, theirs in zip(c.rank, best.rank, strict=True)
        )

    return next(c for c in able if close(c) and c.rank >= whole.rank)


def _can(ask: Ask, policy: Policy) -> bool:
    schedules, adapts = ask.method in ask.engine.schedules, ask.method in ask.engine.adapts
    if ask.engine is TRTLLM:
        # Its schedule starts with the longest drafts: the key of the smallest batch must name max_draft_len.
        schedules = schedules and ask.rows[0].k > 0 and all(row.k <= ask.rows[0].k for row in ask.rows)
    if ask.engine is VLLM and ask.bench.given.profile.parallel.get("data", 1) > 1:
        schedules = False  # it drops a schedule where ranks step together
    return runs_there(policy, schedules, adapts)


def _sized(ask: Ask, policy: Policy, users: int) -> tuple[Setup, int]:
    """The setup of a policy with its places and the best captured sizes for them."""
    setup = Setup(policy, None, _seqs(ask, policy, users))
    return replace(setup, sizes=_best_sizes(ask, setup, users)), users


def _seqs(ask: Ask, policy: Policy, users: int) -> int:
    """Most requests at once: the users that fit; of arrivals, the most that came together, with headroom."""
    if ask.bench.workload is None:
        return users
    result = ask.bench.run(Setup(policy), users)
    if result is None or not len(result.log):
        return users
    return math.ceil(HEADROOM * int(result.steps["requests"].max()))


def _carried(ask: Ask, setup: Setup, most: int) -> int:
    """Users of this setup, each with a place, that get the SLA: up to `most`, found by halving."""

    def passes(users: int) -> bool:
        return ask.holds(replace(setup, seqs=users), users)

    if most < 1 or passes(most):
        return most
    good, bad = 0, most
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if passes(middle) else (good, middle)
    return good


# -- captured sizes ----------------------------------------------------------------------------------------


def widths(policy: Policy, rows: list[Row], block: int) -> list[int]:
    """Tokens of a request in a pass, for every number of drafts the policy may verify of all."""
    if isinstance(policy, BatchTable):
        return sorted({1 + row.k for row in rows})
    return [policy.pass_width(block)]


def own_sizes(ask: Ask, policy: Policy, seqs: int | None) -> tuple[int, ...] | None:
    """What the engine captures by itself under this policy, in tokens; None: the profile captures nothing.

    SGLang and TensorRT-LLM capture up to the requests they are told (`seqs`); vLLM's list is the one it takes
    when it is not told.
    """
    profile = ask.bench.given.profile
    if profile.capture_sizes is None:
        return None
    if seqs is None or not ask.engine.by_requests:
        seqs = ask.places(policy) or 1024
    wide = widths(policy, cut(ask.rows, seqs), ask.block)
    return default_sizes(ask.engine, profile, seqs, wide, ask.limit)


def _best_sizes(ask: Ask, setup: Setup, users: int) -> tuple[int, ...] | None:
    """Of a few lists the best at no load slower, nor with more steps off the graph, than the engine's own.

    Best: the fastest; where the profile's kernels hold no launches, so that a step off the graph looks as
    cheap, the one that leaves it least. Of equals the shortest. None: the profile captures nothing.
    """
    own = own_sizes(ask, setup.policy, setup.seqs)
    if own is None:
        return None
    loads = sorted({max(1, int(users / part)) for part in LOADS})
    if ask.bench.workload is not None:
        loads = loads[-1:]
    base = _figures(ask, replace(setup, sizes=own), loads)
    best, top = own, _rank(ask, base, base, own)
    for sizes in _lists(ask, setup, own):
        found = _figures(ask, replace(setup, sizes=sizes), loads)
        if any(f.score < was.score or f.off > was.off for f, was in zip(found, base, strict=True)):
            continue
        rank = _rank(ask, found, base, sizes)
        if rank > top:
            best, top = sizes, rank
    return best


class _Figure(NamedTuple):
    """What a list of captured sizes does at one load."""

    score: float
    off: float  # share of steps off the graph


def _figures(ask: Ask, setup: Setup, loads: list[int]) -> list[_Figure]:
    found = []
    for load in loads:
        result = ask.bench.run(setup, load)
        off = off_graph(result) if result is not None else 0.0
        found.append(_Figure(ask.bench.score(result), off))
    return found


def _rank(
    ask: Ask, found: list[_Figure], base: list[_Figure], sizes: tuple[int, ...]
) -> tuple[float, float, int]:
    gain = sum(
        f.score / b.score if b.score else 2.0 * (f.score > 0) for f, b in zip(found, base, strict=True)
    )
    off = -round(sum(f.off for f in found), 6)
    first = (off, round(gain, 4)) if kernels_only(ask) else (round(gain, 4), off)
    return (*first, -len(sizes))


def kernels_only(ask: Ask) -> bool:
    """Whether the profile's passes hold no launches, so that it cannot tell what a graph saves."""
    return ask.bench.given.profile.provenance.get("method") in ("composed", "roofline")


def off_graph(result: SimResult) -> float:
    """Share of steps larger than any captured size."""
    return float(result.summary["off_graph_steps"] / max(result.summary["steps"], 1))


def _lists(ask: Ask, setup: Setup, own: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Lists to try: to the fullest pass, with exact ones, half as many, as the engine takes for so many."""
    seqs = setup.seqs or 1
    rows = cut(ask.rows, seqs)
    wide = widths(setup.policy, rows, ask.block)
    if ask.engine.by_requests:
        counts = ask.engine.grid(seqs)
        half = sorted({1, *counts[::-1][::2]})
        return [in_tokens(c, [max(wide)], ask.limit) for c in ((counts, half) if ask.thins else (counts,))]
    table = isinstance(setup.policy, BatchTable)
    ends = {r.last * (1 + r.k) for r in rows} if table else {seqs * max(wide)}
    fullest = max(ends)
    top = min((size for size in own if size >= fullest), default=own[-1])
    used = tuple(size for size in own if size <= top)
    exact = tuple(sorted({*used, *(end for end in ends if end <= ask.limit)}))
    lists = [used, exact, *([tuple(sorted({exact[0], *exact[::-1][::2]}))] if ask.thins else [])]
    lists.append(tuple(sorted({*own, *exact})))
    lists.append(default_sizes(ask.engine, ask.bench.given.profile, seqs, wide, ask.limit))
    return lists


def share_at(result: SimResult | None, sla: float) -> float:
    """Share of the requests of a run at the SLA."""
    return float(reaches(result.tps, sla).mean()) if result is not None else 0.0
