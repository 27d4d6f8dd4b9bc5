"""What an engine's scheduler divides by, where that is not what its steps cost.

An engine probes a few sizes at start-up and decides by a lookup in them: SGLang takes the point below, so
that a pass looks as cheap as the last probe it reached. Its steps do not cost that. A profile may hold both:
costs are the clock, the table is what the engine's own policies (`lagged`, `early-stop`) decide by.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .curve import Curve


@dataclass(frozen=True, eq=False)
class Decision:
    """seconds(B, R) = tokens(B) + requests(R), each read as its owner reads it."""

    tokens: Curve
    requests: Curve | None = None

    def seconds(self, tokens: Any, requests: int) -> np.ndarray:
        """What the scheduler takes a step of each B and of R requests to cost; contexts do not matter
        to it."""
        more = float(self.requests(requests)) if self.requests is not None else 0.0
        return more + self.tokens(np.asarray(tokens, dtype=np.float64))

    @property
    def label(self) -> str:
        """How it is read, in words."""
        how = "" if self.requests is None else f" + {len(self.requests.x)} by requests"
        return f"{self.tokens.lookup} lookup in {len(self.tokens.x)} sizes{how}"

    def to_dict(self) -> dict[str, Any]:
        """The block `scheduler.table`."""
        document: dict[str, Any] = {
            "tokens": self.tokens.x.astype(np.int64).tolist(),
            "seconds": self.tokens.y.tolist(),
            "lookup": self.tokens.lookup,
            "beyond": self.tokens.beyond,
        }
        if self.requests is not None:
            document["requests"] = self.requests.x.astype(np.int64).tolist()
            document["request_seconds"] = self.requests.y.tolist()
        return document
