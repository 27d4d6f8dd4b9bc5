"""`fit`: runs of a benchmark in, a profile and a trace out, with what the runs determine of each unknown."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import SpecschedError
from ..formats.runs import Measured
from ..profile import StepProfile
from ..randomness import generator
from ..trace import Trace
from .cases import Benchmark, Laid, lay_out
from .costs import Costs, FromNothing, FromPrior, Scope
from .forward import Case, Forward, Values, shown_of
from .solve import Problem, Solution, solve
from .steps import Setting
from .texts import REQUEST_SHARE, Text
from .unknowns import Unknown, seconds

_DRAWS = 12
_DRAW = 31  # random stream of this module
_SHARE_SD = 0.3
Told = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Fit:
    """A fit: `profile`, `trace` (None where nothing was drafted), and `solution` with what is behind them."""

    laid: Laid
    forward: Forward
    solution: Solution
    benchmark: Benchmark
    prior: StepProfile | None

    @property
    def drafters(self) -> list[str | None]:
        """Drafters, the first run's first."""
        return list(dict.fromkeys(c.drafter for c in self.laid.cases if c.drafter is not None)) or [None]

    def profile(self, drafter: str | None = None, values: Values | None = None) -> StepProfile:
        """The fitted profile, of a drafter's costs where there are several; at other `values` if given."""
        v = self.solution.values if values is None else values
        made = self.forward.costs.profile(v, drafter if drafter is not None else self.drafters[0])
        error = np.abs(np.expm1(self.solution.residual))
        return replace(
            made,
            name=f"{self.prior.name}-fitted" if self.prior is not None else "fitted",
            provenance=self._provenance(),
            fit={
                "median_relative_error": float(np.median(error)),
                "p90_relative_error": float(np.quantile(error, 0.9)),
                "samples": len(error),
            },
        )

    def _provenance(self) -> dict[str, Any]:
        sources = ", ".join(dict.fromkeys(c.run.source for c in self.laid.cases))
        before = f"begun with {self.prior.name!r}" if self.prior is not None else "begun with no table"
        return {
            "method": "fitted",
            "source": sources[:200],
            "licence": "of the runs",
            "date": "",
            "tool": "specsched fit",
            "host": {},
            "notes": f"Fitted to {len(self.laid.cases)} benchmark runs, {before}. "
            + "overhead(R) holds what requests cost at the contexts of these runs.",
        }

    def trace(self, text: str | None = None, values: Values | None = None) -> Trace | None:
        """The trace of a text (the first where none is named) at the fitted level and share, with the mean
        prompt of the runs that drafted it: what is simulated on it prefills and reads what they did."""
        if not self.laid.texts:
            return None
        v = self.solution.values if values is None else values
        name = text or next(iter(self.laid.texts))
        prompts = [c.setting.prompt_tokens for c in self.laid.cases if c.text == name]
        return self.laid.texts[name].trace(
            v.get(f"level {name}", 0.0),
            v.get("share", REQUEST_SHARE),
            prompt_tokens=max(1.0, float(np.mean(prompts))) if prompts else 1.0,
        )

    def draws(self, count: int = _DRAWS, seed: int = 0) -> list[dict[str, float]]:
        """Values as probable as the fit's own: draws from its normal approximation, within bounds."""
        s = self.solution
        x = np.array([s.values[u.name] for u in s.unknowns])
        weights, vectors = np.linalg.eigh(s.covariance)
        root = vectors * np.sqrt(np.maximum(weights, 0.0))
        normal = generator(seed, _DRAW).standard_normal((count, len(x)))
        low, high = np.array([u.low for u in s.unknowns]), np.array([u.high for u in s.unknowns])
        rows = np.clip(x + normal @ root.T, low, high)
        return [
            s.values | {u.name: float(value) for u, value in zip(s.unknowns, row, strict=True)}
            for row in rows
        ]

    def predict(
        self, policy: str, setting: Setting, text: str | None = None, values: Values | None = None,
        rates: tuple[float, ...] | None = None,
    ) -> dict[str, float]:  # fmt: skip
        """What the benchmark would show under another policy or load: user, total (tokens/s), length,
        verified.

        `rates`: conditional acceptance, where it was counted, instead of the text's.
        """
        v = self.solution.values if values is None else values
        text = text or (next(iter(self.laid.texts)) if self.laid.texts else None)
        if policy != "off" and text is None:
            raise SpecschedError("no run drafted, so nothing is known of what would be accepted")
        drafter = next((c.drafter for c in self.laid.cases if c.text == text), None)
        case = Case(Measured("predicted"), policy, setting, None if policy == "off" else text, drafter, rates)
        profile = self.profile(drafter, v)
        found = self.forward.steps(case, v, profile)
        most = max(steps.most_tokens for _, steps in found)
        shown = shown_of(found, profile.tables(most, setting.users), v.get("pause", 0.0))
        out = {key: math.exp(value) for key, value in shown.items()}
        return out | {"verified": sum(weight * steps.verified for weight, steps in found)}


