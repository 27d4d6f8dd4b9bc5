"""Results of specdec_bench and SPEED-Bench: histograms of accepted lengths, bonus included."""

from __future__ import annotations

import numpy as np

from ..errors import FormatError
from .acceptance import Acceptance, from_histogram
from .document import Hints
from .opened import Opened
from .values import integer, mapping, number, numbers

HISTOGRAM, CONDITIONAL, MEAN = "Acceptance_Length_Histogram", "Conditional_Acceptance_Rate", "Average_AL"
KEYS = frozenset({HISTOGRAM})
_TOLERANCE = 6e-3  # rates are rounded to three digits, means over requests are not means over steps


def read(opened: Opened, hints: Hints) -> tuple[Acceptance, list[str]]:
    """Entry n of the histogram: steps that emitted n tokens, the bonus included, so n - 1 drafts accepted.

    The conditional rates of the file, which leave the first position out or hold all of them, are held
    against it. Raises FormatError where they disagree.
    """
    where, data = str(opened.path), opened.data
    given = mapping(data[HISTOGRAM], f"{where}: {HISTOGRAM}")
    lengths = [_length(key, f"{where}: {HISTOGRAM}") for key in given]
    if not lengths or len(set(lengths)) != len(lengths):
        raise FormatError(f"{where}: {HISTOGRAM} is empty or names a length twice")
    counts = np.zeros(max(2, max(lengths)))
    counts[np.array(lengths) - 1] = numbers(list(given.values()), f"{where}: {HISTOGRAM}", positive=False)
    notes = [f"{counts.sum():.0f} steps."]
    found = from_histogram(counts, False, "specdec-bench", tuple(notes))
    if data.get(CONDITIONAL) is not None:
        stated = mapping(data[CONDITIONAL], f"{where}: {CONDITIONAL}")
        for key, value in stated.items():
            k = _length(key, f"{where}: {CONDITIONAL}")
            rate = number(value, f"{where}: {CONDITIONAL}[{key}]", 0.0, 1.0)
            if k > found.block_size or abs(found.conditional[k - 1] - rate) > _TOLERANCE:
                ours = found.conditional[k - 1] if k <= found.block_size else float("nan")
                raise FormatError(
                    f"{where}: {CONDITIONAL}[{key}] is {rate:g}, the histogram gives {ours:.3f}; the file "
                    "contradicts itself"
                )
    if data.get(MEAN) is not None:
        mean = number(data[MEAN], f"{where}: {MEAN}", 1.0)
        if abs(mean - found.mean_length) > 0.05 * mean:
            notes.append(
                f"{MEAN} {mean:g} is a mean over requests; over steps it is {found.mean_length:.3f}: "
                "requests differ."
            )
    return found, notes


def _length(key: str, where: str) -> int:
    if not key.isdecimal():
        raise FormatError(f"{where}: key {key!r} is not a length")
    return integer(int(key), f"{where}: key {key}", 1, 129)
