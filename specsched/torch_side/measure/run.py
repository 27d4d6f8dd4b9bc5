"""Running the grid: warm-ups, replays, a random order, an anchor for drift, a time budget; nothing is lost.

Knows no device: a `Bench` prepares a point and times one replay of it. Running out of memory drops the point
and every larger one of its kind; any other error drops the point and is told, and a few different ones, or
several in a row, stop the run, as an interruption or the end of the time budget does. What was measured until
then is kept and fitted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from ...errors import SpecschedError
from .grid import Point, anchor_of, in_order

FEW = 3  # different errors, after which nothing more is tried
IN_ROW = 5  # points that fail one after another: a device that has faulted answers nothing any more
SPREAD = 0.02  # of a step's time, between its repeats: the goal
DRIFT = 0.05  # of the anchor's time: beyond it the machine was not itself
Progress = Callable[[int, int | None, str], None]
Once = Callable[[], dict[str, float]]
"""One replay: seconds by part ("verify", "draft", "host", ...)."""


class Bench(Protocol):
    """A device, a target and a drafter, ready to time steps."""

    def prepare(self, point: Point) -> tuple[int, Once]:
        """Set a point up: (context tokens N over all requests, the replay to time)."""

    def release(self) -> None:
        """Give back what a point that ran out of memory held."""


@dataclass(frozen=True)
class Plan:
    """How to run a grid. `budget_seconds` bounds the whole run, set-up of points included.

    The grid is gone through `rounds` times, `replays` of every point in all: what else the machine does for a
    while then spoils some replays of many points, not all replays of one, and a run cut short has seen more.
    """

    replays: int = 30
    rounds: int = 1
    warmups: int = 3
    settle_seconds: float = 1.0
    budget_seconds: float = float("inf")
    anchor_every: int = 25
    seed: int = 0


@dataclass
class Sample:
    """One measured point: `seconds` has every replay of every part, `order` says when in the run, `rounds`
    how many replays each round of the grid made."""

    point: Point
    context_tokens: int
    seconds: dict[str, list[float]]
    order: int
    rounds: list[int] = field(default_factory=list)

    def median(self, part: str) -> float:
        """Median seconds of a part."""
        return float(np.median(self.seconds[part]))

    @property
    def spread(self) -> float | None:
        """How far the medians of the rounds lie apart, relative to their mean; None with one round."""
        if len(self.rounds) < 2:
            return None
        step = np.sum([v for part, v in self.seconds.items() if part != "launch"], axis=0)
        ends = np.cumsum(self.rounds)
        medians = [float(np.median(part)) for part in np.split(step, ends[:-1])]
        return (max(medians) - min(medians)) / float(np.mean(medians))

    def to_dict(self) -> dict[str, Any]:
        """The profile's `samples` entry: seconds by part as [p10, median, p90], replays in microseconds."""
        p = self.point
        return {
            "kind": p.kind,
            "requests": p.requests,
            "tokens": p.tokens,
            "context_tokens": self.context_tokens,
            "ragged": p.ragged,
            "eager": p.eager,
            "order": self.order,
            "seconds": {k: [float(f"{q:.5g}") for q in _quantiles(v)] for k, v in self.seconds.items()},
            "replays_us": {k: [round(s * 1e6, 1) for s in v] for k, v in self.seconds.items()},
        }


@dataclass
class Run:
    """What a run measured. `stopped`: None, "interrupted", "time" or "errors"; `dropped` points ran out of
    memory, `failed` ones ended in another error, whose message is kept."""

    samples: list[Sample] = field(default_factory=list)
    anchors: list[Sample] = field(default_factory=list)
    planned: int = 0  # points
    replays: int = 0  # per point
    stopped: str | None = None
    dropped: list[Point] = field(default_factory=list)
    failed: list[tuple[Point, str]] = field(default_factory=list)
    in_row: int = 0  # failures since the last point that was timed

    @property
    def spread(self) -> float | None:
        """Median over the steps of how far the medians of their rounds lie apart; None with one round."""
        found = [spread for s in self.samples if (spread := s.spread) is not None]
        return float(np.median(found)) if found else None

    @property
    def drift(self) -> float | None:
        """Largest relative change of the anchor's median time over the run; None with fewer than two."""
        if len(self.anchors) < 2:
            return None
        times = [sum(a.median(part) for part in a.seconds if part != "launch") for a in self.anchors]
        return max(times) / min(times) - 1.0

    @property
    def notes(self) -> list[str]:
        """What whoever uses the profile must know about how the run went."""
        found = []
        if self.stopped is not None:
            why = {
                "interrupted": "was interrupted",
                "time": "reached its time budget",
                "errors": "was ended by its errors",
            }[self.stopped]
            done = sum(len(next(iter(s.seconds.values()))) for s in self.samples)
            share = done / max(self.replays * self.planned, 1)
            found.append(
                f"The run {why}: {len(self.samples)} of {self.planned} points, {share:.0%} of the replays."
            )
        if self.dropped:
            least = min(self.dropped, key=lambda p: (p.tokens, p.requests * p.context))
            found.append(
                f"{len(self.dropped)} points did not fit in memory, the smallest: {least.label}; "
                "steps beyond the measured ones are extrapolated."
            )
        for message in dict.fromkeys(message for _, message in self.failed):
            points = [p for p, said in self.failed if said == message]
            found.append(f"{len(points)} points failed, first {points[0].label}: {message}.")
        if self.spread is not None and self.spread > SPREAD:
            found.append(
                f"Repeats of a step lie {self.spread:.1%} apart (the goal is {SPREAD:.0%}): the machine was "
                "not quiet, or the steps are short; what differs by less than that is not measured."
            )
        if self.drift is not None and self.drift > DRIFT:
            found.append(
                f"The anchor step's time moved by {self.drift:.0%} over the run: was the machine busy with "
                "something else? Measure again on an idle one."
            )
        return found


