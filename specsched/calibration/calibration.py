"""Sequential calibration of confidences: temperature (STS) or temperature and shift ("affine"), by position.

    c_k = σ(logit_k / T_k + b_k)          (b = 0 for method "sts")

Positions are fitted left to right, those before k fixed: at k the parameters minimise the ECE of the survival
Π_{i<=k} c_i against "accepted >= k" over all anchors. T > 0, so the order of confidences within a position
never changes. A position leaves T = 1, b = 0 only where its ECE falls by more than the noise floor.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.special import expit

from ..errors import CalibrationError
from ..files.disk import one_line_lists, read_json
from ..files.guard import reading
from ..files.output import atomic_write
from ..files.reader import Reader, kind_of

SCHEMA = "specsched/calibration/1"
METHODS = ("sts", "affine")


@dataclass(frozen=True, eq=False)
class Calibration:
    """Temperatures and shifts of γ positions, who they were fitted on, and how well they do.

    `report` (by `fit_sts`): {"fit": ..., "held_out": ... | None}, each with rows, requests and a list of
    positions, see `evaluate`.
    """

    temperatures: np.ndarray  # float64[γ], > 0
    shifts: np.ndarray  # float64[γ]; zeros for "sts"
    method: str = "sts"
    report: dict[str, Any] = field(default_factory=dict)
    fit_requests: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    held_out_requests: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    about: dict[str, Any] = field(default_factory=dict)  # trace, drafter, target, seed, holdout, bins, source
    where: str = field(default="the calibration", repr=False, compare=False)  # its file, for messages

    def __post_init__(self) -> None:
        for name in ("temperatures", "shifts"):
            values = np.ascontiguousarray(getattr(self, name), dtype=np.float64)
            values.setflags(write=False)
            object.__setattr__(self, name, values)
        t, b = self.temperatures, self.shifts
        if t.ndim != 1 or not len(t) or t.shape != b.shape:
            raise CalibrationError(
                f"temperatures have shape {t.shape} and shifts {b.shape}; expected γ of each"
            )
        if not (np.isfinite(t) & (t > 0)).all() or not np.isfinite(b).all():
            raise CalibrationError("temperatures must be finite and above 0, shifts finite")
        for name in ("fit_requests", "held_out_requests"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=np.int64))

    def __repr__(self) -> str:
        fitted = f"fitted on {len(self.fit_requests)} requests"
        return f"<calibration {self.method}, {self.block_size} positions, {fitted}>"

    @property
    def block_size(self) -> int:
        """γ: positions this calibration covers."""
        return len(self.temperatures)

    def apply(self, logits: Any) -> np.ndarray:
        """float64[n, γ]: calibrated confidences of raw logits[n, γ]; CalibrationError for another γ."""
        logits = np.asarray(logits, dtype=np.float64)
        if logits.ndim != 2 or logits.shape[1] != self.block_size:
            raise CalibrationError(
                f"{self.where} has {self.block_size} positions, the logits have shape {logits.shape}; "
                "fit one on this trace (`specsched calibrate`)"
            )
        out: np.ndarray = expit(logits / self.temperatures + self.shifts)
        return out

    def to_dict(self) -> dict[str, Any]:
        """The JSON document of docs/files.md."""
        return {
            "schema": SCHEMA,
            "method": self.method,
            "block_size": self.block_size,
            "temperatures": self.temperatures.tolist(),
            "shifts": self.shifts.tolist(),
            "about": self.about,
            "report": self.report,
            "fit_requests": self.fit_requests.tolist(),
            "held_out_requests": self.held_out_requests.tolist(),
        }

    @classmethod
    def from_dict(cls, document: Any, where: str = "calibration") -> Calibration:
        """Validate a parsed calibration; raises CalibrationError naming `where` and the key."""
        read = Reader(document, where, CalibrationError)
        if document.get("schema") != SCHEMA:
            raise read.fail(
                "schema",
                f"is {document.get('schema')!r}; expected {SCHEMA!r} (`specsched convert` reads others')",
            )
        temperatures = read.numbers("temperatures")
        if not (temperatures > 0).all():
            raise read.fail(f"temperatures[{int(np.argmin(temperatures))}]", "is 0; it must be above 0")
        method = read.text("method", "sts", METHODS)
        shifts = read.numbers("shifts", -np.inf) if read.has("shifts") else np.zeros(len(temperatures))
        if len(shifts) != len(temperatures):
            raise read.fail("shifts", f"has {len(shifts)} entries and temperatures {len(temperatures)}")
        if read.has("block_size") and read.integer("block_size", minimum=1) != len(temperatures):
            raise read.fail(
                "block_size", f"is {document['block_size']}, but there are {len(temperatures)} temperatures"
            )
        if method == "sts" and shifts.any():
            raise read.fail("shifts", 'must be 0 for method "sts"; say method "affine"')
        ids = {
            key: read.numbers(key, most=2**53).astype(np.int64)
            if document.get(key)
            else np.zeros(0, np.int64)
            for key in ("fit_requests", "held_out_requests")
        }
        report = read.mapping("report")
        _check_report(read, len(temperatures))
        return cls(temperatures, shifts, method, report, **ids, about=read.mapping("about"), where=where)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the calibration as JSON, atomically."""
        text = one_line_lists(self.to_dict())
        with atomic_write(path) as stream:
            stream.write(text + "\n")


def load_calibration(path: str | os.PathLike[str]) -> Calibration:
    """A calibration written by `Calibration.save`; raises CalibrationError."""
    if not os.path.isfile(path):
        raise CalibrationError(
            f"no calibration file {str(path)!r}; `specsched calibrate --trace T -o {path}` fits one"
        )
    with reading(path, CalibrationError, "calibration"):
        return Calibration.from_dict(read_json(path, CalibrationError), str(path))


_FIGURES = ("accepted_share", "ece_before", "ece_after", "noise_floor")
_OPTIONAL_FIGURES = ("auc_before", "auc_after", "brier_before", "brier_after")


def _check_report(read: Reader, positions: int) -> None:
    """Refuse a report that is not what `fit_sts` writes: rows, requests and figures by position."""
    report = read.block("report")
    for part in ("fit", "held_out"):
        block = report.block(part) if report is not None else None
        if block is None or not block.document:
            continue
        block.integer("rows")
        block.integer("requests")
        entries = block.document.get("positions")
        if not isinstance(entries, list) or len(entries) != positions:
            found = f"{len(entries)} entries" if isinstance(entries, list) else kind_of(entries)
            raise block.fail("positions", f"is {found}; it must be a list of {positions}, one a position")
        for i, entry in enumerate(entries):
            one = Reader(entry, read.where, read.error, f"{block.prefix}positions[{i}].")
            one.integer("position", minimum=1)
            for key in _FIGURES:
                one.number(key)
            for key in _OPTIONAL_FIGURES:
                one.number(key, 0.0)
