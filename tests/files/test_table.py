"""CSV as columns: what the csv module writes comes back, and what is no table is refused by its row."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsched.errors import FormatError
from specsched.files.table import read_columns

NAMES = st.lists(st.from_regex(r"[a-z][a-z_0-9]{0,8}", fullmatch=True), min_size=1, max_size=5, unique=True)
# One line each and no cell that begins a comment; the ends of cells are stripped by the reader.
CELLS = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=6).filter(
    lambda cell: not cell.startswith("#")
)


@given(st.data())
def test_what_is_written_is_read(data: st.DataObject) -> None:
    names = data.draw(NAMES)
    rows = data.draw(st.lists(st.lists(CELLS, min_size=len(names), max_size=len(names)), max_size=4))
    file = io.StringIO()
    csv.writer(file).writerows([names, *rows])
    text = file.getvalue().replace("\r\n", "\n# a comment, of two\n\n")
    expected = {name: [row[i] for row in rows] for i, name in enumerate(names)}
    assert read_columns("a.csv", text, FormatError) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n1,2\n3\n", "a.csv, row 3: 1 field where the header has 2"),
        ("a,b\n1,2,3\n", "a.csv, row 2: 3 fields where the header has 2"),
        ("a,b,a\n1,2,3\n", "a.csv: the header repeats a column"),
    ],
)
def test_rows_that_do_not_fit_are_named(text: str, said: str) -> None:
    with pytest.raises(FormatError, match=said):
        read_columns("a.csv", text, FormatError)


def test_nothing_is_no_columns() -> None:
    assert read_columns("a.csv", "# only this\n\n", FormatError) == {}
