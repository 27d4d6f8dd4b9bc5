"""vLLM's numbers: cost tables copied as CSV, `bench latency` pairs, per-request acceptance, Prometheus
counters.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..errors import FormatError
from ..files import atomic_write
from ..profile import StepProfile
from .acceptance import Acceptance, from_histogram, from_survival
from .document import Hints, build, ceil_steps, curve, imported
from .opened import Opened, numbers, open_file, step_seconds, whole
from .typed import number

VERIFY = frozenset({"batch_tokens", "median_ms"})
DRAFT = frozenset({"num_reqs", "median_ms"})
LATENCY = frozenset({"avg_latency", "latencies"})
_LIMIT_COMMENT = re.compile(r"(?:capture limit|max_cudagraph_capture_size)\D{0,3}(\d+)")
# Off its graphs a step costs a few times more; no GEMM tile edge between neighbouring sizes does that.
_OFF_GRAPH_JUMP = 2.0


# -- cost tables ---------------------------------------------------------------------------------------------


def read_cost(opened: Opened, hints: Hints) -> tuple[StepProfile, list[str]]:
    """`batch_tokens, median_ms`: ceil to the next captured size, linear above the capture limit.

    Hints: `capture_limit` (else a comment of the file, else the largest jump), `draft`: the `num_reqs`
    table's path.
    """
    where = str(opened.path)
    tokens, ms = _columns(opened, "batch_tokens")
    seconds = step_seconds(ms / 1e3, f"{where}: median_ms", "ms")
    limit, notes = _capture_limit(opened, tokens, seconds, hints)
    inside = tokens <= limit
    eager = curve("tokens", tokens[~inside], seconds[~inside]) if not inside.all() else None
    verify = {**curve("tokens", tokens[inside], seconds[inside]), "lookup": "ceil", "beyond": "slope"}
    draft = None
    if hints.get("draft"):
        draft = _draft_curve(open_file(hints["draft"]), hints)
    else:
        notes.append("No draft cost: give the num_reqs table with the hint draft, or drafting costs nothing.")
    profile = build(
        opened.path.stem,
        verify,
        imported(where, "vllm-cost", "ceil to a captured size, linear above the limit", notes, hints),
        hints,
        capture={"sizes": [int(t) for t in tokens[inside]], "limit": int(limit)},
        eager=eager,
        draft=draft,
    )
    return profile, notes


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


def _draft_curve(opened: Opened, hints: Hints) -> dict[str, Any]:
    if opened.syntax != "csv" or not opened.keys >= DRAFT:
        raise FormatError(
            f"{opened.path}: no draft table; expected columns num_reqs, median_ms, seen {opened.seen}"
        )
    sizes, ms = _columns(opened, "num_reqs")
    # vLLM pads the requests of a draft pass to a captured size: written out, so that whole numbers read
    # alike.
    steps = ceil_steps(sizes, ms / 1e3)
    block = int(hints.get("block_size") or 7)
    return {
        **curve("requests", *steps),
        "block_size": block,
        "drafter": str(hints.get("drafter") or "unknown"),
    }


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
            stream.write(f"# {comment}\n")
        stream.write(f"{axis},median_ms\n")
        for size, value in zip(sizes, seconds, strict=True):
            stream.write(f"{int(size)},{float(value) * 1e3!r}\n")


# -- bench latency -------------------------------------------------------------------------------------------


def read_latency(opened: Opened, hints: Hints) -> tuple[StepProfile, list[str]]:
    """`bench latency --output-json` files: a step is the slope of whole generations over their output
    lengths.

    The lengths are not in the file. Hints `batch_size`, `input_len`, `output_len` for this file, and
    `runs`, a
    list of (path, batch_size, input_len, output_len) for the others; at least two output lengths per batch.
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


# -- acceptance ----------------------------------------------------------------------------------------------


def speculative(row: Any) -> dict[str, Any] | None:
    """The `metrics.speculative_decoding` object of one response, or None."""
    metrics = row.get("metrics") if isinstance(row, dict) else None
    found = metrics.get("speculative_decoding") if isinstance(metrics, dict) else None
    return found if isinstance(found, dict) else None


