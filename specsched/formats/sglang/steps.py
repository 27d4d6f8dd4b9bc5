"""The times in SGLang's debug dump: what its steps, drafts and verifications took on the GPU."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ...errors import FormatError
from ...profile import StepProfile
from ..document import Hints, build, curve, imported
from ..opened import Opened
from ..values import integer, number, records
from .tables import fit_rounds

_TIMES = ("step_gpu_ms", "draft_gpu_ms", "target_verify_gpu_ms")


def read_steps(
    opened: Opened, dumps: Iterable[dict[str, Any]], hints: Hints
) -> tuple[StepProfile, list[str]]:
    """A profile of the steps that carry times: draft(R) their drafting, the rest overhead(R) + verify(B).

    Raises `FormatError` where no step has all three times.
    """
    where = str(opened.path)
    rows: list[tuple[int, int, float, float, float]] = []
    without, gammas = 0, set()
    for dump in dumps:
        if dump.get("gamma") is not None:
            gammas.add(integer(dump["gamma"], f"{where}: gamma", 1, 127))
        for step in records(dump["records"], f"{where}: records"):
            at = f"{where}: forward_ct {step.get('forward_ct', '?')}"
            if any(step.get(name) is None for name in _TIMES):
                without += 1
                continue
            whole, draft, verify = (number(step[name], f"{at}: {name}", 0.0, 1e6) / 1e3 for name in _TIMES)
            if not draft + verify <= whole * 1.001 or whole <= 0:
                raise FormatError(
                    f"{at}: draft_gpu_ms {draft * 1e3:g} + target_verify_gpu_ms {verify * 1e3:g} is more "
                    f"than step_gpu_ms {whole * 1e3:g}; the dump contradicts itself"
                )
            size = integer(step.get("bs"), f"{at}: bs", 1)
            verified = integer(step.get("num_verify_tokens"), f"{at}: num_verify_tokens", size)
            served = records(step.get("reqs") or [], f"{at}: reqs")
            context = sum(integer(r.get("prefix_len", 0), f"{at}: prefix_len") for r in served)
            rows.append((size, verified, whole - draft, draft, context))
    if not rows:
        raise FormatError(
            f"{where}: {without} steps, none with {', '.join(_TIMES)}; dump again with "
            "SGLANG_DSPARK_DEBUG_DUMP=all"
        )
    requests, tokens = (np.array([row[i] for row in rows], dtype=np.int64) for i in (0, 1))
    rest, draft_times = (np.array([row[i] for row in rows]) for i in (2, 3))
    notes = [
        f"{len(rows)} steps with times{f', {without} without' if without else ''}; the mean context was "
        f"{np.mean([row[4] / row[0] for row in rows]):.0f} tokens a request, its attention is inside verify."
    ]
    if len(np.unique(tokens)) < 2:
        raise FormatError(f"{where}: every step verified {tokens[0]} tokens; dump at several loads")
    fit = fit_rounds(requests, tokens, rest, notes)
    sizes = np.unique(requests)
    draft_curve = curve("requests", sizes, [float(np.median(draft_times[requests == r])) for r in sizes])
    if len(gammas) == 1:
        draft_curve["block_size"] = gammas.pop()
    verify_curve = {**curve("tokens", fit.tokens, fit.theta), "lookup": "linear", "beyond": "clamp"}
    profile = build(
        opened.path.stem,
        verify_curve,
        imported(where, "sglang-dump", "none (steps of a dump)", notes, hints),
        hints,
        overhead=curve("requests", fit.requests, fit.overhead),
        draft=draft_curve,
        fit=fit.report(),
    )
    return profile, notes
