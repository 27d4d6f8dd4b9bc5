"""Acceptance counters of vLLM and of servers that keep the same ones: per-request metrics, and /metrics.

What each counts: `num_drafts` the steps that had a draft (a step whose draft was trimmed away is none),
`num_draft_tokens` the drafts verified, `num_accepted_tokens_per_pos` the steps that accepted position k and
all before it. Positions that were cut off count as not accepted, so rates follow from whole blocks alone, or
from the blocks of each length apart.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np

from ...errors import FormatError
from ..acceptance import Acceptance, from_histogram, from_survival, from_tried, whole_blocks
from ..document import Hints
from ..opened import Opened, open_file
from ..values import mapping, number, numbers

MOST = 129  # entries of a histogram: no engine drafts more
BY_LENGTH = "acceptance_histogram_by_draft_length"

# -- responses -----------------------------------------------------------------------------------------------


def speculative(row: Any) -> dict[str, Any] | None:
    """The `metrics.speculative_decoding` object of one response, or None."""
    metrics = row.get("metrics") if isinstance(row, dict) else None
    found = metrics.get("speculative_decoding") if isinstance(metrics, dict) else None
    return found if isinstance(found, dict) else None


class _Blocks:
    """Blocks added up by how many drafts they had: entry j of a histogram accepted exactly j."""

    def __init__(self) -> None:
        self.by_length: dict[int, np.ndarray] = {}

    def add(self, length: int, counts: np.ndarray, at: str) -> None:
        """`counts`: float64[<= length + 1]."""
        if len(counts) > length + 1 and counts[length + 1 :].any():
            raise FormatError(
                f"{at}: accepts {len(counts) - 1} drafts of {length}; the row contradicts itself"
            )
        total = self.by_length.setdefault(length, np.zeros(length + 1))
        total[: len(counts)] += counts[: length + 1]

    def rates(self, source: str, notes: list[str]) -> Acceptance:
        """Whole blocks of one length, or the product-limit estimate over several."""
        lengths = {k: v for k, v in self.by_length.items() if k > 0 and v.sum() > 0}
        steps = int(sum(v.sum() for v in self.by_length.values()))
        if not lengths:
            raise FormatError(
                f"{source}: the acceptance histogram holds no steps; collect some traffic first"
            )
        if len(lengths) == 1:
            ((_, counts),) = lengths.items()
            return from_histogram(counts, False, source, tuple(notes))
        deepest = max(lengths)
        accepted, tried = np.zeros(deepest), np.zeros(deepest)
        for length, counts in lengths.items():
            at_least = np.cumsum(counts[::-1])[::-1]
            tried[:length] += at_least[:-1]
            accepted[:length] += at_least[1:]
        notes.append(
            f"Blocks of {', '.join(map(str, sorted(lengths)))} drafts: rates are product-limit estimates, "
            "right where the length was chosen without looking at the drafts (by load, or by server)."
        )
        return from_tried(accepted, tried, steps, source, tuple(notes))


def read_requests(opened: Opened, hints: Hints) -> tuple[Acceptance, list[str]]:
    """Responses with per-request metrics: their acceptance histograms, added up and checked against the
    totals.

    Histograms by draft length, and servers of different K, are combined by the product-limit method. Raises
    `FormatError` where drafts were trimmed and nothing says where.
    """
    where = str(opened.path)
    rows = opened.data if isinstance(opened.data, list) else [opened.data]
    found = [(i, s) for i, row in enumerate(rows, 1) if (s := speculative(row))]
    blocks = _Blocks()
    proposed = possible = 0.0
    for i, stats in found:
        at = f"{where}, row {i}"
        counts = _histogram(stats, at)
        if stats.get(BY_LENGTH) is not None:
            _add_by_length(blocks, stats[BY_LENGTH], counts, f"{at}: {BY_LENGTH}")
            continue
        drafts = number(stats.get("num_draft_tokens") or 0, f"{at}: num_draft_tokens")
        length = int(number(stats.get("num_spec_tokens") or 0, f"{at}: num_spec_tokens", most=MOST - 2))
        if drafts and length:
            proposed, possible = proposed + drafts, possible + counts.sum() * length
        blocks.add(length or max(len(counts) - 1, 1), counts, f"{at}: acceptance_histogram")
    note = whole_blocks(proposed, possible, where)
    notes = [f"{len(found)} responses.", *([note] if note else [])]
    return blocks.rates("vllm-requests", notes), notes


def _histogram(stats: dict[str, Any], at: str) -> np.ndarray:
    """The histogram of one response, checked against its totals."""
    counts = numbers(stats.get("acceptance_histogram"), f"{at}: acceptance_histogram", positive=False)
    if len(counts) > MOST or counts.sum() > 1e15:
        raise FormatError(
            f"{at}: acceptance_histogram: {len(counts)} entries, {counts.sum():g} steps; no engine drafts "
            "that much"
        )
    steps, accepted = counts.sum(), float((counts * np.arange(len(counts))).sum())
    for key, value in (("num_spec_steps", steps), ("num_accepted_draft_tokens", accepted)):
        if stats.get(key) is not None and number(stats[key], f"{at}: {key}") != value:
            raise FormatError(
                f"{at}: acceptance_histogram: gives {key} {value:.0f}, the row says {stats[key]}; the row "
                "contradicts itself"
            )
    return counts


def _add_by_length(blocks: _Blocks, given: Any, counts: np.ndarray, at: str) -> None:
    total = np.zeros(len(counts))
    for key, values in mapping(given, at).items():
        if not str(key).isdecimal() or not int(key) < MOST:
            raise FormatError(f"{at}: key {key!r} is not a number of drafts")
        part = numbers(values, f"{at}[{key}]", positive=False)
        blocks.add(int(key), part, f"{at}[{key}]")
        width = min(len(part), len(total))
        total[:width] += part[:width]
    if not np.array_equal(total, counts):
        raise FormatError(f"{at}: does not add up to acceptance_histogram; the row contradicts itself")


# -- the text of /metrics ------------------------------------------------------------------------------------

# Prometheus allows a time behind the value; OpenMetrics a fraction of a second there, and an exemplar.
SAMPLE = re.compile(
    r"^(?P<prefix>[A-Za-z_:][\w:]*?)spec_decode_(?P<name>\w+?)(?:_total)?"
    r"(?:\{(?P<labels>(?:[^\"}]|\"(?:[^\"\\]|\\.)*\")*)\})?"
    r"\s+(?P<value>\S+)(?:\s+-?[\d.eE+]+)?\s*(?:#.*)?$"
)
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_PROMETHEUS = re.compile(
    r"^[A-Za-z_:][\w:]*(?:spec_decode_\w+|spec_accept_\w+)(?:\{.*\})?\s+\S+", re.MULTILINE
)
_GAUGE = re.compile(r"^(?P<name>[A-Za-z_:][\w:]*spec_(?:accept|decode)_\w+)(?:\{.*?\})?\s+(?P<value>\S+)")
PER_POSITION = "num_accepted_tokens_per_pos"


def is_prometheus(opened: Opened) -> bool:
    """Whether a text holds counters of speculative decoding, under whatever prefix."""
    return opened.syntax == "text" and _PROMETHEUS.search(opened.data) is not None


class _Engine(NamedTuple):
    """Counters of one engine: those without a position under -1."""

    label: str
    values: dict[tuple[str, int], float]


def read_prometheus(opened: Opened, hints: Hints) -> tuple[Acceptance, list[str]]:
    """Counters of one scrape, or the difference to an earlier one (hint `before`: its path); engines add up.

    Engines of different K are combined by the product-limit method. Several models in one scrape need the
    hint `model`.
    """
    where = str(opened.path)
    engines = _counters(opened, hints)
    if hints.get("before"):
        earlier = {e.label: e.values for e in _counters(open_file(hints["before"]), hints)}
        engines = [
            _since(engine, earlier.get(engine.label, {}), where, hints["before"]) for engine in engines
        ]
    busy = [e for e in engines if e.values.get(("num_drafts", -1), 0.0) > 0]
    if not busy:
        raise FormatError(f"{where}: {_missing(opened, engines)}")
    proposed = possible = drafts = 0.0
    parts = []
    for engine in busy:
        steps, accepted = engine.values["num_drafts", -1], _positions(engine, where)
        parts.append((steps, accepted))
        drafts += steps
        if ("num_draft_tokens", -1) in engine.values:
            proposed += engine.values["num_draft_tokens", -1]
            possible += steps * len(accepted)
    note = whole_blocks(proposed, possible, where)
    notes = [f"{drafts:.0f} drafts.", *([note] if note else [])]
    return _combined(parts, drafts, notes), notes


def _combined(parts: list[tuple[float, np.ndarray]], drafts: float, notes: list[str]) -> Acceptance:
    """Engines of one K are added; those of several are combined by the product-limit method."""
    lengths = sorted({len(accepted) for _, accepted in parts})
    if len(lengths) == 1:
        total = np.sum([accepted for _, accepted in parts], axis=0)
        return from_survival(total / drafts, int(drafts), False, "vllm-prometheus", tuple(notes))
    accepted, tried = np.zeros(lengths[-1]), np.zeros(lengths[-1])
    for steps, counts in parts:
        accepted[: len(counts)] += counts
        tried[: len(counts)] += np.concatenate([[steps], counts[:-1]])
    notes.append(
        f"Engines with blocks of {', '.join(map(str, lengths))} drafts: rates are product-limit estimates, a "
        "position's over the engines that tried it."
    )
    return from_tried(accepted, tried, int(drafts), "vllm-prometheus", tuple(notes))


def _positions(engine: _Engine, where: str) -> np.ndarray:
    """float64[K]: drafts that accepted position k and all before it, checked against the total."""
    values = engine.values
    positions = sorted(k for name, k in values if name == PER_POSITION and k >= 0)
    if not positions or positions != list(range(len(positions))):
        raise FormatError(
            f"{where}: per-position counters {positions}{engine.label and ' of ' + engine.label}; expected "
            "position 0 to the last without gaps"
        )
    accepted = np.array([values[PER_POSITION, k] for k in positions])
    total = values.get(("num_accepted_tokens", -1))
    if total is not None and abs(accepted.sum() - total) > 0.5 + 1e-6 * total:
        raise FormatError(
            f"{where}: positions add up to {accepted.sum():.0f} accepted tokens, the total says {total:.0f}"
        )
    return accepted


def _since(engine: _Engine, earlier: dict[tuple[str, int], float], where: str, before: Any) -> _Engine:
    values = {key: value - earlier.get(key, 0.0) for key, value in engine.values.items()}
    if min(values.values()) < 0:
        raise FormatError(f"{where}: a counter fell since {before}: the server restarted in between")
    return _Engine(engine.label, values)


def _counters(opened: Opened, hints: Hints) -> list[_Engine]:
    """Counters of every engine of one model; an engine is what shares all labels but the position."""
    engines: dict[str, dict[tuple[str, int], float]] = {}
    models: set[str] = set()
    wanted = hints.get("model")
    for row, line in enumerate(str(opened.data).splitlines(), 1):
        match = SAMPLE.match(line)
        if not match or match["name"].endswith("_created"):
            continue
        labels = dict(LABEL.findall(match["labels"] or ""))
        model = labels.get("model_name", "")
        if wanted is not None and model != wanted:
            continue
        models.add(model)
        if not match["name"].startswith("num_"):
            engines.setdefault(
                _label(labels, match["prefix"]), {}
            )  # a gauge: `_missing` reads it where it must
            continue
        value = float(numbers([match["value"]], f"{opened.path}, line {row}", positive=False)[0])
        position = labels.pop("position", "-1")
        if position != "-1" and not position.isdecimal():
            raise FormatError(f"{opened.path}, line {row}: position {position!r} is not a whole number")
        engine = engines.setdefault(_label(labels, match["prefix"]), {})
        key = (match["name"], int(position))
        engine[key] = engine.get(key, 0.0) + value
    if len(models) > 1:
        raise FormatError(
            f"{opened.path}: counters of {len(models)} models ({', '.join(sorted(models))}); give model"
        )
    if not engines and wanted:
        raise FormatError(f"{opened.path}: no counters of drafts of model {wanted!r}")
    return [_Engine(label, values) for label, values in engines.items()]


def _label(labels: dict[str, str], prefix: str) -> str:
    return ", ".join([prefix.rstrip("_:"), *(f"{k}={v}" for k, v in sorted(labels.items()))])


def _missing(opened: Opened, engines: list[_Engine]) -> str:
    """What a text without drafts by position does hold, and what is missing."""
    if any(("num_drafts", -1) in engine.values for engine in engines):
        return "spec_decode_num_drafts is 0; send traffic before scraping"
    lines = str(opened.data).splitlines()
    seen = {m["name"]: m["value"] for line in lines if (m := _GAUGE.match(line))}
    mean = next((value for name, value in seen.items() if name.endswith("spec_accept_length")), None)
    length = f" As a mean length it is --acceptance length:{mean}:K for blocks of K drafts." if mean else ""
    return (
        f"holds {', '.join(f'{name} {value}' for name, value in seen.items())}, and no counters by position "
        f"(spec_decode_num_drafts, spec_decode_{PER_POSITION}): nobody can tell the rates from it.{length}"
    )
