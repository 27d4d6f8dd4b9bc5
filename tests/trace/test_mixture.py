"""Mixtures: the requests of several traces, unchanged, with the shares asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specsched.errors import TraceError
from specsched.trace import Trace, load_trace, mix


def made(name: str, requests: int, block: int = 2, seed: int = 0, **more: Any) -> Trace:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 6, requests)
    n = int(lengths.sum())
    return Trace.from_arrays(
        request=np.repeat(np.arange(requests) * 3, lengths),
        position=np.concatenate([np.arange(k) for k in lengths]),
        confidence_logit=rng.normal(0, 1, (n, block)),
        accepted=rng.integers(0, block + 1, n),
        prompt_tokens=np.repeat(rng.integers(1, 99, requests), lengths),
        domain="d",
        metadata={"licence": "CC0", "temperature": 1.0} | more,
        where=f"{name}.parquet",
    )


def rows(trace: Trace, r: int) -> tuple[Any, ...]:
    at = slice(trace.starts[r], trace.starts[r] + trace.lengths[r])
    columns = (trace.position, trace.confidence_logit, trace.accepted, trace.prompt_tokens)
    return tuple(column[at].tobytes() for column in columns)


def test_requests_keep_their_rows_and_come_by_their_shares() -> None:
    a, b = made("a", 40), made("b", 100, seed=1)
    mixed = mix([a, b], [0.7, 0.3])
    assert len(mixed.request_ids) == 57, "40 requests are 70 % of it"
    names = [mixed.domain_names[mixed.domain[s]] for s in mixed.starts]
    assert (names.count("a/d"), names.count("b/d")) == (40, 17)
    assert names != sorted(names), "shuffled"
    known = {"a/d": {rows(a, r) for r in range(40)}, "b/d": {rows(b, r) for r in range(100)}}
    found = [rows(mixed, r) for r in range(57)]
    assert all(row in known[name] for row, name in zip(found, names, strict=True))
    assert mixed.metadata["temperature"] == 1.0
    assert mixed.name == "70% a, 30% b"


def test_what_differs_is_joined_or_left_out() -> None:
    warm = made("warm", 10, temperature=0.6, synthetic=True, target="x")
    mixed = mix([made("cold", 10, target="y"), warm], [0.5, 0.5])
    assert mixed.synthetic
    assert mixed.metadata["target"] == "y + x"
    assert "temperature" not in mixed.metadata


@pytest.mark.parametrize(
    ("traces", "shares", "says"),
    [
        ([made("a", 5), made("b", 5)], [0.5, 0.4], "0.5 \\+ 0.4 = 0.9"),
        ([made("a", 5), made("b", 5)], [1.5, -0.5], "make them positive"),
        ([made("a", 5), made("b", 5, block=3)], [0.5, 0.5], "blocks of 2 and b.parquet 3"),
        ([made("a", 5), made("b", 5, confidence_sees_token=True)], [0.5, 0.5], "confidence_sees_token"),
        ([made("a", 5), made("b", 5)], [0.999, 0.001], "too few for shares so small"),
    ],
)
def test_what_cannot_be_mixed_is_refused(traces: list[Trace], shares: list[float], says: str) -> None:
    with pytest.raises(TraceError, match=says):
        mix(traces, shares)


def test_a_mixture_goes_by_name() -> None:
    mixed = load_trace("chat:0.5,code:0.5")
    assert {name.split("/")[0] for name in mixed.domain_names} == {"chat", "code"}
    assert load_trace("code:0.25,chat:0.75").metadata["licence"]
    with pytest.raises(TraceError, match="nosuch"):
        load_trace("chat:0.5,nosuch:0.5")
