"""Word of the compiler at the moment it begins."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from numba.core import event

from .engine import run_engine


class _Once(event.Listener):
    def __init__(self, say: Callable[[], None]) -> None:
        self._say, self._said = say, False

    def on_start(self, event: Any) -> None:
        if event.data["dispatcher"] is run_engine and not self._said:
            self._said = True
            self._say()

    def on_end(self, event: Any) -> None:
        """Nothing: what was waited for follows by itself."""


@contextlib.contextmanager
def told_of_compiling(say: Callable[[], None]) -> Iterator[None]:
    """Inside the block, `say` is called when the engine loop is compiled, in any thread, at most once.

    A loop already compiled, or read from the disk, is not told of.
    """
    with event.install_listener("numba:compile", _Once(say)):
        yield
