"""Turning an answer into something to read: text tables, plots, one self-contained page.

The `*_text` functions make stdout, the `write_*` functions the files of `--out`. They take the plain
dictionaries that the planner returns (docs/files.md), so a saved JSON answer can be shown again.
"""

from .calibration import calibration_text
from .drafter import drafter_text, training_text
from .inspection import inspection_text
from .page import write_answer, write_plan, write_runs
from .plan import plan_text
from .runs import runs_text
from .sweep import sweep_text
from .tables import answer_text

__all__ = [
    "answer_text",
    "calibration_text",
    "drafter_text",
    "inspection_text",
    "plan_text",
    "runs_text",
    "sweep_text",
    "training_text",
    "write_answer",
    "write_plan",
    "write_runs",
]
