"""What each setting of one engine is worth, with all others as advised.

A setting is put back to what the engine does by itself, and the same requests are replayed.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ...documents.advice import EngineAdvice, Setting, Worth
from ...schedule import BatchTable, Fixed, Lagged, Off, Policy
from .bench import CAPACITY, SHARE, THROUGHPUT, Setup, worth_of
from .candidates import LAG, SCHEDULE
from .lengths import cut
from .setups import Ask, Chosen, choose, kernels_only, off_graph, own_sizes, share_at, widths

OVERLOAD = 1.25  # times the users that fit, at which a limit of requests shows
LAGS = (1, 3)


def advice_of(ask: Ask) -> EngineAdvice:
    """All settings of one engine but the lines (see `lines`)."""
    chosen = choose(ask)
    policy, rows = chosen.policy, cut(ask.rows, chosen.seqs)
    settings = [
        _drafting(ask, chosen),
        *_lengths(ask, chosen),
        *_rule(ask, chosen),
        *_lag(ask, chosen),
        *_captured(ask, chosen),
        _places(ask, chosen),
    ]
    captured, graph = chosen.advised.sizes, ask.bench.given.serving.graph_bytes
    k = _most(ask, chosen)
    return {
        "engine": ask.engine.name,
        "title": ask.engine.title,
        "read_in": ask.engine.read_in,
        "policy": SCHEDULE if isinstance(policy, BatchTable) else policy.name,
        "users": chosen.users,
        "num_speculative_tokens": k,
        "schedule": [[*row] for row in rows] if isinstance(policy, BatchTable) else None,
        "max_num_seqs": chosen.seqs,
        "capture_sizes": None if captured is None else _in_unit(ask, captured, k),
        "capture_unit": "requests" if ask.engine.by_requests else "tokens",
        "capture_bytes": len(captured) * graph if captured is not None and graph else None,
        "lag": policy.lag if isinstance(policy, Lagged) else None,
        "settings": settings,
        "total": _total(ask, chosen),
        "paste": {"command": "", "files": {}, "tables": [], "unverified": []},
    }


def _total(ask: Ask, chosen: Chosen) -> Worth:
    """All of it against the default: users at the SLA where one was promised."""
    if ask.sla_tps is None:
        return ask.bench.worth(chosen.advised, chosen.default, chosen.users)
    whole = next(c for c in ask.considered if c.policy.name == ask.whole.name)
    mine, theirs = chosen.considered.row["capacity_interval"], whole.row["capacity_interval"]
    limit, interval = chosen.default.seqs or whole.users, None
    if mine is not None and theirs is not None and theirs[0] > 0:
        low, high = (min(bound, limit) for bound in theirs)
        interval = [mine[0] / high - 1.0, mine[1] / low - 1.0]
    return worth_of(CAPACITY, float(chosen.users), float(chosen.default_users), interval)


def _most(ask: Ask, chosen: Chosen) -> int:
    """The number of speculative tokens that the engine is told."""
    return max(widths(chosen.policy, cut(ask.rows, chosen.seqs), ask.block)) - 1


def _in_unit(ask: Ask, tokens: tuple[int, ...], k: int) -> list[int]:
    return [size // (1 + k) for size in tokens] if ask.engine.by_requests else list(tokens)


def _instead(ask: Ask, chosen: Chosen, policy: Policy) -> Setup:
    """Another policy in as many places, with the engine's own sizes for it, or those advised if better."""
    if policy.name == chosen.policy.name:
        return chosen.advised
    setups = [
        Setup(policy, s, chosen.seqs) for s in (own_sizes(ask, policy, chosen.seqs), chosen.advised.sizes)
    ]
    return max(setups, key=lambda setup: ask.score(setup, chosen.users))


def _drafting(ask: Ask, chosen: Chosen) -> Setting:
    """On or off, against the other."""
    on = chosen.policy.drafts
    worth = ask.bench.worth(chosen.advised, _instead(ask, chosen, Off() if on else ask.whole), chosen.users)
    said = "against no drafting" if on else "against whole blocks drafted and verified"
    return _setting("drafting", "on" if on else "off", "off" if on else "on", worth, said)


def _lengths(ask: Ask, chosen: Chosen) -> list[Setting]:
    """The number of drafts, against whole blocks."""
    if isinstance(chosen.policy, Off):
        return []
    worth = ask.bench.worth(chosen.advised, _instead(ask, chosen, ask.whole), chosen.users)
    said = "against whole blocks"
    if not isinstance(chosen.policy, Fixed):
        said = "the longest block, trimmed by the rule below, against whole blocks of it untrimmed"
    return [_setting("num_speculative_tokens", str(_most(ask, chosen)), str(ask.block), worth, said)]


