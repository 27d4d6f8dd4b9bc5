"""The documents that commands print and save, typed: what `--json` promises.

shared      figures of a run, calibration and origin: parts of several documents
answer      `specsched/answer/1`, made by `planner.answer`
plan        `specsched/plan/1`, made by `planner.plan`
runs        `specsched/runs/1`, made by `planner.runs`
explain     `specsched/explain/1`, made by `planner.explain`
advice      `specsched/advice/1`, made by `planner.advise`
sweep       `specsched/sweep/1`, made by `sweep.run`
audit       `specsched/audit/1` and `specsched/leak/1`, made by `audit`
fit         `specsched/fit/1`, made by `fitting.document`
inspection  what `inspect --json` prints, made by `inspection`
schema      JSON Schemas of these types

Types alone: each document has one maker, elsewhere. The schemas that scripts/schemas.py writes from them lie
in schemas/ of this package and in docs/schemas/. These modules do without `from __future__ import
annotations`, under which Python 3.11 forgets which keys are `NotRequired`.
"""

from .advice import Advice
from .answer import Answer
from .audit import AuditDocument, LeakDocument
from .explain import Explanation
from .fit import FitDocument
from .inspection import (
    AcceptanceInspection,
    BenchmarkInspection,
    CalibrationInspection,
    DrafterInspection,
    ProfileInspection,
    TraceInspection,
)
from .plan import Plan
from .runs import Runs
from .schema import DOCUMENTS, json_schema, shipped
from .sweep import SweepSummary

__all__ = [
    "DOCUMENTS",
    "AcceptanceInspection",
    "Advice",
    "Answer",
    "AuditDocument",
    "BenchmarkInspection",
    "CalibrationInspection",
    "DrafterInspection",
    "Explanation",
    "FitDocument",
    "LeakDocument",
    "Plan",
    "ProfileInspection",
    "Runs",
    "SweepSummary",
    "TraceInspection",
    "json_schema",
    "shipped",
]
