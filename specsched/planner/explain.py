"""Where the rest goes: what lies between a policy and the hindsight reference, as parts that sum.

One cause after the other is done away with, in this order, and what the throughput gains is its part:

    calibration      confidences are replaced by exact ones: the share accepted among their like here
    lag              the budget comes from the present survivals (of a policy without a lag: `rule`, its own
                     way to plan is replaced by the best budget)
    ranking          the same budget goes to drafts that will be accepted first
    unwanted drafts  drafts that will be rejected are not verified, even where the budget has room for them
    budget           the number of drafts follows from what will be accepted, not from what is expected

After the last one the policy is `hindsight`. The parts are differences of neighbours, so they sum to the gap;
in another order they would differ. One below 0 says that its cause helped, by chance or
against a greedy rule.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import numpy as np

from .. import kernels
from ..calibration import Calibration
from ..calibration.metrics import ece
from ..documents.explain import Confidences, Explanation, Part
from ..errors import PolicyError, WorkloadError
from ..profile import StepProfile
from ..profile.isotonic import rising
from ..schedule import Global, Lagged, Policy, make
from ..simulator import Serving, SimResult
from ..simulator.own import Own
from ..simulator.replay import Replay
from ..simulator.requests import closed_loop
from ..simulator.run import Run
from ..trace import Trace
from ..workers import map_points
from .about import about
from .doubts import input_warnings, left_out
from .inputs import load_inputs, once

BINS = 50  # of equal numbers of rows, by position: what exact confidences are read from
ROWS = 100  # at least in each
PERTURBED = (0.5, 2.0)  # factors on the temperature


class _Ranked(Global):
    """The budget of `global`, spent on what will be accepted first."""

    code = kernels.RANKED


class _Wanted(Global):
    """The same, without the drafts that will be rejected."""

    code = kernels.WANTED


def explain(
    trace: Trace | str | os.PathLike[str],
    profile: StepProfile | str | os.PathLike[str],
    policy: str = "lagged:2",
    concurrency: int = 64,
    *,
    requests: int = 1000,
    seed: int = 0,
    calibration: Calibration | str | None = "sts",
    block_size: int | None = None,
    serving: Serving | None = None,
    workers: int | None = None,
    **serving_options: Any,
) -> Explanation:
    """What keeps a policy from the hindsight reference at a load: the document `specsched/explain/1`.

    Parameters are those of `answer`; `concurrency` users in a closed loop. Prompts come prefilled unless
    `prefill` says chunked. Raises SpecschedError children.
    """
    if not 1 <= concurrency <= 1_000_000:
        raise WorkloadError(f"concurrency {concurrency} cannot be run; give a whole number from 1 to 1000000")
    given = load_inputs(trace, profile, [policy], calibration, block_size, seed, serving, serving_options)
    trace, profile, serving, replay = given.trace, given.profile, given.serving, given.replay
    (own,) = given.policies
    if isinstance(own, Own):
        raise PolicyError(
            f"{own.name} is a policy of your own, and explain takes the rules of bundled ones apart; "
            "`specsched simulate` runs it beside them"
        )
    exact = exactly_calibrated(replay)
    levels = _levels(own, replay, exact)
    others = _other_confidences(given.part, given.calibrated, replay, exact)

    def run(pair: tuple[Policy, Replay]) -> SimResult:
        chosen, replayed = pair
        coming = closed_loop(replayed, concurrency * serving.replicas, requests, seed)
        result = Run(replayed, profile, serving, coming, requests).result(chosen, seed, given.sees_token)
        return result

    points = [(chosen, replayed) for _, _, chosen, replayed in levels]
    points += [(own, replayed) for _, replayed in others]
    done = map_points(run, points, workers)
    results, again = done[: len(levels)], done[len(levels) :]
    base, best = results[0], results[-1]
    gap = _speed(best) - _speed(base)
    return {
        "schema": "specsched/explain/1",
        "profile": profile.name,
        "trace": trace.name,
        "policy": own.name,
        "lossless": base.lossless,
        "concurrency": concurrency,
        "throughput": _speed(base),
        "interval": _interval(base),
        "reference": _speed(best),
        "gap": gap,
        "parts": _parts([(cause, said) for cause, said, _, _ in levels], results, gap),
        "confidences": _compared(others, again),
        "calibration": given.note,
        "warnings": once(input_warnings(given), base.warnings),
        "not_modelled": left_out(serving, "arrivals (a closed loop: every user asks again at once)"),
        "about": about(trace, profile),
    }


def exactly_calibrated(replay: Replay) -> Replay:
    """The replay with every survival replaced by the share accepted among its like, here and now.

    By position: BINS groups of equal numbers of rows in order of survival; the shares, made non-falling, are
    joined by lines, so that no two rows that differed become equal. Only for study: it has seen the answer.
    """
    survival = np.empty_like(replay.survival)
    for k in range(replay.block_size):
        was, accepted = replay.survival[:, k], replay.accepted > k
        groups = np.array_split(np.argsort(was, kind="stable"), min(BINS, max(len(was) // ROWS, 1)))
        x = np.array([was[g].mean() for g in groups])
        y = rising([float(accepted[g].mean()) for g in groups])
        survival[:, k] = np.where(was > 0.0, np.interp(was, x, y), 0.0)
    survival = np.minimum.accumulate(survival, axis=1)
    return dataclasses.replace(replay, survival=np.ascontiguousarray(survival), confidence=None)


def _levels(own: Policy, given: Replay, exact: Replay) -> list[tuple[str, str, Policy, Replay]]:
    """(cause gone, what that means, policy, replay): the policy itself first, hindsight last."""
    lag = isinstance(own, Lagged)
    second = (
        ("lag", "budgets come from the present survivals") if lag else ("rule", "plans are the best budget")
    )
    gain = own.minimum_gain
    return [
        ("", "", own, given),
        ("calibration", "confidences are exact", own, exact),
        (*second, Global(gain), exact),
        ("ranking", "budgets go to drafts that will be accepted first", _Ranked(gain), exact),
        ("unwanted drafts", "drafts that will be rejected are not verified", _Wanted(gain), exact),
        ("budget", "budgets follow from what will be accepted", make("hindsight"), exact),
    ]


def _other_confidences(
    trace: Trace, fitted: Calibration | None, given: Replay, exact: Replay
) -> list[tuple[str, Replay]]:
    """The replay under exact, given, raw and perturbed confidences."""
    block = given.block_size
    found = [("exact", exact), ("given", given)]
    if fitted is not None:
        found.append(("raw", Replay.of(trace, None, block)))
    for factor in PERTURBED:
        flatter = dataclasses.replace(trace, confidence_logit=trace.confidence_logit / factor)
        found.append((f"T x {factor:g}", Replay.of(flatter, fitted, block)))
    return found


def _parts(causes: list[tuple[str, str]], results: list[SimResult], gap: float) -> list[Part]:
    parts: list[Part] = []
    for i in range(1, len(results)):
        gained = _speed(results[i]) - _speed(results[i - 1])
        parts.append(
            {
                "cause": causes[i][0],
                "tokens_per_second": gained,
                "share": gained / gap if gap else None,
                "throughput": _speed(results[i]),
                "interval": _interval(results[i]),
                "said": causes[i][1],
            }
        )
    return parts


def _compared(others: list[tuple[str, Replay]], results: list[SimResult]) -> list[Confidences]:
    best = _speed(results[0])
    return [
        {
            "confidences": name,
            "throughput": _speed(result),
            "interval": _interval(result),
            "loss": 1.0 - _speed(result) / best,
            "error": _error(replay),
        }
        for (name, replay), result in zip(others, results, strict=True)
    ]


def _error(replay: Replay) -> float:
    """Expected calibration error of the survivals, mean over positions."""
    errors = [ece(replay.survival[:, k], replay.accepted > k) for k in range(replay.block_size)]
    return float(np.mean(errors))


def _speed(result: SimResult) -> float:
    return float(result.summary["throughput"])


def _interval(result: SimResult) -> list[float] | None:
    found: list[float] | None = (result.summary.get("intervals") or {}).get("throughput")
    return found
