"""Responses of vLLM with their metrics, however they were kept: plain, wrapped by a client, or streamed."""

from __future__ import annotations

import json
from typing import Any

from ..opened import Opened
from .counters import speculative


def unwrapped(opened: Opened) -> Opened | None:
    """The file as rows that hold `metrics.speculative_decoding`, or None where there are none."""
    rows = [found for row in _rows(opened) if (found := _inside(row)) is not None]
    return Opened(opened.path, "jsonl", rows, frozenset({"metrics"})) if rows else None


def _rows(opened: Opened) -> list[Any]:
    if opened.syntax == "json":
        return [opened.data]
    if opened.syntax == "jsonl":
        return list(opened.data)
    if opened.syntax != "text" or "speculative_decoding" not in opened.data:
        return []
    events = [
        line.removeprefix("data:").strip() for line in opened.data.splitlines() if line.startswith("data:")
    ]
    rows = []
    for event in events:
        try:
            rows.append(json.loads(event))
        except json.JSONDecodeError:  # `[DONE]`, or an event that was cut: it holds no metrics
            continue
    return rows


def _inside(row: Any, depth: int = 0) -> dict[str, Any] | None:
    """The response itself, or the one a client wrapped in `data`, `response`, `body`, `chunk` or `result`."""
    if not isinstance(row, dict) or depth > 3:
        return None
    if speculative(row) is not None:
        return row
    for key in ("data", "response", "body", "chunk", "result"):
        found = _inside(row.get(key), depth + 1)
        if found is not None:
            return found
    return None
