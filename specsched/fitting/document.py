"""The document of a fit, `specsched/fit/1`: what `specsched fit --json` prints."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from ..documents.fit import FitDocument, FittedRun, FittedUnknown, Prediction
from ..formats.runs import Measured
from .fit import Fit
from .forward import Case
from .judge import judge

_MOSTLY, _PARTLY = 0.75, 0.25  # share of the assumed variance that the runs removed
_Z = 1.959964
_FAR = 0.25  # a relative error at which a run contradicts the others


def fit_document(found: Fit, policies: Sequence[str] = (), unseen: Sequence[Measured] = ()) -> FitDocument:
    """All of a fit; `policies` are predicted at the loads of the runs, in their setting. `unseen`: runs to
    judge it by."""
    predictions = _predictions(found, policies) if policies else []
    runs = _runs(found)
    errors = np.array([abs(run["error"]) for run in runs])
    left = np.array([abs(run["left_out_error"]) for run in runs])
    document: FitDocument = {
        "schema": "specsched/fit/1",
        "headline": _headline(found, errors),
        "unknowns": _unknowns(found),
        "runs": runs,
        "errors": {
            "median": float(np.median(errors)),
            "p90": float(np.quantile(errors, 0.9)),
            "left_out_median": float(np.median(left)),
            "left_out_p90": float(np.quantile(left, 0.9)),
            "noise_factor": found.solution.noise_factor,
        },
        "singular_values": [float(x) for x in found.solution.singular],
        "predictions": predictions,
        "assumed": [*found.laid.assumed, *_shape_of_confidences(found)],
        "warnings": warnings_of(found),
    }
    if unseen:
        document["judged"] = judge(found, unseen)
    return document


def _headline(found: Fit, errors: np.ndarray) -> str:
    cases = found.laid.cases
    arms = ", ".join(dict.fromkeys(c.policy for c in cases))
    loads = sorted({c.setting.users for c in cases})
    span = f"{loads[0]} users" if len(loads) == 1 else f"{loads[0]} to {loads[-1]} users"
    unseen = [u["label"] for u in _unknowns(found) if u["determined"] == "no"]
    rest = f"; not seen by them, and assumed: {', '.join(unseen[:3])}" if unseen else ""
    more = f" and {len(unseen) - 3} more" if len(unseen) > 3 else ""
    return (
        f"{len(cases)} runs ({arms}; {span}) are met within {np.median(errors):.1%} in the "
        f"median{rest}{more}."
    )


def _unknowns(found: Fit) -> list[FittedUnknown]:
    s = found.solution
    rows: list[FittedUnknown] = []
    for j, u in enumerate(s.unknowns):
        x, sd = s.values[u.name], math.sqrt(max(float(s.covariance[j, j]), 0.0))
        seen = s.seen[u.name]
        determined: Literal["yes", "in part", "no"] = (
            "yes" if seen > _MOSTLY else "in part" if seen > _PARTLY else "no"
        )
        ends = sorted(u.show(min(max(x + sign * _Z * sd, u.low), u.high)) for sign in (-1.0, 1.0))
        rows.append(
            {
                "name": u.name,
                "label": u.label,
                "value": float(u.show(x)),
                "unit": u.unit,
                "interval": [float(e) for e in ends],
                "determined": determined,
                "seen": seen,
                "assumed": u.basis,
            }
        )
    return rows


def _runs(found: Fit) -> list[FittedRun]:
    s = found.solution
    rows: list[FittedRun] = []
    for o, residual, left_out in zip(found.laid.observed, s.residual, s.left_out, strict=True):
        case = found.laid.cases[o.case]
        rows.append(
            {
                "source": case.run.source,
                "policy": case.policy,
                "users": case.setting.users,
                "text": case.run.text,
                "what": o.what,
                "measured": o.value,
                "fitted": o.value * math.exp(residual),
                "error": float(math.expm1(residual)),
                "left_out_error": float(np.expm1(np.clip(left_out, -3.0, 3.0))),
            }
        )
    return rows


def _predictions(found: Fit, policies: Sequence[str]) -> list[Prediction]:
    draws = found.draws()
    rows: list[Prediction] = []
    for policy in policies:
        for case in _loads(found):
            at = found.predict(policy, case.setting, case.text)
            spread = [found.predict(policy, case.setting, case.text, values=v) for v in draws]
            rows.append(
                {
                    "policy": policy,
                    "users": case.setting.users,
                    "user": at["user"],
                    "user_interval": _interval(at["user"], [p["user"] for p in spread]),
                    "total": at["total"],
                    "total_interval": _interval(at["total"], [p["total"] for p in spread]),
                    "verified": at["verified"],
                }
            )
    return rows


def _loads(found: Fit) -> list[Case]:
    """One case for each load: a drafted one where there is, since it says which text."""
    chosen: dict[int, Case] = {}
    for case in found.laid.cases:
        held = chosen.get(case.setting.users)
        if held is None or (held.text is None and case.text is not None):
            chosen[case.setting.users] = case
    text = next(iter(found.laid.texts), None)
    return [replace(chosen[users], text=chosen[users].text or text) for users in sorted(chosen)]


def _interval(at: float, draws: Sequence[float]) -> list[float]:
    """From the spread of a few draws: their standard deviation in logarithms, around the value."""
    sd = float(np.std(np.log(draws), ddof=1))
    return [at * math.exp(-_Z * sd), at * math.exp(_Z * sd)]


def _shape_of_confidences(found: Fit) -> list[str]:
    if not found.laid.texts:
        return []
    return [
        "confidences: calibrated, and ranking as those of figure 6 do; no benchmark says how well they rank"
    ]


def warnings_of(found: Fit) -> list[str]:
    """What is doubtful about a fit."""
    s, out = found.solution, []
    worst = max(_runs(found), key=lambda run: abs(run["error"]))
    if abs(worst["error"]) > _FAR:
        out.append(
            f"{worst['source']} ({worst['policy']}, {worst['users']} users) is off by "
            f"{worst['error']:+.0%}: no step "
            "cost of this shape meets it together with the others; was it run in another setting?"
        )
    if s.noise_factor > 2.0:
        out.append(
            f"the runs scatter {s.noise_factor:.1f} times as much as the noise stated; intervals "
            "are widened by that"
        )
    floor = found.solution.values
    if found.prior is not None and all(
        floor.get(u.name, 1.0) <= 1e-9 for u in s.unknowns if u.name.startswith("overhead")
    ):
        out.append(
            "no host time is left over: the prior alone is as slow as these runs, or slower; is it "
            "of this model and GPU?"
        )
    if not found.laid.texts:
        out.append(
            "no run drafted: what drafting costs and what is accepted is not in this fit; `off` "
            "alone is fitted"
        )
    return out