def run_points(
    bench: Bench,
    points: Sequence[Point],
    plan: Plan,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Run:
    """Time the points; see the module. Raises KeyboardInterrupt only when nothing was measured yet, and
    SpecschedError when errors left nothing measured."""
    run = Run(planned=len(points), replays=plan.rounds * max(plan.replays // plan.rounds, 1))
    total = plan.rounds * len(points)
    begun = clock()
    report = progress or (lambda done, total, text: None)
    try:
        anchor = anchor_of(points)
        _settle(bench, anchor, plan, clock)
        rounds = (p for n in range(plan.rounds) for p in in_order(points, plan.seed + n))
        for number, point in enumerate(rounds):
            if clock() - begun > plan.budget_seconds:
                run.stopped = "time"
                break
            if number % plan.anchor_every == 0:
                _timed(bench, anchor, plan, run, run.anchors)
            report(number, total, point.label)
            _timed(bench, point, plan, run, run.samples)
            if len({message for _, message in run.failed}) >= FEW or run.in_row >= IN_ROW:
                run.stopped = "errors"
                break
        if run.stopped != "errors":
            _timed(bench, anchor, plan, run, run.anchors)
        report(total, total, "done")
    except KeyboardInterrupt:
        if not run.samples:
            raise
        run.stopped = "interrupted"
    if run.failed and not any("verify" in s.seconds for s in run.samples):
        point, message = run.failed[0]
        raise SpecschedError(f"no step could be timed: {point.label} failed with: {message}")
    return run


def _settle(bench: Bench, anchor: Point, plan: Plan, clock: Callable[[], float]) -> None:
    """Work until clocks have risen to where they stay."""
    try:
        once = bench.prepare(anchor)[1]
        end = clock() + plan.settle_seconds
        while clock() < end:
            once()
    except Exception as error:
        # The anchor itself is timed again as a point, where its failure is recorded.
        if out_of_memory(error):
            bench.release()


def _timed(bench: Bench, point: Point, plan: Plan, run: Run, into: list[Sample]) -> None:
    if any(_holds(point, small) for small in run.dropped):
        if into is run.samples and point not in run.dropped:
            run.dropped.append(point)
        return
    try:
        context, once = bench.prepare(point)
        for _ in range(plan.warmups):
            once()
        replays = [once() for _ in range(run.replays // plan.rounds)]
    except Exception as error:
        if out_of_memory(error):
            run.dropped.append(point)
        else:
            run.failed.append((point, _message(error)))
            run.in_row += 1
    else:
        run.in_row = 0
        seconds = {part: [replay[part] for replay in replays] for part in replays[0]}
        again = next((s for s in run.samples if s.point == point), None) if into is run.samples else None
        if again is None:
            order = len(run.samples) + len(run.anchors)
            into.append(Sample(point, context, seconds, order, [len(replays)]))
        else:
            again.rounds.append(len(replays))
            for part, more in seconds.items():
                again.seconds[part] += more
        return
    # Outside the handler: the traceback it holds keeps the failed step's tensors alive.
    try:
        bench.release()
    except Exception as error:  # a device that has faulted cannot give anything back either
        run.failed.append((point, _message(error)))


def _message(error: BaseException) -> str:
    """The first line of an error, without its class where it says something."""
    text = str(error).strip().split("\n")[0][:300].rstrip(".")
    return text or type(error).__name__


def _holds(point: Point, small: Point) -> bool:
    """Whether a point needs at least the memory of one that did not fit."""
    return (
        point.kind == small.kind
        and point.tokens >= small.tokens
        and point.requests * point.context >= small.requests * small.context
    )


def out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory, of the device or of the host, ran out."""
    if error.__context__ is not None and out_of_memory(error.__context__):
        return True  # the capture of a graph reports its own end instead
    return isinstance(error, (torch.cuda.OutOfMemoryError, MemoryError)) or (
        isinstance(error, RuntimeError)
        and any(
            words in str(error).lower()
            for words in ("out of memory", "can't allocate memory", "not enough memory", "alloc_failed")
        )
    )


def _quantiles(values: Sequence[float]) -> list[float]:
    return [float(q) for q in np.quantile(values, [0.1, 0.5, 0.9])]
