"""Sequential temperature scaling files of SGLang (`temperatures`) and TensorRT-LLM (`sts_temperatures`)."""

from __future__ import annotations

import os

import numpy as np

from ..calibration import Calibration
from ..errors import FormatError
from ..files.guard import reading
from ..files.output import write_json
from .document import Hints
from .opened import Opened
from .values import integer, number, numbers, text

SGLANG, TRTLLM = "temperatures", "sts_temperatures"


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
    with reading(opened.path, FormatError):
        calibration = Calibration(lists[0], np.zeros(len(lists[0])), "sts", about=about)
    return calibration, [
        "Fitted elsewhere: nothing here tells on which requests, so replays may include them."
    ]


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
