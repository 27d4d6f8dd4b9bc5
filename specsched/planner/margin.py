"""What a little more is worth to a fleet: one more engine, a larger capture limit, the block's last position.

Each is answered in requests/s: the highest rate of the same arrivals, sped up or slowed down, at which the
promise still holds, with the change less without it.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ..documents.plan import Worth
from ..profile import StepProfile
from ..profile.curve import Curve
from ..schedule import Policy, make
from ..simulator.replay import Replay
from .fleet import Traffic, at, trial

RATE_STEPS = 10  # bisections of a rate: the bracket of a factor 2 shrinks to 0.1 %


def worth(traffic: Traffic, policy: Policy, engines: int) -> Worth:
    """What one more engine, twice the capture limit, and the block's last token are worth: in requests/s.

    Each is the highest rate of the same arrivals, sped up or slowed down, at which the promise still holds.
    """
    base = highest_rate(traffic, policy, engines)
    out: Worth = {
        "rate": base,
        "one_more_engine": highest_rate(traffic, policy, engines + 1) - base,
    }
    wider = _wider_capture(traffic.profile)
    if wider is not None:
        gained = highest_rate(replace(traffic, profile=wider), policy, engines) - base
        out["capture_limit_doubled"] = gained
        out["capture_limit"] = [traffic.profile.graph_limit, wider.graph_limit]
    block = traffic.replay.block_size
    if block > 1 and policy.name != "off":
        shorter = replace(traffic, replay=_shorter(traffic.replay))
        name = policy.name
        policy = make(f"fixed:{block - 1}" if name == f"fixed:{block}" else name, block_size=block - 1)
        out["last_block_position"] = base - highest_rate(shorter, policy, engines)
        out["block_size"] = block
    return out


def highest_rate(
    traffic: Traffic, policy: Policy, engines: int, start: float | None = None, steps: int = RATE_STEPS
) -> float:
    """Requests per second that `engines` carry at the promise: time-dilated arrivals, to 0.1 %.

    The search begins at `start` (default: the traffic's own rate); each of the `steps` halves its bracket.
    """

    def keeps(rate: float) -> bool:
        return trial(at(traffic, rate), policy, engines).keeps(traffic.share)

    low, high = 0.0, traffic.workload.rate if start is None else start
    while keeps(high):
        low, high = high, 2.0 * high
        if high > 1024.0 * traffic.workload.rate:
            return low
    low = low or high / 2.0
    while not keeps(low):
        low, high = low / 2.0, low
        if low < traffic.workload.rate / 1024.0:
            return 0.0
    for _ in range(steps):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low


def _shorter(replay: Replay) -> Replay:
    """The same replay with blocks one position shorter."""
    block = replay.block_size - 1
    return replace(
        replay,
        survival=np.ascontiguousarray(replay.survival[:, :block]),
        accepted=np.minimum(replay.accepted, np.int16(block)),
    )


def _wider_capture(profile: StepProfile) -> StepProfile | None:
    """The profile as if graphs were captured to twice the limit: its captured curve carried on, estimated."""
    limit, sizes = profile.graph_limit, profile.capture_sizes
    if limit is None or sizes is None or profile.provenance.get("method") in ("composed", "roofline"):
        return None  # an eager curve of kernels alone holds no launches, so what a graph saves is not in it
    step = int(sizes[-1] - sizes[-2]) if len(sizes) > 1 else limit
    more = np.arange(limit + step, 2 * limit + 1, step)
    if not len(more):
        return None
    kept = sizes[sizes <= limit]
    curve = profile.verify
    known = curve.x <= limit
    ends = Curve(curve.x[known], curve.y[known], "linear", "slope")
    at = np.array([limit, 2 * limit], dtype=np.float64)
    x = np.append(curve.x[known], at[at > curve.x[known][-1]])
    return replace(
        profile,
        capture_sizes=np.concatenate([kept, more]),
        capture_limit=int(more[-1]),
        verify=Curve(x, ends(x), curve.lookup, curve.beyond),
    )
