"""What is looked at of a profile's curves."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from specsched.profile.lint import sizes_shown


@given(
    last=st.integers(1, 2**31 - 1),
    keep=st.lists(st.integers(1, 2**31), max_size=5),
    most=st.integers(2, 300),
)
def test_sizes_to_draw_are_few_rise_and_keep_both_sides_of_jumps(
    last: int, keep: list[int], most: int
) -> None:
    sizes = sizes_shown(last, keep, most)
    assert (np.diff(sizes) > 0).all()
    assert (sizes[0], sizes[-1]) == (1, last)
    assert len(sizes) <= most + 2 * len(keep)
    if last <= most:
        assert len(sizes) == last
    assert {size for at in keep for size in (at, at + 1) if size <= last} <= set(sizes.tolist())
