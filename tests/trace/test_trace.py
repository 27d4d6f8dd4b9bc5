"""Traces: what is read is what was written, what is refused, and with which row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsched.errors import TraceError
from specsched.inspection import inspect_object
from specsched.trace import Trace, load_trace, synthesise
from specsched.trace.file import from_arrow


def rows(lengths: list[int], gamma: int = 3, seed: int = 0, **changes: Any) -> dict[str, Any]:
    """Arguments of Trace.from_arrays for requests of these lengths, random inside."""
    rng = np.random.default_rng(seed)
    n = sum(lengths)
    arrays = {
        "request": np.repeat(np.arange(len(lengths)) * 10, lengths),
        "position": np.concatenate([np.arange(m) for m in lengths]) if lengths else np.zeros(0, int),
        "confidence_logit": rng.normal(size=(n, gamma)),
        "accepted": rng.integers(0, gamma + 1, n),
        "domain": np.repeat([("a", "b")[i % 2] for i in range(len(lengths))], lengths),
        "prompt_tokens": np.repeat(np.arange(len(lengths)) + 5, lengths),
        "metadata": {"licence": "CC0"},
    }
    return arrays | changes


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    lengths = draw(st.lists(st.integers(1, 12), min_size=1, max_size=6))
    arguments = rows(lengths, draw(st.integers(1, 9)), draw(st.integers(0, 99)))
    if draw(st.booleans()):
        arguments["arrival_seconds"] = np.repeat(np.arange(len(lengths)) * 0.5, lengths)
    return Trace.from_arrays(**arguments)


def same(a: Trace, b: Trace) -> bool:
    names = ("request", "position", "confidence_logit", "accepted", "prompt_tokens")
    arrivals = [np.zeros(0) if t.arrival_seconds is None else t.arrival_seconds for t in (a, b)]
    texts = [[t.domain_names[c] for c in t.domain] for t in (a, b)]
    return (
        all(np.array_equal(getattr(a, n), getattr(b, n)) for n in names)
        and np.array_equal(*arrivals)
        and texts[0] == texts[1]
        and a.metadata == b.metadata
    )


@given(traces())
def test_what_is_written_is_read_back(trace: Trace) -> None:
    assert same(from_arrow(trace.to_arrow()), trace)


def test_save_and_load_through_a_file(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    trace = Trace.from_arrays(**rows([4, 2, 5]))
    trace.save(path)
    again = load_trace(path)
    assert same(again, trace)
    assert again.name == "t"
    assert [p.name for p in tmp_path.iterdir()] == ["t.parquet"]
    schema = pq.read_schema(path)
    types = [str(schema.field(name).type) for name in ("request", "position", "accepted", "prompt_tokens")]
    assert types == ["int32", "int32", "int8", "int32"]
    assert str(schema.field("confidence_logit").type).startswith("fixed_size_list")
    assert json.loads(schema.metadata[b"specsched"])["block_size"] == 3


def test_types_are_those_of_the_contract() -> None:
    trace = Trace.from_arrays(**rows([4, 2]))
    assert trace.confidence_logit.dtype == np.float32
    assert {
        getattr(trace, n).dtype for n in ("request", "position", "accepted", "domain", "prompt_tokens")
    } == {np.dtype(np.int64)}
    assert trace.confidence_logit.flags.c_contiguous
    assert trace.request_ids.tolist() == [0, 10]
    assert trace.starts.tolist() == [0, 4]
    assert trace.lengths.tolist() == [4, 2]
    assert trace.block_size == 3


def test_accepted_survives_sums_that_int8_would_overflow(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    Trace.from_arrays(**rows([300], gamma=7, accepted=np.full(300, 7))).save(path)
    assert load_trace(path).accepted.sum() == 2100


@given(traces(), st.data())
def test_select_keeps_file_order_and_whole_requests(trace: Trace, data: st.DataObject) -> None:
    wanted = data.draw(st.sets(st.sampled_from(trace.request_ids.tolist()), min_size=1))
    part = trace.select(reversed(sorted(wanted)))
    keep = np.isin(trace.request, sorted(wanted))
    assert part.request.tolist() == trace.request[keep].tolist()
    assert np.array_equal(part.confidence_logit, trace.confidence_logit[keep])
    assert part.lengths.tolist() == [
        n for r, n in zip(trace.request_ids, trace.lengths, strict=True) if r in wanted
    ]


def test_select_refuses_unknown_and_none() -> None:
    trace = Trace.from_arrays(**rows([4, 2]))
    with pytest.raises(TraceError, match="no request 7"):
        trace.select([0, 7])
    with pytest.raises(TraceError, match="no request selected"):
        trace.select([])


def changed(name: str, row: int, value: Any, base: dict[str, Any] | None = None) -> dict[str, Any]:
    arguments = base or rows([4, 3, 2])
    array = np.array(arguments[name])
    array[row] = value
    return arguments | {name: array}


SEQUENTIAL = {"mode": "sequential"}
NAN = rows([4, 3, 2])["confidence_logit"].copy()
NAN[5, 1] = np.nan
REFUSED = [
    ("no rows", rows([]), "has no rows"),
    ("no drafts", rows([2], confidence_logit=np.zeros((2, 0)), accepted=[0, 0]), "0 entries"),
    ("one dimension", rows([2], confidence_logit=[0.1, 0.2]), "1 dimensions"),
    ("NaN logit", rows([4, 3, 2], confidence_logit=NAN), r"row 5 \(request 10, position 1\): .* 2 is NaN"),
    ("accepted too large", changed("accepted", 6, 4), r"row 6 \(request 10, position 2\): accepted is 4"),
    ("accepted negative", changed("accepted", 0, -1), "row 0 .* accepted is -1"),
    ("accepted not whole", rows([2], accepted=[0.5, 1]), "row 0: accepted is 0.5"),
    ("accepted a text", rows([2], accepted=["a", "b"]), "accepted holds"),
    ("accepted too short", rows([3], accepted=[0, 1]), r"shape \(2,\); confidence_logit has 3 rows"),
    ("position from 1", changed("position", slice(0, 4), [1, 2, 3, 4]), "row 0 .*, 0 was due"),
    ("position skipped", changed("position", 2, 3), r"row 2 .*, 2 was due"),
    ("position repeated", changed("position", 1, 0), "row 1 .*, 1 was due"),
    ("request apart", changed("request", slice(7, 9), [0, 0]), r"row 7 .* seen in earlier rows"),
    ("negative request", changed("request", slice(0, 4), [-1] * 4), "negative"),
    ("prompt negative", changed("prompt_tokens", slice(0, 4), [-5] * 4), "prompt_tokens is -5"),
    ("prompt varies", changed("prompt_tokens", 2, 99), "row 2 .* prompt_tokens differs"),
    ("domain varies", changed("domain", 1, "b"), "row 1 .* domain differs"),
    ("arrival NaN", rows([2, 2], arrival_seconds=[0.0, 0.0, np.nan, np.nan]), "arrival_seconds"),
    ("arrival negative", rows([2], arrival_seconds=[-1.0, -1.0]), "arrival_seconds must be"),
    ("arrival varies", rows([2], arrival_seconds=[0.0, 1.0]), "arrival_seconds differs"),
    ("unknown mode", rows([2], metadata={"mode": "sparse"}), "mode is 'sparse'"),
    ("another schema", rows([2], metadata={"schema": "trace/0"}), "schema is 'trace/0'"),
    ("block size lies", rows([2], metadata={"block_size": 5}), "block_size is 5, but rows hold 3"),
    ("flag is a text", rows([2], metadata={"synthetic": "yes"}), "synthetic is 'yes'"),
    ("sequential falls", changed("position", 2, 0, rows([4], metadata=SEQUENTIAL)), "does not rise"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), [pytest.param(a, m, id=i) for i, a, m in REFUSED])
def test_refused_with_its_row(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TraceError, match=message) as caught:
        Trace.from_arrays(**arguments, where="a.parquet")
    assert str(caught.value).startswith("a.parquet")


def test_sequential_rows_may_skip() -> None:
    trace = Trace.from_arrays(
        **rows([3], position=[0, 4, 9], metadata={"mode": "sequential", "licence": "x"})
    )
    assert trace.mode == "sequential"
    assert "approximation" in trace.warnings[0]


# -- files -----------------------------------------------------------------------------------------------


def written(path: Path, change: Any) -> Path:
    """A trace file whose table went through `change` first."""
    pq.write_table(change(Trace.from_arrays(**rows([4, 3, 2])).to_arrow()), path)
    return path


def with_metadata(table: pa.Table, **changes: Any) -> pa.Table:
    about = json.loads(table.schema.metadata[b"specsched"]) | changes
    kept = {key: value for key, value in about.items() if value is not None}
    return table.replace_schema_metadata({"specsched": json.dumps(kept)})


def with_column(table: pa.Table, name: str, column: Any) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, column)


def with_logits(table: pa.Table, values: list[Any]) -> pa.Table:
    return with_column(table, "confidence_logit", pa.array(values))


FILES = [
    ("no metadata", lambda t: t.replace_schema_metadata({}), "no `specsched` entry"),
    ("metadata no JSON", lambda t: t.replace_schema_metadata({"specsched": "{"}), "not JSON"),
    ("metadata a list", lambda t: t.replace_schema_metadata({"specsched": "[]"}), "JSON object"),
    ("old: no schema", lambda t: with_metadata(t, schema=None), "schema is None"),
    ("old: no mode", lambda t: with_metadata(t, mode=None), 'mode is None; say "dense"'),
    ("no confidences", lambda t: t.drop_columns(["confidence_logit"]), "no column confidence_logit"),
    ("old: no domain", lambda t: t.drop_columns(["domain", "prompt_tokens"]), "no column domain, prompt"),
    ("null", lambda t: with_column(t, "accepted", pa.array([0, None] + [1] * 7)), "row 1: accepted is null"),
    ("null logit", lambda t: with_logits(t, [[0.1, None]] * 9), "row 0: confidence_logit holds"),
    ("ragged", lambda t: with_logits(t, [[0.1]] * 8 + [[0.1, 0.2]]), "row 8: 2 confidences"),
    ("scalar logit", lambda t: with_logits(t, [0.1] * 9), "fixed-size list"),
    ("texts accepted", lambda t: with_column(t, "accepted", pa.array(["1"] * 9)), "accepted has type string"),
    ("numbers as domain", lambda t: with_column(t, "domain", pa.array([1] * 9)), "expected texts"),
    ("no rows", lambda t: t.slice(0, 0), "has no rows"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "message"), [pytest.param(c, m, id=i) for i, c, m in FILES])
def test_broken_files_are_refused(tmp_path: Path, change: Any, message: str) -> None:
    path = written(tmp_path / "t.parquet", change)
    with pytest.raises(TraceError, match=message) as caught:
        load_trace(path)
    assert str(path) in str(caught.value)


def test_plain_lists_doubles_and_plain_texts_are_read(tmp_path: Path) -> None:
    whole = Trace.from_arrays(**rows([4, 3, 2]))

    def loosen(table: pa.Table) -> pa.Table:
        lists = pa.array([row.tolist() for row in whole.confidence_logit.astype(float)])
        texts = pa.array([whole.domain_names[c] for c in whole.domain])
        return with_column(with_column(table, "confidence_logit", lists), "domain", texts)

    assert same(load_trace(written(tmp_path / "t.parquet", loosen)), whole)


def test_several_row_groups_are_read(tmp_path: Path) -> None:
    whole = Trace.from_arrays(**rows([40, 30, 20]))
    pq.write_table(whole.to_arrow(), tmp_path / "t.parquet", row_group_size=7)
    assert same(load_trace(tmp_path / "t.parquet"), whole)


@pytest.mark.parametrize("keep", [0, 3, 100, -1])
def test_truncated_files_are_refused(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "t.parquet"
    Trace.from_arrays(**rows([50])).save(path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(TraceError, match="not a readable Parquet file"):
        load_trace(path)


def test_unknown_names_suggest_bundled_ones(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="did you mean 'qwen3-4b-chat'"):
        load_trace("qwen3-4b-chta")
    with pytest.raises(TraceError, match="is a folder"):
        load_trace(tmp_path)


# -- warnings and what is bundled ------------------------------------------------------------------------


def test_warnings_say_what_applies() -> None:
    assert Trace.from_arrays(**rows([2])).warnings == []
    sees = Trace.from_arrays(**rows([2], metadata={"licence": "x", "confidence_sees_token": True}))
    assert "not lossless" in sees.warnings[0]
    assert "no licence" in Trace.from_arrays(**rows([2], metadata={})).warnings[0]
    assert "synthetic" in synthesise([0.5], requests=2, output_tokens=5).warnings[0]


@pytest.mark.parametrize("name", ["chat", "math", "code", "qwen3-4b-chat", "qwen3-4b-math", "qwen3-4b-code"])
def test_bundled_traces(name: str) -> None:
    trace = load_trace(name)
    assert trace.mode == "dense"
    assert trace.block_size == 7
    assert trace.metadata["licence"]
    assert trace.synthetic == name.startswith("qwen3")
    assert any("synthetic" in w for w in trace.warnings) == trace.synthetic
    assert trace.domain_names == (name.rpartition("-")[2],)
    if trace.synthetic:
        assert len(trace) >= 20_000
        assert len(trace.request_ids) >= 300


# Figures 2 and 3 of the paper: conditional acceptance of DSpark for Qwen3-4B, tokens per step at γ = 7.
PUBLISHED = {
    "chat": ([0.7353, 0.7376, 0.7402, 0.7441, 0.7583, 0.7656, 0.7609], 3.4909),
    "math": ([0.9053, 0.8899, 0.8878, 0.8854, 0.8872, 0.8906, 0.8824], 5.5698),
    "code": ([0.8857, 0.8719, 0.8598, 0.8608, 0.8579, 0.8594, 0.8510], 5.1217),
}


@pytest.mark.parametrize("domain", PUBLISHED)
def test_synthetic_traces_decode_as_the_paper_says(domain: str) -> None:
    held = inspect_object(load_trace(f"qwen3-4b-{domain}"))
    acceptance, tokens = PUBLISHED[domain]
    assert held["conditional_acceptance"] == pytest.approx(acceptance, abs=0.002)
    assert held["emitted_per_step"] == pytest.approx(tokens, rel=0.01)
    errors = [held["positions"][k - 1]["ece"] for k in (1, 3, 5, 7)]
    assert errors == pytest.approx([0.057, 0.082, 0.058, 0.033], abs=0.002)
