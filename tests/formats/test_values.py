"""The unit that a step in another one is said to look like."""

from __future__ import annotations

import numpy as np
import pytest

from specsched.errors import FormatError
from specsched.formats.values import step_seconds


@pytest.mark.parametrize("real", ["s", "ms", "us"])
@pytest.mark.parametrize("given", ["s", "ms", "us"])
def test_the_unit_of_a_step_of_ten_milliseconds_is_known_whatever_is_claimed(real: str, given: str) -> None:
    size = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
    written = np.array([0.009, 0.010, 0.012]) / size[real]
    seconds = written * size[given]
    if real == given:
        assert step_seconds(seconds, "x", given) is seconds
        return
    with pytest.raises(FormatError, match=f"these look like {real} given as {given}"):
        step_seconds(seconds, "x", given)
