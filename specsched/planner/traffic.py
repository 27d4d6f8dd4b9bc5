"""The traffic that every fleet of a plan is put to: arrivals, and what is promised to them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ..profile import StepProfile
from ..simulator import Serving
from ..simulator.limits import Limits
from ..simulator.replay import Replay
from ..simulator.requests import Requests, open_loop
from ..trace import Trace
from ..workload import Workload


@dataclass(frozen=True)
class Traffic:
    """What every fleet is asked: these arrivals, `share` of the requests at the SLA."""

    trace: Trace
    replay: Replay
    profile: StepProfile
    serving: Serving
    workload: Workload
    sla_tps: float
    limits: Limits
    share: float
    seed: int
    least_seconds: float = 0.0  # that arrivals last at any rate, for a fleet to reach its steady state

    @cached_property
    def coming(self) -> Requests:
        return open_loop(self.replay, self.trace, self.workload, self.seed)
