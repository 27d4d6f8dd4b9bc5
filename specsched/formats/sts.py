"""Sequential temperature scaling files of SGLang (`temperatures`) and TensorRT-LLM (`sts_temperatures`)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from ..calibration import Calibration
from ..errors import FormatError, quoted
from ..files.guard import reading
from ..files.output import write_json
from .document import Hints
from .opened import Opened
from .values import integer, number, numbers, text

SGLANG, TRTLLM = "temperatures", "sts_temperatures"
_READ = frozenset({SGLANG, TRTLLM, "dataset", "num_samples", "ece_before", "ece_after"})


def read(opened: Opened, hints: Hints) -> tuple[Calibration, list[str]]:
    """c = σ(logit / T_k): a `Calibration` with the file's temperatures; its own ECE figures go into the
    report.
    """
    where, data = str(opened.path), opened.data
    both = [key for key in (TRTLLM, SGLANG) if key in data]
    lists = [numbers(data[key], f"{where}: {key}") for key in both]
    if len(lists) == 2 and not np.array_equal(lists[0], lists[1]):
        raise FormatError(f"{where}: sts_temperatures and temperatures differ; delete the wrong one")
    if data.get("num_samples") == 0:
        raise FormatError(f"{where}: fitted on 0 samples; fit the temperatures again")
    about: dict[str, object] = {"source": where}
    if data.get("dataset") is not None:
        about["dataset"] = text(data["dataset"], f"{where}: dataset")
    if data.get("num_samples") is not None:
        about["num_samples"] = integer(data["num_samples"], f"{where}: num_samples")
    for key in ("ece_before", "ece_after"):
        if data.get(key) is not None:
            given = data[key] if isinstance(data[key], list) else [data[key]]
            values = [number(value, f"{where}: {key}[{i}]") for i, value in enumerate(given)]
            about[key] = values if isinstance(data[key], list) else values[0]
    calibration = of_temperatures(lists[0], about, opened.path)
    notes = ["Fitted elsewhere: nothing here tells on which requests, so replays may include them."]
    return calibration, [*notes, *_unread(data)]


def of_temperatures(temperatures: np.ndarray, about: dict[str, object], path: Path) -> Calibration:
    """c = σ(logit / T_k), float64[γ]; raises FormatError naming the file."""
    with reading(path, FormatError):
        return Calibration(temperatures, np.zeros(len(temperatures)), "sts", about=about)


def _unread(data: dict[str, Any]) -> list[str]:
    """What must be said of tables that lie beside the temperatures: some tools keep step costs there."""
    tables = [str(k) for k, v in data.items() if k not in _READ and isinstance(v, list | dict) and len(v) > 1]
    if not tables:
        return []
    shown = ", ".join(quoted(key, 40) for key in tables[:6])
    return [f"Temperatures alone were read; the file also holds {shown}: step costs there are not used."]


def write(calibration: Calibration, path: str | os.PathLike[str], to: str) -> None:
    """Write an STS file; `to` is "sglang" or "trtllm". Shifts have no place in either: `FormatError`."""
    if np.any(calibration.shifts != 0):
        raise FormatError(
            f"the calibration is {calibration.method!r} with shifts, and {to} knows temperatures alone; "
            "fit with method sts and convert that"
        )
    temperatures = [float(t) for t in calibration.temperatures]
    document: dict[str, object] = {SGLANG: temperatures, **_figures(calibration)}
    if to == "trtllm":
        # TensorRT-LLM reads either key and writes both, so that SGLang can load its files too.
        document = {TRTLLM: temperatures, **document}
    write_json(path, document)


def _figures(calibration: Calibration) -> dict[str, object]:
    """dataset, num_samples, ece_before, ece_after: of the held-out part where there is one, else of the
    fit.
    """
    about, report = calibration.about, calibration.report
    part = report.get("held_out") or report.get("fit") or {}
    positions = part.get("positions") or []
    return {
        "dataset": str(about.get("dataset") or about.get("trace") or ""),
        "num_samples": int(about.get("num_samples") or part.get("rows") or 0),
        "ece_before": about.get("ece_before") or [p["ece_before"] for p in positions],
        "ece_after": about.get("ece_after") or [p["ece_after"] for p in positions],
    }
