"""The device that work is timed on: a CUDA card with graphs and events, or none (the CPU, without them).

All that the bench asks of CUDA goes through `Card`, and nothing else here calls `torch.cuda` while measuring.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import torch

Work = Callable[[], None]


class NoCard:
    """The CPU: work is timed by the wall, and not captured."""

    captures = False

    def __init__(self) -> None:
        self.device = torch.device("cpu")

    def capture(self, work: Work) -> Work:
        """The work itself."""
        return work

    def timed(self, work: Work) -> tuple[float, float]:
        """(seconds of the work on the device, seconds until the host had launched it)."""
        begun = time.perf_counter()
        work()
        taken = time.perf_counter() - begun
        return taken, 0.0

    def wait(self) -> None:
        """Until the device has done all it was given."""

    def release(self) -> None:
        """Give unused memory back."""


class Card(NoCard):
    """One CUDA device. Graphs are captured on one stream, and share one pool of memory."""

    captures = True

    def __init__(self, index: int) -> None:
        self.index = index
        self.device = torch.device("cuda", index)
        torch.cuda.set_device(index)
        self.name = torch.cuda.get_device_name(index)
        self.capability: tuple[int, int] = torch.cuda.get_device_capability(index)
        self._pool: Any = None
        self._stream: Any = None

    def memory(self) -> tuple[int, int]:
        """(bytes free, bytes in all)."""
        free, total = torch.cuda.mem_get_info(self.index)
        return int(free), int(total)

    def capture(self, work: Work) -> Work:
        """A CUDA graph of `work`, warmed up on the stream it is captured on; its replay."""
        if self._stream is None:
            self._stream, self._pool = torch.cuda.Stream(self.index), torch.cuda.graph_pool_handle()
        here = torch.cuda.current_stream(self.index)
        self._stream.wait_stream(here)
        with torch.cuda.stream(self._stream):
            for _ in range(2):
                work()
        here.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            work()
        return graph.replay

    def timed(self, work: Work) -> tuple[float, float]:
        """See `NoCard`: between CUDA events, and what the host took to launch it."""
        self.wait()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        begun = time.perf_counter()
        work()
        launched = time.perf_counter() - begun
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3, launched

    def wait(self) -> None:
        torch.cuda.synchronize(self.index)

    def release(self) -> None:
        gc.collect()
        torch.cuda.empty_cache()
