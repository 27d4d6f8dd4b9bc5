"""The policies that engines have, at this traffic: users each carries, or how fast it serves."""

from __future__ import annotations

from dataclasses import dataclass

from ...documents.advice import Candidate
from ...schedule import BatchTable, Fixed, Lagged, Off, Policy, make
from ...simulator import SimResult
from ...workers import map_points
from ..capacity import Question, Search, interval_of, ladder
from .bench import Bench, Setup
from .lengths import Row

SCHEDULE = "schedule"
LAG = 2  # steps: SGLang's default, and vLLM's two buffers of confidences


@dataclass(frozen=True)
class Considered:
    """One policy: what it reached. `rank` orders them, the best largest."""

    policy: Policy
    users: int  # carried at the SLA; else the load
    rank: tuple[float, float]
    row: Candidate


def policies(block: int, rows: list[Row]) -> list[Policy]:
    """off, every fixed k, the schedule, and budgets by confidences."""
    table = BatchTable([[*r] for r in rows[:-1]] + [[rows[-1].first, None, rows[-1].k]])
    return [make("off"), *(Fixed(k) for k in range(1, block + 1)), table, Lagged(LAG)]


def at_sla(bench: Bench, question: Question, block: int, found: list[Policy]) -> list[Considered]:
    """Users that each carries at the SLA; of the fixed k, those that may be the best one.

    The others of the fixed are run at the best load alone: their throughput there says which may be.
    """
    first = [p for p in found if not isinstance(p, Fixed) or p.k == block]
    done = map_points(lambda p: _capacity(bench, question, p), first)
    load = max(1, max(c.users for c in done))
    fixed = [p for p in found if isinstance(p, Fixed) and p.k != block]
    near = map_points(lambda p: bench.score(bench.run(Setup(p), load)), fixed)
    best = sorted(zip(near, range(len(fixed)), strict=True), reverse=True)[:2]
    done += map_points(lambda pair: _capacity(bench, question, fixed[pair[1]]), best)
    searched = {c.policy.name for c in done}
    done += [_at_load(bench, p, load, None) for p in fixed if p.name not in searched]
    return _ordered(done, found)


def at_load(bench: Bench, users: int, found: list[Policy]) -> list[Considered]:
    """Every policy at one load."""
    return map_points(lambda p: _at_load(bench, p, users, users), found)


def _capacity(bench: Bench, question: Question, policy: Policy) -> Considered:
    search = Search(question, policy)
    rungs = ladder(question)
    users = search.first_failure(rungs)[0]
    low, high = interval_of(search, rungs)
    result = bench.run(Setup(policy), max(users, 1))
    row = _row(bench, policy, result, max(users, 1)) | {"capacity": users, "capacity_interval": [low, high]}
    return Considered(policy, users, (float(users), bench.score(result)), row)


def _at_load(bench: Bench, policy: Policy, users: int, carried: int | None) -> Considered:
    result = bench.run(Setup(policy), users)
    score = bench.score(result)
    if bench.workload is not None:  # users are who came, not who was asked for
        users = max(1, round(result.summary["concurrency_mean"])) if result is not None else 1
        carried = users
    rank = (score, bench.keeps(result)) if carried is not None else (-1.0, score)
    return Considered(policy, carried or 0, rank, _row(bench, policy, result, users))


def _row(bench: Bench, policy: Policy, run: SimResult | None, users: int) -> Candidate:
    intervals = run.summary.get("intervals") or {} if run is not None else {}
    return {
        "policy": SCHEDULE if isinstance(policy, BatchTable) else policy.name,
        "users": users,
        "capacity": None,
        "capacity_interval": None,
        "throughput": run.summary["throughput"] if run is not None else 0.0,
        "throughput_interval": intervals.get("throughput"),
        "slow_user": bench.keeps(run),
        "emitted_per_step": run.summary["emitted_per_step"] if run is not None else None,
        "steady": run is not None and not (run.backlog is not None and run.backlog.grows),
    }


def _ordered(done: list[Considered], found: list[Policy]) -> list[Considered]:
    """In the order of `found`."""
    names = [p.name for p in found]
    return sorted(done, key=lambda c: names.index(c.policy.name))


def runs_there(policy: Policy, schedules: bool, adapts: bool) -> bool:
    """Whether an engine with these abilities runs a policy."""
    if isinstance(policy, BatchTable):
        return schedules
    if isinstance(policy, Lagged):
        return adapts
    return isinstance(policy, Off | Fixed)
