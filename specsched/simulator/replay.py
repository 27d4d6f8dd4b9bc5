"""What a run replays: a trace in the engine's form, and the order in which its requests come.

Everything here depends on the trace, the calibration, the workload and the seed alone: no policy can change
which text a request produces, how long it is, or when it arrives (law 6).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..calibration import Calibration
from ..calibration.metrics import sigmoid
from ..errors import TraceError
from ..trace import Trace

ORDER, STAGGER, ROUTE = 21, 22, 23  # random streams of this module


@dataclass(frozen=True, eq=False)
class Replay:
    """A trace as the engine loop reads it. Rows t, traced requests m, γ = block size.

    A dense trace has a row a token and is walked by tokens. A sequential one, an engine's log, has a row a
    step and is walked by steps, whatever they emit: taken by position instead, rows that accept much would be
    replayed too often, for they cover most positions.
    """

    survival: np.ndarray  # float64[t, γ]: calibrated running products
    accepted: np.ndarray  # int16[t]
    start: np.ndarray  # int64[m]: first row
    length: np.ndarray  # int64[m]: tokens it decodes
    prompt_tokens: np.ndarray  # int64[m]
    request_ids: np.ndarray  # int64[m]: ids in the trace
    domain: np.ndarray  # int64[m]: code of `domain_names`
    domain_names: tuple[str, ...]
    confidence: np.ndarray | None = None  # float64[t, γ]: calibrated, whose products `survival` holds
    position: np.ndarray | None = None  # int64[t]: of a log: tokens of the request before each row
    where: str = "the trace"  # its file, for messages

    @property
    def block_size(self) -> int:
        return int(self.survival.shape[1])

    @property
    def row_a_step(self) -> bool:
        """Whether a row is a step of a log, not a token."""
        return self.position is not None

    @property
    def rows(self) -> np.ndarray:
        """int64[m]: rows of each traced request."""
        return np.diff(self.start, append=len(self.survival))

    def rows_behind(self, traced: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """int32[n]: rows behind so many tokens of these traced requests: those before the step under way."""
        if self.position is None:
            return tokens.astype(np.int32)
        rows = self.rows
        ends = [self.position[at : at + n] for at, n in zip(self.start[traced], rows[traced], strict=True)]
        behind = [np.searchsorted(e, t, side="right") - 1 for e, t in zip(ends, tokens, strict=True)]
        return np.array(behind, dtype=np.int32)

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
        start, dense = np.array(trace.starts, dtype=np.int64), trace.mode == "dense"
        logits = trace.confidence_logit
        confidence = sigmoid(logits) if calibration is None else calibration.apply(logits)
        confidence = np.ascontiguousarray(confidence[:, :block], dtype=np.float64)
        survival = np.empty_like(confidence)
        kernels.survival(confidence, survival)
        return cls(
            survival=survival,
            accepted=np.minimum(trace.accepted, block).astype(np.int16),
            start=start,
            length=np.array(trace.output_tokens, dtype=np.int64),
            prompt_tokens=np.ascontiguousarray(trace.prompt_tokens[trace.starts], dtype=np.int64),
            request_ids=np.asarray(trace.request_ids, dtype=np.int64),
            domain=np.asarray(trace.domain[trace.starts], dtype=np.int64),
            domain_names=tuple(trace.domain_names),
            confidence=confidence,
            position=None if dense else trace.position - np.repeat(trace.position[start], trace.lengths),
            where=trace.where,
        )
