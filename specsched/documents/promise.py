"""A promise in words, from the document that states it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_WORDS = {
    "ttft": "the first token in {ms:,.4g} ms",
    "itl": "no pause over {ms:,.4g} ms",
    "e2e": "the last token in {seconds:,.4g} s",
}


def with_limits(limits: Mapping[str, Any] | None) -> str:
    """` with the first token in 500 ms and ...`, or nothing; limits as documents have them."""
    shares = (limits or {}).get("shares") or {}
    said = []
    for name, words in _WORDS.items():
        seconds = (limits or {}).get(f"{name}_seconds")
        if seconds is not None:
            text = words.format(seconds=seconds, ms=1e3 * seconds)
            said.append(text + (f" (for {100 * shares[name]:.4g}%)" if name in shares else ""))
    if not said:
        return ""
    return " with " + (said[0] if len(said) == 1 else f"{', '.join(said[:-1])} and {said[-1]}")


def promise(document: Mapping[str, Any]) -> str:
    """`80 tokens/s for 95% of requests with the first token in 500 ms`."""
    share = f"{document['sla_fraction']:.0%} of requests"
    return f"{document['sla_tps']:g} tokens/s for {share}{with_limits(document.get('limits'))}"
