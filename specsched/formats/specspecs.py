"""specspecs Parquet: `drafts` rows with the acceptance of every drafted token, no confidences.

`acceptance_length` counts either the accepted drafts or those and the bonus token; the flags decide which.
"""

from __future__ import annotations

import numpy as np

from ..errors import FormatError
from ..files.reader import kind_of
from .acceptance import Acceptance, from_tried
from .document import Hints
from .opened import Opened
from .values import integer

DRAFTS = frozenset({"run_id", "sequence_id", "step", "acceptances", "k", "acceptance_length"})
SEQUENCES = frozenset({"run_id", "sequence_id", "prompt_token_ids", "prompt_len"})


def read(opened: Opened, hints: Hints) -> tuple[Acceptance, list[str]]:
    """Per-position acceptance of all draft steps (of the hint `run_id` when given)."""
    where = str(opened.path)
    rows = opened.table(["run_id", "acceptances", "k", "acceptance_length"])
    keep = [i for i, run in enumerate(rows["run_id"]) if hints.get("run_id") in (None, run)]
    if not keep:
        raise FormatError(
            f"{where}: no steps" + (f" of run {hints['run_id']!r}" if hints.get("run_id") else "")
        )
    widths = {i: integer(rows["k"][i], f"{where}, row {i + 1}: k", 0, 127) for i in keep}
    depth = max(widths.values())
    short, bonus = 0, set()
    accepted, tried = np.zeros(max(depth, 1)), np.zeros(max(depth, 1))
    for i in keep:
        flags, k = rows["acceptances"][i] or [], widths[i]
        if not isinstance(flags, list):
            raise FormatError(f"{where}, row {i + 1}: acceptances is {kind_of(flags)}; it must be a list")
        if len(flags) != k:
            raise FormatError(f"{where}, row {i + 1}: {len(flags)} acceptances for k = {k}")
        run = next((j for j, flag in enumerate(flags) if not flag), k)
        bonus.add(integer(rows["acceptance_length"][i], f"{where}, row {i + 1}: acceptance_length") - run)
        accepted[:run] += 1
        tried[: min(run + 1, k)] += 1
        short += k < depth
    if not bonus <= {0} and not bonus <= {1}:
        raise FormatError(
            f"{where}: acceptance_length is not the run of accepted tokens, with or without the bonus "
            f"(differences seen: {sorted(bonus)}); the file contradicts itself"
        )
    notes = [f"{len(keep)} draft steps, no confidences: acceptance by position."]
    if short:
        notes.append(
            f"{short} blocks were shorter than {depth}: rates are product-limit estimates, right where the "
            "length was chosen without looking at the drafts."
        )
    return from_tried(accepted, tried, len(keep), "specspecs", tuple(notes)), notes


def read_sequences_alone(opened: Opened, hints: Hints) -> tuple[Acceptance, list[str]]:
    """The `sequences` table holds prompts only: always a `FormatError` that names the other table."""
    raise FormatError(
        f"{opened.path} holds specspecs' prompts; convert its `drafts` table, which has the acceptances"
    )
