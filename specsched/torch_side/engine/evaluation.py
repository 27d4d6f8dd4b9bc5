"""Speculative decoding of prompts, and how well a drafter does on them. The engine itself is `engine.py`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ... import schedule
from ...calibration.metrics import auc, ece, sigmoid, survival
from ...errors import SpecschedError
from ...files.parts import PartsFolder
from ..drafter.base import Drafter
from ..drafter.dspark import load_drafter
from ..target.decoder import Target
from ..target.weights import load_target
from .answers import NAMES as ANSWER_NAMES
from .answers import Answers, drafter_digest, rows_digest
from .engine import Calibrated, Costs, Engine, Output, Request, Round, StepTiming
from .prompts import ids_of, read_prompts
from .sampling import Sampling

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "Engine",
    "Output",
    "Request",
    "Round",
    "StepTiming",
    "evaluate",
    "generate",
    "read_prompts",
    "statistics",
]


def generate(
    target: Target,
    drafter: Drafter | None,
    requests: Sequence[Request],
    policy: str | schedule.Policy = "fixed",
    *,
    temperature: float = 1.0,
    sampling: Sampling | None = None,
    seed: int = 0,
    max_batch: int = 16,
    profile: Costs | None = None,
    calibration: Calibrated | None = None,
    kept: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Output]:
    """Answer all requests, at most `max_batch` at a time; outputs in the order of `requests`.

    `kept`: a folder from which finished answers are read and not given again; new ones are saved there.

    `sampling` replaces `temperature`. The text depends on (seed, request key, policy, sampling) and, beyond
    rounding, not on the batch. `progress` is called as (answered, of how many) whenever a request is.
    """
    gamma = 0 if drafter is None else drafter.block_size
    longest = max((len(r.prompt_ids) + r.max_tokens for r in requests), default=0)
    engine = Engine(
        target,
        drafter,
        policy,
        temperature=temperature,
        sampling=sampling,
        seed=seed,
        max_batch=max(1, min(max_batch, len(requests))),
        capacity=longest + gamma + 1,
        profile=profile,
        calibration=calibration,
    )
    answers = None if kept is None else _answers(kept, engine)
    there = [None if answers is None else answers.load(request) for request in requests]
    before = sum(output is not None for output in there)
    outputs = [output or engine.submit(request) for request, output in zip(requests, there, strict=True)]
    told = 0
    while engine.waiting or engine.rows:
        engine.step()
        for output in engine.finished[told:]:
            if answers is not None:
                answers.save(output)
        if progress is not None and len(engine.finished) > told:
            progress(before + len(engine.finished), len(outputs))
        told = len(engine.finished)
    return outputs


def _answers(folder: Path, engine: Engine) -> Answers:
    """The answers kept in `folder` of what this engine serves."""
    config = engine.target.config
    return Answers(
        folder,
        vocabulary=config.vocab_size,
        ends=config.eos_token_ids,
        block_size=engine.gamma,
        drafts=engine.drafts,
    )


def evaluate(
    target: Target | str,
    drafter: Drafter | str | None,
    prompts: str | os.PathLike[str] | Sequence[dict[str, Any]],
    *,
    policy: str | schedule.Policy = "fixed",
    temperature: float = 0.0,
    sampling: Sampling | None = None,
    max_tokens: int = 128,
    thinking: bool | None = None,
    seed: int = 0,
    max_batch: int = 16,
    profile: Costs | None = None,
    calibration: Calibrated | None = None,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    parts: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """What `specsched drafter eval --json` prints, as plain lists and numbers.

    target, drafter: objects, or names to load; prompts: a JSON file or its rows (see `read_prompts`).
    {"samples": [{"output_ids", "rounds": [{"position", "draft_ids", "confidence_logits", "verified",
    "accepted"}]}], and what `statistics` gives}. Samples are in file order; `output_ids` has at most
    `max_tokens`.

    As in DeepSpec's evaluation a round starts from every anchor among those tokens, so the last round's own
    tokens may lie past the end. `parts`: a folder for finished answers; an interrupted evaluation with the
    same settings resumes there, and the folder goes when it ends.
    """
    if max_tokens < 1:
        raise SpecschedError(f"max_tokens is {max_tokens}; at least one token must be produced")
    target = load_target(target, device, dtype) if isinstance(target, str) else target
    drafter = load_drafter(drafter, target) if isinstance(drafter, str) else drafter
    rows = read_prompts(prompts) if isinstance(prompts, (str, os.PathLike)) else list(prompts)
    requests = [
        Request(tuple(ids_of(target, row, i, thinking)), max_tokens + 1, i, str(row.get("domain", "unknown")))
        for i, row in enumerate(rows)
    ]
    sampling = sampling or Sampling(temperature)
    folder = None
    if parts is not None:
        about = _about(target, drafter, requests, policy, sampling, profile, calibration)
        about["settings"] = [max_tokens, seed, max_batch]
        elsewhere = "write to another folder"
        folder = PartsFolder(Path(parts), about, "evaluation", ANSWER_NAMES, elsewhere, SpecschedError)
    outputs = generate(
        target,
        drafter,
        requests,
        policy,
        sampling=sampling,
        seed=seed,
        max_batch=max_batch,
        profile=profile,
        calibration=calibration,
        kept=None if folder is None else folder.folder,
        progress=progress,
    )
    if folder is not None:
        folder.remove()
    samples = [
        {
            "output_ids": out.output_ids[:max_tokens],
            "rounds": [
                {
                    "position": r.position,
                    "draft_ids": list(r.draft_ids),
                    "confidence_logits": list(r.confidence_logits),
                    "verified": r.verified,
                    "accepted": r.accepted,
                }
                for r in out.rounds
            ],
        }
        for out in outputs
    ]
    return {"samples": samples, **statistics([r for out in outputs for r in out.rounds], calibration)}


def _about(
    target: Target,
    drafter: Drafter | None,
    requests: Sequence[Request],
    policy: str | schedule.Policy,
    sampling: Sampling,
    profile: Costs | None,
    calibration: Calibrated | None,
) -> dict[str, Any]:
    """What answers depend on, so that an evaluation resumes from its own alone."""
    gamma = 0 if drafter is None else drafter.block_size
    probes = np.repeat([[-1.0], [2.0]], gamma, axis=1)
    return {
        "target": target.config.name,
        "dtype": str(target.dtype).removeprefix("torch."),
        "drafter_sha256": None if drafter is None else drafter_digest(drafter),
        "prompts_sha256": rows_digest({"ids": r.prompt_ids, "domain": r.domain} for r in requests),
        "policy": policy if isinstance(policy, str) else policy.name,
        "sampling": asdict(sampling),
        "costs": None if profile is None else profile.sps(1, 1000, 64).tolist(),
        "calibration": None if calibration is None or not gamma else calibration.apply(probes).tolist(),
    }


def statistics(rounds: Sequence[Round], calibration: Calibrated | None = None) -> dict[str, Any]:
    """Figures of a set of rounds; each list has γ entries, None where nothing was observed.

    {"rounds", "tau": mean accepted + 1, "conditional_acceptance": P(k accepted | k-1 accepted and k
    verified), "auc" and "ece" of the survival at k against "accepted >= k", over rounds that verified k}. A
    policy that trims by confidence makes these a selection: use `fixed` to judge a drafter.
    """
    if not rounds:
        return {"rounds": 0, "tau": None, "conditional_acceptance": [], "auc": [], "ece": []}
    logits = np.array([r.confidence_logits for r in rounds], dtype=np.float64)
    verified = np.array([r.verified for r in rounds])
    accepted = np.array([r.accepted for r in rounds])
    chances = survival(sigmoid(logits) if calibration is None else calibration.apply(logits))
    gamma = logits.shape[1]
    figures: dict[str, list[float | None]] = {"conditional_acceptance": [], "auc": [], "ece": []}
    for k in range(gamma):
        seen = verified > k
        reached = seen & (accepted >= k)
        labels = accepted[seen] > k
        figures["conditional_acceptance"].append(_mean(accepted[reached] > k))
        area = auc(chances[seen, k], labels) if seen.any() else float("nan")
        figures["auc"].append(None if np.isnan(area) else area)
        figures["ece"].append(ece(chances[seen, k], labels) if seen.any() else None)
    return {"rounds": len(rounds), "tau": float(accepted.mean() + 1), **figures}


def _mean(values: NDArray[np.bool_]) -> float | None:
    return float(values.mean()) if len(values) else None
