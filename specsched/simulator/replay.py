"""What a run replays: a trace in the engine's form, and the order in which its requests come.

Everything here depends on the trace, the calibration, the workload and the seed alone: no policy can change
which text a request produces, how long it is, or when it arrives (law 6).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..calibration import Calibration
from ..calibration.metrics import sigmoid
from ..errors import TraceError
from ..trace import Trace

ORDER, STAGGER, ROUTE = 21, 22, 23  # random streams of this module


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
        from .. import kernels

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
