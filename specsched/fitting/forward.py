"""The forward model: values of the unknowns in, what the runs would have shown out; the simulator itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from ..formats.runs import Measured
from ..profile import StepProfile
from ..profile.tables import ProfileTables
from ..trace import Trace
from .costs import Costs
from .steps import Setting, Steps, steps_of, unit_profile
from .texts import REQUEST_SHARE, Text, plain_trace

WEIGHS = ("lagged", "early-stop", "global", "hindsight")  # policies whose plans depend on what a step costs
Values = Mapping[str, float]
Weighed = tuple[float, Steps]
_KEPT = 24  # traces
_LEVELS = np.round(np.arange(-4.0, 4.01, 0.2), 1)  # in log-odds
_SHARES = np.array([0.0, 0.1, 0.3, 0.5, 0.7, 0.9])


@dataclass(frozen=True)
class Case:
    """A run with all that it takes to simulate it."""

    run: Measured
    policy: str
    setting: Setting
    text: str | None  # None: it does not draft
    drafter: str | None
    rates: tuple[float, ...] | None = None  # conditional acceptance counted in this very run

    @property
    def weighs(self) -> bool:
        return self.policy.split(":")[0] in WEIGHS


@dataclass(frozen=True)
class Observed:
    """One number of one run: `what` is user, total or length; `noise` its relative error."""

    case: int
    what: Literal["user", "total", "length"]
    value: float
    noise: float


@dataclass
class Forward:
    """Simulates every case; keeps the step sequences of texts it has seen.

    Texts are drawn at the nodes of a grid of level and share alone; between them logarithms of what is
    observed are straight, so that derivatives are defined and drawing texts takes little time."""

    cases: Sequence[Case]
    texts: Mapping[str, Text]
    costs: Costs
    _steps: dict[tuple[object, ...], Steps] = field(default_factory=dict)
    _traces: dict[tuple[object, ...], Trace] = field(default_factory=dict)

    def trace(self, case: Case, level: float, share: float) -> Trace:
        """The text of a case, at a level (beside what was counted in this very run) and a share."""
        if case.text is None:
            return plain_trace(case.setting.output_tokens)
        rates = case.rates or self.texts[case.text].rates
        key = (case.text, rates, level, share)
        if key not in self._traces:
            if len(self._traces) > _KEPT:
                self._traces.pop(next(iter(self._traces)))
            self._traces[key] = replace(self.texts[case.text], rates=rates).trace(level, share)
        return self._traces[key]

    def steps(self, case: Case, v: Values, profile: StepProfile) -> list[Weighed]:
        """The steps of a case at the nodes around these values, each with its weight.

        Found once a text, or again for each profile where the policy weighs costs.
        """
        if case.text is None:
            nodes = [(1.0, 0.0, 0.0)]
        else:
            levels = _between(v.get(f"level {case.text}", 0.0), _LEVELS)
            shares = _between(v.get("share", REQUEST_SHARE), _SHARES)
            nodes = [(a * b, level, share) for a, level in levels for b, share in shares]
        return [(weight, self._at(case, level, share, profile)) for weight, level, share in nodes]

    def _at(self, case: Case, level: float, share: float, profile: StepProfile) -> Steps:
        if case.weighs:
            return steps_of(self.trace(case, level, share), profile, case.policy, case.setting)
        key = (case.policy, case.setting, case.text, case.rates, level, share)
        if key not in self._steps:
            trace = self.trace(case, level, share)
            self._steps[key] = steps_of(trace, unit_profile(), case.policy, case.setting)
        return self._steps[key]

    def predict(
        self, v: Values, observed: Sequence[Observed], along: Sequence[list[Weighed]] | None = None
    ) -> tuple[np.ndarray, list[list[Weighed]]]:
        """(float64[n] logarithms of what would be observed, the steps of each case).

        `along`: schedules to price instead of those that these values would give.
        """
        profiles: dict[str | None, StepProfile] = {}
        tables: dict[str | None, ProfileTables] = {}
        taken: list[list[Weighed]] = []
        shown: list[dict[str, float]] = []
        for i, case in enumerate(self.cases):
            if case.drafter not in profiles:
                profiles[case.drafter] = self.costs.profile(v, case.drafter)
                tables[case.drafter] = profiles[case.drafter].tables(*self._largest())
            here = along[i] if along is not None else self.steps(case, v, profiles[case.drafter])
            taken.append(here)
            shown.append(shown_of(here, tables[case.drafter], v.get("pause", 0.0)))
        return np.array([shown[o.case][o.what] for o in observed]), taken

    def _largest(self) -> tuple[int, int]:
        """Tokens and requests of the largest pass there may be."""
        block = max((len(t.rates) for t in self.texts.values()), default=0)
        tokens = max(c.setting.users * (1 + block) + c.setting.batch_tokens for c in self.cases)
        return tokens, max(c.setting.users for c in self.cases)


def shown_of(steps: list[Weighed], tables: ProfileTables, pause: float) -> dict[str, float]:
    """Logarithms of what a run shows, straight between the nodes."""
    out = {"user": 0.0, "total": 0.0, "length": 0.0}
    for weight, at in steps:
        user, total = at.speeds(tables, pause)
        for key, value in (("user", user), ("total", total), ("length", at.length)):
            out[key] += weight * math.log(value)
    return out


def _between(x: float, nodes: np.ndarray) -> list[tuple[float, float]]:
    """(weight, node) of the one or two nodes around x."""
    i = int(np.clip(np.searchsorted(nodes, x, side="right") - 1, 0, len(nodes) - 2))
    right = float((x - nodes[i]) / (nodes[i + 1] - nodes[i]))
    found = [(1.0 - right, float(nodes[i])), (right, float(nodes[i + 1]))]
    return [(weight, node) for weight, node in found if weight != 0.0]
