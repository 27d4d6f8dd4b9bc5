"""Timing the small real engine on a CPU: whole steps of `engine.Engine` itself, so that a simulation priced
with the profile predicts the engine's own wall clock.

Every replay puts the same requests back (their contexts, their anchors), runs `Engine.step` and reads the
timing that the step recorded: draft, verify, and as "host" all the rest (planning, drawing, acceptance,
bookkeeping). Verification lengths are dictated, but `lagged` plans first, so that its cost is paid.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ... import schedule
from ...profile import StepProfile
from ..drafter.base import Drafter
from ..engine.engine import Engine, Output, Request, _Row
from ..target.cache import KVCache
from ..target.decoder import Target
from .grid import Point, contexts_of, widths_of

_FOREVER = 1 << 40


class _Dictated(schedule.Policy):
    """Plans as `lagged` does and verifies what it is told."""

    name, code = "dictated", -1

    def __init__(self) -> None:
        self.inner = schedule.Lagged()
        self.lengths: Any = None

    def plan(self, confidence: Any, sps: Any = None, ids: Any = None, accepted: Any = None) -> Any:
        self.inner.plan(confidence, sps, ids=ids)
        return self.lengths


class EngineBench:
    """A `Bench` over two engines, one that drafts and one that does not.

    most_requests: slots of each. most_context: largest mean context of a point; caches hold half as much
    again.
    """

    def __init__(
        self, target: Target, drafter: Drafter, most_requests: int, most_context: int, seed: int = 0
    ) -> None:
        self.block_size = drafter.block_size
        capacity = most_context + most_context // 2 + self.block_size + 2
        self._policy = _Dictated()
        costs = _costs(most_requests, self.block_size, capacity)
        shared: dict[str, Any] = {"max_batch": most_requests, "capacity": capacity, "seed": seed}
        self._drafting = Engine(target, drafter, self._policy, profile=costs, **shared)
        self._plain = Engine(target, None, "off", **shared)
        self._rng = np.random.default_rng(seed)
        self._vocab = target.config.vocab_size
        generator = torch.Generator().manual_seed(seed)
        stores: list[Any] = [self._drafting.cache, self._plain.cache, self._drafting.context]
        for store in stores:
            _randomise(store, generator)

    def prepare(self, point: Point) -> tuple[int, Callable[[], dict[str, float]]]:
        """See `Bench`."""
        if point.kind == "prefill":
            return point.tokens, self._prefill(point.tokens)
        engine = self._plain if point.kind == "plain" else self._drafting
        contexts = contexts_of(point, self._rng)
        anchors = self._rng.integers(0, self._vocab, point.requests).tolist()
        requests = [Request((0,) * int(c), _FOREVER, key) for key, c in enumerate(contexts)]
        lengths = widths_of(point, self.block_size, self._rng) - 1
        settled = torch.from_numpy(contexts)

        def once() -> dict[str, float]:
            self._policy.lengths = lengths
            engine.cache.lengths[: point.requests] = settled
            if engine.context is not None:
                engine.context.lengths[: point.requests] = settled
            engine.rows = [
                _Row(Output(request, [anchor]), slot, anchor, len(request.prompt_ids))
                for slot, (request, anchor) in enumerate(zip(requests, anchors, strict=True))
            ]
            engine.step()
            timing = engine.timings[-1]
            engine.finished.clear()
            engine.timings.clear()
            seconds = {"verify": timing.verify_seconds, "host": timing.host_seconds}
            return seconds if engine is self._plain else seconds | {"draft": timing.draft_seconds}

        return int(contexts.sum()) + point.requests, once

    def _prefill(self, tokens: int) -> Callable[[], dict[str, float]]:
        prompt = tuple(self._rng.integers(0, self._vocab, tokens).tolist())
        engine = self._drafting

        @torch.no_grad()
        def once() -> dict[str, float]:
            engine.rows = []
            engine.waiting.append(Output(Request(prompt, _FOREVER)))
            engine._clock.start()
            engine._admit()
            return {"prefill": sum(engine._clock.stop())}

        return once

    def release(self) -> None:
        """Nothing is held between points."""


def _randomise(store: Any, generator: torch.Generator) -> None:
    """Normal values in a `KVCache` or a `DraftContext`: zeros would be multiplied faster."""
    extra = [] if isinstance(store, KVCache) or store.fused is None else [store.fused]
    for tensor in [*store.keys, *store.values, *extra]:
        tensor.normal_(generator=generator)


def _costs(requests: int, block_size: int, capacity: int) -> StepProfile:
    """A profile of as many points as a measured one has: the planner's look-up is timed, not its answer."""
    tokens = np.unique(np.linspace(1, requests * (1 + block_size), 40).astype(int)).tolist()
    rising = [1e-3 * (1 + t / tokens[-1]) for t in tokens]
    return StepProfile.from_dict(
        {
            "schema": "specsched/profile/1",
            "name": "while-measuring",
            "verify": {"tokens": tokens, "seconds": rising},
            "attention": {"kv_tokens": [0, requests * capacity], "seconds": [0.0, 1e-3]},
            "overhead": {"requests": [1, requests + 1], "seconds": [1e-4, 2e-4]},
            "draft": {"requests": [1, requests + 1], "seconds": [1e-4, 2e-4]},
        }
    )
