"""From unknowns to a step profile, with a table to begin with or without one.

With a prior profile: verify(B) = f · (P(1) + g · Bʰ-tilted growth of P), its draft curve times a factor that
may change with R, passes above the graph times a factor. Without: a floor, a power and a line in B, and
drafting costs a share of a step. overhead(R) holds all that goes with requests at the contexts of the runs;
with a prior it never falls and is straight in √R between the loads that were run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..profile import StepProfile
from ..profile.lint import drafting_inside
from ..profile.overhead import drawn_out
from .unknowns import FLAT, Pull, Unknown, factor, log_seconds, seconds

# How far a profile of each origin is off a real step: level, growth with B, drafting; as logarithms.
# Composed and roofline: from the comparisons in docs/validation.md and profiles/README.md, rounded up.
TRUST = {
    "measured": (0.03, 0.05, 0.10),
    "fitted": (0.05, 0.10, 0.20),
    "imported": (0.03, 0.05, 0.10),
    "composed": (0.20, 0.30, 0.40),
    "roofline": (0.50, 0.60, 0.60),
    None: (0.20, 0.30, 0.40),
}
DRAFT_SHARE, DRAFT_SPREAD = 0.2, 0.7  # of a step without drafts: 10 % to 40 %, parallel drafters
DRAFT_INSIDE = 0.4  # whole steps were timed: verify alone is less by what drafting took, 10 % to 40 %
_BEND = 0.15  # overhead: how much of a step a load may lie off the line through its neighbours
_MOST_KNOTS = 8
_FAR = 16384  # tokens past the largest decoding pass at which a pass with prompts is priced


@dataclass(frozen=True)
class Scope:
    """What the runs reach: loads, tokens of the largest decoding pass, whether any drafts, whether prompts
    join steps, and about what a step without drafts takes (seconds, at the smallest and largest load)."""

    loads: tuple[int, ...]
    most_decoding: int
    drafters: tuple[str, ...]
    prefilling: bool
    step: tuple[float, float]
    block_size: int | None
    capture_limit: int | None = None
    prompt_scale: float = 1e-6  # seconds a prompt token at which prefill would take as long as decoding


def thinned(sizes: Sequence[int], most: int = _MOST_KNOTS) -> list[int]:
    """At most so many of the sizes, first and last among them, near to evenly spaced as logarithms."""
    sizes = sorted(set(sizes))
    if len(sizes) <= most:
        return sizes
    wanted = np.geomspace(sizes[0], sizes[-1], most)
    return sorted({min(sizes, key=lambda s: abs(math.log(s / w))) for w in wanted})


class Costs:
    """Common part: overhead, drafting, passes with prompts. `profile(values)` makes the profile."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.unknowns: list[Unknown] = []
        self.pulls: list[Pull] = []
        self.knots = thinned(scope.loads)

    # -- overhead --------------------------------------------------------------------------------------

    def _ask_overhead(self) -> None:
        """Rises of overhead(R) from each load to the next; the first is the overhead there itself."""
        first, last = self.scope.step
        for i, load in enumerate(self.knots):
            near = first + (last - first) * i / max(len(self.knots) - 1, 1)
            label = (
                f"overhead({load})"
                if i == 0
                else f"rise of overhead from {self.knots[i - 1]} to {load} users"
            )
            self.unknowns.append(seconds(f"overhead {load}", label, 0.02 * near, near))
        roots = np.sqrt(self.knots)
        for i in range(1, len(self.knots) - 1):
            left, right = roots[i] - roots[i - 1], roots[i + 1] - roots[i]
            weights = {
                f"overhead {self.knots[i]}": right / (left + right),
                f"overhead {self.knots[i + 1]}": -left / (left + right),
            }
            self.pulls.append(Pull(weights, _BEND * first))

    def _overhead(self, v: Mapping[str, float]) -> dict[str, Any]:
        rises = [v.get(f"overhead {load}", 0.0) for load in self.knots]
        sizes, values = drawn_out(np.array(self.knots), np.cumsum(rises), None)
        return {"requests": sizes, "seconds": values, "beyond": "slope"}

    # -- drafting --------------------------------------------------------------------------------------

    def _ask_other_drafters(self) -> None:
        for name in self.scope.drafters[1:]:
            self.unknowns.append(
                factor(
                    f"drafter {name}",
                    f"draft cost of {name} by that of {self.scope.drafters[0]}",
                    0.3,
                    "as the first drafter, give or take a third",
                )
            )

    def _of_drafter(self, v: Mapping[str, float], drafter: str | None) -> float:
        return math.exp(v.get(f"drafter {drafter}", 0.0))

    def _ask_draft_share(self) -> None:
        basis = f"assumed: {DRAFT_SHARE:.0%} of a step without drafts, give or take a factor of 2"
        ends = sorted({self.knots[0], self.knots[-1]})
        for load in ends:
            self.unknowns.append(
                Unknown(
                    f"draft {load}",
                    f"draft({load}) as a share of a step without drafts",
                    "cost",
                    math.log(DRAFT_SHARE),
                    1.0,
                    1e-3,
                    math.log(1e-3),
                    math.log(5.0),
                    math.log(DRAFT_SHARE),
                    DRAFT_SPREAD,
                    "%",
                    basis,
                    lambda x: 100.0 * math.exp(x),
                )
            )
        if len(ends) > 1:
            self.pulls.append(Pull({f"draft {ends[0]}": 1.0, f"draft {ends[1]}": -1.0}, DRAFT_SPREAD))

    def _draft_of_share(
        self, v: Mapping[str, float], plain: StepProfile, drafter: str | None
    ) -> dict[str, Any]:
        """draft(R): a share of the undrafted step, the share's logarithm straight in log R."""
        sizes = [r for r in np.unique(np.geomspace(1, 4 * self.knots[-1], 24).astype(int)).tolist()]
        ends = (self.knots[0], self.knots[-1])
        shares = [v[f"draft {load}"] for load in ends]
        log = (
            np.interp(np.log(sizes), np.log(ends), shares)
            if ends[0] < ends[1]
            else np.full(len(sizes), shares[0])
        )
        most = self.scope.most_decoding
        step = [plain.seconds(min(r, most), r, 0.0, draft=False) for r in sizes]
        cost = np.exp(log) * step * self._of_drafter(v, drafter)
        return {"requests": sizes, "seconds": np.maximum.accumulate(cost).tolist(),
                "block_size": self.scope.block_size}  # fmt: skip

    # -- passes with prompts ---------------------------------------------------------------------------

    def _ask_prompts(self, start: float, sd: float, basis: str, scale: float) -> None:
        if self.scope.prefilling:
            found = seconds("prefill", "a prompt token in a pass", start, scale)
            self.unknowns.append(replace(found, centre=start, sd=sd, basis=basis))

    def profile(self, v: Mapping[str, float], drafter: str | None = None) -> StepProfile:
        """The profile of these values; `drafter` names whose drafts are priced."""
        raise NotImplementedError


