"""Waves of requests at rising loads: R clients start together; once all decode, nothing else happens.

The window of a wave is from the last first token to the first last one: in it every step serves R requests
and no prompt. A server that holds fewer requests at once leaves no window: its load ends there.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np

from .client import Clock, Stream, stream

LEAST_GAPS = 4  # of a request, in the window of a wave


@dataclass
class Level:
    """What one load of one prompt length gave. `waves` hold every request's times; `drafting`: the server
    counted drafts meanwhile."""

    clients: int
    prompt_tokens: int
    output_tokens: int
    waves: list[list[Stream]]
    drafting: bool = False

    @property
    def step_seconds(self) -> float | None:
        """Median over the waves of the seconds of a step with all R requests; None without a window."""
        found = [step for wave in self.waves if (step := self._step(wave)) is not None]
        return float(np.median(found)) if found else None

    def _step(self, wave: list[Stream]) -> float | None:
        begin, end = max(s.chunks[0] for s in wave), min(s.chunks[-1] for s in wave)
        steps = []
        for s in wave:
            inside = [t for t in s.chunks if begin <= t <= end]
            if len(inside) <= LEAST_GAPS:
                return None
            # Without drafts a token is a step, also where several came in one chunk.
            per_chunk = 1.0 if self.drafting else max(s.tokens / len(s.chunks), 1.0)
            steps.append((inside[-1] - inside[0]) / (len(inside) - 1) / per_chunk)
        return float(np.mean(steps))

    @property
    def spread(self) -> float | None:
        """How far the waves lie apart, relative to their mean."""
        found = [step for wave in self.waves if (step := self._step(wave)) is not None]
        return (max(found) - min(found)) / float(np.mean(found)) if len(found) > 1 else None

    @property
    def context_tokens(self) -> float:
        """Mean tokens in all caches during the window: half the output is there on average."""
        return self.clients * (self.prompt_tokens + self.output_tokens / 2)

    @property
    def speed(self) -> float:
        """Tokens a second of one user, first token to last: median over the requests."""
        every = [s for wave in self.waves for s in wave]
        return float(np.median([(s.tokens - 1) / (s.chunks[-1] - s.chunks[0]) for s in every]))

    @property
    def first_seconds(self) -> float:
        """Median seconds to the first token."""
        return float(np.median([s.chunks[0] - s.sent for wave in self.waves for s in wave]))

    def to_dict(self) -> dict[str, Any]:
        """The raw run, as kept beside the profile."""
        return {
            "clients": self.clients,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "drafting": self.drafting,
            "step_seconds": self.step_seconds,
            "waves": [[s.to_dict() for s in wave] for wave in self.waves],
        }

    @classmethod
    def from_dict(cls, kept: dict[str, Any]) -> Level:
        """From what `to_dict` wrote."""
        waves = [[Stream(s["sent"], s["chunks"], s["tokens"]) for s in wave] for wave in kept["waves"]]
        return cls(
            kept["clients"], kept["prompt_tokens"], kept["output_tokens"], waves, bool(kept["drafting"])
        )


async def run_level(
    client: httpx.AsyncClient,
    model: str,
    clients: int,
    lengths: tuple[int, int],
    waves: int,
    rng: np.random.Generator,
    clock: Clock,
) -> Level:
    """`waves` waves of `clients` requests of `lengths` (prompt, output) tokens, every prompt another."""
    prompt, output = lengths
    done: list[list[Stream]] = []
    for _ in range(waves):
        prompts = rng.integers(1000, 10_000, (clients, prompt)).tolist()
        tasks = [asyncio.ensure_future(stream(client, model, ids, output, clock)) for ids in prompts]
        try:
            done.append(list(await asyncio.gather(*tasks)))
        finally:
            for task in tasks:
                task.cancel()
    return Level(clients, prompt, output, done)
