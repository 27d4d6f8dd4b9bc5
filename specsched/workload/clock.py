"""What the clock of a file counts, told by evidence: epochs, seconds or milliseconds, whole ticks.

The same column names are in use in several units (`timestamp` counts milliseconds at Mooncake, seconds in the
usage traces of Qwen-Bailian), and columns called seconds hold milliseconds since 1970. What is taken is said,
with the rate that follows and the reading that was not taken.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..randomness import TICKS, hashed

# Seconds from 2001 to 2100: a clock that starts there counts from 1970, in the unit that puts it there.
_EPOCH = (978_307_200.0, 4_102_444_800.0)
_UNITS = {1.0: "seconds", 1e-3: "milliseconds", 1e-6: "microseconds", 1e-9: "nanoseconds"}
_PLAUSIBLE = (0.01, 1000.0)  # requests per second of a service whose arrivals somebody recorded
_TICKS = (0.1, 0.5)  # a clock ticks in tenths, or in multiples of half a second
_FEWEST = 20  # rows below which nothing is told from rates or ticks
_SPREAD = 1.2  # requests per tick in use above which ticks are bursts that nobody sent
SESSION_COLUMNS = ("chat_id", "parent_chat_id", "turn", "session_id", "session id", "conversation_id")
IGNORED_COLUMNS = (*SESSION_COLUMNS, "hash_ids", "block_hashes", "prefix_id")


class Clock(NamedTuple):
    """Arrivals float64[n] in seconds, the unit of the file, what was made of it and what is doubtful."""

    seconds: NDArray[np.float64]
    unit: str
    metadata: dict[str, Any]
    warnings: list[str]


def read_clock(file: str, column: str, raw: NDArray[np.float64], nominal: float, names: list[str]) -> Clock:
    """Sorted `raw` times of a column whose format counts `nominal` seconds a unit, in seconds.

    `names` are all columns of the file: some formats are told apart by the columns beside the clock.
    """
    warnings: list[str] = []
    unit, evidence = _unit(column, raw, nominal, names)
    start = raw[0] if _epoch(raw) is not None else 0.0
    seconds = (raw - start) * unit
    rate = _rate(seconds)
    if unit != nominal or evidence:
        others = {nominal, 1.0, 1e-3} - {unit}
        instead = " or ".join(f"{rate * unit / u:.3g} requests/s as {_UNITS[u]}" for u in sorted(others))
        warnings.append(
            f"{file}: {column} is read as {_UNITS[unit]} ({evidence}): {rate:.3g} requests/s, not {instead}"
        )
    seconds, said = spread_ticks(file, seconds)
    metadata = {"unit": _UNITS[unit], "epoch_seconds": float(start * unit) if start else None}
    return Clock(seconds, _UNITS[unit], metadata, warnings + said)


def _rate(seconds: NDArray[np.float64]) -> float:
    span = float(seconds[-1] - seconds[0])
    return (len(seconds) - 1) / span if span > 0 else 0.0


def _epoch(raw: NDArray[np.float64]) -> float | None:
    """The unit in which all times lie between 2001 and 2100 as counted from 1970; None where none does."""
    for unit in _UNITS:
        if _EPOCH[0] <= raw[0] * unit and raw[-1] * unit <= _EPOCH[1]:
            return unit
    return None


def _unit(column: str, raw: NDArray[np.float64], nominal: float, names: list[str]) -> tuple[float, str]:
    """(seconds per unit, the evidence; empty where the format's own unit is beyond doubt)."""
    epoch = _epoch(raw)
    if epoch is not None:
        said = f"they count from 1970, {np.datetime64(int(raw[0] * epoch), 's')!s} on"
        return epoch, said if epoch != nominal else ""
    if nominal == 1e-3 and column.strip().lower() == "timestamp":
        sessions = [name for name in names if name.strip().lower() in SESSION_COLUMNS]
        if sessions:
            return 1.0, f"as usage traces with {', '.join(sessions)} do"
        if (raw != np.floor(raw)).any():
            return 1.0, "they have fractions"
    if len(raw) < _FEWEST or _rate(raw) == 0.0:
        return nominal, ""
    return _plausible(raw, nominal, named="second" in column.lower() or column.lower().endswith("_s"))


def _plausible(raw: NDArray[np.float64], nominal: float, named: bool) -> tuple[float, str]:
    """Seconds or milliseconds by which of the two gives a rate that services have."""
    other = 1e-3 if nominal == 1.0 else 1.0
    low, high = _PLAUSIBLE
    taken, instead = (_rate(raw) / unit for unit in (nominal, other))
    if low <= taken <= high or not low <= instead <= high:
        return nominal, ""
    whole = bool((raw == np.floor(raw)).all())
    if named or (other == 1e-3 and not whole):
        said = "by the column's name" if named else "by the format, and they have fractions"
        return nominal, f"{said}; the rate is a strange one: see that the unit is right"
    return other, "only so is the rate one that services have"


def spread_ticks(file: str, seconds: NDArray[np.float64]) -> tuple[NDArray[np.float64], list[str]]:
    """Arrivals spread within the ticks of a coarse clock, in their order, by a fixed draw; and a warning.

    A clock of whole seconds turns steady traffic into bursts at every tick, which queues would feel.
    Arrivals of a Poisson process, given their number in a tick, are uniform in it: so they are laid.
    """
    tick = tick_of(seconds)
    if tick is None:
        return seconds, []
    n = len(seconds)
    uniform = hashed(0, TICKS, np.arange(n, dtype=np.int64)) / 2.0**64
    # A tick's own arrivals stay before the next tick's, so a sort of all keeps every row in its tick.
    spread = np.sort(seconds + tick * np.minimum(uniform, 1.0 - 1e-9))
    return spread, [
        f"{file}: its clock ticks every {tick:g} s, with {n / len(np.unique(seconds)):.1f} requests a tick "
        "in use: they are spread at random within their tick, and bursts shorter than it are not seen"
    ]


def tick_of(seconds: NDArray[np.float64]) -> float | None:
    """Seconds between the ticks of a coarse clock that puts several requests on one; None without one."""
    if len(seconds) < _FEWEST:
        return None
    used = np.unique(seconds)
    if len(used) < 2 or len(seconds) < _SPREAD * len(used):
        return None
    tenths = np.rint(used * 10.0).astype(np.int64)
    if np.abs(used * 10.0 - tenths).max() <= 1e-6:
        tick = int(np.gcd.reduce(np.diff(tenths))) / 10.0
    else:  # a clock that jitters by a little, as Mooncake's of 3 s does
        tick = round(float(np.median(np.diff(used))), 1)
        if tick <= 0.0 or np.mean(np.abs(used - np.rint(used / tick) * tick) > 0.01 * tick) > 0.01:
            return None
    halves = tick / _TICKS[1]
    return (
        tick if abs(tick - _TICKS[0]) < 1e-9 or (halves >= 1 and abs(halves - round(halves)) < 1e-9) else None
    )