class FromNothing(Costs):
    """No table at all: verify(B) = floor + a Bᵠ + b B, overhead(R) = c √R + d R, none of them below 0.

    The power is what experts read (more of them by the token, ever fewer new ones) and the line what tokens
    compute; host work was seen to go with √R, attention with R. With the hint of a capture limit, passes
    above it cost a constant more."""

    def __init__(self, scope: Scope) -> None:
        super().__init__(scope)
        first, last = scope.step
        most_users, most_tokens = scope.loads[-1], scope.most_decoding
        self.unknowns.append(log_seconds("verify floor", "floor of verify", 0.9 * first))
        # Each of the four growths in what it adds at the far end, so that one scale fits all.
        growths = (
            ("verify curve", f"verify's curve, at {most_tokens} tokens"),
            ("verify line", f"verify's line, at {most_tokens} tokens"),
            ("overhead root", f"overhead's √R, at {most_users} users"),
            ("overhead line", f"overhead's R, at {most_users} users"),
        )
        for name, label in growths:
            self.unknowns.append(seconds(name, label, 0.1 * last, last))
        self.unknowns.append(
            Unknown("verify power", "power of verify's curve", "cost", 0.5, 0.3, 1e-3, 0.15, 0.95, 0.5, 0.2,
                    "", "assumed: 0.5, give or take 0.2")
        )  # fmt: skip
        if scope.drafters:
            self._ask_draft_share()
            self._ask_other_drafters()
        if scope.capture_limit is not None:
            self.unknowns.append(
                seconds("jump", "a pass off the graph, beyond one on it", 0.5 * first, first)
            )
        self._ask_prompts(0.05 * scope.prompt_scale, FLAT, "nothing is assumed of it", scope.prompt_scale)

    def _verify(self, v: Mapping[str, float], tokens: np.ndarray) -> np.ndarray:
        share = tokens / self.scope.most_decoding
        out: np.ndarray = math.exp(v["verify floor"]) + v["verify curve"] * share ** v["verify power"]
        return out + v["verify line"] * share

    def profile(self, v: Mapping[str, float], drafter: str | None = None) -> StepProfile:
        most, limit = self.scope.most_decoding, self.scope.capture_limit
        tokens = np.unique(np.geomspace(1, max(most, 2), 48).round().astype(int))
        cost = self._verify(v, tokens)
        document: dict[str, Any] = {"schema": "specsched/profile/1", "name": "fitted"}
        line = [] if "prefill" not in v else [most + _FAR]
        values = [float(cost[-1]) + _FAR * v.get("prefill", 0.0) for _ in line]
        x, y = [*tokens.tolist(), *line], [*cost.tolist(), *values]
        if limit is not None:
            inside = [1, 2, 4, *range(8, limit + 1, 8)]
            document["capture"] = {"sizes": sorted({*inside, limit}), "limit": limit}
            past = [limit + 1, *(t for t in x if t > limit + 1)]
            past = past if len(past) > 1 else [*past, limit + _FAR]
            document["eager"] = {"tokens": past, "seconds": (np.interp(past, x, y) + v["jump"]).tolist()}
        document["verify"] = {"tokens": x, "seconds": y, "lookup": "linear", "beyond": "slope"}
        sizes = np.unique(np.geomspace(1, 4 * self.scope.loads[-1], 32).round().astype(int))
        share = sizes / self.scope.loads[-1]
        extra = v["overhead root"] * np.sqrt(share) + v["overhead line"] * share
        document["overhead"] = {"requests": sizes.tolist(), "seconds": extra.tolist(), "beyond": "slope"}
        if self.scope.drafters:
            plain = StepProfile.from_dict(document)
            document["draft"] = self._draft_of_share(v, plain, drafter)
        return StepProfile.from_dict(document)


