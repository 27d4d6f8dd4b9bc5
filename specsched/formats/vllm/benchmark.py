"""What vLLM prints and saves of speculation beside its metrics: `vllm bench serve` results, and log lines.

Rates by position are *marginal* in both: P(position k accepted), not given that those before it were.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from ...errors import FormatError
from ..acceptance import Acceptance, from_survival, whole_blocks
from ..document import Hints
from ..opened import Opened
from ..values import integer, number, numbers

SERVE = frozenset({"tokenizer_id", "request_throughput", "mean_tpot_ms"})
RATES = "spec_decode_per_position_acceptance_rates"
_LINE = re.compile(
    r"SpecDecoding metrics:.*?Mean acceptance length: (?P<length>[\d.]+).*?"
    r"Accepted: (?P<accepted>\d+) tokens, "
    r"Drafted: (?P<drafted>\d+) tokens, Per-position acceptance rate: (?P<rates>[\d., ]+\d)"
)
_ROUNDED = 0.006  # a log line prints lengths with two digits, rates with three


def read_serve(opened: Opened, hints: Hints) -> tuple[Acceptance, list[str]]:
    """`vllm bench serve --save-result`: acceptance by position of the whole run.

    Raises FormatError for a run without drafting, and where rates, counts and mean length disagree.
    """
    where, data = str(opened.path), opened.data
    if data.get(RATES) is None:
        raise FormatError(
            f"{where}: a benchmark without drafting holds no acceptance; `specsched fit` finds step costs "
            "from its speeds, best beside a run that drafts"
        )
    rates = numbers(data[RATES], f"{where}: {RATES}", positive=False)
    drafts = integer(data.get("spec_decode_num_drafts", 0), f"{where}: spec_decode_num_drafts")
    found = from_survival(rates, drafts, False, "vllm-bench-serve")
    if data.get("spec_decode_acceptance_length") is not None:
        length = number(data["spec_decode_acceptance_length"], f"{where}: spec_decode_acceptance_length")
        _agree(where, found, length, 1e-3)
    if drafts and data.get("spec_decode_draft_tokens") is not None:
        proposed = number(data["spec_decode_draft_tokens"], f"{where}: spec_decode_draft_tokens")
        note = whole_blocks(proposed, drafts * found.block_size, where)
        return _noted(found, [f"{drafts} drafts.", *([note] if note else [])])
    return _noted(found, [f"{drafts} drafts."])


def is_log(opened: Opened) -> bool:
    return opened.syntax == "text" and "SpecDecoding metrics:" in opened.data


def read_log(opened: Opened, hints: Hints) -> tuple[Acceptance, list[str]]:
    """vLLM's log: every `SpecDecoding metrics` line is an interval; they are weighted by their drafts.

    Engines print one line each, so several engines in one log add up.
    """
    where = str(opened.path)
    total, drafts, proposed, least = np.zeros(0), 0.0, 0.0, 0.0
    for row, line in enumerate(opened.data.splitlines(), 1):
        if "SpecDecoding metrics:" not in line:
            continue
        match = _LINE.search(line)
        if match is None:
            raise FormatError(
                f"{where}, line {row}: a SpecDecoding line without the rates by position; was it cut?"
            )
        at = f"{where}, line {row}"
        rates = numbers(match["rates"].replace(" ", "").split(","), at, positive=False)
        length = number(float(match["length"]), f"{at}: mean acceptance length", 1.0)
        accepted = float(match["accepted"])
        _agree(at, from_survival(rates, 0, False, "vllm-log"), length, _ROUNDED)
        if total.size and total.size != rates.size:
            raise FormatError(
                f"{at}: {rates.size} positions where earlier lines have {total.size}; "
                "give the log of one setting"
            )
        if length <= 1.0:
            continue  # nothing accepted: the number of drafts cannot be told, and the interval says nothing
        here = accepted / (length - 1.0)
        total = rates * here if total.size == 0 else total + rates * here
        drafts += here
        least += accepted / (length - 1.0 + _ROUNDED)  # as few as the rounded length allows
        proposed += float(match["drafted"])
    if drafts <= 0:
        raise FormatError(f"{where}: no interval with accepted tokens; give a log taken under traffic")
    found = from_survival(np.minimum.accumulate(total / drafts), round(drafts), False, "vllm-log")
    whole_blocks(proposed, least * found.block_size, where)
    return _noted(found, [f"About {drafts:.0f} drafts (from rounded figures)."])


def _agree(where: str, found: Acceptance, length: float, tolerance: float) -> None:
    if abs(found.mean_length - length) > tolerance * max(1, found.block_size):
        raise FormatError(
            f"{where}: 1 + the rates by position is {found.mean_length:.3f}, the mean acceptance length says "
            f"{length:.3f}; the file contradicts itself"
        )


def _noted(found: Acceptance, notes: list[str]) -> tuple[Acceptance, list[str]]:
    return replace(found, notes=tuple(notes)), notes
