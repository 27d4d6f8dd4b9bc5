"""What our plugin records in a running vLLM (`specsched.vllm_plugin`): a line a step, confidences and what
became of the drafts."""

from __future__ import annotations

from typing import Any

from ...errors import FormatError, quoted
from ...trace import Trace
from ..document import Hints
from ..opened import Opened
from ..rows import RowBuilder
from ..values import integer, need

KEY = "specsched_vllm"
_COLUMNS = ("ids", "prompt", "drafted", "verified", "accepted", "confidence_millionths")


def recognise(opened: Opened) -> bool:
    return opened.syntax in ("json", "jsonl") and KEY in opened.keys


def read(opened: Opened, hints: Hints) -> tuple[Trace, list[str]]:
    """A sequential trace of the steps that verified drafts.

    Where every verified draft was accepted and more had been drafted, the acceptance is a lower bound: such
    rows are counted in `censored_rows`. Raises `FormatError` for lines that contradict themselves.
    """
    where = str(opened.path)
    lines = opened.data if isinstance(opened.data, list) else [opened.data]
    engine = _engine(lines, where)
    gamma = integer(need(engine, "block_size", f"{where}, row 1"), f"{where}, row 1: block_size", 1, 127)
    rows, censored, lost = RowBuilder(gamma), 0, 0
    for number, line in enumerate(lines, 1):
        at = f"{where}, row {number}"
        if line[KEY] == "lost":
            lost += integer(need(line, "steps", at), f"{at}: steps")
        elif line[KEY] == "step":
            censored += _add(rows, line, gamma, at)
        elif number > 1:
            raise FormatError(
                f"{at}: {KEY} is {quoted(line[KEY])}; expected step or lost (two files in one?)"
            )
    if not rows:
        raise FormatError(f"{where}: no step verified a draft; record while requests are served")
    notes = _notes(engine, len(rows), censored, lost)
    metadata = {
        "drafter": str(hints.get("drafter") or engine.get("drafter") or "unknown"),
        "target": str(hints.get("model") or engine.get("model") or "unknown"),
        "confidence_sees_token": False,
        "provenance": {"source": where, "format": "vllm-steps", "engine": _said(engine)},
        "censored_rows": censored,
    }
    return rows.trace(metadata, notes, hints, where), notes


def _engine(lines: list[dict[str, Any]], where: str) -> dict[str, Any]:
    if lines[0][KEY] != "engine":
        raise FormatError(f"{where}: the first line is not the engine's; keep the file as it was recorded")
    return lines[0]


def _said(engine: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in engine.items() if key != KEY and value is not None}


def _add(rows: RowBuilder, line: dict[str, Any], gamma: int, at: str) -> int:
    """Add a step's requests; how many of their acceptances are lower bounds."""
    columns = [need(line, name, at) for name in _COLUMNS]
    if not all(isinstance(column, list) and len(column) == len(columns[0]) for column in columns):
        raise FormatError(f"{at}: {', '.join(_COLUMNS)} must be lists of one length")
    censored = 0
    for name, prompt, drafted, verified, accepted, scores in zip(*columns, strict=True):
        here = f"{at}: request {quoted(name)}"
        if not isinstance(name, str):
            raise FormatError(f"{here}: its id must be a text")
        drafted = integer(drafted, f"{here}: drafted", 1, gamma)
        verified = integer(verified, f"{here}: verified", 0, drafted)
        accepted = integer(accepted, f"{here}: accepted", 0, verified)
        if not isinstance(scores, list) or len(scores) != gamma:
            raise FormatError(f"{here}: confidence_millionths must be a list of {gamma} numbers")
        scores = [integer(s, f"{here}: confidence_millionths", 0, 10**6) / 1e6 for s in scores[:drafted]]
        rows.add(name, scores, accepted, prompt, at)
        censored += accepted == verified < drafted
    return censored


def _notes(engine: dict[str, Any], rows: int, censored: int, lost: int) -> list[str]:
    notes = []
    if censored:
        notes.append(
            f"Censored: in {censored} of {rows} rows ({censored / rows:.0%}) every verified draft was "
            "accepted and the trimmed ones were never tried; acceptance there is a lower bound. With few "
            "users vLLM trims less: record there for whole blocks."
        )
    if lost:
        notes.append(f"{lost} steps were not recorded: the disk did not keep up.")
    if engine.get("confidence") == "estimator":
        notes.append(
            "The confidences are those of vLLM's online estimator, which is refitted while it serves: this "
            "drafter has no confidence head."
        )
    if engine.get("rejection_sample_method") not in (None, "standard"):
        notes.append(
            f"Drafts were accepted by vLLM's rule {quoted(engine['rejection_sample_method'])}, not by "
            "standard rejection sampling."
        )
    return notes
