"""How a workload is laid on a trace: independence, even use, chains, and arrivals of our own traces."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specsched.errors import WorkloadError
from specsched.trace import Trace, load_trace
from specsched.workload import Workload, assign, load_workload, poisson
from specsched.workload.assignment import traced_requests

seeds = st.integers(0, 2**40)


def trace_of(
    lengths: list[int],
    domains: list[str] | None = None,
    arrivals: list[float] | None = None,
    first_id: int = 0,
) -> Trace:
    """A dense trace of block size 2 whose request i has lengths[i] rows and 100 + i prompt tokens."""
    m = len(lengths)
    request = np.repeat(np.arange(m), lengths)
    rows = len(request)
    return Trace.from_arrays(
        request=request + first_id,
        position=np.concatenate([np.arange(n) for n in lengths]),
        confidence_logit=np.zeros((rows, 2), dtype=np.float32),
        accepted=np.zeros(rows, dtype=np.int64),
        domain=np.array(domains or ["chat"] * m)[request],
        prompt_tokens=100 + request,
        arrival_seconds=None if arrivals is None else np.array(arrivals)[request],
    )


def workload_of(n: int, **columns: object) -> Workload:
    return Workload("w", np.arange(n, dtype=float), **columns)  # type: ignore[arg-type]


@settings(max_examples=40)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 60), st.integers(0, 60), seeds)
def test_other_requests_never_move_a_request(lengths: list[int], n: int, more: int, seed: int) -> None:
    trace = trace_of(lengths)
    short, long = assign(trace, workload_of(n), seed), assign(trace, workload_of(n + more), seed)
    np.testing.assert_array_equal(short.first, long.first[:n])
    np.testing.assert_array_equal(short.decode_tokens, np.array(lengths)[short.first])
    np.testing.assert_array_equal(short.prompt_tokens, 100 + short.first)


@settings(max_examples=40)
@given(st.integers(1, 7), st.integers(1, 5), seeds)
def test_whole_passes_use_every_traced_request_equally_often(m: int, passes: int, seed: int) -> None:
    first = assign(trace_of([3] * m), workload_of(m * passes), seed).first
    np.testing.assert_array_equal(np.bincount(first, minlength=m), np.full(m, passes))


def test_arrivals_and_lengths_are_drawn_from_streams_of_their_own() -> None:
    trace = trace_of([1, 2, 3, 4, 5])
    slow, fast = poisson(1.0, requests=50, seed=3), poisson(9.0, requests=50, seed=4)
    np.testing.assert_array_equal(assign(trace, slow, 7).first, assign(trace, fast, 7).first)
    assert not np.array_equal(assign(trace, slow, 7).first, assign(trace, slow, 8).first)


@settings(max_examples=40)
@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=12), seeds)
def test_next_request_is_one_cycle_within_each_domain(domains: list[str], seed: int) -> None:
    traced = traced_requests(trace_of([2] * len(domains), domains), seed)
    for begin in range(len(domains)):
        seen, at = [], begin
        for _ in range(domains.count(domains[begin])):
            seen.append(at)
            at = int(traced.next_request[at])
        assert at == begin
        assert sorted(seen) == [i for i, d in enumerate(domains) if d == domains[begin]]


def test_domains_keep_to_their_own_and_do_not_disturb_each_other() -> None:
    trace = trace_of([2] * 6, ["math", "chat", "math", "chat", "code", "chat"])
    codes = np.array([0, 1, 1, 0, 1, 0, 0, 1])
    mixed = assign(trace, workload_of(8, domain=codes, domain_names=("chat", "math")), 5)
    assert set(mixed.first[codes == 0]) == {1, 3, 5}
    assert set(mixed.first[codes == 1]) == {0, 2}
    alone = assign(trace, workload_of(4, domain=np.zeros(4, int), domain_names=("math",)), 5)
    np.testing.assert_array_equal(alone.first, mixed.first[codes == 1])
    with pytest.raises(
        WorkloadError, match=r"row 1: domain 'poetry' is not in the trace .* chat, code, math"
    ):
        assign(trace, workload_of(2, domain=np.array([0, 1]), domain_names=("chat", "poetry")), 5)
    free = assign(
        trace, workload_of(12, domain=np.zeros(12, int), domain_names=("poetry",)), 5, by_domain=False
    )
    assert set(free.first) == set(range(6))


def test_lengths_of_the_workload_win_and_chains_are_said() -> None:
    trace = trace_of([4, 4])
    lengths = workload_of(4, prompt_tokens=np.array([1, 2, 3, 4]), output_tokens=np.array([1, 5, 6, 50]))
    assignment = assign(trace, lengths)
    np.testing.assert_array_equal(assignment.decode_tokens, [0, 4, 5, 49])
    np.testing.assert_array_equal(assignment.prompt_tokens, [1, 2, 3, 4])
    assert "50 % of requests are longer" in assignment.warnings[0]
    short = assign(trace, workload_of(2, output_tokens=np.array([2, 5])))
    assert short.warnings == []
    assert lengths.warnings == []


def test_arrivals_of_a_trace_replay_its_own_requests(tmp_path: Path) -> None:
    trace = trace_of([3, 5, 2], ["a", "b", "a"], arrivals=[2.0, 0.5, 1.0], first_id=40)
    trace.save(tmp_path / "log.parquet")
    workload = load_workload(tmp_path / "log.parquet")
    np.testing.assert_array_equal(workload.arrival_seconds, [0.5, 1.0, 2.0])
    np.testing.assert_array_equal(workload.output_tokens, [6, 3, 4])
    np.testing.assert_array_equal(workload.prompt_tokens, [101, 102, 100])
    for seed in (0, 1):
        assignment = assign(trace, workload, seed)
        np.testing.assert_array_equal(assignment.first, [1, 2, 0])
        np.testing.assert_array_equal(assignment.decode_tokens, [5, 2, 3])
        assert assignment.warnings == []
    other = assign(trace_of([9, 9, 9], ["a", "b", "a"], first_id=40), workload)
    np.testing.assert_array_equal(other.decode_tokens, [5, 2, 3])
    assert "another confidence trace" in other.warnings[-1]


def test_traces_without_usable_arrivals_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "t.parquet"
    trace_of([3]).save(file)
    with pytest.raises(WorkloadError, match="no column arrival_seconds"):
        load_workload(file)
    for request, arrival, message in (
        ([1, 1], [0.0, 1.0], "row 2: arrival_seconds 1.0 differs"),
        ([1, 2, 1], [0.0, 0.0, 0.0], "not together"),
        ([1], [-1.0], "row 1: arrival_seconds -1.0"),
        ([1], [None], "arrival_seconds has an empty entry"),
        ([], [], "holds no row"),
    ):
        n = len(request)
        columns = {
            "request": pa.array(request, pa.int32()),
            "position": pa.array(range(n), pa.int32()),
            "accepted": pa.array([0] * n, pa.int8()),
            "arrival_seconds": pa.array(arrival, pa.float64()),
        }
        pq.write_table(pa.table(columns), file)
        with pytest.raises(WorkloadError, match=message):
            load_workload(file)


def test_a_flat_parquet_file_is_one_row_a_request(tmp_path: Path) -> None:
    file = tmp_path / "flat.parquet"
    table = {"arrival_seconds": [0.0, 2.0], "prompt_tokens": [5, 6], "domain": ["a", "b"]}
    pq.write_table(pa.table(table), file)
    workload = load_workload(file)
    np.testing.assert_array_equal(workload.prompt_tokens, [5, 6])
    assert workload.domain_names == ("a", "b")
    pq.write_table(pa.table({"arrival_seconds": [0.0, None]}), file)
    with pytest.raises(WorkloadError, match="row 2: arrival_seconds is missing"):
        load_workload(file)


def test_a_sequential_trace_is_measured_in_tokens_not_rows() -> None:
    trace = Trace.from_arrays(
        request=[0, 0, 0],
        position=[0, 3, 4],
        confidence_logit=np.zeros((3, 2), dtype=np.float32),
        accepted=[2, 0, 1],
        metadata={"mode": "sequential"},
    )
    np.testing.assert_array_equal(assign(trace, workload_of(1)).decode_tokens, [6])


def test_bundled_traces_take_a_workload() -> None:
    trace = load_trace("chat")
    assignment = assign(trace, poisson(5.0, requests=1000, seed=1), 1)
    assert (assignment.decode_tokens > 0).all()
    assert len(np.unique(assignment.first)) == min(1000, len(trace.starts))
