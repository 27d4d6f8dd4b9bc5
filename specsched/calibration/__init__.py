"""Raw confidences made probabilities, and how far they are from that.

calibration  Calibration: temperatures, and the file they are kept in
fit          sequential temperature scaling (STS)
metrics      ECE, Brier score, AUC
holdout      a trace in two halves: one to fit on, one to replay
"""

from .calibration import Calibration, load_calibration
from .fit import evaluate, fit_sts, split_requests
from .holdout import split_and_calibrate
from .metrics import BINS, auc, brier, ece, noise_floor, reliability, sigmoid, survival

__all__ = [
    "BINS",
    "Calibration",
    "auc",
    "brier",
    "ece",
    "evaluate",
    "fit_sts",
    "load_calibration",
    "noise_floor",
    "reliability",
    "sigmoid",
    "split_and_calibrate",
    "split_requests",
    "survival",
]
