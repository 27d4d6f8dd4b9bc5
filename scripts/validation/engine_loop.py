"""The small real engine under a closed loop of users: what it measures, in the simulator's terms.

Time is the engine's own clock of drafting, verifying and host work. Admission (the pass that prefills
newcomers, the drafter's context of them, the bookkeeping) is left out, as a simulation with
`prefill=disaggregated` leaves it out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from specsched.torch_side.engine.engine import Engine, Output, Request


@dataclass
class Window:
    """One run: tokens and steps of every request inside the measured window, and speeds of those that ended
    in it."""

    seconds: float = 0.0
    steps: int = 0
    tokens: dict[int, int] = field(default_factory=dict)
    rounds: dict[int, int] = field(default_factory=dict)
    speeds: list[float] = field(default_factory=list)
    pass_tokens: int = 0

    @property
    def throughput(self) -> float:
        """Output tokens per second of decoding."""
        return sum(self.tokens.values()) / self.seconds

    @property
    def verified(self) -> float:
        """Tokens verified per request and step, the anchor included."""
        return self.pass_tokens / sum(self.rounds.values())


def tokens_per_step(windows: Sequence[Window]) -> tuple[float, float]:
    """(tokens per request and step, its standard error): a ratio, its residuals summed request by request."""
    tokens = np.array([n for w in windows for n in w.tokens.values()], float)
    rounds = np.array([w.rounds[key] for w in windows for key in w.tokens], float)
    ratio = tokens.sum() / rounds.sum()
    residual = tokens - ratio * rounds
    return float(ratio), float(np.sqrt((residual**2).sum()) / rounds.sum())


def run_window(
    engine: Engine,
    prompts: Sequence[tuple[int, ...]],
    users: int,
    max_tokens: int,
    seconds: float,
    fewest_steps: int,
    fewest_ended: int,
    seed: int,
) -> Window:
    """Serve `users` at once; measure from when every first, staggered request has ended.

    It goes on for `seconds`, `fewest_steps` steps and `fewest_ended` ended requests, all of them at least.
    """
    rng = np.random.default_rng([seed, users])
    order = rng.permutation(len(prompts))
    window, counter, clock = Window(), 0, 0.0
    begun: dict[int, float] = {}
    known: dict[int, int] = {}  # tokens of each running request after the last step
    initial: set[int] = set()

    def feed() -> None:
        nonlocal counter
        while len(engine.waiting) < users:
            cut = int(rng.integers(2, max_tokens + 1)) if counter < users else max_tokens
            key = counter + 1_000_000 * (seed + 1)
            out = engine.submit(Request(prompts[order[counter % len(order)]], cut, key))
            if counter < users:
                initial.add(id(out))
            counter += 1

    keep: list[Output] = []  # ids must stay unique: nothing is freed during a run
    while True:
        feed()
        admit(engine)
        engine.step()
        timing = engine.timings.pop()
        before, clock = clock, clock + timing.draft_seconds + timing.verify_seconds + timing.host_seconds
        ended = engine.finished[:]
        engine.finished.clear()
        keep += ended
        measuring = not initial
        if measuring:
            window.seconds += clock - before
            window.steps += 1
            window.pass_tokens += timing.tokens
        for out in [*(row.output for row in engine.rows), *ended]:
            name = id(out)
            begun.setdefault(name, before)
            gained = len(out.output_ids) - known.get(name, 1)
            known[name] = len(out.output_ids)
            if measuring and gained > 0:
                window.tokens[name] = window.tokens.get(name, 0) + gained
                window.rounds[name] = window.rounds.get(name, 0) + 1
        for out in ended:
            decoded = len(out.output_ids) - 1
            if measuring and decoded > 0:
                window.speeds.append(decoded / (clock - begun[id(out)]))
            initial.discard(id(out))
        enough = window.steps >= fewest_steps and len(window.speeds) >= fewest_ended
        if window.seconds >= seconds and enough:
            return window


def admit(engine: Engine) -> None:
    """Fill free places before the step, outside its clock: target pass, drafter's context and host work."""
    with torch.no_grad():
        engine._clock.start()
        engine._admit()


@contextmanager
def cpu_seconds() -> Iterator[None]:
    """Within it the engine's clock counts CPU seconds of this process, which neighbours disturb far less.

    One thread that never waits takes as many CPU seconds as wall seconds on a quiet machine.
    """
    import types

    from specsched.torch_side.engine import engine

    wall = engine.time
    engine.time = types.SimpleNamespace(perf_counter=wall.process_time)  # type: ignore[assignment]
    try:
        yield
    finally:
        engine.time = wall


@contextmanager
def pinned(core: bool) -> Iterator[dict[str, Any]]:
    """Within it torch has one thread and, with `core`, this process one core; gives what was done."""
    import os

    threads = torch.get_num_threads()
    cores = os.sched_getaffinity(0) if core and hasattr(os, "sched_getaffinity") else set()
    torch.set_num_threads(1)
    if cores:
        os.sched_setaffinity(0, {max(cores)})
    try:
        yield {"threads": 1, "pinned": bool(cores)}
    finally:
        torch.set_num_threads(threads)
        if cores:
            os.sched_setaffinity(0, cores)
