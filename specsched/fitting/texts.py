"""What is drafted and accepted: one text for each drafter and kind of prompt, drawn from a level of
acceptance.

The shape over positions is the counters' where they were read, else one conditional rate at every position
(stated as assumed). The level moves all of it in log-odds; the share says how much requests differ.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..trace import Trace, synthesise
from ..trace.settings import FIGURE_2

LOCAL_SHARE = 0.56  # of the ease of a token that its neighbours share, where requests leave room
REQUEST_SHARE = 0.1  # as the recorded traces have it
_ROWS = 30_000
_EDGE = 1e-3


@dataclass(frozen=True)
class Text:
    """A drafter on a kind of prompts. `rates`: conditional acceptance at level 0, float64[γ]; `counted`: from
    counters by position."""

    name: str
    rates: tuple[float, ...]
    counted: bool
    output_tokens: int

    def acceptance(self, level: float) -> tuple[float, ...]:
        """Conditional acceptances, all moved by `level` in log-odds."""
        p = np.clip(self.rates, _EDGE, 1.0 - _EDGE)
        return tuple(float(x) for x in 1.0 / (1.0 + np.exp(-(np.log(p / (1.0 - p)) + level))))

    def trace(self, level: float, share: float, seed: int = 7, prompt_tokens: float = 1.0) -> Trace:
        """Confidences are calibrated and rank as those of figure 6 do: nothing in a benchmark says how
        well. `prompt_tokens` of each request matter to whoever replays the trace without arrivals."""
        decoded = self.output_tokens - 1  # the prefill gives the first
        return synthesise(
            self.acceptance(level),
            requests=int(np.clip(_ROWS // decoded, 24, 240)),
            output_tokens=float(decoded),
            prompt_tokens=prompt_tokens,
            length_spread=0.0,
            temperature=1.0,
            seed=seed,
            name=self.name,
            request_share=share,
            local_share=min(LOCAL_SHARE, 1.0 - share),
        )


def shape(block_size: int) -> tuple[float, ...]:
    """Where nobody counted: the fall of figure 2, chat."""
    level = FIGURE_2["chat"]
    return tuple(level[min(k, len(level) - 1)] for k in range(block_size))


def plain_trace(output_tokens: int) -> Trace:
    """A text nobody drafted: every draft is rejected."""
    rows = output_tokens - 1
    return Trace.from_arrays(
        request=np.zeros(rows, np.int64),
        position=np.arange(rows),
        confidence_logit=np.zeros((rows, 1), np.float32),
        accepted=np.zeros(rows, np.int64),
        domain="plain",
        prompt_tokens=np.ones(rows, np.int64),
        metadata={"synthetic": True},
        where="plain",
    )
