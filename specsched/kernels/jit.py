"""How the kernels are compiled, and when a compiled result kept on disk is stale.

numba stamps a cached function with the file it stands in, and no other: when a function that it calls changes
in another file, the old machine code is served (numba #1833). Here every function carries one stamp over all
files of this folder, so a change in any of them compiles all again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Longs = NDArray[np.int64]
Whole = NDArray[Any]  # of any whole type: lengths are int32 for engines, int64 in the loop
# Without numba's runtime (`_nrt`) nothing here can allocate or return an array, and no look at a row of an
# array counts references to it: counting them, a step of few requests took ten times as long.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}


def folder_stamp() -> str:
    """Digest over the names and contents of the files of this folder."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


_STAMP = folder_stamp()


def jit(function: Callable[..., Any]) -> Any:
    """njit as this package uses it: no GIL, IEEE arithmetic (no fastmath), cached where possible.

    Where numba finds no folder it may write to, or has no place for the stamp, nothing is cached and every
    process compiles for itself.
    """
    return _compiled(function)


def inner(function: Callable[..., Any]) -> Any:
    """`jit` for what kernels alone call: no door for Python is compiled, which takes as long as they do."""
    return _compiled(function, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def part(function: Callable[..., Any]) -> Any:
    """`jit` for a section of one kernel: compiled in its place, as if it were written there.

    Handing over the tuples that hold everything costs as much as a step of few requests.
    """
    return _compiled(function, inline="always")


def _compiled(function: Callable[..., Any], **options: Any) -> Any:
    options |= _OPTIONS
    try:
        compiled = njit(cache=True, **options)(function)
    except RuntimeError:
        return njit(**options)(function)
    if compiled is function:  # NUMBA_DISABLE_JIT
        return compiled
    kept = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    if not hasattr(kept, "_source_stamp"):
        return njit(**options)(function)
    kept._source_stamp = _STAMP  # type: ignore[union-attr]
    return compiled
