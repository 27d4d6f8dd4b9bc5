"""Attention for a table that has none, borrowed from another profile and marked as assumed."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..errors import FormatError
from ..profile import Curve, StepProfile, load_profile


def borrow_attention(objects: tuple[Any, ...], lender: str, where: str) -> tuple[tuple[Any, ...], list[str]]:
    """The profiles with the attention of the profile `lender` (a path or bundled name), and what to say.

    Borrowed is what attention adds beyond its first point: launching it is in the table's own steps. Where
    both profiles state the KV bytes of a token on each GPU, seconds are scaled by them. Raises FormatError
    where there is nothing to lend or no need.
    """
    given = load_profile(lender)
    attention = given.attention
    if attention is None:
        raise FormatError(f"attention_from={lender}: profile {given.name!r} states no attention cost to lend")
    for item in objects:
        if not isinstance(item, StepProfile):
            raise FormatError(f"{where}: attention_from is a hint for step costs; this is none")
        if item.attention is not None:
            raise FormatError(f"{where} prices attention itself; leave attention_from out")
    made = tuple(_with_attention(item, given, attention) for item in objects)
    notes = [
        f"Attention is assumed: {made[0].provenance['attention']}. If the table was timed with long "
        "contexts, their attention is in its steps and counted twice."
    ]
    return made, notes


def _with_attention(profile: StepProfile, given: StepProfile, attention: Curve) -> StepProfile:
    ours, theirs = _kv_bytes(profile), _kv_bytes(given)
    scale = ours / theirs if ours and theirs else 1.0
    added = scale * (attention.y - attention.y[0]).clip(min=0.0)
    curve = Curve(attention.x, added, attention.lookup, attention.beyond)
    made = f"borrowed from {given.name} ({given.provenance.get('method', 'of unknown origin')}"
    made += f"; {given.model.get('name', 'unknown')} on {given.gpu.get('name', 'unknown')})"
    made += f", times {scale:.3g} for its KV bytes" if scale != 1.0 else ", as it is"
    provenance = profile.provenance | {"attention": made}
    return dataclasses.replace(profile, attention=curve, provenance=provenance)


def _kv_bytes(profile: StepProfile) -> float:
    """KV bytes of a token on each GPU; 0 where it is not said."""
    return float(profile.model.get("kv_bytes_per_token") or 0) / profile.gpus
