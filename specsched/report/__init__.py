"""Turning an answer into something to read: text tables, plots, one self-contained page.

The `*_text` functions make stdout, the `write_*` functions the files of `--out`. They take the plain
dictionaries that the planner returns (docs/files.md), so a saved JSON answer can be shown again. Each is
loaded when first used: who prints a table needs nothing of plots and pages.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .advice import advice_text
    from .audit import audit_text, leak_text
    from .calibration import calibration_text
    from .drafter import drafter_text, training_text
    from .explain import explain_text
    from .inspection import inspection_text
    from .page import Background, write_answer, write_plan, write_runs
    from .plan import plan_text
    from .runs import runs_text
    from .sweep import sweep_text
    from .tables import answer_text

__all__ = [
    "Background",
    "advice_text",
    "answer_text",
    "audit_text",
    "calibration_text",
    "drafter_text",
    "explain_text",
    "inspection_text",
    "leak_text",
    "plan_text",
    "runs_text",
    "sweep_text",
    "training_text",
    "write_answer",
    "write_plan",
    "write_runs",
]

_HOME = {
    "Background": "page",
    "advice_text": "advice",
    "answer_text": "tables",
    "audit_text": "audit",
    "calibration_text": "calibration",
    "drafter_text": "drafter",
    "explain_text": "explain",
    "inspection_text": "inspection",
    "leak_text": "audit",
    "plan_text": "plan",
    "runs_text": "runs",
    "sweep_text": "sweep",
    "training_text": "drafter",
    "write_answer": "page",
    "write_plan": "page",
    "write_runs": "page",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
