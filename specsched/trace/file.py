"""Traces on disk: Parquet with the settings of the trace in its schema's metadata."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from ..errors import TraceError
from ..files.disk import resolve
from ..files.guard import reading
from ..files.kind import refuse_other_kind
from ..files.parquet import read_parquet
from .columns import domains, logits, metadata_of, numbers, whole_numbers
from .mixture import mix, parts_of
from .trace import validate

if TYPE_CHECKING:
    import pyarrow as pa
from .trace import Trace

COLUMNS = ("request", "position", "confidence_logit", "accepted", "domain", "prompt_tokens")


def load_trace(name: str | os.PathLike[str]) -> Trace:
    """A trace from a path, else the bundled one of that name (`chat`, `chat.parquet`), else a mixture.

    A mixture is `chat:0.7,code:0.3`: traces with the shares of their requests; see `mix`.
    Raises TraceError; WorkloadError for an object that is not a path (a profile given in the trace's place).
    """
    refuse_other_kind(name, "trace", TraceError)
    parts = parts_of(name) if isinstance(name, str) and not os.path.exists(name) else None
    if parts is not None:
        return mix([load_trace(part) for part, _ in parts], [share for _, share in parts])
    path = resolve(name, "traces", ".parquet", TraceError)
    with reading(path, TraceError, "Parquet file"):
        return from_arrow(read_parquet(path, TraceError), str(path))


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
