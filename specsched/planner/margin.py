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
from ..simulator.own import resized
from ..simulator.replay import Replay
from .fleet import Fleet, at, trial
from .traffic import Traffic

PRECISION = 0.02  # of what one engine serves: how near a highest rate is found
FINEST = 0.002  # of the rate: nearer than that it is a matter of single requests


def worth(fleet: Fleet, engines: int) -> Worth:
    """What one more engine, twice the capture limit, and the block's last token are worth: in requests/s.

    Each is the highest rate of the same arrivals, sped up or slowed down, at which the promise still holds.
    """
    traffic, policy, most = fleet.traffic, fleet.policy, fleet.service.most
    base = highest_rate(traffic, policy, engines, most=most * engines)
    another = highest_rate(
        traffic, policy, engines + 1, base * (engines + 1) / engines, most=most * (engines + 1)
    )
    out: Worth = {"rate": base, "one_more_engine": another - base}
    wider = _wider_capture(traffic.profile)
    if wider is not None:
        gained = highest_rate(replace(traffic, profile=wider), policy, engines, base) - base
        out["capture_limit_doubled"] = gained
        out["capture_limit"] = [traffic.profile.graph_limit, wider.graph_limit]
    block = traffic.replay.block_size
    if block > 1 and policy.name != "off":
        shorter = replace(traffic, replay=_shorter(traffic.replay))
        name = policy.name
        whole = name == f"fixed:{block}"
        policy = make(f"fixed:{block - 1}") if whole else resized(policy, block - 1)
        out["last_block_position"] = base - highest_rate(shorter, policy, engines, base)
        out["block_size"] = block
    return out


def highest_rate(
    traffic: Traffic,
    policy: Policy,
    engines: int,
    start: float | None = None,
    steps: int | None = None,
    most: float = math.inf,
) -> float:
    """Requests per second that `engines` carry at the promise: of the same arrivals, time-dilated.

    The search begins at `start` (default: the traffic's own rate) and widens from there by about an engine's
    worth, more at every turn; then it halves its bracket `steps` times (default: until it is PRECISION of an
    engine's worth). most: requests/s above which they serve for no good, whatever a short run shows.
    """

    def keeps(rate: float) -> bool:
        return rate <= most and trial(at(traffic, rate), policy, engines).keeps(traffic.share)

    own = traffic.workload.rate
    high = own if start is None or start <= 0.0 else start
    low, turn = 0.0, 1.0 + 1.0 / engines
    while keeps(high):
        low, high, turn = high, high * turn, turn * turn
        if high > 1024.0 * own:
            return low
    if not low:
        low, turn = high / turn, turn * turn
        while not keeps(low):
            low, high, turn = low / turn, low, turn * turn
            if low < own / 1024.0:
                return 0.0
    if steps is None:
        steps = math.ceil(math.log2(max(math.log(high / low) / min(FINEST, PRECISION / engines), 1.0)))
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
        confidence=None if replay.confidence is None else replay.confidence[:, :block],
        accepted=np.minimum(replay.accepted, np.int16(block)),
    )


def _wider_capture(profile: StepProfile) -> StepProfile | None:
    """The profile as if graphs were captured to twice the limit: its captured curve carried on, estimated.

    By the line through its points from half the limit on, not by the last two: a table that ends on an
    inversion or a stair would make every larger pass free. None where that line does not rise either.
    """
    limit, sizes = profile.graph_limit, profile.capture_sizes
    if limit is None or sizes is None or profile.provenance.get("method") in ("composed", "roofline"):
        return None  # an eager curve of kernels alone holds no launches, so what a graph saves is not in it
    step = int(sizes[-1] - sizes[-2]) if len(sizes) > 1 else limit
    more = np.arange(limit + step, 2 * limit + 1, step)
    curve, kept = profile.verify, sizes[sizes <= limit]
    x = np.unique(np.concatenate([curve.x[curve.x <= limit], kept]).astype(np.float64))
    y = curve(x)
    upper = x >= limit / 2 if (x >= limit / 2).sum() > 1 else np.ones(len(x), bool)
    if not len(more) or len(x) < 2:
        return None
    slope = float(np.polyfit(x[upper], y[upper], 1)[0])
    if not slope > 0.0:
        return None
    at = np.array([limit, 2 * limit], dtype=np.float64)
    at = at[at > x[-1]]
    return replace(
        profile,
        capture_sizes=np.concatenate([kept, more]),
        capture_limit=int(more[-1]),
        verify=Curve(
            np.append(x, at), np.append(y, y[-1] + slope * (at - x[-1])), curve.lookup, curve.beyond
        ),
    )
