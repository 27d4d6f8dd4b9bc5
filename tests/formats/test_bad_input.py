"""Bad input: one clear error that names the file, the place and the way out; never a traceback, never a
guess.
"""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specsched import formats
from specsched.errors import FormatError, SpecschedError

DATA = Path(__file__).parent / "data"
TEXTS = sorted(p.name for p in DATA.iterdir() if p.suffix in (".json", ".jsonl"))


def refuse(path, match, **hints):
    with pytest.raises(FormatError, match=match) as info:
        formats.read(path, **hints)
    assert str(path.name) in str(info.value)
    return str(info.value)


def edited(tmp_path, name, **changes):
    path = tmp_path / name
    path.write_text(json.dumps({**json.loads((DATA / name).read_text()), **changes}))
    return path


def test_missing_empty_and_folder(tmp_path):
    refuse(tmp_path / "none.json", "cannot read")
    (tmp_path / "empty.json").write_text(" \n")
    refuse(tmp_path / "empty.json", "is empty")
    with pytest.raises(FormatError, match="is a folder"):
        formats.read(tmp_path)


@pytest.mark.parametrize("name", TEXTS)
def test_truncated_json_never_passes(tmp_path, name):
    text = (DATA / name).read_text()
    path = tmp_path / name
    # Cut inside the last row or list: what is left must not be read as a shorter but whole table.
    path.write_text(text[: len(text.rstrip()) - 5])
    with pytest.raises(SpecschedError, match="truncated"):
        formats.read(path)


def test_truncated_parquet_and_csv(tmp_path):
    table = pa.table({"run_id": [1], "acceptances": [[True]]})
    pq.write_table(table, tmp_path / "t.parquet")
    raw = (tmp_path / "t.parquet").read_bytes()
    (tmp_path / "t.parquet").write_bytes(raw[: len(raw) // 2])
    refuse(tmp_path / "t.parquet", r"truncated\?")
    (tmp_path / "cost.csv").write_text("batch_tokens,median_ms,min_ms\n1,5.0,4.9\n8,5")
    refuse(tmp_path / "cost.csv", r"row 3: 2 fields where the header has 3; truncated\?|truncated file")


def test_unknown_files_are_refused_with_what_was_seen(tmp_path):
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"token_counts": [1], "foo": 2}))
    message = refuse(path, "no known format")
    assert "foo, token_counts" in message
    assert "Nearest: trtllm, which would also need step_time_ms" in message
    (tmp_path / "prose.txt").write_text("Dear all, the table is attached, best wishes\n")
    refuse(tmp_path / "prose.txt", "Seen: text without any keys")
    (tmp_path / "bytes.bin").write_bytes(b"\x00\xff\xfe")
    refuse(tmp_path / "bytes.bin", "neither Parquet nor UTF-8")


def test_ambiguous_files_are_refused_with_both_names(tmp_path):
    both = {
        **json.loads((DATA / "sglang_1d.json").read_text()),
        **json.loads((DATA / "sglang_additive.json").read_text()),
    }
    path = tmp_path / "both.json"
    path.write_text(json.dumps(both))
    refuse(path, "could be sglang-1d and sglang")


