"""Trace: what a drafter proposed and what the target would accept, one row per anchor (`specsched/trace/1`).

Row t of a request: the anchor is output token t (0-based), the γ drafts are output tokens t+1..t+γ.
`confidence_logit[k]` is the raw score of draft k+1, conditional on the drafts before it; `accepted` says how
many drafts a full verification accepts (the longest accepted prefix).

A *dense* trace has a row for every output position, so any lossless policy replays exactly on it: the text of
the target is fixed, and after emitting n tokens from anchor t the next anchor is t + n, whatever the policy.
One second-order caveat: in a real engine a token emitted past the verified prefix is independent of the draft
at its position, here both come from one row; only a lagged budget, which looks at unverified suffixes of
earlier steps, can see that coupling. A *sequential* trace is an engine's log of the steps it took; replaying
another policy on it is an approximation.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import TraceError
from .files import atomic_write, resolve
from .reading_kinds import refuse_other_kind
from .trace_columns import domains, logits, metadata_of, numbers, whole_numbers
from .trace_settings import settings_for
from .trace_synth import draw
from .trace_validate import SCHEMA, validate

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = ("request", "position", "confidence_logit", "accepted", "domain", "prompt_tokens")


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
    def request_ids(self) -> np.ndarray:
        """int64[m]: request ids in file order."""
        return self.request[self.starts]

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


def load_trace(name: str | os.PathLike[str]) -> Trace:
    """A trace from a path, else the bundled one of that name (`chat`, `chat.parquet`).

    Raises TraceError; WorkloadError for an object that is no path (a profile given in the trace's place).
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    refuse_other_kind(name, "trace", TraceError)
    path = resolve(name, "traces", ".parquet", TraceError)
    try:
        # No threads: the file is small, and replays run in threads of their own.
        table = pq.read_table(path, use_threads=False)
    except (pa.ArrowException, OSError) as e:
        first = str(e).splitlines()[0] if str(e) else type(e).__name__
        raise TraceError(
            f"{path} is not a readable Parquet file ({first}); is it truncated, or another format? "
            "fetch or write it again, or see `specsched convert`"
        ) from None
    return from_arrow(table, str(path))


def from_arrow(table: pa.Table, where: str = "trace") -> Trace:
    """A validated Trace from an Arrow table with the columns and schema metadata of the format."""
    metadata = metadata_of(table, where)
    missing = [name for name in COLUMNS if name not in table.column_names]
    if missing:
        raise TraceError(
            f"{where}: no column {', '.join(missing)}; a trace needs {', '.join(COLUMNS)} "
            "(`specsched convert` writes them from other tools' logs)"
        )
    for name in (*COLUMNS, "arrival_seconds"):
        if name in table.column_names and table[name].null_count:
            row = int(np.flatnonzero(table[name].is_null().to_numpy())[0])
            raise TraceError(f"{where}, row {row}: {name} is null; every row needs a value")
    logit = logits(table["confidence_logit"], where)
    codes, names = domains(table["domain"], where)
    n = table.num_rows
    trace = Trace(
        request=whole_numbers(numbers(table, "request", where), n, "request", where),
        position=whole_numbers(numbers(table, "position", where), n, "position", where),
        confidence_logit=logit,
        accepted=whole_numbers(numbers(table, "accepted", where), n, "accepted", where),
        domain=codes,
        domain_names=names,
        prompt_tokens=whole_numbers(numbers(table, "prompt_tokens", where), n, "prompt_tokens", where),
        arrival_seconds=(
            np.ascontiguousarray(numbers(table, "arrival_seconds", where), dtype=np.float64)
            if "arrival_seconds" in table.column_names
            else None
        ),
        metadata=metadata,
        where=where,
    )
    validate(trace)
    return trace


# -- synthetic traces -------------------------------------------------------------------------------------


def synthesise(
    acceptance: str | Sequence[float] = "chat",
    *,
    requests: int = 320,
    output_tokens: float | Sequence[int] = 200.0,
    prompt_tokens: float | Sequence[int] = 100.0,
    auc: float | Sequence[float] | None = None,
    ece: float | Sequence[float] | None = None,
    temperature: float | Sequence[float] | None = None,
    shift: float | Sequence[float] | None = None,
    reliability: Sequence[tuple[float, float]] | None = None,
    seed: int = 0,
    domain: str | None = None,
    name: str = "synthetic",
    note: str | None = None,
    **model: Any,
) -> Trace:
    """A dense trace from per-position acceptance, when that is all one has; the model: `trace_synth`.

    acceptance: conditional, P(accepted >= k | accepted >= k - 1) for k = 1..γ, as counted by an engine that
        verifies whole blocks (`along="dense"`: over all rows); or "math", "code", "chat": figure 2
    output_tokens, prompt_tokens: a mean (log-normal lengths, `length_spread` their sigma) or one per request.
    auc: of the confidence at each position among rows that reach it; default: as figure 6 of the paper.
    One of these says how miscalibrated raw confidences are (default: as in figure 6):
        ece: ECE of the raw survival, 0 = none, overconfident; temperature, shift: raw logit =
        temperature * true logit + shift; reliability: (confidence, acceptance) points.
    note: goes into the provenance, and every answer built on the trace says it.
    model: further settings of `trace_settings.Settings` (spread, skew, request_share, local_share, ...).

    Rows are a function of the settings and `seed`; logits are rounded to 1/64, about what a bfloat16 head
    resolves. Raises TraceError naming the setting that cannot be drawn.
    """
    settings = settings_for(
        acceptance,
        requests=requests,
        output_tokens=output_tokens,
        prompt_tokens=prompt_tokens,
        auc=auc,
        ece=ece,
        temperature=temperature,
        shift=shift,
        reliability=reliability,
        seed=seed,
        **model,
    )
    drawn = draw(settings)
    figure = isinstance(acceptance, str)
    asked = {key: value for key, value in vars(settings).items() if np.ndim(value) == 0 or len(value) < 64}
    basis = "acceptance and reliability published in figures 2 and 6 of arXiv 2607.05147"
    lengths = drawn.lengths
    return Trace.from_arrays(
        request=np.repeat(np.arange(len(lengths)), lengths),
        position=np.arange(len(drawn.accepted)) - np.repeat(np.cumsum(lengths) - lengths, lengths),
        confidence_logit=np.rint(drawn.logit * 64.0) / 64.0,
        accepted=drawn.accepted,
        domain=domain or (acceptance if isinstance(acceptance, str) else "synthetic"),
        prompt_tokens=np.repeat(drawn.prompts, lengths),
        metadata={
            "drafter": "synthetic, acceptance of DSpark for Qwen3-4B" if figure else "synthetic",
            "target": "synthetic, Qwen3-4B" if figure else "synthetic",
            "temperature": 1.0,
            "seed": seed,
            "licence": "numbers drawn by specsched (Apache-2.0)",
            "synthetic": True,
            "provenance": {
                "method": "synthetic",
                "basis": basis if figure else "per-position acceptance given by the user",
                "settings": asked,
                "emitted_per_step": float(1.0 + drawn.accepted[drawn.visited].mean()),
            }
            | ({"note": note} if note else {}),
        },
        where=name,
    )
