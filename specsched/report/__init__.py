"""Turning an answer into something to read: text tables, plots, one self-contained page.

The `*_text` functions make stdout, the `write_*` functions the files of `--out`. They take the plain
dictionaries that the planner returns (DESIGN section 10), so a saved JSON answer can be shown again.
"""

from .calibration import calibration_text
from .page import write_answer, write_plan, write_runs
from .runs import runs_text
from .tables import answer_text

__all__ = ["answer_text", "calibration_text", "runs_text", "write_answer", "write_plan", "write_runs"]
