"""The last stage of training: fit the confidence head on text the backbone never saw, and measure there.

Labels of memorised text are too good (its 1 - TV is near 1), which shows as a shift that temperatures cannot
mend; so the head is refitted on the held-out texts with the backbone frozen. Survival here is exact, not
sampled: along the target's own text y the prefix up to k survives with probability prod_i min(1, p_d(y_i) /
p_t(y_i)), whose mean is the acceptance of a dense trace (docs/files.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ...calibration.metrics import auc, ece
from ...errors import SpecschedError
from ..drafter.base import Drafter, peak_confidence
from ..drafter.heads import draft_stats
from ..target.decoder import Target
from .text import Text, TrainingText


class Observed(NamedTuple):
    """Blocks of a text pool as the drafter sees them, m anchors; everything float32."""

    inputs: Tensor
    """[m, γ, width]: the confidence head's inputs (without a head: the peak log-odds, width 1)"""
    accept: Tensor
    """[m, γ]: 1 - TV, exact"""
    ratio: Tensor
    """[m, γ]: min(1, p_d(y) / p_t(y)) of the token that followed"""
    inside: Tensor
    """bool[m, γ]: draft lies inside the text"""
    anchor: Tensor
    """int64[m]: index of the text in the pool"""


@torch.no_grad()
def observe(
    drafter: Drafter,
    target: Target,
    text: TrainingText,
    pool: Sequence[Text],
    anchors: int = 16,
    seed: int = 0,
    temperature: float = 1.0,
    limit: int = 20000,
) -> Observed:
    """Run the drafter teacher-forced at random anchors of every text of the pool, against the whole
    target law.
    """
    parts: list[tuple[Tensor, ...]] = []
    count = 0
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(pool), generator=generator).tolist()
    for number in order:
        t = pool[number]
        some = torch.randperm(t.anchors, generator=generator)[:anchors].sort().values + t.prompt
        batch, inside = text.batch([t], some[None])
        law = text.law([t], some[None], target)
        batch = type(batch)(*(x.to(target.device) for x in batch))
        out = drafter.teacher(batch)
        logits = drafter.base_logits(out.hidden)
        head = drafter.confidence_head
        if out.latent is not None and drafter.markov_w2 is not None:
            logits = logits + F.linear(out.latent, drafter.markov_w2)
        logits = logits.float()
        assert law.hidden is not None
        p_t = (F.linear(law.hidden, target.lm_head.weight).float() / temperature).softmax(-1)
        p_t = p_t.view(*logits.shape[:2], -1)
        next_tokens = batch.windows(drafter.block_size + 1)[:, 1:]
        p_y = p_t.gather(-1, next_tokens.unsqueeze(-1)).squeeze(-1)
        q = p_t if law.draft_ids is None else p_t[..., law.draft_ids]
        p_d = (logits / temperature).softmax(-1)
        accept = torch.minimum(p_d, q).sum(-1)
        label = law.label.view(len(some), -1).to(p_d.device)
        d_y = p_d.gather(-1, label.clamp(min=0).unsqueeze(-1)).squeeze(-1) * (label >= 0)
        ratio = (d_y / p_y.clamp(min=1e-12)).clamp(max=1)
        if head is None:
            inputs = peak_confidence(logits).unsqueeze(-1)
        else:
            pieces = [out.hidden]
            if head.with_markov and out.embedded is not None:
                pieces.append(out.embedded)
            if head.with_stats:
                pieces.append(draft_stats(logits))
            inputs = torch.cat(pieces, dim=-1)
        parts.append((inputs.cpu(), accept.cpu(), ratio.cpu(), inside, torch.full((len(some),), number)))
        count += len(some)
        if count >= limit:
            break
    return Observed(*(torch.cat(column) for column in zip(*parts, strict=True)))


def survival(ratio: Tensor, inside: Tensor) -> Tensor:
    """Probability that the prefix up to each position survives: [m, γ], 0 beyond the text's end."""
    return (ratio * inside).cumprod(-1)


