"""A trace in two halves: one to fit a calibration on, one to replay."""

from __future__ import annotations

from ..documents.shared import CalibrationNote
from ..errors import TraceError
from ..trace import Trace
from .calibration import METHODS, Calibration, load_calibration
from .fit import fit_sts


def split_and_calibrate(
    trace: Trace, calibration: Calibration | str | None, seed: int = 0
) -> tuple[Trace, Calibration | None, CalibrationNote]:
    """What to replay, calibrated how, and a note that says so.

    `calibration`: "sts" or "affine" fits on half the requests and replays the other half; None replays
    everything as σ(logit); a Calibration or the path of one is applied to everything.
    """
    if calibration is None or calibration == "none":
        return trace, None, {"method": "none", "fitted_on": 0, "replayed": len(trace.request_ids)}
    if isinstance(calibration, str) and calibration in METHODS:
        if len(trace.request_ids) < 2:
            raise TraceError(
                f"{trace.where}: one request cannot be split into a part to fit a calibration on and one to "
                "replay; pass a calibration file, or calibration none"
            )
        fitted = fit_sts(trace, holdout=0.5, seed=seed, method=calibration)
        held_out = trace.select(fitted.held_out_requests)
        note: CalibrationNote = {
            "method": calibration,
            "fitted_on": len(fitted.fit_requests),
            "replayed": len(held_out.request_ids),
            "temperatures": [float(t) for t in fitted.temperatures],
        }
        return held_out, fitted, note
    given = calibration if isinstance(calibration, Calibration) else load_calibration(calibration)
    return (
        trace,
        given,
        {
            "method": given.method,
            "fitted_on": None,
            "replayed": len(trace.request_ids),
            "temperatures": [float(t) for t in given.temperatures],
        },
    )
