"""NVIDIA Model-Optimizer's `speculation_profile.json`: acceptance rates, conditional and marginal side by
side.

marginal_k = P(accepted ≥ k); conditional_k = marginal_k / marginal_{k-1}. Confusing the two is the classic
error, so all the identities the file can be held to are checked: it is refused when one fails.
"""

from __future__ import annotations

import numpy as np

from ..errors import FormatError
from .acceptance import Acceptance, from_survival
from .document import Hints
from .opened import Opened
from .values import integer, number, numbers

_TOLERANCE = 2e-3


def recognise(opened: Opened) -> bool:
    named = {"conditional_accept_rates", "marginal_accept_rates"} & opened.keys
    return opened.syntax == "json" and (bool(named) or "num_speculative_tokens" in opened.keys)


def read(opened: Opened, hints: Hints) -> tuple[Acceptance, list[str]]:
    """`Acceptance` of a measured profile; raises `FormatError` for a stub or rates that contradict each
    other.
    """
    where, data = str(opened.path), opened.data
    if data.get("measured") is False or not (
        data.get("conditional_accept_rates") or data.get("marginal_accept_rates")
    ):
        raise FormatError(
            f"{where}: a stub without measured rates; run the acceptance benchmark and export again"
        )
    conditional = _rates(data, "conditional_accept_rates", where)
    marginal = _rates(data, "marginal_accept_rates", where)
    if marginal is None:
        assert conditional is not None
        marginal = np.cumprod(conditional)
    if conditional is not None:
        _check_pair(conditional, marginal, where)
    stated = data.get("num_speculative_tokens")
    if stated is not None and integer(stated, f"{where}: num_speculative_tokens") != len(marginal):
        raise FormatError(f"{where}: num_speculative_tokens is {stated}, but there are {len(marginal)} rates")
    mean = data.get("mean_accept_length")
    mean = None if mean is None else number(mean, f"{where}: mean_accept_length", 1.0)
    if mean is not None and abs(1.0 + marginal.sum() - mean) > _TOLERANCE * mean + 1e-9:
        raise FormatError(
            f"{where}: 1 + Σ marginal = {1 + marginal.sum():.4f}, but mean_accept_length is "
            f"{mean:.4f}; rates or "
            "mean were measured on different runs, or the rates are conditional ones under the wrong key"
        )
    steps = _check_histogram(data.get("acceptance_length_histogram"), marginal, where)
    conditions = data.get("measurement_conditions")
    notes = [f"Measured under: {conditions}."] if conditions else []
    return from_survival(np.minimum(marginal, 1.0), steps, False, "modelopt", tuple(notes)), notes


def _rates(data: dict[str, object], key: str, where: str) -> np.ndarray | None:
    if not data.get(key):
        return None
    rates = numbers(data[key], f"{where}: {key}", positive=False)
    if rates.max() > 1 + 1e-9:
        raise FormatError(f"{where}: {key} holds {rates.max():g}; rates are shares in [0, 1], not percent")
    return rates


def _check_pair(conditional: np.ndarray, marginal: np.ndarray, where: str) -> None:
    if len(conditional) != len(marginal):
        raise FormatError(f"{where}: {len(conditional)} conditional rates, {len(marginal)} marginal ones")
    product = np.cumprod(conditional)
    if np.abs(product - marginal).max() <= _TOLERANCE:
        return
    swapped = np.abs(np.cumprod(marginal) - conditional).max() <= _TOLERANCE
    k = int(np.abs(product - marginal).argmax())
    raise FormatError(
        f"{where}: at position {k + 1} the product of conditional rates is {product[k]:.4f}, the marginal "
        f"rate {marginal[k]:.4f}"
        + ("; the two lists are swapped" if swapped else "; the lists contradict each other")
    )


def _check_histogram(histogram: object, marginal: np.ndarray, where: str) -> int:
    """Steps in the histogram of lengths (bonus included, so length 1 = nothing accepted); 0 without one."""
    if not isinstance(histogram, dict) or not histogram:
        return 0
    at = f"{where}: acceptance_length_histogram"
    lengths = numbers(list(histogram), f"{at} (its keys)", positive=False)
    counts = numbers(list(histogram.values()), at, positive=False)
    steps = counts.sum()
    if not 0 < steps < 1e15:
        raise FormatError(f"{at}: {steps:g} steps; expected counts by length")
    for k, rate in enumerate(marginal, 1):
        share = counts[lengths >= k + 1].sum() / steps
        # A histogram of shares counts as one of counts: only ratios matter, but then the steps are unknown.
        if abs(share - rate) > _TOLERANCE:
            raise FormatError(
                f"{where}: the histogram says {share:.4f} of the steps accepted {k} drafts or more, "
                "marginal_accept_rates "
                f"says {rate:.4f}; lengths in the histogram must include the bonus token"
            )
    return int(steps) if steps > 1.5 else 0
