"""What a run replays: a trace in the engine's form, and the order in which its requests come.

Everything here depends on the trace, the calibration, the workload and the seed alone: no policy can change
which text a request produces, how long it is, or when it arrives (law 6).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .calibrate import Calibration, sigmoid
from .errors import TraceError, WorkloadError
from .trace import Trace
from .workload_random import generator, shuffled_passes

if TYPE_CHECKING:
    from .workload import Workload

ORDER, STAGGER, ROUTE = 21, 22, 23  # random streams of this room


@dataclass(frozen=True, eq=False)
class Replay:
    """A trace as the engine loop reads it. Rows t, traced requests m, γ = block size."""

    survival: np.ndarray  # float64[t, γ]: calibrated running products
    accepted: np.ndarray  # int16[t]
    start: np.ndarray  # int64[m]: first row
    length: np.ndarray  # int64[m]: rows = tokens it decodes
    prompt_tokens: np.ndarray  # int64[m]
    request_ids: np.ndarray  # int64[m]: ids in the trace
    domain: np.ndarray  # int64[m]: code of `domain_names`
    domain_names: tuple[str, ...]

    @property
    def block_size(self) -> int:
        return int(self.survival.shape[1])

    @classmethod
    def of(
        cls, trace: Trace, calibration: Calibration | None = None, block_size: int | None = None
    ) -> Replay:
        """Apply the calibration (None: σ(logit)) and, with `block_size`, cut every block short.

        Cutting is exact: what position k holds does not depend on the positions after it.
        Raises TraceError when the block asked for is longer than the trace's.
        """
        from . import kernels

        block = trace.block_size if block_size is None else block_size
        if not 1 <= block <= trace.block_size:
            raise TraceError(
                f"block size {block} cannot be replayed from a trace of block size {trace.block_size}; "
                f"give 1 to {trace.block_size}, or record a trace with a longer block"
            )
        rows, start, length = _dense_rows(trace)
        logits = trace.confidence_logit[rows]
        confidence = sigmoid(logits) if calibration is None else calibration.apply(logits)
        confidence = np.ascontiguousarray(confidence[:, :block], dtype=np.float64)
        survival = np.empty_like(confidence)
        kernels.survival(confidence, survival)
        return cls(
            survival=survival,
            accepted=np.minimum(trace.accepted[rows], block).astype(np.int16),
            start=start,
            length=length,
            prompt_tokens=np.ascontiguousarray(trace.prompt_tokens[trace.starts], dtype=np.int64),
            request_ids=np.asarray(trace.request_ids, dtype=np.int64),
            domain=np.asarray(trace.domain[trace.starts], dtype=np.int64),
            domain_names=tuple(trace.domain_names),
        )


def _dense_rows(trace: Trace) -> tuple[Any, np.ndarray, np.ndarray]:
    """Row of the trace for every output position, with the first one and the number of each request.

    A sequential trace has rows only where its engine stood; a position in between is replayed with the row
    last before it: the approximation that every answer on such a trace warns of.
    """
    start, length = np.asarray(trace.starts, np.int64), np.asarray(trace.lengths, np.int64)
    if trace.mode == "dense":
        return slice(None), np.ascontiguousarray(start), np.ascontiguousarray(length)
    last = start + length - 1
    tokens = trace.position[last] - trace.position[start] + trace.accepted[last] + 1
    offsets = np.concatenate([[0], np.cumsum(tokens)[:-1]])
    rows = np.empty(int(tokens.sum()), np.int64)
    for first, count, at, n in zip(start, length, offsets, tokens, strict=True):
        positions = trace.position[first : first + count] - trace.position[first]
        rows[at : at + n] = first + np.searchsorted(positions, np.arange(n), side="right") - 1
    return rows, offsets, tokens


@dataclass(frozen=True, eq=False)
class Requests:
    """Which requests come, in order. A closed loop repeats the list from its start when it runs out."""

    requests: np.ndarray  # int32[n, 3]: traced request, tokens to decode, prompt tokens
    next_request: np.ndarray  # int64[m]: where a longer output goes on
    arrival: np.ndarray  # float64[n], seconds; empty in a closed loop
    offset: np.ndarray  # int32[users]: tokens a user's first request has behind it; empty in an open loop
    warnings: tuple[str, ...] = ()  # approximations made in laying a workload on the trace


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
    from .workload import assign

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


def split_and_calibrate(
    trace: Trace, calibration: Calibration | str | None, seed: int = 0
) -> tuple[Trace, Calibration | None, dict[str, Any]]:
    """What to replay, calibrated how, and a note that says so.

    `calibration`: "sts" or "affine" fits on half the requests and replays the other half; None replays
    everything as σ(logit); a Calibration or the path of one is applied to everything.
    """
    from .calibrate import METHODS, fit_sts, load_calibration

    if calibration is None or calibration == "none":
        return trace, None, {"method": "none", "fitted_on": 0, "replayed": len(trace.request_ids)}
    if isinstance(calibration, str) and calibration in METHODS:
        if len(trace.request_ids) < 2:
            raise TraceError(
                f"{trace.where}: one request cannot be split into a part to fit a calibration on and one to "
                "replay; pass a calibration file, or calibration none"
            )
        fitted = fit_sts(trace, holdout=0.5, seed=seed, method=calibration)
        held_out = trace.select(fitted.held_out_requests)
        note = {
            "method": calibration,
            "fitted_on": len(fitted.fit_requests),
            "replayed": len(held_out.request_ids),
        }
        return held_out, fitted, note | {"temperatures": [float(t) for t in fitted.temperatures]}
    given = calibration if isinstance(calibration, Calibration) else load_calibration(calibration)
    note = {"method": given.method, "fitted_on": None, "replayed": len(trace.request_ids)}
    return trace, given, note | {"temperatures": [float(t) for t in given.temperatures]}
