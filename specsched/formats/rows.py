"""Step logs of other engines, row by row, into one sequential `Trace`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import FormatError
from ..trace import Trace
from .document import Hints
from .values import integer

# Scores are kept off 0 and 1 so that their logits are finite: float32 has nothing beyond anyway.
_EDGE = 1e-7
# A position nobody drafted can never be accepted: its confidence is as good as 0.
UNDRAFTED_LOGIT = -30.0


def logit(probability: float) -> float:
    """log(p / (1 - p)) of a probability, kept finite."""
    p = min(max(float(probability), _EDGE), 1.0 - _EDGE)
    return float(np.log(p) - np.log1p(-p))


class RowBuilder:
    """Collects steps of requests, in file order; a request's rows follow one another in the trace."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._rows: dict[str, list[tuple[list[float], int]]] = {}
        self._prompt: dict[str, int] = {}
        self._domain: dict[str, str] = {}

    def __len__(self) -> int:
        return sum(map(len, self._rows.values()))

    def add(
        self,
        name: str,
        scores: Sequence[float | None],
        accepted: int,
        prefix_tokens: int | None,
        where: str,
        domain: str = "unknown",
    ) -> None:
        """One step: scores in [0, 1] (None or missing where nothing was drafted), drafts accepted.

        `prefix_tokens`: tokens before the anchor's drafts; that of a request's first row counts as its
        prompt.
        """
        step = len(self._rows.get(name, ())) + 1
        if not isinstance(scores, list | tuple):
            raise FormatError(f"{where}: request {name}, step {step}: scores are {scores!r}, expected a list")
        if len(scores) > self.block_size:
            raise FormatError(
                f"{where}: request {name}, step {step}: {len(scores)} scores, block {self.block_size}"
            )
        logits = [UNDRAFTED_LOGIT] * self.block_size
        for k, score in enumerate(scores):
            if score is None:
                continue
            if isinstance(score, bool) or not isinstance(score, int | float) or not 0.0 <= score <= 1.0:
                raise FormatError(
                    f"{where}: request {name}, step {step}, position {k + 1}: {score!r} is not a "
                    "probability; expected scores in [0, 1]"
                )
            logits[k] = logit(score)
        self._rows.setdefault(name, []).append((logits, int(accepted)))
        prompt = (
            1
            if prefix_tokens is None
            else integer(prefix_tokens, f"{where}: request {name}: prefix", most=2**31 - 1)
        )
        self._prompt.setdefault(name, prompt)
        self._domain.setdefault(name, domain)

    def trace(self, metadata: Mapping[str, Any], warnings: Sequence[str], hints: Hints, where: str) -> Trace:
        """The sequential trace; positions count output tokens emitted so far, the bonus included."""
        request: list[int] = []
        position: list[int] = []
        logits: list[list[float]] = []
        accepted: list[int] = []
        domain: list[str] = []
        prompt: list[int] = []
        for number, (name, steps) in enumerate(self._rows.items()):
            at = 0
            for row, count in steps:
                request.append(number)
                position.append(at)
                logits.append(row)
                accepted.append(count)
                domain.append(self._domain[name])
                prompt.append(self._prompt[name])
                at += count + 1
        provenance = {**metadata.get("provenance", {})}
        if warnings:
            # A trace repeats its provenance's note in every answer built on it.
            provenance["note"] = " ".join(warnings)
        about = {**metadata, "mode": "sequential", "provenance": provenance}
        for key in ("licence", "temperature"):
            if hints.get(key) is not None:
                about[key] = hints[key]
        return Trace.from_arrays(
            request,
            position,
            np.array(logits, dtype=np.float32),
            accepted,
            domain=domain,
            prompt_tokens=prompt,
            metadata=about,
            where=where,
        )
