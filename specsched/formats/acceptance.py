"""Per-position acceptance: what remains of other people's counters that carry no confidences.

`specsched trace synth` makes a trace of it. Rates here are *conditional* (position k given that all before it
were accepted); `survival` is their running product, what counters call marginal rates.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from ..errors import FormatError, quoted
from ..files.output import write_json
from ..files.reader import kind_of

SCHEMA = "specsched/acceptance/1"


@dataclass(frozen=True)
class Acceptance:
    """Acceptance by position, from `steps` draft blocks.

    `conditional`: float64[γ] in [0, 1], P(position k accepted | all before it accepted).
    `censored`: trimming was on and nobody said where: the rates may be too high or too low. `source`: the
    format it came from. `tried`: float64[γ], the blocks in which position k was tried after all before it
    were accepted, where they were counted; the rates are then product-limit estimates (`from_tried`).
    """

    conditional: np.ndarray
    steps: int
    censored: bool
    source: str
    notes: tuple[str, ...] = field(default=())
    tried: np.ndarray | None = None

    def __post_init__(self) -> None:
        rates = self.conditional
        if rates.ndim != 1 or not rates.size or not np.all((rates >= 0) & (rates <= 1)):
            raise FormatError(
                f"{self.source}: acceptance rates must be numbers in [0, 1], got {quoted(rates.tolist())}"
            )

    @property
    def block_size(self) -> int:
        return len(self.conditional)

    @property
    def survival(self) -> np.ndarray:
        """float64[γ]: P(the first k positions are all accepted), the marginal rates."""
        return np.cumprod(self.conditional)

    @property
    def mean_length(self) -> float:
        """Tokens emitted per step, the bonus included: 1 + Σ survival."""
        return 1.0 + float(self.survival.sum())

    @property
    def intervals(self) -> list[tuple[float, float]] | None:
        """95 % intervals of the conditional rates (Wilson), None where the trials were not counted.

        Blocks are taken as independent: those of one request are not, so the true ones are wider.
        """
        tried = self.tried
        if tried is None and self.steps > 0 and not self.censored:
            tried = self.steps * np.concatenate([[1.0], self.survival[:-1]])
        if tried is None:
            return None
        return [_wilson(float(rate), float(n)) for rate, n in zip(self.conditional, tried, strict=True)]

    def to_dict(self) -> dict[str, Any]:
        intervals = self.intervals
        more: dict[str, Any] = {} if self.tried is None else {"tried": [float(n) for n in self.tried]}
        if intervals is not None:
            more["intervals"] = [list(pair) for pair in intervals]
        return {
            "schema": SCHEMA,
            "conditional": [float(v) for v in self.conditional],
            "survival": [float(v) for v in self.survival],
            "mean_length": self.mean_length,
            "steps": self.steps,
            "censored": self.censored,
            "source": self.source,
            "notes": list(self.notes),
            **more,
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write JSON (`specsched/acceptance/1`), which `read` takes back."""
        write_json(path, self.to_dict())

    @classmethod
    def from_dict(cls, document: dict[str, Any], where: str) -> Acceptance:
        """From the JSON `save` writes; raises `FormatError` naming `where`."""
        from .values import integer, numbers, text, truth

        rates = numbers(document.get("conditional"), f"{where}: conditional", positive=False)
        return cls(
            rates,
            integer(document.get("steps", 0), f"{where}: steps"),
            truth(document.get("censored", False), f"{where}: censored"),
            text(document.get("source", where), f"{where}: source"),
            _notes(document.get("notes"), where),
            numbers(document["tried"], f"{where}: tried", positive=False, at_least=len(rates))
            if document.get("tried") is not None
            else None,
        )


def _notes(value: Any, where: str) -> tuple[str, ...]:
    from .values import text

    if value is None:
        return ()
    if not isinstance(value, list):
        raise FormatError(f"{where}: notes is {kind_of(value)}; it must be a list of texts")
    return tuple(text(note, f"{where}: notes[{i}]") for i, note in enumerate(value))


def from_survival(
    survival: np.ndarray, steps: int, censored: bool, source: str, notes: tuple[str, ...] = ()
) -> Acceptance:
    """`Acceptance` of marginal rates float64[γ]; they must not rise (raises `FormatError`: are they
    conditional?).
    """
    survival = np.asarray(survival, dtype=np.float64)
    if survival.size and survival[0] > 1.0 + 1e-6:
        raise FormatError(
            f"{source}: a rate of {survival[0]:g} at position 1; rates are shares in [0, 1], not percent"
        )
    rise = np.flatnonzero(np.diff(survival) > 1e-9)
    if rise.size:
        k = int(rise[0])
        raise FormatError(
            f"{source}: survival rises from {survival[k]:.4f} at position {k + 1} to {survival[k + 1]:.4f} "
            "at "
            f"{k + 2}; a marginal rate cannot: are these conditional rates?"
        )
    before = np.concatenate([[1.0], survival[:-1]])
    conditional = np.divide(survival, before, out=np.zeros_like(survival), where=before > 0)
    return Acceptance(np.clip(conditional, 0.0, 1.0), steps, censored, source, notes)