@pytest.mark.parametrize(
    ("name", "changes", "match"),
    [
        ("sglang_1d.json", {"sample_batch_tokens": [8, 16, 16, 64, 96, 128]}, "row 3: 16 follows 16"),
        (
            "sglang_1d.json",
            {"sample_batch_tokens": [16, 8, 32, 64, 96, 128]},
            "row 2: 8 follows 16; sizes must rise",
        ),
        ("sglang_1d.json", {"sample_batch_tokens": [8, 16, 32]}, "different lengths"),
        ("sglang_1d.json", {"sample_batch_tokens": [8, 16.5, 32, 64, 96, 128]}, "not a whole number"),
        (
            "sglang_1d.json",
            {"sample_steps_per_sec": [1, 2, float("nan"), 4, 5, 6]},
            "row 3: nan is not a finite",
        ),
        (
            "sglang_1d.json",
            {"sample_steps_per_sec": [150, None, 3, 4, 5, 6]},
            "row 2: expected a number, found None",
        ),
        ("sglang_1d.json", {"sample_steps_per_sec": 12}, "expected a list"),
        ("sglang_1d.json", {"max_batch_tokens": 64}, "below the last size 128"),
        ("sglang_1d.json", {"sample_batch_tokens": [1], "sample_steps_per_sec": [1.0]}, "one size only"),
        ("trtllm_step_table.json", {"step_time_ms": [5.0, 5.0, 5.0, 5.0]}, "flat"),
        ("trtllm_step_table.json", {"step_time_ms": [5.0, -5.0, 5.0, 5.0]}, "row 2"),
        ("trtllm_step_table.json", {"batch_overhead_ms": [0.1]}, "different lengths"),
        ("trtllm_exact.json", {"schema_version": 3}, "schema_version 3"),
        ("trtllm_exact.json", {"cost_tables": {}}, "cost_tables is empty"),
        ("trtllm_exact.json", {"cost_tables": {"x": {}}}, "not a graph batch size"),
        ("sglang_additive.json", {"theta_seconds": [0.001]}, "different lengths"),
    ],
)
def test_broken_tables_name_the_key_and_row(tmp_path, name, changes, match):
    refuse(edited(tmp_path, name, **changes), match)


def test_milliseconds_given_as_seconds_are_called_out_and_the_other_way_round(tmp_path):
    additive = json.loads((DATA / "sglang_additive.json").read_text())
    thousand = {k: [1e3 * v for v in additive[k]] for k in ("alpha_seconds", "theta_seconds")}
    path = edited(tmp_path, "sglang_additive.json", bias_seconds=4.0, **thousand)
    refuse(path, "look like ms given as s")
    path = edited(tmp_path, "trtllm_step_table.json", step_time_ms=[0.005, 0.0055, 0.0075, 0.009])
    refuse(path, "look like s given as ms")
    path = edited(tmp_path, "trtllm_step_table.json", step_time_ms=[5.0, 5500.0, 7.5, 9.0])
    refuse(path, "row 2: .* one row is in another unit")


def test_a_row_of_a_log_that_is_no_object_is_refused(tmp_path):
    path = tmp_path / "rounds.jsonl"
    path.write_text((DATA / "sglang_rounds.jsonl").read_text().replace("\n", "\n[1]\n", 1))
    refuse(path, "row 2: expected an object")


def test_no_round_matching_its_batch_is_an_error(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text(
        (DATA / "sglang_rounds.jsonl").read_text().replace('"match_fraction": 1.0', '"match_fraction": 0.1')
    )
    refuse(path, "no round matched")


@pytest.mark.parametrize(
    ("hints", "match"),
    [
        ({"capture_limt": 512}, "unknown hint 'capture_limt'; did you mean 'capture_limit'"),
        ({"capture_limit": "many"}, "hint capture_limit is 'many'; it must be a number"),
        ({"capture_limit": 12.5}, "must be a whole number"),
        ({"gpu_count": -1}, "must be a number of at least 0"),
    ],
)
def test_misspelt_or_wrong_hints_are_never_ignored(hints, match):
    with pytest.raises(FormatError, match=match):
        formats.read(DATA / "vllm_verify.csv", **hints)


def test_runs_of_a_latency_pair_may_come_as_one_text():
    runs = f"{DATA / 'vllm_latency_long.json'}:8:1024:264"
    profile = formats.read(DATA / "vllm_latency_short.json", batch_size=8, output_len=64, runs=runs).object
    assert profile.seconds(8, 8, 0) == pytest.approx(0.008, rel=1e-9)
    with pytest.raises(FormatError, match="is not PATH:BATCH:INPUT:OUTPUT"):
        formats.read(DATA / "vllm_latency_short.json", batch_size=8, output_len=64, runs="long.json")


def test_a_draft_of_seconds_is_told_by_the_file_it_is_in(tmp_path):
    (tmp_path / "draft.csv").write_text("num_reqs,median_ms\n1,0.9\n4,42949672960\n")
    refuse(DATA / "vllm_verify.csv", "draft.csv: .* check the unit", draft=tmp_path / "draft.csv")