def _rule(ask: Ask, chosen: Chosen) -> list[Setting]:
    """The schedule or the budgets by confidences, against the best fixed number (or none)."""
    policy = chosen.policy
    if isinstance(policy, Off | Fixed):
        return []
    plain = [c.policy for c in ask.considered if isinstance(c.policy, Off | Fixed)]
    setups = [_instead(ask, chosen, p) for p in plain]
    best = max(setups, key=lambda setup: ask.score(setup, chosen.users))
    worth = ask.bench.worth(chosen.advised, best, chosen.users)
    said = f"against {best.policy.name}, the best of one number at this load"
    if isinstance(policy, BatchTable):
        rows = len(cut(ask.rows, chosen.seqs))
        return [_setting("schedule", f"{rows} rows", "none", worth, said)]
    return [_setting("adaptive", "on", "off", worth, said)]


def _lag(ask: Ask, chosen: Chosen) -> list[Setting]:
    """Steps by which budgets follow confidences: what another lag would be worth."""
    policy = chosen.policy
    if not isinstance(policy, Lagged):
        return []
    setups = {lag: replace(chosen.advised, policy=Lagged(lag)) for lag in LAGS}
    other = {lag: ask.bench.worth(s, chosen.advised, chosen.users) for lag, s in setups.items()}
    told = ", ".join(f"{lag}: {_percent(worth)}" for lag, worth in other.items())
    why = "what a shorter one makes the engine wait is not simulated"
    if not ask.engine.lag_option:
        why = "the engine has no option for it"
    return [_setting("lag", str(policy.lag), str(LAG), None, f"simulated at a lag of {told}; {why}")]


def _captured(ask: Ask, chosen: Chosen) -> list[Setting]:
    """Captured sizes against the engine's own list; and the memory they take."""
    sizes, own = chosen.advised.sizes, own_sizes(ask, chosen.policy, chosen.seqs)
    if sizes is None or own is None:
        return []
    worth = ask.bench.worth(chosen.advised, replace(chosen.advised, sizes=own), chosen.users)
    graph, profile = ask.bench.given.serving.graph_bytes, ask.bench.given.profile
    per_token = profile.kv_bytes(chosen.policy.drafts)
    said = "memory of a captured size unknown (--graph-bytes)"
    if graph and per_token:
        freed = (len(own) - len(sizes)) * graph // per_token
        said = f"{len(sizes) * graph / 2**30:.2f} GiB; {freed:+,d} KV tokens beside the default"
    result = ask.bench.run(chosen.advised, chosen.users)
    off = off_graph(result) if result is not None else 0.0
    if off > 0.005:
        said += f"; {off:.0%} of steps are larger than all of them"
    if kernels_only(ask):
        said += "; only padding is compared: the profile's kernels hold no launches, which a graph saves"
    value, default = (f"{len(listed)} sizes to {listed[-1]} tokens" for listed in (sizes, own))
    return [_setting("capture_sizes", value, default, worth, said)]


def _places(ask: Ask, chosen: Chosen) -> Setting:
    """Most requests at once, against the engine's limit: what fits, and what happens with more users."""
    limit, seqs, bench = ask.places(chosen.policy), chosen.seqs, ask.bench
    value, default = str(seqs), "no limit but memory" if limit is None else str(limit)
    if limit is not None and limit < seqs:
        tight = replace(chosen.advised, seqs=limit)
        if bench.workload is not None:
            worth = bench.worth(chosen.advised, tight, chosen.users)
            return _setting("max_num_seqs", value, default, worth, "by default arrivals wait for places")
        runs = [bench.run(setup, chosen.users) for setup in (chosen.advised, tight)]
        made = [r.summary["throughput"] if r is not None else 0.0 for r in runs]
        said = f"{chosen.users} users, of whom the default lets {limit} decode at once"
        return _setting("max_num_seqs", value, default, worth_of(THROUGHPUT, made[0], made[1]), said)
    if bench.workload is not None:
        return _setting("max_num_seqs", value, default, None, "a quarter above the most at once")
    if ask.sla_tps is None:
        return _setting("max_num_seqs", value, default, None, "the users asked for")
    many = math.ceil(OVERLOAD * seqs)
    places = (seqs, min(many, limit) if limit is not None else many)
    runs = [bench.run(replace(chosen.advised, seqs=n), many) for n in places]
    shares = [share_at(run, ask.sla_tps) for run in runs]
    said = f"with {many} users, a quarter more than fit: those who waited for a place decode at full speed"
    return _setting("max_num_seqs", value, default, worth_of(SHARE, shares[0], shares[1]), said)


def _percent(worth: Worth) -> str:
    return "not known" if worth["relative"] is None else f"{round(worth['relative'], 3) + 0.0:+.1%}"


def _setting(name: str, value: str, default: str, worth: Worth | None, said: str) -> Setting:
    found = {"name": name, "value": value, "default": default, "worth": worth, "said": said}
    return found  # type: ignore[return-value]
