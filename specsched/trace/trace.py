"""Trace: what a drafter proposed and what the target would accept, one row per anchor (`specsched/trace/1`).

Row t of a request: the anchor is output token t (0-based), the γ drafts are output tokens t+1..t+γ.
`confidence_logit[k]` is the raw score of draft k+1, conditional on the drafts before it; `accepted` says how
many drafts a full verification accepts (the longest accepted prefix).

A *dense* trace has a row for every output position, so any lossless policy replays exactly on it: the text of
the target is fixed, and after emitting n tokens from anchor t the next anchor is t + n, whatever the policy.
One second-order caveat: in a real engine a token emitted past the verified prefix is independent of the draft
at its position, here both come from one row; only a lagged budget, which looks at unverified suffixes of
earlier steps, can see that coupling. A *sequential* trace is an engine's log of the steps it took; replaying
another policy on it is an approximation: its rows are taken one a step, in their order.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import TraceError
from ..files.output import atomic_write
from ..files.reader import kind_of
from .columns import whole_numbers

if TYPE_CHECKING:
    import pyarrow as pa


from typing import TYPE_CHECKING


@dataclass(frozen=True, eq=False)
class Trace:
    """A validated trace as plain arrays: n rows, γ draft positions, m requests, each in one run of rows.

    Build one with `load_trace`, `synthesise` or `Trace.from_arrays`, which validate. Arrays are C-contiguous.
    """

    request: np.ndarray  # int64[n]
    position: np.ndarray  # int64[n]: index of the anchor among the request's output tokens
    confidence_logit: np.ndarray  # float32[n, γ], raw, before calibration
    accepted: np.ndarray  # int64[n], 0..γ
    domain: np.ndarray  # int64[n]: index into domain_names
    domain_names: tuple[str, ...]
    prompt_tokens: np.ndarray  # int64[n], the same in every row of a request
    arrival_seconds: np.ndarray | None  # float64[n], the same in every row of a request
    metadata: dict[str, Any] = field(default_factory=dict)
    where: str = "trace"  # what messages begin with

    @classmethod
    def from_arrays(
        cls,
        request: Any,
        position: Any,
        confidence_logit: Any,
        accepted: Any,
        *,
        domain: Any = None,
        prompt_tokens: Any = 0,
        arrival_seconds: Any = None,
        metadata: Mapping[str, Any] | None = None,
        where: str = "trace",
    ) -> Trace:
        """Coerce and validate arrays of n rows; `domain` is a text, or n texts; raises TraceError.

        `metadata` needs no schema or block_size (they are filled in); `mode` defaults to "dense".
        """
        logit = np.ascontiguousarray(confidence_logit, dtype=np.float32)
        if logit.ndim != 2:
            raise TraceError(
                f"{where}: confidence_logit has {logit.ndim} dimensions; expected (rows, block size)"
            )
        n = len(logit)
        names, codes = np.unique(
            np.full(n, domain or "unknown") if isinstance(domain, (str, type(None))) else domain,
            return_inverse=True,
        )
        filled = {"schema": SCHEMA, "mode": "dense", "block_size": logit.shape[1], **(metadata or {})}
        trace = cls(
            request=whole_numbers(request, n, "request", where),
            position=whole_numbers(position, n, "position", where),
            confidence_logit=logit,
            accepted=whole_numbers(accepted, n, "accepted", where),
            domain=whole_numbers(codes, n, "domain", where),
            domain_names=tuple(str(name) for name in names),
            prompt_tokens=whole_numbers(
                np.broadcast_to(prompt_tokens, (n,)) if np.ndim(prompt_tokens) == 0 else prompt_tokens,
                n,
                "prompt_tokens",
                where,
            ),
            arrival_seconds=None
            if arrival_seconds is None
            else np.ascontiguousarray(arrival_seconds, np.float64),
            metadata=filled,
            where=where,
        )
        validate(trace)
        return trace

    # -- what it holds ---------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Rows, that is anchors."""
        return len(self.request)

    def __repr__(self) -> str:
        kind = "synthetic" if self.synthetic else self.mode
        return (
            f"<trace {self.name}: {kind}, {len(self.request_ids):,} requests, {len(self):,} anchors, "
            f"block {self.block_size}>"
        )

    @property
    def block_size(self) -> int:
        """γ: draft positions per anchor."""
        return int(self.confidence_logit.shape[1])

    @property
    def mode(self) -> str:
        """ "dense" or "sequential"."""
        return str(self.metadata["mode"])

    @property
    def confidence_sees_token(self) -> bool:
        """True where scores use the drafted token's own probability: adaptive policies are then biased."""
        return bool(self.metadata.get("confidence_sees_token", False))

    @property
    def synthetic(self) -> bool:
        """True where no drafter ever produced these rows."""
        return bool(self.metadata.get("synthetic", False))

    @property
    def name(self) -> str:
        """Short name for tables and messages: the file's stem."""
        return Path(self.where).stem

    @cached_property
    def starts(self) -> np.ndarray:
        """int64[m]: first row of each request, in file order."""
        return np.flatnonzero(np.r_[True, self.request[1:] != self.request[:-1]])

    @cached_property
    def lengths(self) -> np.ndarray:
        """int64[m]: rows of each request; in a dense trace the tokens it decodes."""
        return np.diff(np.r_[self.starts, len(self)])

    @cached_property
    def output_tokens(self) -> np.ndarray:
        """int64[m]: tokens each request decodes; those that a log's last step emits belong to it."""
        if self.mode == "dense":
            return self.lengths
        last = self.starts + self.lengths - 1
        out: np.ndarray = self.position[last] - self.position[self.starts] + self.accepted[last] + 1
        return out

    @cached_property
    def request_ids(self) -> np.ndarray:
        """int64[m]: request ids in file order."""
        out: np.ndarray = self.request[self.starts]
        return out

    @cached_property
    def warnings(self) -> list[str]:
        """What every answer built on this trace must say, one sentence each."""
        said = []
        if self.synthetic:
            source = self.metadata.get("provenance", {})
            basis = source.get("basis") if isinstance(source, Mapping) else None
            of = f" ({basis})" if basis else ""
            said.append(f"trace {self.name!r} is synthetic{of}: no drafter was run to make it")
        if self.mode == "sequential":
            said.append(
                f"trace {self.name!r} is sequential (an engine's log): replaying a policy other than the one "
                "logged is an approximation"
            )
        if self.confidence_sees_token:
            said.append(
                f"trace {self.name!r}: confidences use the drafted token's own probability, so threshold, "
                "early-stop and lagged are not lossless with them at temperature > 0"
            )
        if not self.metadata.get("licence"):
            said.append(
                f"trace {self.name!r} states no licence; ask its owner before publishing answers built on it"
            )
        provenance = self.metadata.get("provenance")
        if isinstance(provenance, Mapping) and provenance.get("note"):
            said.append(f"trace {self.name!r}: {provenance['note']}")
        return said

    # -- selecting and saving -----------------------------------------------------------------------------

    def select(self, request_ids: Iterable[int]) -> Trace:
        """The rows of these requests, in file order whatever the order given; TraceError for unknown ids."""
        wanted = np.unique(np.fromiter(request_ids, dtype=np.int64))
        unknown = np.setdiff1d(wanted, self.request_ids)
        if len(unknown):
            raise TraceError(f"{self.where}: no request {int(unknown[0])}; ids are in .request_ids")
        if not len(wanted):
            raise TraceError(f"{self.where}: no request selected; a trace needs at least one")
        keep = np.isin(self.request, wanted)
        return Trace(
            request=self.request[keep],
            position=self.position[keep],
            confidence_logit=self.confidence_logit[keep],
            accepted=self.accepted[keep],
            domain=self.domain[keep],
            domain_names=self.domain_names,
            prompt_tokens=self.prompt_tokens[keep],
            arrival_seconds=None if self.arrival_seconds is None else self.arrival_seconds[keep],
            metadata=dict(self.metadata),
            where=self.where,
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trace as Parquet, atomically."""
        import pyarrow.parquet as pq

        table = self.to_arrow()
        with atomic_write(path, "wb") as stream:
            pq.write_table(table, stream, compression="zstd", compression_level=9)

    def to_arrow(self) -> pa.Table:
        """The trace as an Arrow table with the columns, types and schema metadata of the file format."""
        import pyarrow as pa

        flat = pa.array(self.confidence_logit.reshape(-1))
        columns = {
            "request": pa.array(self.request.astype(np.int32)),
            "position": pa.array(self.position.astype(np.int32)),
            "confidence_logit": pa.FixedSizeListArray.from_arrays(flat, self.block_size),
            "accepted": pa.array(self.accepted.astype(np.int8)),
            "domain": pa.DictionaryArray.from_arrays(self.domain.astype(np.int32), list(self.domain_names)),
            "prompt_tokens": pa.array(self.prompt_tokens.astype(np.int32)),
        }
        if self.arrival_seconds is not None:
            columns["arrival_seconds"] = pa.array(self.arrival_seconds)
        about = json.dumps(self.metadata, ensure_ascii=False, allow_nan=False)
        return pa.table(columns).replace_schema_metadata({"specsched": about})


SCHEMA = "specsched/trace/1"
MODES = ("dense", "sequential")
MOST_BLOCK = 127  # drafts of a block: `accepted` is stored as int8
MOST_POSITIONS = 2**20  # a replay holds a row for every position of a request
MOST_COUNT = 2**31 - 1  # request ids, positions and prompt tokens are stored as int32


def validate(trace: Trace) -> None:
    """Raise TraceError at the first row that breaks the format, naming row, request and position."""
    where, n, gamma = trace.where, len(trace), trace.block_size
    if n == 0:
        raise TraceError(f"{where} has no rows; record or synthesise at least one request")
    if gamma < 1:
        raise TraceError(f"{where}: confidence_logit has 0 entries a row; a block has at least one draft")
    if gamma > MOST_BLOCK:
        raise TraceError(
            f"{where}: blocks of {gamma} drafts; the format holds at most {MOST_BLOCK} (accepted is int8)"
        )
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
                    **{
                        k: getattr(trace, k)[row]
                        for k in ("request", "accepted", "prompt_tokens", "position")
                    }
                )
            )

    nan = np.isnan(trace.confidence_logit)
    if nan.any():
        k = int(np.argmax(nan[np.argmax(nan.any(axis=1))])) + 1
        refuse(nan.any(axis=1), f"confidence_logit {k} is NaN; drop the request, or record it again")
    refuse(trace.request < 0, "the request id is negative; ids count from 0")
    for name in ("request", "position", "prompt_tokens"):
        beyond = getattr(trace, name) > MOST_COUNT
        refuse(beyond, f"{name} is {{{name}}}, beyond the {MOST_COUNT} that 32 bits hold; check the column")
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
        refuse(
            trace.position >= MOST_POSITIONS,
            f"position is {{position}}; outputs of up to {MOST_POSITIONS:,} tokens are replayed",
        )
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
    for key in ("drafter", "target", "licence"):
        if metadata.get(key) is not None and not isinstance(metadata[key], str):
            raise TraceError(f"{where}: metadata {key} is {kind_of(metadata[key])}; it must be a text")
    temperature = metadata.get("temperature")
    if temperature is not None and (
        isinstance(temperature, bool) or not isinstance(temperature, int | float)
    ):
        raise TraceError(f"{where}: metadata temperature is {kind_of(temperature)}; it must be a number")
    for key in ("confidence_sees_token", "synthetic"):
        if not isinstance(metadata.get(key, False), bool):
            raise TraceError(f"{where}: metadata {key} is {metadata[key]!r}; it must be true or false")
