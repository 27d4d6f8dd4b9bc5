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
    offset_rows: np.ndarray  # int32[users]: rows of the trace that those tokens are
    warnings: tuple[str, ...] = ()  # approximations made in laying a workload on the trace
    where: str = "the trace"  # what they come from, for messages

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
    listed = np.stack([first, replay.length[first], replay.prompt_tokens[first]], axis=1).astype(np.int32)
    return _staggered(replay, listed, np.arange(m, dtype=np.int64), users, seed)


def refilled(replay: Replay, coming: Requests, users: int, requests: int, seed: int) -> Requests:
    """The requests of a workload in a closed loop of users, in their order, over and over."""
    listed = coming.requests[coming.requests[:, 1] > 0]
    times = -(-(4 * users + 2 * requests) // len(listed))
    again = _staggered(replay, np.tile(listed, (times, 1)), coming.next_request, users, seed)
    return replace(again, where=coming.where)


def _staggered(
    replay: Replay, listed: np.ndarray, next_request: np.ndarray, users: int, seed: int
) -> Requests:
    """A closed loop over a list of requests, each user's first begun at a random token of it."""
    offset = np.floor(generator(seed, STAGGER).random(users) * listed[:users, 1]).astype(np.int32)
    return Requests(
        requests=listed,
        next_request=next_request,
        arrival=np.empty(0),
        offset=offset,
        offset_rows=replay.rows_behind(listed[:users, 0], offset),
        where=replay.where,
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
        offset_rows=np.empty(0, dtype=np.int32),
        warnings=tuple(assignment.warnings),
        where=f"workload {workload.name!r}",
    )
