"""DeepSpec's `confidence_records.jsonl`: a block a line, raw logits and what was accepted."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import FormatError
from ..trace import Trace
from .document import Hints
from .opened import Opened
from .rows import RowBuilder
from .values import integer

KEYS = frozenset({"logits", "labels"})


def read(opened: Opened, hints: Hints) -> tuple[Trace, list[str]]:
    """A sequential trace in which every block is a request of its own: the file says no more.

    Good for calibration (`specsched calibrate`); a simulation of it knows no lengths. Raises FormatError
    for a label that is not 0 or 1, an acceptance behind a rejection, or logits that are not finite.
    """
    where = str(opened.path)
    rows = opened.data if isinstance(opened.data, list) else [opened.data]
    builder: RowBuilder | None = None
    for i, row in enumerate(rows, 1):
        at = f"{where}, row {i}"
        logits, labels = row.get("logits"), row.get("labels")
        if not isinstance(logits, list) or not isinstance(labels, list) or len(logits) != len(labels):
            raise FormatError(f"{at}: logits and labels must be lists of one length")
        if builder is None:
            if not logits:
                raise FormatError(f"{at}: no positions")
            builder = RowBuilder(len(logits))
        flags = [integer(_whole(label), f"{at}: labels", 0, 1) for label in labels]
        accepted = next((k for k, flag in enumerate(flags) if not flag), len(flags))
        if any(flags[accepted:]):
            raise FormatError(f"{at}: a position behind a rejected one is accepted; labels are a prefix")
        builder.add(str(i), [_probability(value, at) for value in logits], accepted, None, where)
    assert builder is not None
    notes = [
        "Blocks without their requests: good for calibration; a simulation of it knows neither lengths nor "
        "which blocks belong together."
    ]
    metadata = {"provenance": {"source": where, "format": "DeepSpec confidence records"}}
    return builder.trace(metadata, notes, hints, where), notes


def _whole(label: Any) -> Any:
    return int(label) if isinstance(label, bool) or label in (0.0, 1.0) else label


def _probability(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
        raise FormatError(f"{where}: logit {value!r} is not a finite number")
    return float(1.0 / (1.0 + np.exp(-np.clip(value, -60.0, 60.0))))
