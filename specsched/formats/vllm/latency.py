"""Results of vLLM's latency benchmark as a step profile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import FormatError
from ...profile import StepProfile
from ..document import Hints, build, curve, imported
from ..opened import Opened, open_file
from ..values import numbers, step_seconds

LATENCY = frozenset({"avg_latency", "latencies"})

# -- bench latency -------------------------------------------------------------------------------------------


def read_latency(opened: Opened, hints: Hints) -> tuple[StepProfile, list[str]]:
    """`bench latency --output-json` files: a step is the slope of whole generations over their output
    lengths.

    The lengths are not in the file. Hints `batch_size`, `input_len`, `output_len` for this file, and `runs`,
    a list of (path, batch_size, input_len, output_len) for the others; at least two output lengths per batch.
    """
    where = str(opened.path)
    missing = [name for name in ("batch_size", "output_len", "runs") if not hints.get(name)]
    if missing:
        raise FormatError(
            f"{where}: a vLLM latency file holds whole generations and none of its lengths; missing: "
            f"{', '.join(missing)}. "
            "Give batch_size, input_len and output_len of this file, and runs = [(path, batch_size, "
            "input_len, output_len), "
            "...] with a second output length for every batch"
        )
    runs = [(opened, int(hints["batch_size"]), int(hints.get("input_len") or 0), int(hints["output_len"]))]
    for path, batch, prompt, output in _runs(hints["runs"]):
        runs.append((open_file(path), batch, prompt, output))
    sizes, steps = _latency_steps(runs)
    notes = [
        "One token per request was timed: verify is known on the diagonal B = R alone, at the context of the "
        "runs."
    ]
    verify = {**curve("tokens", sizes, step_seconds(steps, where)), "lookup": "linear", "beyond": "slope"}
    provenance = imported(where, "vllm-bench-latency", "none (bench runs)", notes, hints)
    return build(opened.path.stem, verify, provenance, hints), notes


def _runs(hint: Any) -> list[tuple[str, int, int, int]]:
    """The other files of the hint `runs`: tuples, or one text PATH:BATCH:INPUT:OUTPUT[,...] as a shell
    would give.
    """
    entries = [part.rsplit(":", 3) for part in hint.split(",")] if isinstance(hint, str) else list(hint)
    runs = []
    for entry in entries:
        if not isinstance(entry, list | tuple) or len(entry) != 4:
            raise FormatError(f"hint runs: {entry!r} is not PATH:BATCH:INPUT:OUTPUT")
        try:
            batch, prompt, output = (int(value) for value in entry[1:])
        except (TypeError, ValueError):
            raise FormatError(f"hint runs: {entry!r} is not PATH:BATCH:INPUT:OUTPUT") from None
        runs.append((str(entry[0]), batch, prompt, output))
    return runs


def _latency_steps(runs: Sequence[tuple[Opened, int, int, int]]) -> tuple[np.ndarray, np.ndarray]:
    groups: dict[int, list[tuple[int, float]]] = {}
    for opened, batch, _, output in runs:
        if not opened.keys >= LATENCY:
            raise FormatError(
                f"{opened.path}: no latency file; expected avg_latency, latencies, seen {opened.seen}"
            )
        latencies = numbers(opened.data["latencies"], f"{opened.path}: latencies")
        groups.setdefault(batch, []).append((output, float(np.median(latencies))))
    sizes, steps = [], []
    for batch in sorted(groups):
        lengths, latency = np.array(groups[batch]).T
        if len(set(lengths)) < 2:
            raise FormatError(
                f"batch {batch}: one output length only ({lengths[0]:.0f}); a slope needs two runs"
            )
        slope = float(np.polyfit(lengths, latency, 1)[0])
        if slope <= 0:
            raise FormatError(
                f"batch {batch}: longer outputs were not slower; are the output lengths swapped?"
            )
        sizes.append(batch)
        steps.append(slope)
    return np.array(sizes), np.array(steps)
