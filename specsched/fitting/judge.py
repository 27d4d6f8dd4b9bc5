"""A fit held against runs that it did not see: errors of each, and whether the faster of two arms is said.

Nothing of a judged run is used but its load, its lengths, its policy and its text.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..documents.fit import JudgedRun, Judgement
from ..errors import SpecschedError
from ..formats.runs import Measured
from .cases import completed, setting_of
from .fit import Fit

NOISE = 0.05  # two arms that differ by less are not compared: benchmarks repeated scatter by as much


def judge(found: Fit, runs: Sequence[Measured]) -> Judgement:
    """Errors of the fit on these runs; raises SpecschedError for one that the fit knows nothing of."""
    unseen = [completed(run, found.benchmark, []) for run in runs]
    rows = [row for run in unseen for row in _judged(found, run)]
    if not rows:
        raise SpecschedError("no run to judge the fit by")
    known = [case.run for case in found.laid.cases]
    right, compared = signs(known, unseen, {(r["source"], r["what"]): r["predicted"] for r in rows})
    return {
        "fitted_on": list(dict.fromkeys(run.source for run in known)),
        "runs": rows,
        "user": _spread(rows, "user"),
        "total": _spread(rows, "total"),
        "signs_right": right,
        "signs_compared": compared,
        "signs_noise": NOISE,
    }


def _judged(found: Fit, run: Measured) -> list[JudgedRun]:
    at = _predicted(found, run)
    rows: list[JudgedRun] = []
    measured: tuple[tuple[Any, float | None], ...] = (("user", run.user), ("total", run.total))
    for what, value in measured:
        if value is not None:
            rows.append(
                {
                    "source": run.source,
                    "policy": str(run.policy),
                    "users": int(run.users or 0),
                    "text": run.text,
                    "what": what,
                    "measured": value,
                    "predicted": at[what],
                    "error": at[what] / value - 1.0,
                }
            )
    return rows


def _predicted(found: Fit, run: Measured) -> dict[str, float]:
    setting = setting_of(run, found.benchmark)
    if run.policy == "off":
        return found.predict("off", setting)
    texts = [
        c.text
        for c in found.laid.cases
        if c.text is not None and c.run.text == run.text and run.drafter in (None, c.drafter)
    ]
    if not texts and run.text is not None:
        raise SpecschedError(f"{run.source}: no fitted run drafted on text {run.text!r}; fit one as well")
    if not texts and found.laid.texts == {}:
        raise SpecschedError(f"{run.source}: it drafted, and no run drafted that was fitted; fit one as well")
    return found.predict(str(run.policy), setting, texts[0] if texts else None)


def _spread(rows: Sequence[JudgedRun], what: str) -> dict[str, float] | None:
    """Median, 90 % and mean signed error; None where no run says this figure."""
    errors = np.array([row["error"] for row in rows if row["what"] == what])
    if not len(errors):
        return None
    size = np.abs(errors)
    return {
        "figures": float(len(errors)),
        "median": float(np.median(size)),
        "p90": float(np.quantile(size, 0.9)),
        "bias": float(np.mean(errors)),
    }


def signs(
    known: Sequence[Measured], unseen: Sequence[Measured], predicted: dict[tuple[str, Any], float]
) -> tuple[int, int]:
    """(right, compared): of pairs of arms at one load and text, one of them predicted, that differ by more
    than NOISE in throughput (a user's speed where that is not said), how often the faster is said to be."""
    right = compared = 0
    new = {run.source for run in unseen}
    for a, b in itertools.combinations([*known, *unseen], 2):
        if _load(a) != _load(b) or a.policy == b.policy or not {a.source, b.source} & new:
            continue
        for what in ("total", "user"):
            x, y = getattr(a, what), getattr(b, what)
            if x and y:
                break
        else:
            continue
        if abs(x / y - 1.0) < NOISE:
            continue
        ours = predicted.get((a.source, what), x) > predicted.get((b.source, what), y)
        right, compared = right + (ours == (x > y)), compared + 1
    return right, compared


def _load(run: Measured) -> tuple[Any, ...]:
    return run.users, run.text, run.prompt_tokens, run.output_tokens
