"""What makes a trace valid: one pass over the arrays, and the first row that breaks the format is named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import TraceError

if TYPE_CHECKING:
    from .trace import Trace

SCHEMA = "specsched/trace/1"
MODES = ("dense", "sequential")


def validate(trace: Trace) -> None:
    """Raise TraceError at the first row that breaks the format, naming row, request and position."""
    where, n, gamma = trace.where, len(trace), trace.block_size
    if n == 0:
        raise TraceError(f"{where} has no rows; record or synthesise at least one request")
    if gamma < 1:
        raise TraceError(f"{where}: confidence_logit has 0 entries a row; a block has at least one draft")
    _validate_metadata(trace.metadata, gamma, where)
    for name in ("request", "position", "accepted", "domain", "prompt_tokens", "arrival_seconds"):
        values = getattr(trace, name)
        if values is not None and values.shape != (n,):
            raise TraceError(f"{where}: {name} has shape {values.shape}; confidence_logit has {n} rows")

    def refuse(bad: np.ndarray, what: str) -> None:
        if bad.any():
            row = int(np.argmax(bad))
            raise TraceError(
                f"{where}, row {row} (request {trace.request[row]}, position {trace.position[row]}): "
                + what.format(
                    **{k: getattr(trace, k)[row] for k in ("accepted", "prompt_tokens", "position")}
                )
            )

    nan = np.isnan(trace.confidence_logit)
    if nan.any():
        k = int(np.argmax(nan[np.argmax(nan.any(axis=1))])) + 1
        refuse(nan.any(axis=1), f"confidence_logit {k} is NaN; drop the request, or record it again")
    refuse(trace.request < 0, "the request id is negative; ids count from 0")
    outside = (trace.accepted < 0) | (trace.accepted > gamma)
    refuse(outside, f"accepted is {{accepted}}; it must lie in 0..{gamma}")
    refuse(trace.prompt_tokens < 0, "prompt_tokens is {prompt_tokens}; it must be at least 0")
    ids = trace.request_ids
    if len(np.unique(ids)) != len(ids):
        order = np.argsort(ids, kind="stable")
        again = np.sort(order[1:][ids[order][1:] == ids[order][:-1]])
        bad = np.zeros(n, bool)
        bad[trace.starts[again[0]]] = True
        refuse(bad, "the request was seen in earlier rows; keep the rows of a request together")
    index = np.arange(n) - np.repeat(trace.starts, trace.lengths)
    if trace.mode == "dense":
        at = int(index[np.argmax(trace.position != index)])
        refuse(
            trace.position != index,
            f"a dense trace has a row for every output position, {at} was due here; sort the rows by request "
            'and position, or declare mode "sequential" if steps were skipped',
        )
    else:
        refuse(trace.position < 0, "position is {position}; it counts output tokens from 0")
        back = np.r_[False, np.diff(trace.position) <= 0] & (index > 0)
        refuse(back, "position does not rise within the request; sort the rows by request and position")
    later = index > 0
    for name in ("prompt_tokens", "domain", "arrival_seconds"):
        values = getattr(trace, name)
        if values is not None:
            changed = np.r_[False, values[1:] != values[:-1]] & later
            refuse(
                changed, f"{name} differs from the row before; it must be the same in all rows of a request"
            )
    if trace.arrival_seconds is not None:
        bad = ~(np.isfinite(trace.arrival_seconds) & (trace.arrival_seconds >= 0))
        refuse(bad, "arrival_seconds must be a finite number of at least 0")


def _validate_metadata(metadata: Mapping[str, Any], gamma: int, where: str) -> None:
    schema = metadata.get("schema")
    if schema != SCHEMA:
        raise TraceError(f"{where}: metadata schema is {schema!r}; expected {SCHEMA!r}")
    if metadata.get("mode") not in MODES:
        raise TraceError(
            f'{where}: metadata mode is {metadata.get("mode")!r}; say "dense" (a row for every output '
            'position) or "sequential" (a row for every step an engine took)'
        )
    block = metadata.get("block_size", gamma)
    if isinstance(block, bool) or not isinstance(block, int) or block != gamma:
        raise TraceError(f"{where}: metadata block_size is {block!r}, but rows hold {gamma} confidences")
    for key in ("confidence_sees_token", "synthetic"):
        if not isinstance(metadata.get(key, False), bool):
            raise TraceError(f"{where}: metadata {key} is {metadata[key]!r}; it must be true or false")
