"""What one engine serves for good: the rate above which its queue grows, whatever a short run shows.

Measured in closed loops over the very requests of the traffic, at loads from one user to as many as may run:
no fleet can serve more requests a second than its engines do where they serve most.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ..errors import ProfileError
from ..schedule import Policy
from ..simulator.requests import refilled
from ..simulator.run import Run
from ..simulator.serving import MAX_RUNNING
from .traffic import Traffic

RATIO = 1.5  # of neighbouring loads
MEASURED = 300  # requests of a run at least, and two for every user
ERROR, BETWEEN = 0.01, 0.05  # by which the most served may be underestimated; where it lies between two loads


class Service(NamedTuple):
    """Requests per second of one engine (a group, with ranks in groups)."""

    most: float  # at most, at any load; infinite where nothing is decoded
    promised: float  # at the last load that keeps the promised speed; 0: none does


def service(traffic: Traffic, policy: Policy) -> Service:
    """What one engine serves, and what it serves while it keeps the promise."""
    tokens = float(traffic.coming.requests[:, 1].mean())
    if not tokens > 0.0:
        return Service(float("inf"), float("inf"))
    ranks = traffic.serving.ranks_per_group
    serving = replace(traffic.serving, replicas=ranks)
    served: list[float] = []
    promised, failed = 0.0, False
    for users in _loads(serving.max_running or MAX_RUNNING):
        measured = max(MEASURED, 2 * users * ranks)
        coming = refilled(traffic.replay, traffic.coming, users * ranks, measured, traffic.seed)
        run = Run(traffic.replay, traffic.profile, serving, coming, measured)
        try:
            result = run.result(policy, traffic.seed, bootstrap=False)
        except ProfileError:
            break
        served.append(result.summary["throughput"] / tokens)
        failed = failed or not result.share_at(traffic.sla_tps) >= traffic.share
        promised = promised if failed else max(promised, served[-1])
    if not served:
        return Service(float("inf"), 0.0)
    at_the_end = int(np.argmax(served)) == len(served) - 1
    return Service(max(served) * (1.0 + (ERROR if at_the_end else BETWEEN)), promised)


def _loads(most: int) -> list[int]:
    loads = [1]
    while loads[-1] < most:
        loads.append(min(most, max(loads[-1] + 1, int(loads[-1] * RATIO))))
    return loads
