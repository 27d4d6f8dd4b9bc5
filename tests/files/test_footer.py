"""The footer of a Parquet file: Arrow's own count, and what is refused."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsched.errors import SpecschedError
from specsched.files.footer import FooterError, values_held
from specsched.files.parquet import read_parquet


def written(table: pa.Table, **options: object) -> bytes:
    stream = io.BytesIO()
    pq.write_table(table, stream, **options)
    return stream.getvalue()


@given(
    cells=st.lists(st.none() | st.lists(st.none() | st.integers(-5, 5), max_size=4), max_size=40),
    rows=st.integers(1, 17),
    version=st.sampled_from(["1.0", "2.0"]),
)
def test_it_counts_what_arrow_counts(cells: list[list[int | None] | None], rows: int, version: str) -> None:
    table = pa.table(
        {
            "nested": pa.array(cells, pa.list_(pa.int64())),
            "text": pa.array(["x" * 300] * len(cells), pa.string()),
            "pair": pa.array(
                [{"a": 1, "b": 2.5}] * len(cells), pa.struct({"a": pa.int8(), "b": pa.float64()})
            ),
        },
        metadata={"key": "value" * 100},
    )
    raw = written(table, row_group_size=rows, data_page_version=version)
    about = pq.read_metadata(io.BytesIO(raw))
    groups = [about.row_group(g) for g in range(about.num_row_groups)]
    expected = sum(group.column(c).num_values for group in groups for c in range(about.num_columns))
    assert values_held(io.BytesIO(raw)) == expected


@given(data=st.data())
def test_a_damaged_footer_is_counted_or_refused(data: st.DataObject) -> None:
    raw = bytearray(written(pa.table({"a": [1, 2, 3], "b": [[1], [], [2, 3]]})))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(FooterError):
        values_held(io.BytesIO(bytes(raw)))


def test_a_list_of_very_many_values_is_refused_by_a_small_file(tmp_path: Path) -> None:
    values = pa.array([7], pa.int64()).take(pa.array([0] * 3_000_000))
    table = pa.table({"a": pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)})
    path = tmp_path / "bomb.parquet"
    path.write_bytes(written(table, compression="zstd"))
    assert path.stat().st_size < 10_000
    with pytest.raises(SpecschedError, match=r"bomb\.parquet: 3,000,000 values, more than the 1,000,000"):
        read_parquet(path, SpecschedError, most_values=1_000_000)


def test_a_damaged_column_does_not_end_the_process(tmp_path: Path) -> None:
    """Arrow ends it (std::terminate) where a histogram of sizes has another length than it expects."""
    raw = written(pa.table({"a": [[1.5, 2.5], [0.5]] * 8}))
    path = tmp_path / "damaged.parquet"
    program = (
        "import sys\nfrom specsched.errors import SpecschedError\n"
        "from specsched.files.parquet import read_parquet\n"
        "raw = open(sys.argv[1], 'rb').read()\n"
        "for at in range(len(raw) - 700, len(raw) - 8, 5):\n"
        "    open(sys.argv[1], 'wb').write(raw[:at] + bytes([raw[at] ^ 4]) + raw[at + 1:])\n"
        "    try:\n        read_parquet(sys.argv[1], SpecschedError)\n"
        "    except SpecschedError:\n        pass\n"
    )
    path.write_bytes(raw)
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
