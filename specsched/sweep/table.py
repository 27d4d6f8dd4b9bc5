"""The results of a sweep in few figures: one row a setting, means over seeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .spec import Point, Sweep
from .store import Row

_FIGURES = ("throughput", "tps_user_p50", "tps_user_p05", "emitted_per_step", "share_at_sla")


def table(sweep: Sweep, rows: list[Row]) -> list[dict[str, Any]]:
    """[{what varies between points, seeds excepted; "points", "done"; means over the points that are done}].

    Figures: `throughput` (tokens/s), `tps_user_p50` and `tps_user_p05` (tokens/s of one user: the median, and
    what all but the slowest 5 % exceed), `emitted_per_step`, and `share_at_sla` where an SLA was given.
    """
    named: dict[str, Callable[[Point], Any]] = {
        "trace": lambda p: p.trace,
        "profile": lambda p: p.profile,
        "policy": lambda p: p.policy,
        "block_size": lambda p: p.block_size,
        "load": lambda p: p.load,
    }
    keys = {name: [of(p) for p in sweep.points] for name, of in named.items()}
    for setting in sweep.points[0].settings if sweep.points else ():
        keys[setting] = [p.settings[setting] for p in sweep.points]
    varying = [k for k, values in keys.items() if k in ("policy", "load") or len(set(map(str, values))) > 1]
    groups: dict[tuple[str, ...], list[int]] = {}
    for i in range(len(rows)):
        groups.setdefault(tuple(str(keys[k][i]) for k in varying), []).append(i)
    return [_group({k: keys[k][at[0]] for k in varying}, [rows[i] for i in at]) for at in groups.values()]


def _group(named: dict[str, Any], rows: list[Row]) -> dict[str, Any]:
    done = [row for row in rows if row["status"] == "done"]
    figures = {}
    for name in _FIGURES:
        values = [float(row[name]) for row in done if row.get(name) is not None]
        if values or name != "share_at_sla":
            figures[name] = sum(values) / len(values) if values else None
    return {**named, "points": len(rows), "done": len(done), **figures}
