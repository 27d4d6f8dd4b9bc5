"""Units told by evidence, coarse clocks spread, JSON lists, and columns that are named as not used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specsched.errors import WorkloadError
from specsched.workload import load_workload
from specsched.workload.clock import tick_of

EPOCH = 1_787_366_173  # August 2026, in seconds since 1970


def lines(folder: Path, rows: list[dict[str, Any]], name: str = "a.jsonl") -> Path:
    file = folder / name
    file.write_text("\n".join(json.dumps(row) for row in rows))
    return file


def column(folder: Path, times: Any, name: str = "arrival_seconds") -> Path:
    file = folder / "a.csv"
    file.write_text(f"{name},prompt_tokens,output_tokens\n" + "".join(f"{t},10,20\n" for t in times))
    return file


def lengths(times: Any, **more: Any) -> list[dict[str, Any]]:
    return [{"timestamp": t, "input_length": 10, "output_length": 20, **more} for t in times]


def test_the_same_columns_are_seconds_with_sessions_and_milliseconds_without(tmp_path: Path) -> None:
    """Qwen-Bailian's usage traces and Mooncake's: one reading is a thousand times the other."""
    seconds = np.round(np.cumsum(np.full(60, 0.313)), 3)
    bailian = load_workload(lines(tmp_path, lengths(seconds, chat_id=1, turn=1, hash_ids=[3])))
    assert bailian.rate == pytest.approx(1 / 0.313, rel=1e-3)
    assert any("read as seconds" in said and "3.19 requests/s" in said for said in bailian.warnings)
    assert any("chat_id, turn, hash_ids not used" in said for said in bailian.warnings)
    mooncake = load_workload(lines(tmp_path, lengths(range(0, 60_000, 1_000 // 3), hash_ids=[3])))
    assert mooncake.rate == pytest.approx(3.003, rel=1e-2)
    assert any("hash_ids not used" in said for said in mooncake.warnings)
    fractions = load_workload(lines(tmp_path, lengths(seconds)))
    assert fractions.rate == pytest.approx(bailian.rate)


def test_whole_seconds_are_not_read_as_milliseconds_of_thousands_of_requests(tmp_path: Path) -> None:
    times = np.repeat(np.arange(100), 4)  # four requests/s; as milliseconds 4,000
    workload = load_workload(lines(tmp_path, lengths(times.tolist())))
    assert workload.rate == pytest.approx(4.0, rel=0.02)
    assert any("read as seconds" in said for said in workload.warnings)


@pytest.mark.parametrize("unit", [1, 1_000, 1_000_000])
def test_epochs_are_known_by_their_range_whatever_the_column_is_called(tmp_path: Path, unit: int) -> None:
    times = [EPOCH * unit + i * max(unit // 8, 1) for i in range(40)]
    workload = load_workload(column(tmp_path, times))
    assert workload.arrival_seconds[0] == 0.0
    assert workload.rate == pytest.approx(1.0 if unit == 1 else 8.0)
    assert workload.metadata["epoch_seconds"] == pytest.approx(EPOCH)
    assert any("2026-08-" in said for said in workload.warnings) is (unit != 1)


def test_a_strange_rate_of_a_column_called_seconds_is_said_and_kept(tmp_path: Path) -> None:
    workload = load_workload(column(tmp_path, range(0, 40 * 125, 125)))  # 0.008/s; 8/s were it milliseconds
    assert workload.rate == pytest.approx(0.008)
    assert any("0.008 requests/s, not 8 requests/s as milliseconds" in said for said in workload.warnings)
    named = load_workload(column(tmp_path, range(0, 40 * 125, 125), "arrival_ms"))
    assert named.rate == pytest.approx(8.0)
    assert not named.warnings


def test_plain_seconds_are_taken_without_a_word(tmp_path: Path) -> None:
    times = np.cumsum(np.random.default_rng(0).exponential(0.2, 100))
    workload = load_workload(column(tmp_path, times))
    np.testing.assert_allclose(workload.arrival_seconds, times, rtol=1e-12)
    assert not workload.warnings


@pytest.mark.parametrize("tick", [1.0, 3.0, 0.1, 60.0])
def test_a_coarse_clock_is_spread_within_its_ticks(tmp_path: Path, tick: float) -> None:
    """No arrival leaves its tick, no row changes its place, and gaps become those of the true process."""
    true = np.cumsum(np.random.default_rng(1).exponential(tick / 8, 4000))
    seen = np.floor(true / tick) * tick
    workload = load_workload(column(tmp_path, [f"{t:.1f}" for t in seen]))
    at = workload.arrival_seconds
    np.testing.assert_array_equal(np.floor(at / tick + 1e-9), np.rint(seen / tick))
    assert workload.burstiness == pytest.approx(1.0, abs=0.06)
    assert any(f"ticks every {tick:g} s" in said for said in workload.warnings)
    again = load_workload(column(tmp_path, [f"{t:.1f}" for t in seen]))
    np.testing.assert_array_equal(again.arrival_seconds, at)


def test_a_tick_that_jitters_by_a_millisecond_is_a_tick() -> None:
    ticks = np.repeat(np.arange(50) * 3.0, 10)
    ticks[150:160] -= 0.001
    assert tick_of(ticks) == 3.0


def test_clocks_that_put_one_request_on_a_tick_are_left_alone() -> None:
    assert tick_of(np.arange(100.0)) is None
    assert tick_of(np.cumsum(np.random.default_rng(0).exponential(1.0, 500))) is None
    assert tick_of(np.zeros(50)) is None
    assert tick_of(np.repeat(np.arange(5.0), 2)) is None, "too few to tell"


def test_a_json_list_reads_like_json_lines(tmp_path: Path) -> None:
    rows = lengths(range(0, 6_000, 100))
    flat = tmp_path / "a.json"
    for text in (json.dumps(rows), json.dumps(rows, indent=1)):
        flat.write_text(text)
        listed = load_workload(flat)
        by_line = load_workload(lines(tmp_path, rows))
        np.testing.assert_array_equal(listed.arrival_seconds, by_line.arrival_seconds)
        np.testing.assert_array_equal(listed.output_tokens, by_line.output_tokens)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "empty list"),
        ("[1, 2]", "row 1: is int"),
        ('[{"timestamp": 1', "is not JSON: it ends too early"),
        (
            '[{"timestamp": 1, "input_length": 2, "output_length": 3}, {"timestamp": 2}]',
            "row 2: input_length",
        ),
        ('[{"when": 1}]', "no known format has the columns when"),
    ],
)
def test_json_lists_that_cannot_be_read_get_one_short_sentence(
    tmp_path: Path, text: str, message: str
) -> None:
    file = tmp_path / "a.json"
    file.write_text(text)
    with pytest.raises(WorkloadError, match=message) as caught:
        load_workload(file)
    assert len(str(caught.value)) < 700
