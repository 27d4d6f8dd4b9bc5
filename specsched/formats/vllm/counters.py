"""vLLM's acceptance counters: per-request metrics and the text of /metrics."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import FormatError
from ..acceptance import Acceptance, from_histogram, from_survival
from ..document import Hints
from ..opened import Opened, open_file
from ..values import number, numbers
from .costs import LABEL, SAMPLE

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
        match = SAMPLE.match(line)
        if not match or match[1].endswith("_created"):
            continue
        labels = dict(LABEL.findall(match[2] or ""))
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