def read_requests(opened: Opened, hints: Hints) -> tuple[Acceptance, list[str]]:
    """Responses with per-request metrics: their acceptance histograms, added up and checked against the
    totals.
    """
    where = str(opened.path)
    rows = opened.data if isinstance(opened.data, list) else [opened.data]
    found = [(i, s) for i, row in enumerate(rows, 1) if (s := speculative(row))]
    total = np.zeros(129)
    drafted = possible = 0.0
    width = 2
    for i, stats in found:
        at = f"{where}, row {i}: acceptance_histogram"
        counts = numbers(stats.get("acceptance_histogram"), at, positive=False)
        if len(counts) > len(total) or counts.sum() > 1e15:
            raise FormatError(
                f"{at}: {len(counts)} entries, {counts.sum():g} steps; no engine drafts that much"
            )
        width = max(width, len(counts))
        steps, accepted = counts.sum(), float((counts * np.arange(len(counts))).sum())
        for key, value in (("num_spec_steps", steps), ("num_accepted_draft_tokens", accepted)):
            if stats.get(key) is not None and number(stats[key], f"{where}, row {i}: {key}") != value:
                raise FormatError(
                    f"{at}: gives {key} {value:.0f}, the row says {stats[key]}; the row contradicts itself"
                )
        total[: len(counts)] += counts
        at = f"{where}, row {i}"
        drafted += number(stats.get("num_draft_tokens") or 0, f"{at}: num_draft_tokens")
        possible += steps * number(stats.get("num_spec_tokens") or 0, f"{at}: num_spec_tokens", most=127)
    censored = 0 < drafted < possible
    return _with_note(from_histogram(total[:width], censored, "vllm-requests"), [f"{len(found)} responses."])


def _with_note(acceptance: Acceptance, notes: list[str]) -> tuple[Acceptance, list[str]]:
    if acceptance.censored:
        notes.append(
            "Fewer drafts than positions: trimming was on, so the rates of later positions are lower bounds. "
            "Measure again with trimming off."
        )
    kept = Acceptance(
        acceptance.conditional, acceptance.steps, acceptance.censored, acceptance.source, tuple(notes)
    )
    return kept, notes


_SAMPLE = re.compile(r"^vllm:spec_decode_(\w+?)(?:_total)?(?:\{([^}]*)\})?\s+([^\s]+)(?:\s+\d+)?\s*$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def is_prometheus(opened: Opened) -> bool:
    return opened.syntax == "text" and any(
        line.startswith("vllm:spec_decode_num_drafts") for line in opened.data.splitlines()
    )


def read_prometheus(opened: Opened, hints: Hints) -> tuple[Acceptance, list[str]]:
    """Counters of one scrape, or the difference to an earlier one (hint `before`: its path); engines add up.

    Several models in one scrape need the hint `model`.
    """
    after = _counters(opened, hints)
    if hints.get("before"):
        earlier = _counters(open_file(hints["before"]), hints)
        after = {key: value - earlier.get(key, 0.0) for key, value in after.items()}
        if min(after.values()) < 0:
            raise FormatError(
                f"{opened.path}: a counter fell since {hints['before']}: the server restarted in between"
            )
    where = str(opened.path)
    drafts = after.get(("num_drafts", -1), 0.0)
    positions = sorted(k for name, k in after if name == "num_accepted_tokens_per_pos" and k >= 0)
    if drafts <= 0:
        raise FormatError(f"{where}: vllm:spec_decode_num_drafts is 0; send traffic before scraping")
    if not positions or positions != list(range(len(positions))):
        raise FormatError(
            f"{where}: per-position counters {positions}; expected position 0 to the last without gaps"
        )
    survival = np.array([after["num_accepted_tokens_per_pos", k] for k in positions]) / drafts
    accepted = after.get(("num_accepted_tokens", -1))
    if accepted is not None and abs(survival.sum() * drafts - accepted) > 0.5 + 1e-6 * accepted:
        raise FormatError(
            f"{where}: positions add up to {survival.sum() * drafts:.0f} accepted tokens, the total says "
            f"{accepted:.0f}"
        )
    proposed = after.get(("num_draft_tokens", -1), 0.0)
    censored = 0 < proposed < drafts * len(positions) - 0.5
    return _with_note(
        from_survival(survival, int(drafts), censored, "vllm-prometheus"), [f"{drafts:.0f} drafts."]
    )


def _counters(opened: Opened, hints: Hints) -> dict[tuple[str, int], float]:
    """(counter, position or -1) → sum over engines of one model."""
    out: dict[tuple[str, int], float] = {}
    models: set[str] = set()
    wanted = hints.get("model")
    for row, line in enumerate(str(opened.data).splitlines(), 1):
        match = _SAMPLE.match(line)
        if not match or match[1].endswith("_created"):
            continue
        labels = dict(_LABEL.findall(match[2] or ""))
        model = labels.get("model_name", "")
        if wanted is not None and model != wanted:
            continue
        models.add(model)
        value = float(numbers([match[3]], f"{opened.path}, line {row}", positive=False)[0])
        position = labels.get("position", "-1")
        if position != "-1" and not position.isdecimal():
            raise FormatError(f"{opened.path}, line {row}: position {position!r} is no whole number")
        key = (match[1], int(position))
        out[key] = out.get(key, 0.0) + value
    if len(models) > 1:
        raise FormatError(
            f"{opened.path}: counters of {len(models)} models ({', '.join(sorted(models))}); give model"
        )
    if not out:
        raise FormatError(
            f"{opened.path}: no spec_decode counters" + (f" of model {wanted!r}" if wanted else "")
        )
    return out
