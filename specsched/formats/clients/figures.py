"""Figures of a report: a statistic with its unit, how many requests failed, times that must fit together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import FormatError, quoted
from ..values import mapping, number

TOLERATED = 0.02  # share of requests that may fail before a run's speeds are those of a broken run
_SECONDS = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_RATES = ("tokens/s", "tokens/sec", "tokens/second")
_MOST = 1e15  # of any figure: beyond it no number of a benchmark is one
_FAR = 3.0  # times of one request that differ by more than this factor are not in one unit


def block(data: Mapping[str, Any], *keys: str, where: str) -> Mapping[str, Any] | None:
    """The object under a path of keys; None where a part of it is absent or null."""
    held: Any = data
    for key in keys:
        held = mapping(held, f"{where}: {key}'s parent").get(key)
        if held is None:
            return None
    return mapping(held, f"{where}: {'.'.join(keys)}")


def value(data: Mapping[str, Any] | None, names: tuple[str, ...], where: str) -> float | None:
    """The first of these statistics that is there, a number of at least 0."""
    for name in names:
        if data is not None and data.get(name) is not None:
            return number(data[name], f"{where}.{name}", most=_MOST)
    return None


def seconds(
    data: Mapping[str, Any] | None, names: tuple[str, ...], where: str, key: str = "unit"
) -> float | None:
    """A time in seconds, by the unit beside it (`ms`, `s/token`, ...); raises FormatError without one."""
    found = value(data, names, where)
    if found is None or data is None:
        return None
    unit = str(data.get(key, "")).strip().lower()
    factor = _SECONDS.get(unit.removesuffix("/token"))
    if factor is None:
        raise FormatError(
            f"{where}: unit {quoted(data.get(key))} is no time that is known ({', '.join(_SECONDS)})"
        )
    return found * factor


def rate(
    data: Mapping[str, Any] | None, names: tuple[str, ...], where: str, key: str = "unit"
) -> float | None:
    """Tokens a second, by the unit beside it."""
    found = value(data, names, where)
    if found is None or data is None:
        return None
    if str(data.get(key, "")).strip().lower() not in _RATES:
        raise FormatError(f"{where}: unit {quoted(data.get(key))}; expected {_RATES[0]}")
    return found


def speed(seconds_a_token: float | None) -> float | None:
    """Tokens a second of one user."""
    return 1.0 / seconds_a_token if seconds_a_token else None


def whole(found: float | None) -> int | None:
    return None if found is None else round(found)


def all_done(successful: int, failed: int, where: str) -> list[str]:
    """What must be said of requests that failed; raises FormatError where none or too few succeeded."""
    if successful < 1:
        raise FormatError(f"{where}: no request was completed ({failed} failed); run the benchmark again")
    if failed > TOLERATED * (successful + failed):
        raise FormatError(
            f"{where}: {failed} requests failed beside {successful}; its speeds are of a broken run"
        )
    return (
        [f"{where}: {failed} of {successful + failed} requests failed and are not counted."] if failed else []
    )


def same_unit(
    whole_request: float | None, first: float | None, a_token: float | None, tokens: float | None, where: str
) -> None:
    """Raise FormatError where a request does not take about its first token and the others: one is in another
    unit. Means, seconds; what is None is not checked."""
    if not whole_request or a_token is None or not tokens or tokens < 2:
        return
    parts = (first or 0.0) + a_token * (tokens - 1.0)
    if not 1.0 / _FAR < whole_request / max(parts, 1e-30) < _FAR:
        raise FormatError(
            f"{where}: a request of {tokens:.0f} output tokens takes {whole_request:.4g} s, but "
            f"{first or 0.0:.4g} s "
            f"to the first and {a_token:.4g} s a token are {parts:.4g} s; one of them is in another unit"
        )
