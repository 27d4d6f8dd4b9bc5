"""ATOM's (ROCm) calibration profile: temperatures and steps per second by tokens, in one file.

`sps_table[B]` is the speed of a target pass of B tokens, a number for every B from 0 on; its scheduler reads
it past the end at the last entry. Target graphs alone were timed: what drafting costs is not in it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..calibration import Calibration
from ..errors import FormatError
from ..profile import StepProfile
from . import sts
from .document import Hints, build, curve, imported
from .opened import Opened
from .values import integer, mapping, need, numbers, step_seconds

TABLE = "sps_table"
_MOST = 2**17  # tokens of a pass: no engine makes larger ones, and a table of millions takes minutes
KEYS = frozenset({TABLE, sts.TRTLLM, "draft_width"})


def read(opened: Opened, hints: Hints) -> tuple[StepProfile | Calibration, list[str]]:
    """The step table, or with the hint `take=temperatures` the calibration."""
    where, data = str(opened.path), opened.data
    if data.get("version", 1) != 1:
        raise FormatError(f"{where}: version {data['version']!r} of ATOM's profile; this reader knows 1")
    width = integer(need(data, "draft_width", where), f"{where}: draft_width", 1, 127)
    temperatures = numbers(data[sts.TRTLLM], f"{where}: {sts.TRTLLM}")
    if len(temperatures) != width:
        raise FormatError(
            f"{where}: {len(temperatures)} temperatures for a draft_width of {width}; truncated?"
        )
    if isinstance(data[TABLE], list) and len(data[TABLE]) > 1 + _MOST:
        raise FormatError(
            f"{where}: {TABLE} has {len(data[TABLE]):,} entries; "
            f"no pass has more than {_MOST:,} tokens; cut it"
        )
    speed = numbers(data[TABLE], f"{where}: {TABLE}", at_least=3)
    most = integer(data.get("max_num_seqs") or 0, f"{where}: max_num_seqs") * (1 + width)
    if len(speed) <= most:
        raise FormatError(
            f"{where}: {TABLE} has {len(speed)} entries, and max_num_seqs whole blocks need {most + 1}; "
            "truncated?"
        )
    rise = np.flatnonzero(np.diff(speed) > 0)
    if rise.size:
        b = int(rise[0])
        raise FormatError(
            f"{where}: {TABLE} rises from {speed[b]:g} at {b} tokens to {speed[b + 1]:g} at {b + 1}, "
            "which ATOM "
            "refuses; calibrate again"
        )
    if hints.get("take") == "temperatures":
        return sts.of_temperatures(temperatures, {"source": where}, opened.path), [
            "Its step table is a profile: read the file without take=temperatures."
        ]
    return _profile(opened, speed, width, hints)


def _profile(opened: Opened, speed: np.ndarray, width: int, hints: Hints) -> tuple[StepProfile, list[str]]:
    where = str(opened.path)
    seconds = step_seconds(1.0 / speed[1:], f"{where}: {TABLE}", "s per step, 1 / steps per second")
    identity = mapping(opened.data.get("identity") or {}, f"{where}: identity")
    notes = [
        "Target passes alone were timed: what drafting costs is not in it and counts as nothing.",
        f"Blocks of {width} drafts; its temperatures become a calibration with --hint take=temperatures.",
    ]
    verify = {**curve("tokens", np.arange(1, len(speed)), seconds), "lookup": "linear", "beyond": "clamp"}
    provenance = imported(where, "atom", "an entry for every token count, clamped", notes, hints)
    provenance["host"] = dict(identity)
    named: dict[str, Any] = {"gpu": identity.get("gpu_name"), **hints}
    count = identity.get("tensor_parallel_size")
    if count is not None:
        named = {"gpu_count": integer(count, f"{where}: tensor_parallel_size", 1, 10**5), **named}
    return build(opened.path.stem, verify, provenance, named), notes
