"""Mixtures: one trace of requests of several, with given shares."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np

from ..errors import TraceError
from ..randomness import generator
from .trace import Trace, validate

MIXTURE = 27  # random stream of this module
_PART = re.compile(r"(?P<name>.+?):(?P<share>\d*\.?\d+(?:[eE][-+]?\d+)?)")


def parts_of(text: str) -> list[tuple[str, float]] | None:
    """`chat:0.7,code:0.3` as [(name, share), ...]; None where the text does not read like that."""
    found = [_PART.fullmatch(part.strip()) for part in text.split(",")]
    if len(found) < 2 or not all(found):
        return None
    return [(match["name"], float(match["share"])) for match in found if match is not None]


def mix(traces: Sequence[Trace], shares: Sequence[float], seed: int = 0) -> Trace:
    """A trace whose requests come from `traces` by these shares (of requests, summing to 1), shuffled.

    As many requests as the scarcest trace allows, each at most once. Domains are called `trace/domain`.
    Raises TraceError for shares that are none, and for traces that differ in block size, in mode, or in
    whether confidences see their token: no policy could run on both.
    """
    _check(traces, shares)
    counts = [len(t.request_ids) for t in traces]
    total = min(math.floor(n / share + 1e-9) for n, share in zip(counts, shares, strict=True))
    wanted = [round(total * share) for share in shares]
    if 0 in wanted:
        scarce = traces[int(np.argmin(counts))]
        raise TraceError(
            f"{scarce.where} has {min(counts)} requests, too few for shares so small; record more, or raise "
            "the smallest share"
        )
    picked: list[tuple[Trace, int]] = []
    for i, (t, n) in enumerate(zip(traces, wanted, strict=True)):
        order = generator(seed, MIXTURE, i).permutation(len(t.request_ids))[:n]
        picked += [(t, int(r)) for r in np.sort(order)]
    shuffled = [picked[i] for i in generator(seed, MIXTURE, len(traces)).permutation(len(picked))]
    return _joined(shuffled, traces, shares)


def _check(traces: Sequence[Trace], shares: Sequence[float]) -> None:
    if len(traces) != len(shares) or not traces:
        raise TraceError(f"{len(traces)} traces cannot have {len(shares)} shares; give one share a trace")
    if not all(0.0 < s <= 1.0 for s in shares) or abs(sum(shares) - 1.0) > 1e-6:
        said = " + ".join(f"{s:g}" for s in shares)
        raise TraceError(
            f"the shares of a mixture are {said} = {sum(shares):g}; make them positive, summing to 1"
        )
    first = traces[0]
    for other in traces[1:]:
        for what, a, b in (
            ("blocks of", first.block_size, other.block_size),
            ("mode", first.mode, other.mode),
            ("confidence_sees_token", first.confidence_sees_token, other.confidence_sees_token),
        ):
            if a != b:
                raise TraceError(
                    f"{first.where} has {what} {a} and {other.where} {b}; only traces alike in that are mixed"
                )


def _joined(picked: list[tuple[Trace, int]], traces: Sequence[Trace], shares: Sequence[float]) -> Trace:
    rows = [np.arange(t.starts[r], t.starts[r] + t.lengths[r]) for t, r in picked]
    domains = sorted({f"{t.name}/{d}" for t in traces for d in t.domain_names})
    code = {id(t): np.array([domains.index(f"{t.name}/{d}") for d in t.domain_names]) for t in traces}

    def column(name: str) -> np.ndarray:
        return np.ascontiguousarray(
            np.concatenate([getattr(t, name)[at] for (t, _), at in zip(picked, rows, strict=True)])
        )

    named = ", ".join(f"{100 * s:.0f}% {t.name}" for t, s in zip(traces, shares, strict=True))
    trace = Trace(
        request=np.repeat(np.arange(len(picked)), [len(at) for at in rows]),
        position=column("position"),
        confidence_logit=column("confidence_logit"),
        accepted=column("accepted"),
        domain=np.concatenate([code[id(t)][t.domain[at]] for (t, _), at in zip(picked, rows, strict=True)]),
        domain_names=tuple(domains),
        prompt_tokens=column("prompt_tokens"),
        arrival_seconds=None,
        metadata=_metadata(traces, named),
        where=named,
    )
    validate(trace)
    return trace


def _metadata(traces: Sequence[Trace], named: str) -> dict[str, object]:
    """What the traces agree on; texts on which they differ, one after the other."""
    first = traces[0].metadata
    joined: dict[str, object] = {key: first[key] for key in ("schema", "mode", "block_size") if key in first}
    joined["confidence_sees_token"] = traces[0].confidence_sees_token
    joined["synthetic"] = any(t.synthetic for t in traces)
    for key in ("drafter", "target", "licence"):
        found = [t.metadata.get(key) for t in traces]
        if all(isinstance(text, str) for text in found):
            joined[key] = " + ".join(dict.fromkeys(str(text) for text in found))
    temperatures = {t.metadata.get("temperature") for t in traces}
    if len(temperatures) == 1 and None not in temperatures:
        joined["temperature"] = temperatures.pop()
    joined["provenance"] = {"method": "mixture", "source": named}
    return joined
