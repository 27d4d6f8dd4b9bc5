"""Which traced request comes when: closed loops of users, open loops of arrivals."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ..errors import WorkloadError
from ..randomness import generator, shuffled_passes
from ..trace import Trace

if TYPE_CHECKING:
    from ..workload import Workload
from .replay import ORDER, STAGGER, Replay


@dataclass(frozen=True, eq=False)
class Requests:
    """Which requests come, in order. A closed loop repeats the list from its start when it runs out."""

    requests: np.ndarray  # int32[n, 3]: traced request, tokens to decode, prompt tokens
    next_request: np.ndarray  # int64[m]: where a longer output goes on
    arrival: np.ndarray  # float64[n], seconds; empty in a closed loop
    offset: np.ndarray  # int32[users]: tokens a user's first request has behind it; empty in an open loop
    warnings: tuple[str, ...] = ()  # approximations made in laying a workload on the trace

    def with_prompts(self, tokens: int) -> Requests:
        """The same requests, each with a prompt of so many tokens."""
        requests = self.requests.copy()
        requests[:, 2] = tokens
        return replace(self, requests=requests)


def closed_loop(replay: Replay, users: int, requests: int, seed: int) -> Requests:
    """Shuffled passes over the traced requests; each user's first request starts at a random token of it.

    The list is long enough for the staggered start, the warm-up and the measured requests; what refills
    places while the last of those end may repeat it.
    """
    m = len(replay.length)
    count = -(-(4 * users + 2 * requests + m) // m) * m
    first = shuffled_passes(count, m, seed, ORDER)
    decode = replay.length[first]
    uniform = generator(seed, STAGGER).random(users)
    return Requests(
        requests=np.stack([first, decode, replay.prompt_tokens[first]], axis=1).astype(np.int32),
        next_request=np.arange(m, dtype=np.int64),
        arrival=np.empty(0),
        offset=np.floor(uniform * decode[:users]).astype(np.int32),
    )


def open_loop(replay: Replay, trace: Trace, workload: Workload, seed: int) -> Requests:
    """Requests of a workload, each walking anchors of its domain's trace (`workload.assign`)."""
    from ..workload import assign

    if len(workload) == 0:
        raise WorkloadError("the workload holds no requests; give one with at least one arrival")
    assignment = assign(trace, workload, seed)
    return Requests(
        requests=np.stack(
            [assignment.first, assignment.decode_tokens, assignment.prompt_tokens], axis=1, dtype=np.int32
        ),
        next_request=np.ascontiguousarray(assignment.next_request, dtype=np.int64),
        arrival=np.ascontiguousarray(assignment.arrival, dtype=np.float64),
        offset=np.empty(0, dtype=np.int32),
        warnings=tuple(assignment.warnings),
    )
