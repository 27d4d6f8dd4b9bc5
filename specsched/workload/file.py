"""Files of arrivals, each recognised by its columns, read as plain arrays in blocks of bounded memory.

| format | arrival | lengths |
|---|---|---|
| Azure LLM inference traces 2023, 2024 (CSV) | TIMESTAMP, a date | ContextTokens, GeneratedTokens |
| BurstGPT (CSV) | Timestamp, seconds | Request tokens, Response tokens |
| Mooncake (JSON lines) | timestamp, milliseconds | input_length, output_length |
| Qwen-Bailian usage traces (JSON lines) | timestamp, seconds; chat_id, turn | input_length, output_length |
| Vidur (CSV) | arrived_at, seconds | num_prefill_tokens, num_decode_tokens |
| plain (CSV, JSON lines) | arrival_seconds, arrival_s, arrival_ms | prompt_tokens, output_tokens, domain |
| ServeGen client windows (CSV) | t_s, rate_rps, cv, family, p1, p2 per client: a generator | none |
| our own confidence traces (Parquet) | arrival_seconds | prompt_tokens, one row a decoded token |

CSV and JSON lines may be gzipped, and a JSON list of objects reads like JSON lines. Units are told by
evidence, coarse clocks spread (`clock`). Requests without an output token (failed ones) are dropped, rows
out of order are sorted, dates start at 0: `metadata` and its `warnings` say what was done.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import WorkloadError, plain
from ..files.guard import reading
from ..files.parquet import opened, read_parquet
from ..files.strict import parse_json
from ..randomness import check_seed
from .blocks import Layout, csv_blocks, json_blocks, json_list, open_bytes, parquet_blocks, refuse
from .clock import IGNORED_COLUMNS, read_clock, spread_ticks
from .workload import Workload


def load_workload(path: str | os.PathLike[str], requests: int | None = None, seed: int = 0) -> Workload:
    """Read arrivals from a file, its format told by its columns (listed above).

    `requests` keeps the first so many. `seed` matters to ServeGen client windows alone, which are a
    generator. Raises WorkloadError naming file, row (1-based, header not counted) and column.
    """
    check_seed(seed)
    with reading(path, WorkloadError, "file of arrivals"):
        columns = read_columns(path, requests=requests, seed=seed)
        workload = Workload(
            name=os.fspath(path),
            arrival_seconds=columns.arrival_seconds,
            prompt_tokens=columns.prompt_tokens,
            output_tokens=columns.output_tokens,
            domain=columns.domain,
            domain_names=columns.domain_names,
            request_ids=columns.request_ids,
            metadata=columns.metadata,
        )
    return workload if requests is None else workload.head(requests)


class Columns(NamedTuple):
    """What a file of arrivals holds; arrays as in `workload.Workload`, sorted by arrival."""

    arrival_seconds: NDArray[np.float64]
    prompt_tokens: NDArray[np.int64] | None
    output_tokens: NDArray[np.int64] | None
    domain: NDArray[np.int64] | None
    domain_names: tuple[str, ...]
    request_ids: NDArray[np.int64] | None
    metadata: dict[str, Any]


PLAIN = Layout("plain", "arrival_seconds", 1.0, "prompt_tokens", "output_tokens", False)
LAYOUTS = (
    Layout("Azure LLM inference trace", "TIMESTAMP", None, "ContextTokens", "GeneratedTokens", True),
    Layout("BurstGPT", "Timestamp", 1.0, "Request tokens", "Response tokens", True),
    Layout("Mooncake", "timestamp", 1e-3, "input_length", "output_length", True),
    Layout("Vidur", "arrived_at", 1.0, "num_prefill_tokens", "num_decode_tokens", True),
    PLAIN,
    Layout("plain", "arrival_s", 1.0, "prompt_tokens", "output_tokens", False),
    Layout("plain", "arrival_ms", 1e-3, "prompt_tokens", "output_tokens", False),
)
_SERVEGEN = ("client", "t_s", "rate_rps", "cv", "family", "p1", "p2")


def read_columns(path: str | os.PathLike[str], requests: int | None = None, seed: int = 0) -> Columns:
    """Read any file of the table above.

    `requests` is a hint (a generator stops there), `seed` feeds generators. Raises WorkloadError naming the
    file, the row (1-based, header not counted) and the column.
    """
    file = Path(path)
    if not file.is_file():
        kind = "is a folder" if file.is_dir() else "does not exist"
        raise WorkloadError(f"arrivals file {file} {kind}; give a CSV, JSON lines or Parquet file")
    stem = file.name.lower().removesuffix(".gz")
    if stem.endswith((".parquet", ".pq")):
        return _read_trace(file)
    first = _first_line(file)
    if first.lstrip().startswith("["):
        names, lines = json_list(file)
        layout, found = _recognise(file, names)
        return _assemble(file, layout, json_blocks(file, layout, found, lines), found, names)
    if first.lstrip().startswith("{"):
        try:
            names = list(parse_json(first, f"{file}, row 1", WorkloadError, finite=False))
        except WorkloadError as e:
            if "is not JSON" not in str(e):
                raise
            raise WorkloadError(f"{file}, row 1: is not one JSON object per line; write JSON lines") from None
        layout, found = _recognise(file, names)
        return _assemble(file, layout, json_blocks(file, layout, found), found, names)
    with reading(file, WorkloadError, "CSV"):
        names = next(csv.reader(first.splitlines()[:1]), [])
    if set(_SERVEGEN) <= {_plain(n) for n in names}:
        from .servegen import generate

        arrival, metadata = generate(file, requests, seed)
        return Columns(arrival, None, None, None, (), None, metadata)
    layout, found = _recognise(file, names)
    return _assemble(file, layout, csv_blocks(file, layout, found), found, names)


def _first_line(file: Path) -> str:
    try:
        with open_bytes(file) as stream:
            line = stream.readline(1 << 22).decode("utf-8-sig")
    except (OSError, EOFError) as e:
        raise WorkloadError(f"cannot read {file}: {e}; is it complete and readable?") from None
    except UnicodeDecodeError:
        raise WorkloadError(f"{file} is not UTF-8 text; give a CSV, JSON lines or .parquet file") from None
    if not line.strip():
        raise WorkloadError(f"{file} is empty; expected a header line or JSON lines")
    out: str = line
    return out


def _plain(name: str) -> str:
    return name.strip().lower()


def _recognise(file: Path, names: list[str]) -> tuple[Layout, dict[str, str]]:
    """The layout whose columns are all there, and {role: column as spelt in the file}."""
    spelt = {_plain(name): name for name in names}
    for layout in LAYOUTS:
        roles = {"arrival": layout.arrival, "prompt": layout.prompt, "output": layout.output}
        found = {role: spelt[_plain(n)] for role, n in roles.items() if _plain(n) in spelt}
        if "arrival" in found and (not layout.lengths_required or len(found) == 3):
            if layout.name == "plain" and "domain" in spelt:
                found["domain"] = spelt["domain"]
            return layout, found
    known = "; ".join(f"{x.name}: {x.arrival}, {x.prompt}, {x.output}" for x in LAYOUTS)
    raise WorkloadError(
        f"{file}: no known format has the columns {plain(', '.join(names), 80)}. Known: {known}. "
        "Rename the columns to arrival_seconds, prompt_tokens, output_tokens"
    )


def _assemble(
    file: Path, layout: Layout, blocks: Iterator[dict[str, Any]], found: dict[str, str], names: list[str]
) -> Columns:
    """Join blocks; drop requests without output, sort by arrival, tell the clock's unit, start dates at 0."""
    parts: dict[str, list[NDArray[Any]]] = {}
    codes: dict[str, int] = {}
    rows = 0
    for block in blocks:
        if "domain" in block:
            local, names = block["domain"]
            block["domain"] = np.array([codes.setdefault(n, len(codes)) for n in names], dtype=np.int64)[
                local
            ]
        rows += len(block["arrival"])
        if "output" in block:
            # As early as possible: what is dropped costs no memory.
            keep = block["output"] > 0
            if not keep.all():
                block = {role: values[keep] for role, values in block.items()}
        for role, values in block.items():
            parts.setdefault(role, []).append(values)
    columns = {role: np.concatenate(parts.pop(role)) for role in list(parts)}
    arrival = columns.get("arrival", np.empty(0))
    if len(arrival) == 0:
        raise WorkloadError(
            f"{file} holds no request with an output token ({rows} rows read); nothing to serve"
        )
    warnings = []
    dropped = rows - len(arrival)
    if dropped:
        warnings.append(f"{file.name}: {dropped} of {rows} requests have no output token and were dropped")
    unsorted = bool((np.diff(arrival) < 0).any())
    if unsorted:
        order = np.argsort(arrival, kind="stable")
        columns = {role: values[order] for role, values in columns.items()}
        arrival = columns["arrival"]
        warnings.append(f"{file.name}: rows were not in order of arrival and were sorted")
    metadata = {"format": layout.name, "source": file.name, "rows": rows, "dropped": dropped}
    if layout.seconds_per_unit is None:
        seconds, said = spread_ticks(file.name, (arrival - arrival[0]) / 1e9)
        metadata |= {"unit": "date", "epoch_seconds": float(arrival[0] / 1e9)}
        warnings += said
    else:
        clock = read_clock(file.name, found["arrival"], arrival, layout.seconds_per_unit, names)
        seconds = clock.seconds
        metadata |= clock.metadata
        warnings += clock.warnings
    unused = [name for name in names if _plain(name) in IGNORED_COLUMNS]
    if unused:
        warnings.append(
            f"{file.name}: {', '.join(unused)} not used: sessions and shared prefixes are not modelled, "
            "every request stands alone"
        )
    return Columns(
        arrival_seconds=seconds,
        prompt_tokens=columns.get("prompt"),
        output_tokens=columns.get("output"),
        domain=columns.get("domain"),
        domain_names=tuple(codes),
        request_ids=None,
        metadata={**metadata, "sorted": unsorted, "warnings": warnings},
    )