def fit(
    runs: Sequence[Measured],
    prior: StepProfile | None = None,
    benchmark: Benchmark | None = None,
    known: Sequence[str] = (),
) -> Fit:
    """Find what a step costs and what is accepted, from how fast benchmarks ran.

    Parameters
    ----------
    runs : of any arms and loads; policies, counters and lengths as far as their files say.
    prior : a profile to begin with; how far it may be wrong follows from its provenance. None: sizes of
        passes that the runs have, a share of a step for drafting.
    benchmark : what the files do not say of the setting.
    known : names of unknowns held at what is assumed of them.

    Raises `Undetermined` where the runs leave open what nothing is assumed of, SpecschedError for runs that
    lack something or contradict themselves.
    """
    benchmark = benchmark or Benchmark()
    laid = lay_out(runs, benchmark)
    forward = Forward(laid.cases, laid.texts, _costs(laid, prior, benchmark))
    every = [*forward.costs.unknowns, *_of_texts(laid), *_of_client(laid)]
    for name in known:
        if name not in {u.name for u in every}:
            there = ", ".join(u.name for u in every)
            raise SpecschedError(f"{name!r} is no unknown of these runs; there are {there}")
    held = {u.name: u.assumed for u in every if u.name in known}
    unknowns = [u for u in every if u.name not in held]
    problem = Problem(forward, laid.observed, unknowns, forward.costs.pulls, held)
    return Fit(laid, forward, solve(problem), benchmark, prior)


def _costs(laid: Laid, prior: StepProfile | None, benchmark: Benchmark) -> Costs:
    scope = scope_of(laid, benchmark, prior)
    return FromNothing(scope) if prior is None else FromPrior(scope, prior)


def scope_of(laid: Laid, benchmark: Benchmark, prior: StepProfile | None) -> Scope:
    """What the runs reach."""
    cases = laid.cases
    loads = tuple(sorted({c.setting.users for c in cases}))
    sizes: set[int] = set()
    for case in cases:
        block = len(laid.texts[case.text].rates) if case.text is not None else 0
        name, _, parameter = case.policy.partition(":")
        most = int(parameter) if name == "fixed" else block
        sizes.add(case.setting.users * (1 + most))
    drafters = tuple(dict.fromkeys(c.drafter for c in cases if c.drafter is not None))
    blocks = [len(t.rates) for t in laid.texts.values()]
    step = [_step_seconds(next(c for c in cases if c.setting.users == r)) for r in (loads[0], loads[-1])]
    prompts = benchmark.prefill == "chunked" and any(c.setting.prompt_tokens > 0 for c in cases)
    return Scope(
        loads=loads,
        most_decoding=max(sizes),
        drafters=drafters,
        prefilling=prompts,
        step=(step[0], max(step)),
        block_size=max(blocks) if blocks else None,
        capture_limit=benchmark.capture_limit,
        prompt_scale=min(_prompt_scale(c) for c in cases),
    )


def _step_seconds(case: Case) -> float:
    """About what a step of a run takes, drafting and all."""
    run = case.run
    speed = run.user or (run.total or 1.0) / case.setting.users
    return (run.accept_length or (2.5 if case.text is not None else 1.0)) / speed


def _prompt_scale(case: Case) -> float:
    s = case.setting
    served = s.output_tokens * _step_seconds(case) / (case.run.accept_length or 1.0)
    return served / (max(s.prompt_tokens, 1) * s.users)


def _of_texts(laid: Laid) -> list[Unknown]:
    out = []
    for name, text in laid.texts.items():
        sd = 0.05 if text.counted else math.inf
        basis = "as counted, give or take 1 %" if text.counted else "nothing is assumed of it"
        label = f"tokens a step, whole blocks, {name}"

        def show(level: float, text: Text = text) -> float:
            return 1.0 + float(np.cumprod(text.acceptance(level)).sum())

        out.append(
            Unknown(
                f"level {name}", label, "text", 0.0, 1.0, 0.01, -3.9, 3.9, 0.0, sd, "", basis, show
            )
        )  # fmt: skip
    if any(c.text is not None and c.run.user and c.run.total for c in laid.cases):
        label = "how much requests differ in acceptance (their share of its variance)"
        basis = "as in recorded traces: 0.1, give or take 0.3"
        out.append(
            Unknown(
                "share", label, "text", REQUEST_SHARE, 1.0, 0.01, 0.0, 0.89, REQUEST_SHARE, _SHARE_SD, "",
                basis,
            )
        )  # fmt: skip
    return out


def _of_client(laid: Laid) -> list[Unknown]:
    """The pause between two requests of a place, where some run says both speeds."""
    both = [c for c in laid.cases if c.run.user and c.run.total]
    if not both:
        return []
    least = min(both, key=lambda c: c.setting.users)
    served = least.setting.output_tokens / float(least.run.user or 1.0)
    label = "pause between two requests of a user"
    return [seconds("pause", label, 0.01 * served, 0.1 * served, "client")]
