"""From levels to a profile: whole steps of the engine by load, what context adds, what drafting adds.

    seconds(R, N) = verify(R) + slope · N              without drafts, one token a request
    draft(R) = seconds of a drafting step - what a step of R (1 + γ) tokens costs without drafts

The host's work is in verify: with one token a request it cannot be told from the pass's own. Where that would
make drafting cost less than nothing, so much of verify depends on requests, not tokens: the least such
overhead, in proportion to R, is moved to overhead(R), which changes no step without drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import SpecschedError
from ..profile import StepProfile
from .levels import Level


def profile_of(
    name: str,
    levels: Sequence[Level],
    block_size: int | None,
    provenance: dict[str, Any],
    warnings: list[str],
) -> StepProfile:
    """The profile of an engine's levels, drafting ones among them where `block_size` says how many drafts.

    Raises SpecschedError where no level without drafts was measured.
    """
    plain = [level for level in levels if not level.drafting and level.step_seconds is not None]
    drafting = [level for level in levels if level.drafting and level.step_seconds is not None]
    if not plain:
        raise SpecschedError(
            "no steps without drafting were measured: start the engine without speculation as well and give "
            "both (--engine URL --engine URL), or fewer --clients"
        )
    sizes = np.array(sorted({level.clients for level in plain}))
    seconds, slope = _additive(plain, sizes)
    most = max(level.context_tokens for level in levels)
    document: dict[str, Any] = {
        "schema": "specsched/profile/1",
        "name": name,
        "verify": {
            "tokens": sizes.tolist(),
            "seconds": [_digits(s) for s in seconds],
            "lookup": "linear",
            "beyond": "slope",
        },
        "attention": {"kv_tokens": [0, round(most)], "seconds": [0.0, _digits(slope * most)]},
        "provenance": provenance,
    }
    error = np.array(
        [
            (seconds[np.searchsorted(sizes, v.clients)] + slope * v.context_tokens) / (v.step_seconds or 1.0)
            - 1
            for v in plain
        ]
    )
    document["fit"] = {
        "median_relative_error": round(float(np.median(np.abs(error))), 5),
        "max_relative_error": round(float(np.abs(error).max()), 5),
        "samples": len(plain),
    }
    if drafting and block_size:
        _move_overhead(document, drafting, block_size)
        document["draft"] = _draft(StepProfile.from_dict(document), drafting, block_size, warnings)
    provenance["warnings"] = warnings
    return StepProfile.from_dict(document)


def _additive(plain: Sequence[Level], sizes: np.ndarray) -> tuple[np.ndarray, float]:
    """(float64[n] seconds by load at no context, seconds a token of context), least relative error."""
    from scipy.optimize import nnls

    measured = np.array([level.step_seconds for level in plain], dtype=np.float64)
    context = np.array([level.context_tokens for level in plain])
    by_size = (np.array([level.clients for level in plain])[:, None] == sizes).astype(np.float64)
    several = len({(level.prompt_tokens, level.output_tokens) for level in plain}) > 1
    unit = float(context.max())
    column = context / unit if several else np.zeros(len(plain))
    solved = nnls(np.column_stack([by_size, column]) / measured[:, None], np.ones(len(plain)))[0]
    return solved[:-1], float(solved[-1] / unit)


def _move_overhead(document: dict[str, Any], drafting: Sequence[Level], block_size: int) -> None:
    base = StepProfile.from_dict(document)
    verify = document["verify"]
    sizes, seconds = np.array(verify["tokens"]), np.array(verify["seconds"])
    each = 0.0
    for level in drafting:
        r = level.clients
        tokens = r * (1 + block_size)
        bare = base.seconds(tokens, r, level.context_tokens, draft=False)
        each = max(each, (bare - (level.step_seconds or 0.0)) / (tokens - r))
    each = min(each, 0.9 * float((seconds / sizes).min()))
    if each > 0.0:
        most = int(sizes[-1])
        verify["seconds"] = [_digits(s) for s in seconds - each * sizes]
        document["overhead"] = {
            "requests": [1, max(most, 2)],
            "seconds": [_digits(each), _digits(each * max(most, 2))],
            "beyond": "slope",
        }


def _draft(
    base: StepProfile, drafting: Sequence[Level], block_size: int, warnings: list[str]
) -> dict[str, Any]:
    found: dict[int, list[float]] = {}
    last = int(base.verify.x[-1])
    for level in drafting:
        tokens = level.clients * (1 + block_size)
        bare = base.seconds(tokens, level.clients, level.context_tokens, draft=False)
        found.setdefault(level.clients, []).append(max((level.step_seconds or 0.0) - bare, 0.0))
        if tokens > last:
            warnings.append(
                f"A drafting step of {level.clients} requests verifies {tokens} tokens and steps without "
                f"drafts were measured to {last}: its drafting cost is what is left of an extrapolation."
            )
    sizes = sorted(found)
    return {
        "requests": sizes,
        "seconds": [_digits(float(np.median(found[r]))) for r in sizes],
        "block_size": block_size,
    }


def _digits(value: float) -> float:
    return float(f"{value:.5g}")
