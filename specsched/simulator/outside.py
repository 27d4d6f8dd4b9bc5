"""Which of a run's steps lie outside what its profile was measured at, below as well as above.

Below the first point of a curve its first value holds, past the last one its slope or its last value
(`profile/curve.py`): neither was measured. Told from the step log, of which a long run keeps every n-th step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from ..profile import Curve, StepProfile
from ..schedule import Policy, SameLength

SAMPLED = 256  # steps kept of a run whose log nobody asked for
LEAST = 0.01  # share of the steps below which it is not worth a sentence
MUCH = 0.1  # of a step: a term held flat below its first point that is less than this hardly matters
_SECONDS, _REQUESTS, _TOKENS, _PREFILL, _CONTEXT, _BUDGET = 1, 3, 4, 5, 6, 8  # columns of the log
_AXES = {
    "verify": "tokens",
    "eager": "tokens",
    "overhead": "requests",
    "draft": "requests",
    "attention": "context tokens",
}
TERMS = tuple(_AXES)


def outside_steps(
    profile: StepProfile, policy: Policy, log: np.ndarray, begin: float, end: float
) -> dict[str, float]:
    """{term_below, term_above: share of the steps}, those that are not 0; terms: TERMS.

    log: float64[n, 9], `result.LOG_COLUMNS`; only steps begun from `begin` to `end` (seconds) count. What
    lies above in `verify` is counted exactly by the engine loop (`extrapolated_steps`) and is not here.
    """
    steps = log[(log[:, 0] >= begin) & (log[:, 0] <= end)]
    if not len(steps):
        return {}
    found = {}
    for term, below, above in _sides(profile, policy, steps):
        for side, share in (("below", below), ("above", above)):
            if share > 0.0 and (term, side) != ("verify", "above"):
                found[f"{term}_{side}"] = share
    return found


def _sides(profile: StepProfile, policy: Policy, steps: np.ndarray) -> Iterator[tuple[str, float, float]]:
    requests = steps[:, _REQUESTS]
    tokens = (steps[:, _TOKENS] + steps[:, _PREFILL]).astype(np.int64)
    below, limit = profile.below(tokens), profile.graph_limit
    off_graph = np.zeros(len(tokens), bool) if limit is None else tokens > limit
    yield "verify", float((below & ~off_graph).mean()), 0.0
    yield "eager", float((below & off_graph).mean()), 0.0
    decodes = requests > 0
    # Where one length for all is 0, nothing is drafted; other policies that draft do so whatever they verify.
    drafts = decodes & (policy.drafts and (not isinstance(policy, SameLength) or steps[:, _BUDGET] > 0))
    for term, curve, values, counts in (
        ("overhead", profile.overhead, requests, decodes),
        ("draft", profile.draft, requests, drafts),
        ("attention", profile.attention, steps[:, _CONTEXT], decodes),
    ):
        if curve is not None:
            yield term, *_shares(curve, values, counts, steps[:, _SECONDS])


def _shares(curve: Curve, values: np.ndarray, counts: np.ndarray, seconds: np.ndarray) -> tuple[float, float]:
    """Shares of steps below and above; below only where the value held there is much of the step."""
    below = (values < curve.x[0]) & counts & (curve.y[0] >= MUCH * seconds)
    above = (values > curve.x[-1]) & counts
    return float(below.mean()), float(above.mean())


def outside_warning(profile: StepProfile, policy: str, shares: Mapping[str, float]) -> list[str]:
    """One sentence for a policy whose steps lie outside the measured points; none where hardly any do."""
    parts = [
        f"{share:.0%} have {'fewer' if side == 'below' else 'more'} {_AXES[term]} than {term} was measured "
        f"at ({_end(profile, term, side):,g})"
        for (term, side), share in ((key.split("_"), share) for key, share in shares.items())
        if share >= LEAST
    ]
    if not parts:
        return []
    return [
        f"{policy}: of its steps {', '.join(parts)}: outside the points of profile {profile.name!r} costs "
        "are carried on, not measured"
    ]


def _end(profile: StepProfile, term: str, side: str) -> float:
    curve = getattr(profile, term)
    return float(curve.x[0 if side == "below" else -1])


def outside_curve(
    profile: StepProfile, shares: Mapping[str, Mapping[int, Mapping[str, float]]], at: Mapping[str, int]
) -> list[str]:
    """What to say of loads of the curves that lie outside although the answers themselves do not.

    shares: {policy: {users: outside_steps}}; at: the users each policy carries, whose own run has a warning.
    """
    said = []
    for term in TERMS:
        for side in ("below", "above"):
            loads = [
                load
                for policy, tried in shares.items()
                for load, found in tried.items()
                if found.get(f"{term}_{side}", 0.0) >= LEAST
                and (load < at[policy] if side == "below" else load > at[policy])
            ]
            if not loads:
                continue
            reach = f"up to {max(loads)}" if side == "below" else f"from {min(loads)}"
            if term == "eager" and len(loads) > 1:  # fewer users than these stay on the graph
                reach = f"from {min(loads)} to {max(loads)}"
            point = f"{'below the first' if side == 'below' else 'past the last'} point of {term}"
            said.append(
                f"curves {reach} users lie {point} of profile {profile.name!r} "
                f"({_end(profile, term, side):,g} {_AXES[term]}): not measured there"
            )
    return said