def _read_trace(file: Path) -> Columns:
    """Arrivals of a confidence trace: one row a decoded token, `arrival_seconds` constant over a request."""
    import pyarrow as pa

    wanted = ("request", "position", "accepted", "arrival_seconds", "prompt_tokens", "domain")
    with opened(file, WorkloadError) as parquet:
        names = parquet.schema_arrow.names
        if "request" not in names and _plain("arrival_seconds") in names:
            blocks = parquet_blocks(file, parquet, PLAIN)
            return _assemble(file, PLAIN, blocks, {"arrival": "arrival_seconds"}, names)
        if "arrival_seconds" not in names:
            raise WorkloadError(
                f"{file} has no column arrival_seconds (columns: {plain(', '.join(names), 80)}); "
                "use --arrivals poisson:RATE, or record the trace with arrival times"
            )
    missing = [n for n in ("position", "accepted") if n not in names]
    if missing:
        raise WorkloadError(f"{file} has no column {missing[0]}, which a trace has; record it again")
    table = read_parquet(file, WorkloadError, [n for n in wanted if n in names])
    for name in set(table.column_names) - {"domain"}:
        kind = table.column(name).type
        if not (pa.types.is_integer(kind) or (name == "arrival_seconds" and pa.types.is_floating(kind))):
            raise WorkloadError(f"{file}: column {name} has type {kind}; it must hold numbers")
        if table.column(name).null_count:
            raise WorkloadError(f"{file}: column {name} has an empty entry; every row needs a number")
    request = table.column("request").to_numpy().astype(np.int64)
    if len(request) == 0:
        raise WorkloadError(f"{file} holds no row; nothing to serve")
    starts = np.concatenate(([0], np.flatnonzero(np.diff(request)) + 1))
    last = np.concatenate((starts[1:], [len(request)])) - 1
    ids = request[starts]
    if len(np.unique(ids)) != len(ids):
        raise WorkloadError(f"{file}: rows of one request are not together; sort by request, then position")
    arrival = table.column("arrival_seconds").to_numpy().astype(np.float64)
    refuse(file, "arrival_seconds", 0, arrival, ~(arrival >= 0), "is not a time at or after 0")
    refuse(
        file,
        "arrival_seconds",
        0,
        arrival,
        arrival != arrival[starts].repeat(last - starts + 1),
        "differs from the first row of its request",
    )
    position = table.column("position").to_numpy().astype(np.int64)
    accepted = table.column("accepted").to_numpy().astype(np.int64)
    dense = bool((position[last] - position[starts] == last - starts).all())
    # Dense: n rows decode n tokens. Steps of an engine: up to the last step's anchor and what it emitted.
    for name, values in (("position", position), ("accepted", accepted)):
        refuse(file, name, 0, values, (values < 0) | (values > 2**31 - 1), "is outside what 32 bits hold")
    decoded = np.where(dense, last - starts + 1, position[last] - position[starts] + accepted[last] + 1)
    columns: dict[str, Any] = {"arrival": arrival[starts], "output": decoded + 1, "ids": ids}
    if "prompt_tokens" in names:
        columns["prompt"] = table.column("prompt_tokens").to_numpy().astype(np.int64)[starts]
    domain_names: tuple[str, ...] = ()
    if "domain" in names:
        encoded = table.column("domain").combine_chunks()
        encoded = encoded if pa.types.is_dictionary(encoded.type) else encoded.dictionary_encode()
        domain_names = tuple(encoded.dictionary.to_pylist())
        columns["domain"] = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)[starts]
    order = np.argsort(columns["arrival"], kind="stable")
    columns = {role: values[order] for role, values in columns.items()}
    return Columns(
        arrival_seconds=columns["arrival"],
        prompt_tokens=columns.get("prompt"),
        output_tokens=columns["output"],
        domain=columns.get("domain"),
        domain_names=domain_names,
        request_ids=columns["ids"],
        metadata={"format": "specsched trace", "source": file.name, "rows": len(request), "warnings": []},
    )
