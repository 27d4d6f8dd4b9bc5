"""The files of a recording: written by a thread of their own, bounded in memory and on disk.

The engine's threads only append to a queue; encoding, writing and flushing happen elsewhere, once a second.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

Curve = Sequence[tuple[int, float]]

KEY = "specsched_vllm"
_MOST_WAITING = 4096  # steps; more means the disk does not keep up
_AT_ONCE = 64  # steps a write
_SECONDS = 1.0


@dataclass
class Step:
    """One step of the engine, R requests of a block of γ.

    ids: R names of requests; tokens: of the pass, prefill included; prompt, drafted: int[R], tokens of the
    prompt and drafts scheduled; confidence: float32[R, γ], of those drafts; sampled, rejected: int[R], tokens
    that came out and drafts that were verified and rejected; seconds: when it was handed over, of a clock.
    """

    ids: list[str]
    tokens: int
    prompt: Any
    drafted: Any
    confidence: Any
    sampled: Any = None
    rejected: Any = None
    seconds: float = field(default_factory=time.perf_counter)

    def line(self, begun: float) -> str:
        """The step as a line of JSON: requests that drafted and got a token, a list a column."""
        known = (self.confidence == self.confidence).all(1)  # not NaN
        kept = ((self.sampled > 0) & (self.drafted > 0) & known).nonzero()[0]
        verified = self.sampled + self.rejected - 1
        # Whole numbers are written several times faster than fractions, and this thread shares the GIL.
        scores = (self.confidence[kept].astype("float64") * 1e6).round().astype("int64").tolist()
        row = {
            KEY: "step",
            "seconds": round(self.seconds - begun, 6),
            "requests": len(self.ids),
            "tokens": self.tokens,
            "ids": [self.ids[i] for i in kept],
            "prompt": self.prompt[kept].tolist(),
            "drafted": self.drafted[kept].tolist(),
            "verified": verified[kept].tolist(),
            "accepted": (self.sampled[kept] - 1).tolist(),
            "confidence_millionths": scores,
        }
        return json.dumps(row, separators=(",", ":"))


class Recorder:
    """`put` steps; a thread writes them to `path` until `limit` bytes or an error, then `stop(why)` is
    called once and nothing more is written.
    """

    def __init__(
        self, folder: str, stamp: str, limit: int, about: dict[str, Any], stop: Callable[[str], None]
    ) -> None:
        os.makedirs(folder, exist_ok=True)
        self.path = os.path.join(folder, f"vllm-{stamp}-steps.jsonl")
        self._limit, self._stop = limit, stop
        self._waiting: deque[Step] = deque()
        self._lost, self._written, self._open = 0, 0, True
        self._begun = time.perf_counter()
        self._wake = threading.Event()
        # Unbuffered, whole lines at a time: an engine that is killed leaves no half of one.
        self._stream = open(self.path, "xb", buffering=0)  # noqa: SIM115 (closed by the thread)
        self._write([json.dumps({KEY: "engine", **about})])
        self._thread = threading.Thread(target=self._run, name="specsched-recorder", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def put(self, step: Step) -> None:
        """Hand over a step; never waits. Steps that a slow disk leaves no room for are counted, not kept."""
        if not self._open:
            return
        if len(self._waiting) >= _MOST_WAITING:
            self._lost += 1
            return
        self._waiting.append(step)

    def close(self) -> None:
        """Write what waits, and end the thread."""
        self._open = False
        self._wake.set()
        self._thread.join(5.0)

    def _run(self) -> None:
        try:
            with self._stream:
                while self._open:
                    self._wake.wait(_SECONDS)
                    self._drain()
        except Exception as error:
            self._end(f"recording stopped: {error!r}")

    def _drain(self) -> None:
        while self._waiting and self._written < self._limit:
            several = [self._waiting.popleft() for _ in range(min(_AT_ONCE, len(self._waiting)))]
            self._write([step.line(self._begun) for step in several])
        if self._written >= self._limit:
            self._waiting.clear()
            self._end(f"{self.path} has reached {self._limit / 1e6:g} MB; recording ends there")
        elif self._lost:
            lost, self._lost = self._lost, 0
            self._write([json.dumps({KEY: "lost", "steps": lost})])

    def _write(self, lines: list[str]) -> None:
        data = "".join(f"{line}\n" for line in lines).encode()
        written = self._stream.write(data)
        if written != len(data):
            raise OSError(f"{self.path}: only {written} of {len(data)} bytes could be written")
        self._written += written

    def _end(self, why: str) -> None:
        self._open = False
        self._stop(why)


def write_curves(
    folder: str, stamp: str, curves: tuple[Curve, Curve], limit: int, about: dict[str, Any]
) -> None:
    """The engine's curves, milliseconds by requests (drafting) and by tokens (verification), as two CSVs."""
    from ..files.output import atomic_write

    os.makedirs(folder, exist_ok=True)
    said = [f"vLLM {about['vllm']}, {about['date']}: {about['model']}", f"capture limit {limit}"]
    draft = [f"drafter {about['drafter']}, block size {about['block_size']}"]
    for name, axis, curve, comments in (
        ("draft", "num_reqs", curves[0], [*said[:1], *draft]),
        ("verify", "batch_tokens", curves[1], said),
    ):
        with atomic_write(os.path.join(folder, f"vllm-{stamp}-{name}.csv")) as stream:
            stream.write("".join(f"# {' '.join(comment.split())}\n" for comment in comments))
            stream.write(f"{axis},median_ms\n")
            stream.write("".join(f"{int(size)},{float(ms)!r}\n" for size, ms in curve))
