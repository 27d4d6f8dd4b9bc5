"""Which traced request each request of a workload replays.

A traced request is a run of rows of a dense trace. Request i of a workload replays one of them, of its own
domain, chosen by shuffled passes: a function of (seed, i) alone, so no policy, order or other request moves
it.

    workload without lengths   [ traced request, whole                      ]
    output shorter             [ traced request, its first tokens ]
    output longer              [ traced request, whole ][ next_request, whole ][ next_request of that ...

The last is an approximation, and `Assignment.warnings` says so: the text after the join is another's, so its
acceptances forget the request's own past. `next_request` is one seeded cycle over all traced requests of a
domain: a long output meets each of them once before any comes again. Nothing is stored per request but where
it begins.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import WorkloadError
from ..randomness import ASSIGN, CHAIN, name_salt, shuffled_passes

if TYPE_CHECKING:
    from .workload import Workload


class TracedRequests(NamedTuple):
    """The m traced requests of a trace, in file order: all int64[m].

    start, length: rows start .. start + length - 1 of the trace; tokens: what they decode (= length when
    dense); prompt_tokens; domain: codes into the trace's domain_names; next_request: where an output goes on
    past the end.
    """

    start: NDArray[np.int64]
    length: NDArray[np.int64]
    tokens: NDArray[np.int64]
    prompt_tokens: NDArray[np.int64]
    domain: NDArray[np.int64]
    next_request: NDArray[np.int64]


@dataclass(frozen=True)
class Assignment:
    """A workload laid on a trace; n requests in order of arrival.

    traced:          the traced requests (above)
    arrival:         float64[n], seconds, never falling
    first:           int64[n], index of the traced request that request i begins with, at its first row
    decode_tokens:   int64[n] >= 0, tokens to decode after the prefill's own (0: done when prefilled)
    prompt_tokens:   int64[n], tokens of context before the first decoded one
    """

    traced: TracedRequests
    arrival: NDArray[np.float64]
    first: NDArray[np.int64]
    decode_tokens: NDArray[np.int64]
    prompt_tokens: NDArray[np.int64]
    warnings: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.first)

    @property
    def next_request(self) -> NDArray[np.int64]:
        """int64[m]: the traced request an output goes on with past the end of this one."""
        return self.traced.next_request


def traced_requests(trace: Any, seed: int = 0) -> TracedRequests:
    """The traced requests of a Trace, with the cycle `next_request` drawn from `seed` per domain."""
    start = np.ascontiguousarray(trace.starts, dtype=np.int64)
    length = np.ascontiguousarray(trace.lengths, dtype=np.int64)
    m = len(start)
    if m == 0:
        raise WorkloadError("the trace holds no request; nothing to replay")
    tokens = np.ascontiguousarray(trace.output_tokens, dtype=np.int64)
    domain = np.ascontiguousarray(np.asarray(trace.domain)[start], dtype=np.int64)
    next_request = np.empty(m, dtype=np.int64)
    for code in np.unique(domain):
        members = np.flatnonzero(domain == code)
        salt = name_salt(str(trace.domain_names[code]))
        cycle = members[shuffled_passes(len(members), len(members), seed, CHAIN, salt)]
        next_request[cycle] = np.roll(cycle, -1)
    prompt = np.ascontiguousarray(np.asarray(trace.prompt_tokens)[start], dtype=np.int64)
    return TracedRequests(start, length, tokens, prompt, domain, next_request)


def assign(trace: Any, workload: Workload, seed: int = 0, by_domain: bool = True) -> Assignment:
    """Lay `workload` on a dense `trace` (a specsched.trace.Trace).

    Arrivals recorded with this very trace replay their own requests. Otherwise request i takes a traced
    request of its domain (any, when the workload has none or `by_domain` is False). Lengths come from the
    workload where it has them, else from the traced request. Memory: 32 bytes a request, less what the
    workload already holds. Raises WorkloadError when a domain of the workload is not in the trace.
    """
    traced = traced_requests(trace, seed)
    own = _own_requests(trace, workload, traced)
    if own is not None:
        first = own
    elif by_domain and workload.domain is not None:
        first = _by_domain(trace, workload, traced, seed)
    else:
        first = shuffled_passes(len(workload), len(traced.start), seed, ASSIGN)
    if workload.output_tokens is not None:
        decode = workload.output_tokens - 1
    else:
        decode = traced.tokens[first]
    prompt = workload.prompt_tokens if workload.prompt_tokens is not None else traced.prompt_tokens[first]
    warnings = workload.warnings
    chained = 0
    # In blocks, so that ten million requests need no second array of their size.
    for at in range(0, len(first), 1 << 20):
        part = slice(at, at + (1 << 20))
        chained += int(np.count_nonzero(decode[part] > traced.tokens[first[part]]))
    if chained:
        warnings.append(
            f"{100.0 * chained / len(first):.3g} % of requests are longer than the traced request they "
            "replay: they go on with other traced requests of the domain, an approximation"
        )
    if workload.request_ids is not None and own is None:
        warnings.append(
            "the arrivals come from another confidence trace: only their times, lengths and domains are used"
        )
    return Assignment(traced, workload.arrival_seconds, first, decode, prompt, warnings)


def _own_requests(trace: Any, workload: Workload, traced: TracedRequests) -> NDArray[np.int64] | None:
    """Indices of the very requests the arrivals were recorded with; None unless ids and lengths all agree."""
    ids = workload.request_ids
    if ids is None or workload.output_tokens is None:
        return None
    known = np.asarray(trace.request_ids, dtype=np.int64)
    order = np.argsort(known, kind="stable")
    slot = np.minimum(np.searchsorted(known[order], ids), len(known) - 1)
    index = order[slot]
    if not (known[index] == ids).all() or not (traced.tokens[index] == workload.output_tokens - 1).all():
        return None
    return np.ascontiguousarray(index, dtype=np.int64)


def _by_domain(trace: Any, workload: Workload, traced: TracedRequests, seed: int) -> NDArray[np.int64]:
    codes = {str(name): code for code, name in enumerate(trace.domain_names)}
    domain = workload.domain
    assert domain is not None
    first = np.empty(len(workload), dtype=np.int64)
    for code, name in enumerate(workload.domain_names):
        mine = np.flatnonzero(domain == code)
        if len(mine) == 0:
            continue
        members = np.flatnonzero(traced.domain == codes.get(name, -1))
        if len(members) == 0:
            there = ", ".join(sorted({str(trace.domain_names[c]) for c in np.unique(traced.domain)}))
            raise WorkloadError(
                f"workload {workload.name!r}, row {int(mine[0])}: domain {name!r} is not in the trace "
                f"(it has {there}); rename the domain, or pass by_domain=False to mix all"
            )
        first[mine] = members[shuffled_passes(len(mine), len(members), seed, ASSIGN, name_salt(name))]
    return first
