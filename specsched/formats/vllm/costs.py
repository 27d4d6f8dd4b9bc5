"""vLLM's numbers: cost tables copied as CSV, `bench latency` pairs, per-request acceptance, Prometheus
counters.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import FormatError, plain
from ...files.output import atomic_write
from ...profile import StepProfile
from ..document import Hints, build, ceil_steps, curve, imported
from ..opened import LONGEST_STEP, Opened, open_file
from ..values import numbers, step_seconds, whole

VERIFY = frozenset({"batch_tokens", "median_ms"})
DRAFT = frozenset({"num_reqs", "median_ms"})
_LIMIT_COMMENT = re.compile(r"(?:capture limit|max_cudagraph_capture_size)\D{0,3}(\d+)")
_BLOCK_COMMENT = re.compile(r"block size\D{0,3}(\d{1,3})")
# Off its graphs a step costs a few times more; no GEMM tile edge between neighbouring sizes does that.
_OFF_GRAPH_JUMP = 2.0


# -- cost tables ---------------------------------------------------------------------------------------------


def read_cost(opened: Opened, hints: Hints) -> tuple[StepProfile, list[str]]:
    """`batch_tokens, median_ms`: ceil to the next captured size, linear above the capture limit.

    Hints: `capture_limit` (else a comment of the file, else the largest jump), `draft`: the `num_reqs`
    table's path.
    """
    tokens, ms = _columns(opened, "batch_tokens")
    seconds = step_seconds(ms / 1e3, f"{opened.path}: median_ms", "ms")
    limit, notes = _capture_limit(opened, tokens, seconds, hints)
    draft = None
    if hints.get("draft"):
        draft = _draft_table(open_file(hints["draft"]), hints)
    else:
        notes.append("No draft cost: give the num_reqs table with the hint draft, or drafting costs nothing.")
    return cost_profile(opened.path, "vllm-cost", tokens, seconds, limit, draft, notes, hints), notes


def cost_profile(
    path: Path,
    tool: str,
    tokens: np.ndarray,
    seconds: np.ndarray,
    limit: int,
    draft: dict[str, Any] | None,
    notes: list[str],
    hints: Hints,
) -> StepProfile:
    """The profile of vLLM's two curves: tokens int64[n], their seconds float64[n], the capture limit, and
    what `draft_curve` made."""
    inside = tokens <= limit
    eager = curve("tokens", tokens[~inside], seconds[~inside]) if not inside.all() else None
    return build(
        path.stem,
        {**curve("tokens", tokens[inside], seconds[inside]), "lookup": "ceil", "beyond": "slope"},
        imported(str(path), tool, "ceil to a captured size, linear above the limit", notes, hints),
        hints,
        capture={"sizes": [int(t) for t in tokens[inside]], "limit": int(limit)},
        eager=eager,
        draft=draft,
    )


def read_draft_alone(opened: Opened, hints: Hints) -> tuple[StepProfile, list[str]]:
    """A `num_reqs` table is half a profile: always a `FormatError` that says what to do."""
    raise FormatError(
        f"{opened.path} holds draft costs by requests (num_reqs, median_ms), which are half a profile: "
        "convert the "
        "batch_tokens table and name this file as its draft table (hint draft)"
    )


def _columns(opened: Opened, axis: str) -> tuple[np.ndarray, np.ndarray]:
    where = str(opened.path)
    sizes = whole(opened.data[axis], f"{where}: {axis}")
    return sizes, numbers(opened.data["median_ms"], f"{where}: median_ms")


def _draft_table(opened: Opened, hints: Hints) -> dict[str, Any]:
    if opened.syntax != "csv" or not opened.keys >= DRAFT:
        raise FormatError(
            f"{opened.path}: no draft table; expected columns num_reqs, median_ms, seen {opened.seen}"
        )
    sizes, ms = _columns(opened, "num_reqs")
    said = next((found[1] for one in opened.comments if (found := _BLOCK_COMMENT.search(one))), 7)
    if ms.max() / 1e3 > LONGEST_STEP:
        raise FormatError(
            f"{opened.path}: median_ms: a draft of {ms.max() / 1e3:.4g} s; no drafter takes that long, "
            "check the unit"
        )
    return draft_curve(sizes, ms, int(hints.get("block_size") or said), hints.get("drafter"))


def draft_curve(sizes: np.ndarray, ms: np.ndarray, block: int, drafter: Any) -> dict[str, Any]:
    """The draft part of a profile: requests int64[n], milliseconds float64[n].

    vLLM pads the requests of a draft pass to a captured size: written out, so that whole numbers read alike.
    """
    steps = ceil_steps(sizes, ms / 1e3)
    return {**curve("requests", *steps), "block_size": block, "drafter": str(drafter or "unknown")}


def _capture_limit(
    opened: Opened, tokens: np.ndarray, seconds: np.ndarray, hints: Hints
) -> tuple[int, list[str]]:
    if hints.get("capture_limit"):
        limit = int(hints["capture_limit"])
        if limit < tokens[0]:
            raise FormatError(f"{opened.path}: capture_limit {limit} is below the first size {tokens[0]}")
        return limit, []
    for comment in opened.comments:
        found = _LIMIT_COMMENT.search(comment)
        if found and int(found[1]) >= tokens[0]:
            return int(found[1]), []
    jump = seconds[1:] / seconds[:-1]
    if jump.size and jump.max() >= _OFF_GRAPH_JUMP:
        at = int(jump.argmax())
        note = (
            f"The file does not name its capture limit; taken as {tokens[at]}, where the next size costs "
            f"{jump[at]:.1f} times more. Give capture_limit if that is wrong."
        )
        return int(tokens[at]), [note]
    note = (
        f"The file does not name its capture limit; taken as its last size {tokens[-1]}. Give capture_limit "
        "if it is not."
    )
    return int(tokens[-1]), [note]


def write_cost(
    path: str | os.PathLike[str], axis: str, sizes: np.ndarray, seconds: np.ndarray, comments: Iterable[str]
) -> None:
    """Write one cost table, `axis` = batch_tokens or num_reqs, with comment lines above the header."""
    with atomic_write(path) as stream:
        for comment in comments:
            # A name stays on its line: below the comments the reader looks for the header.
            stream.write(f"# {plain(' '.join(comment.split()))}\n")
        stream.write(f"{axis},median_ms\n")
        for size, value in zip(sizes, seconds, strict=True):
            stream.write(f"{int(size)},{float(value) * 1e3!r}\n")