def fit_confidence(
    drafter: Drafter,
    target: Target,
    text: TrainingText,
    pool: Sequence[Text],
    seed: int = 0,
    anchors: int = 40,
    limit: int = 40000,
    penalty: float = 1e-4,
) -> float:
    """Refit the confidence head (linear, convex) on the pool; returns the final weighted cross-entropy.

    A position weighs what its prefix's survival is: confidences matter, and are scored, on survivors.
    """
    head = drafter.confidence_head
    assert head is not None
    seen = observe(drafter, target, text, pool, anchors, seed, limit=limit)
    alive = torch.cat([seen.inside[:, :1].float(), survival(seen.ratio, seen.inside)[:, :-1]], dim=-1)
    keep = seen.inside.flatten()
    x = seen.inputs.flatten(0, 1)[keep].float()
    y = seen.accept.flatten()[keep]
    if not (x.isfinite().all() and y.isfinite().all()):
        raise SpecschedError(
            f"{text.where}/*/features.npy: the drafter's states on this text are not finite numbers; delete "
            "the folder, and it is made again, or train at a lower --learning-rate"
        )
    w = (0.02 + alive.flatten()[keep]).float()
    w /= w.sum()
    centre = (w.unsqueeze(1) * x).sum(0)
    spread = ((w.unsqueeze(1) * (x - centre) ** 2).sum(0)).sqrt().clamp(min=1e-4)
    x = (x - centre) / spread
    weight = torch.zeros(x.shape[1], requires_grad=True)
    bias = torch.zeros((), requires_grad=True)
    optimiser = torch.optim.LBFGS([weight, bias], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        each = F.binary_cross_entropy_with_logits(x @ weight + bias, y, reduction="none")
        loss = (each * w).sum() + penalty * weight.square().sum()
        loss.backward()
        return loss

    final = float(optimiser.step(closure).detach())
    with torch.no_grad():
        head.proj.weight.copy_((weight / spread).unsqueeze(0))
        head.proj.bias.copy_((bias - (weight / spread * centre).sum()).unsqueeze(0))
    return final


def _rounded(value: float) -> float | None:
    """To four digits; None for an AUC where all drafts are accepted, or none is."""
    return None if math.isnan(value) else round(value, 4)


def evaluate(
    drafter: Drafter,
    target: Target,
    text: TrainingText,
    pool: Sequence[Text],
    anchors: int = 16,
    seed: int = 1,
    temperature: float = 1.0,
    limit: int = 8000,
) -> dict[str, Any]:
    """Measure on a pool: anchor-mean tau (bonus included), acceptance per position, AUC and raw ECE, by
    domain.

    Only anchors with all γ drafts inside the text count, as in a dense trace. The same text also fitted the
    confidence head when the pool is the held-out side: its AUC and ECE are then slightly flattering.
    """
    seen = observe(drafter, target, text, pool, anchors, seed, temperature, limit)
    head = drafter.confidence_head
    with torch.no_grad():
        logit = (
            seen.inputs.squeeze(-1)
            if head is None
            else head.proj(seen.inputs.to(head.proj.weight)).squeeze(-1)
        )
    score = logit.float().cpu().sigmoid().cumprod(-1)
    alive = survival(seen.ratio, seen.inside)
    full = seen.inside.all(-1)
    names = [pool[i].domain for i in seen.anchor.tolist()]
    report: dict[str, Any] = {}
    for domain in ("all", *dict.fromkeys(names)):
        rows = full if domain == "all" else full & torch.tensor([n == domain for n in names])
        if int(rows.sum()) < 2:
            continue
        a, s = alive[rows], score[rows]
        before = torch.cat([torch.ones(len(a), 1), a[:, :-1]], dim=1)
        report[domain] = {
            "anchors": len(a),
            "tau": round(1 + float(a.sum(-1).mean()), 4),
            "conditional_acceptance": [round(float(x), 4) for x in a.sum(0) / before.sum(0)],
            "auc": [_rounded(auc(s[:, k], a[:, k])) for k in range(a.shape[1])],
            "ece": [round(ece(s[:, k], a[:, k]), 4) for k in range(a.shape[1])],
        }
    return report