def from_histogram(
    counts: np.ndarray, censored: bool, source: str, notes: tuple[str, ...] = ()
) -> Acceptance:
    """`Acceptance` of counts int64[γ + 1]: entry j is the number of steps that accepted exactly j drafts."""
    counts = np.asarray(counts, dtype=np.float64)
    steps = counts.sum()
    if counts.size < 2 or steps <= 0:
        raise FormatError(f"{source}: the acceptance histogram holds no steps; collect some traffic first")
    at_least = np.cumsum(counts[::-1])[::-1]
    return from_survival(at_least[1:] / steps, int(steps), censored, source, notes)


TOLERATED = 0.01  # share of drafts missing that a block's ends may explain: the last steps of requests


def whole_blocks(proposed: float, possible: float, where: str) -> str | None:
    """What must be said where fewer drafts were `proposed` than whole blocks hold; None if none is missing.

    Raises `FormatError` where more than a hundredth is missing: then drafts were trimmed, and counters of
    accepted tokens alone give neither estimates nor bounds. (A position that was not tried counts as
    rejected, which lowers a rate; steps without any draft, the unlikely ones, are not counted, which raises
    it.)
    """
    missing = 1.0 - proposed / possible if possible > 0 else 0.0
    if proposed <= 0 or missing <= 0.0:
        return None
    if missing > TOLERATED:
        raise FormatError(
            f"{where}: {missing:.1%} of the drafts of whole blocks are missing, so trimming was on, and "
            "these counters do not say at which positions. Steps without a draft are not counted either, so "
            "rates may be too high or too low: measure with trimming off or record histograms by draft length"
        )
    return (
        f"{missing:.2%} of the drafts of whole blocks are missing, as at the ends of requests; read as whole."
    )


def from_tried(
    accepted: np.ndarray, tried: np.ndarray, steps: int, source: str, notes: tuple[str, ...] = ()
) -> Acceptance:
    """Product-limit estimate (Kaplan and Meier): rate k = accepted[k] / tried[k].

    `tried[k]`: blocks that tried position k after all before it were accepted; `accepted[k]`: those that
    accepted it. Right where the length of a block was chosen without looking at its drafts. Raises
    `FormatError` where a position was never tried.
    """
    accepted, tried = np.asarray(accepted, dtype=np.float64), np.asarray(tried, dtype=np.float64)
    never = np.flatnonzero(tried <= 0)
    if never.size:
        reached = int(never[0])
        if reached == 0:
            raise FormatError(f"{source}: no block tried its first position; collect some traffic first")
        accepted, tried = accepted[:reached], tried[:reached]
        notes = (*notes, f"Position {reached + 1} and later were never tried: left out.")
    if np.any(accepted > tried + 1e-9):
        k = int(np.flatnonzero(accepted > tried + 1e-9)[0])
        raise FormatError(
            f"{source}: position {k + 1} was accepted {accepted[k]:.0f} times and tried {tried[k]:.0f} times"
        )
    return Acceptance(accepted / tried, steps, False, source, notes, tried)


def _wilson(rate: float, trials: float) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    if trials <= 0:
        return 0.0, 1.0
    z2 = 1.959964**2
    middle = (rate + z2 / (2 * trials)) / (1 + z2 / trials)
    half = 1.959964 / (1 + z2 / trials) * np.sqrt(rate * (1 - rate) / trials + z2 / (4 * trials**2))
    return max(middle - float(half), 0.0), min(middle + float(half), 1.0)


def from_mean_length(length: float, block_size: int, source: str, where: str) -> Acceptance:
    """`Acceptance` of one number: the mean tokens a step emits, the bonus included, with blocks of γ drafts.

    The shape is *assumed*: the same conditional rate p at every position, the p of Σ_{k=0..γ} p^k = length.
    Raises FormatError unless 1 <= length <= 1 + γ.
    """
    from scipy.optimize import brentq

    if not 1 <= block_size <= 127:
        raise FormatError(f"{where}: a block of {block_size} drafts; expected 1 to 127")
    if not 1.0 <= length <= 1.0 + block_size:
        raise FormatError(
            f"{where}: a mean length of {length:g} tokens a step, the bonus included, lies between 1 and "
            f"{1 + block_size} for blocks of {block_size}; is it without the bonus, or of another block size?"
        )
    powers = np.arange(block_size + 1)
    rate = float(brentq(lambda p: float((p**powers).sum()) - length, 0.0, 1.0, xtol=1e-12))
    notes = (
        f"Assumed: one conditional rate, {rate:.3f}, at every position, from the mean length {length:.3g}.",
    )
    return Acceptance(np.full(block_size, rate), 0, False, source, notes)


def doubtful(rates: list[float]) -> str | None:
    """Why a bare list of rates may be marginal ones, as engines' logs print them; None where it is plain.

    Marginal rates never rise, and by the last position they are far below the first. Conditional ones of
    real drafters stay within a factor of two or so.
    """
    if len(rates) < 2 or any(b > a for a, b in pairwise(rates)) or rates[-1] > 0.6 * rates[0]:
        return None
    conditional, marginal = 1.0 + float(np.cumprod(rates).sum()), 1.0 + sum(rates)
    return (
        "these rates fall as marginal ones do (position k accepted at all), which engines' logs print; say "
        f"marginal:... ({marginal:.2f} tokens a step) or conditional:... (given the positions before; "
        f"{conditional:.2f} tokens a step)"
    )
