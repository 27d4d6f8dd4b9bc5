"""Progress on stderr, and interrupts."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import click

from .output import echo, one_line

GRACE_SECONDS = 0.8
COMPILING = "compiling the kernels, once (about 25 s; `specsched warmup` does it beforehand)"


def compiling_told() -> contextlib.AbstractContextManager[None]:
    """Inside the block, say on stderr when the wait for the compiler of the kernels begins, and only then."""
    from .. import kernels

    return kernels.told_of_compiling(lambda: click.echo(COMPILING, err=True))


class Progress:
    """A bar on stderr for work that lasts half a second; plain lines where stderr is no terminal.

    Called as `progress(done, total, text)` from any thread; a context manager that leaves the line clean.
    With `workers`, the next call after an interrupt raises in its own thread too, so that they stop and are
    not waited for; a second interrupt ends the process at once (nothing else stops a compiling worker).
    """

    bar_after_seconds = 0.5
    line_every_seconds = 15.0

    def __init__(self, unit: str = "run", workers: bool = True) -> None:
        self._workers = workers
        self._unit = unit
        self._start = self._last_line = time.monotonic()
        self._bar: Any = None
        self._lock = threading.Lock()
        self._interrupted = False
        self._handler: Any = None

    def __call__(self, done: int, total: int | None, text: str = "") -> None:
        """Report that `done` of `total` units (None: not known) are finished; `text` says at what."""
        if self._interrupted:
            raise KeyboardInterrupt
        with self._lock:
            self._show(done, total, text)

    def _show(self, done: int, total: int | None, text: str) -> None:
        now = time.monotonic()
        if sys.stderr.isatty():
            if self._bar is not None or now - self._start >= self.bar_after_seconds:
                self._show_bar(done, total, text)
        elif now - self._last_line >= self.line_every_seconds:
            self._last_line = now
            count = f"{done}" if total is None else f"{done}/{total}"
            unit = self._unit if (done if total is None else total) == 1 else f"{self._unit}s"
            echo(f"{count} {unit}, {now - self._start:.0f} s" + (f": {text}" if text else ""), err=True)

    def _show_bar(self, done: int, total: int | None, text: str) -> None:
        if self._bar is None:
            from tqdm import tqdm

            self._bar = tqdm(total=total, unit=self._unit, leave=False, file=sys.stderr, dynamic_ncols=True)
        self._bar.total = total
        self._bar.set_description_str(one_line(text), refresh=False)
        self._bar.update(done - self._bar.n)

    def __enter__(self) -> Progress:
        listens = signal.getsignal(signal.SIGINT) is not signal.SIG_IGN  # as it is not under nohup
        if self._workers and listens and threading.current_thread() is threading.main_thread():
            self._handler = signal.signal(signal.SIGINT, self._interrupt)
        return self

    def _interrupt(self, number: int, frame: Any) -> None:
        if self._interrupted:
            os._exit(130)
        self._interrupted = True
        click.echo("specsched: stopping; interrupt again to stop at once", err=True)
        raise KeyboardInterrupt

    def __exit__(self, *exc: object) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)
        if self._bar is not None:
            self._bar.close()


@contextlib.contextmanager
def stopping_in_time() -> Iterator[None]:
    """Inside the block, one interrupt ends the process within a second, whatever compiled code is at work.

    Python hands an interrupt to the main thread only between two of its own steps; a compiler or a long
    product of matrices has none. The system's part of the handler, though, writes to a descriptor at once: a
    thread waits there, gives the tidy way out GRACE_SECONDS, and leaves when that was not enough.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(os, "pipe"):
        yield
        return
    listening, telling = os.pipe()
    os.set_blocking(telling, False)
    finished = threading.Event()

    def wait() -> None:
        while True:
            number = os.read(listening, 1)
            if not number or finished.is_set():
                return
            if number[0] != signal.SIGINT or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
                continue
            if not finished.wait(GRACE_SECONDS):
                with contextlib.suppress(OSError):
                    os.write(2, b"specsched: interrupted\n")
                os._exit(130)

    before = signal.set_wakeup_fd(telling, warn_on_full_buffer=False)
    watcher = threading.Thread(target=wait, name="interrupts", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        finished.set()
        signal.set_wakeup_fd(before)
        os.close(telling)
        watcher.join(1.0)
        os.close(listening)