class FromPrior(Costs):
    """A profile to begin with: its curves scaled, its overhead found again."""

    def __init__(self, scope: Scope, prior: StepProfile) -> None:
        super().__init__(scope)
        self.prior = prior
        method = prior.provenance.get("method")
        level, growth, draft = TRUST.get(method, TRUST[None])
        if drafting_inside(prior):  # its verify holds a draft that is asked for again
            level = max(level, DRAFT_INSIDE)
        said = f"the starting profile, {method or 'of unknown origin'}: off by a factor of about {{:.2f}}"
        basis = [said.format(math.exp(sd)) for sd in (level, growth, draft)]
        self.unknowns.append(factor("verify level", "verify, times the starting profile's", level, basis[0]))
        self.unknowns.append(factor("verify growth", "its growth with tokens", growth, basis[1]))
        self.unknowns.append(
            factor("verify tilt", f"the growth near {scope.most_decoding} tokens", growth, basis[1])
        )
        self._ask_overhead()
        if scope.drafters:
            if prior.draft is not None:
                self.unknowns.append(
                    factor("draft level", "draft, times the starting profile's", draft, basis[2])
                )
                self.unknowns.append(
                    factor("draft tilt", f"draft at {self.knots[-1]} users beyond that", draft, basis[2])
                )
            else:
                self._ask_draft_share()
            self._ask_other_drafters()
        if scope.prefilling and prior.eager is not None:
            self.unknowns.append(
                factor("eager", "passes off the graph, times the starting profile's", growth, basis[1])
            )
        elif (
            scope.prefilling
            and method in ("measured", "imported")
            and prior.verify.x[-1] > scope.most_decoding
        ):
            pass  # the table itself reaches the passes with prompts
        elif scope.prefilling:
            x = float(prior.verify.x[-1])
            slope = (float(prior.verify(x + _FAR)) - float(prior.verify(x / 2))) / (_FAR + x / 2)
            slope = max(slope, 1e-8)
            self._ask_prompts(slope, slope, "the starting profile's last slope, give or take as much", slope)

    def _scaled(self, x: np.ndarray, y: np.ndarray, v: Mapping[str, float]) -> np.ndarray:
        floor = float(self.prior.verify.y[0])
        tilt = v["verify growth"] + v["verify tilt"] * np.log(np.maximum(x, 1.0)) / math.log(
            max(self.scope.most_decoding, 2)
        )
        out: np.ndarray = math.exp(v["verify level"]) * (floor + np.exp(tilt) * (y - floor))
        return np.asarray(np.maximum(out, 1e-7))

    def profile(self, v: Mapping[str, float], drafter: str | None = None) -> StepProfile:
        document = self.prior.to_dict()
        verify = self.prior.verify
        x, y = verify.x, self._scaled(verify.x, verify.y, v)
        if "prefill" in v:
            x, y = self._with_prompts(x, y, v)
        limit = self.prior.graph_limit
        if "prefill" in v and limit is not None:
            at_limit = float(np.interp(limit, x, y))
            line = [at_limit + k * v["prefill"] for k in (1, _FAR)]
            document["eager"] = {"tokens": [limit + 1, limit + _FAR], "seconds": line}
        document["verify"] = {**document["verify"], "tokens": [int(t) for t in x], "seconds": y.tolist()}
        if self.prior.eager is not None:
            eager = math.exp(v.get("eager", 0.0) + v["verify level"]) * self.prior.eager.y
            document["eager"] = {**document["eager"], "seconds": eager.tolist()}
        document["overhead"] = self._overhead(v)
        if self.scope.drafters:
            document["draft"] = self._draft(v, document, drafter)
        return StepProfile.from_dict({**document, "fit": None, "samples": []})

    def _with_prompts(
        self, x: np.ndarray, y: np.ndarray, v: Mapping[str, float]
    ) -> tuple[np.ndarray, np.ndarray]:
        """The curve past the largest decoding pass, at so much for each prompt token."""
        edge = self.scope.most_decoding
        kept = x <= edge
        at_edge = float(np.interp(edge, x, y)) if x[-1] >= edge else float(self._past(x, y, edge))
        x, y = x[kept], y[kept]
        if not len(x) or x[-1] < edge:
            x, y = np.append(x, edge), np.append(y, at_edge)
        return np.append(x, edge + _FAR), np.append(y, at_edge + _FAR * v["prefill"])

    @staticmethod
    def _past(x: np.ndarray, y: np.ndarray, at: float) -> float:
        slope = max((y[-1] - y[-2]) / (x[-1] - x[-2]), 0.0) if len(x) > 1 else 0.0
        return float(y[-1] + slope * (at - x[-1]))

    def _draft(self, v: Mapping[str, float], document: dict[str, Any], drafter: str | None) -> dict[str, Any]:
        if self.prior.draft is None:
            return self._draft_of_share(v, StepProfile.from_dict({**document, "draft": None}), drafter)
        requests = self.prior.draft.x
        tilt = v["draft tilt"] * np.log(np.maximum(requests, 1)) / math.log(max(self.knots[-1], 2))
        scale = np.exp(v["draft level"] + tilt) * self._of_drafter(v, drafter)
        return {**document["draft"], "seconds": (scale * self.prior.draft.y).tolist()}
