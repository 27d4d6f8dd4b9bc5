"""The three training losses (equations 9 to 12), with the LM head fused in so that logits never all exist.

With w_k = exp(-(k-1)/decay) and the means taken over all supervised positions, weighted by w_k:

    L = 0.1 · mean CE(p_d, token) + 0.9 · mean |p_d - p_t|_1 + 1.0 · mean BCE(c, 1 - TV(p_d, p_t))

The second term is the L1 distance, twice the total variation, as the official implementation has it. CE and
L1 meet the vocabulary: they are computed in chunks of rows, with the gradient taken on the way (`_HeadLoss`),
so that memory is chunk x V whatever the batch. The target's law is either whole (from its last hidden state)
or its top tokens and one bucket for the remainder: then TV is a lower bound, short by at most min(p_d, p_t)
mass of the bucket (`remainder` of the result says how much mass that is).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK_BYTES = 48 << 20


class LossWeights(NamedTuple):
    """Weights of the terms. `soft_ce` (cross-entropy against the whole target law) is for Eagle3."""

    ce: float = 0.1
    l1: float = 0.9
    confidence: float = 1.0
    soft_ce: float = 0.0
    decay: float = 4.0
    """Decay constant of the position weights, in positions (the paper's γ; the official run takes 4 for
    γ = 7)
    """


class TargetLaw(NamedTuple):
    """The target's next-token law at n positions: `hidden` (whole law), else `top_ids` and `top_p`."""

    label: Tensor
    """int64[n]: the token that followed, as a row of the draft vocabulary; -1 when it is outside"""
    top_ids: Tensor | None = None
    """int64[n, K]: likeliest tokens as rows of the draft vocabulary, -1 outside"""
    top_p: Tensor | None = None
    """float32[n, K]: their probabilities"""
    hidden: Tensor | None = None
    """float32[n, d]: last hidden states, for the whole law"""
    head: Tensor | None = None
    """float32[V, d]: the target's LM head, for the whole law"""
    draft_ids: Tensor | None = None
    """int64[Vd]: rows of `head` in the draft vocabulary, None when it is the whole vocabulary"""

    def rows(self, part: slice) -> TargetLaw:
        """The same for some of the positions."""
        fields = ("label", "top_ids", "top_p", "hidden")
        return self._replace(**{k: getattr(self, k)[part] for k in fields if getattr(self, k) is not None})

    def to(self, device: torch.device) -> TargetLaw:
        """The same on another device."""
        return TargetLaw(*(None if x is None else x.to(device) for x in self))  # type: ignore[arg-type]


class HeadLoss(NamedTuple):
    """Result of `head_loss`; only `loss` carries a gradient."""

    loss: Tensor
    accept: Tensor
    """float32[n]: 1 - TV, the probability that the draft token is accepted: the confidence head's label"""
    ce: Tensor
    """float32[n], 0 where the label is outside the draft vocabulary"""
    stats: Tensor
    """float32[n, 2]: entropy and log of the largest probability of the draft law (`heads.draft_stats`)"""
    remainder: Tensor
    """float32[n]: target mass outside the top tokens (0 with the whole law)"""


def position_weights(gamma: int, decay: float | None, device: Any = None) -> Tensor:
    """w_k = exp(-(k-1)/decay) for k = 1..γ: float32[γ]; all 1 when decay is None or not positive."""
    k = torch.arange(gamma, device=device, dtype=torch.float32)
    return torch.ones_like(k) if decay is None or decay <= 0 else torch.exp(-k / decay)


def confidence_loss(logit: Tensor, accept: Tensor, weight: Tensor) -> Tensor:
    """Weighted mean of BCE(σ(logit), 1 - TV), eq. 11: all float32[n]."""
    each = F.binary_cross_entropy_with_logits(logit, accept, reduction="none")
    return (each * weight).sum() / weight.sum().clamp(min=1e-6)


def head_loss(
    hidden: Tensor,
    latent: Tensor | None,
    head: Tensor,
    w2: Tensor | None,
    law: TargetLaw,
    weight: Tensor,
    terms: LossWeights,
) -> HeadLoss:
    """CE and L1 of n positions: hidden[n, d], latent[n, r] or None, head[Vd, d] (frozen), w2[Vd, r],
    weight[n].

    `weight` is w_k, 0 where a position is not supervised. `head` may be bfloat16: the products then run in
    it, softmax and sums stay float32.
    """
    return HeadLoss(*_HeadLoss.apply(hidden, latent, w2, head, law, weight, terms))


class _HeadLoss(torch.autograd.Function):
    """Forward computes the gradients too, chunk by chunk; backward only scales them."""

    @staticmethod
    def forward(ctx, hidden, latent, w2, head, law, weight, terms):  # type: ignore[no-untyped-def]
        n, size = len(hidden), len(head)
        # Head and W2 side by side: one product forward, one back. `head` sets the dtype of both.
        matrix = head if latent is None else torch.cat([head, w2.to(head.dtype)], dim=1)
        inputs = hidden if latent is None else torch.cat([hidden, latent.to(hidden.dtype)], dim=1)
        inputs = inputs.to(head.dtype)
        rows = max(16, min(n, CHUNK_BYTES // (4 * size)))
        known = (law.label >= 0).to(weight.dtype)
        ce_scale = terms.ce * weight * known / (weight * known).sum().clamp(min=1e-6)
        soft_scale, l1_scale = (x * weight / weight.sum().clamp(min=1e-6) for x in (terms.soft_ce, terms.l1))
        grads = torch.empty(n, matrix.shape[1], dtype=head.dtype, device=head.device)
        grad_w2: Any = None if latent is None else torch.zeros_like(w2)
        loss = hidden.new_zeros((), dtype=torch.float32)
        parts = []
        for start in range(0, n, rows):
            part = slice(start, min(start + rows, n))
            z = F.linear(inputs[part], matrix).float()
            chunk = _chunk(z, law.rows(part), (ce_scale[part], l1_scale[part], soft_scale[part]))
            loss += chunk.value
            grad = chunk.grad.to(head.dtype)
            torch.mm(grad, matrix, out=grads[part])
            if latent is not None:
                grad_w2 += grad.t() @ inputs[part, hidden.shape[1] :]
            parts.append((chunk.accept, chunk.ce, chunk.stats, chunk.remainder))
        grad_hidden = grads[:, : hidden.shape[1]].to(hidden.dtype)
        grad_latent = None if latent is None else grads[:, hidden.shape[1] :].to(latent.dtype)
        ctx.save_for_backward(grad_hidden, grad_latent, grad_w2)
        rest = [torch.cat(column) for column in zip(*parts, strict=True)]
        ctx.mark_non_differentiable(*rest)
        return loss, *rest

    @staticmethod
    def backward(ctx, grad_loss, *_):  # type: ignore[no-untyped-def]
        grads = (None if g is None else g * grad_loss.to(g.dtype) for g in ctx.saved_tensors)
        return *grads, None, None, None, None


class _Chunk(NamedTuple):
    value: Tensor
    grad: Tensor  # [c, Vd], with respect to the logits
    accept: Tensor
    ce: Tensor
    stats: Tensor
    remainder: Tensor


def _chunk(z: Tensor, law: TargetLaw, scales: tuple[Tensor, Tensor, Tensor]) -> _Chunk:
    """Loss and gradient of one chunk: z float32[c, Vd] (overwritten), scales of CE, L1 and soft CE
    float32[c].

    With s = sign(p - q): d|p - q|/dz = p (s - <s, p>), dCE/dz = p - onehot, d softCE/dz = p Σq - q.
    """
    ce_scale, l1_scale, soft_scale = scales
    label, inside = law.label.clamp(min=0).unsqueeze(1), law.label >= 0
    stats = z.new_full((len(z), 2), float("nan"))
    if law.hidden is not None:
        q, outside = _whole(law)
        log_p = torch.log_softmax(z, dim=-1)
        p = torch.exp(log_p, out=z)
        stats = torch.stack([-(p * log_p).sum(-1), log_p.amax(-1)], dim=-1)
        ce = -log_p.gather(1, label).squeeze(1)
        soft = -(q * log_p).sum(-1)
        difference = torch.sub(p, q, out=log_p)
        l1 = difference.abs().sum(-1) + outside
        sign = difference.sign_()
        inner = (sign * p).sum(-1)
        grad = sign.sub_(inner.unsqueeze(1)).mul_(l1_scale.unsqueeze(1))
        grad.add_((ce_scale * inside + soft_scale * q.sum(-1)).unsqueeze(1)).mul_(p)
        grad.sub_(q.mul_(soft_scale.unsqueeze(1)))
        remainder = torch.zeros_like(l1)
    else:
        assert law.top_ids is not None
        assert law.top_p is not None
        has = law.top_ids >= 0
        ids = law.top_ids.clamp(min=0)
        q = law.top_p * has
        outside = (law.top_p * ~has).sum(-1)
        remainder = (1 - law.top_p.sum(-1)).clamp(min=0)
        p = torch.softmax(z, dim=-1, out=z)
        p_top = p.gather(1, ids) * has
        ce = -p.gather(1, label).squeeze(1).clamp(min=1e-30).log()
        soft = -(q * p_top.clamp(min=1e-30).log()).sum(-1)
        p_rest = (1 - p_top.sum(-1)).clamp(min=0)
        l1 = (p_top - q).abs().sum(-1) + outside + (p_rest - remainder).abs()
        sign_top, sign_rest = (p_top - q).sign(), (p_rest - remainder).sign()
        inner = (sign_top * p_top).sum(-1) + sign_rest * p_rest
        everywhere = l1_scale * (sign_rest - inner) + ce_scale * inside + soft_scale * q.sum(-1)
        grad = p.mul_(everywhere.unsqueeze(1))
        top = (
            l1_scale.unsqueeze(1) * p_top * (sign_top - sign_rest.unsqueeze(1)) - soft_scale.unsqueeze(1) * q
        )
        grad.scatter_add_(1, ids, top * has)
    ce = ce * inside
    grad.scatter_add_(1, label, -(ce_scale * inside).unsqueeze(1))
    value = (ce_scale * ce + l1_scale * l1 + soft_scale * soft).sum()
    return _Chunk(value, grad, (1 - l1 / 2).clamp(0, 1), ce, stats, remainder)


def _whole(law: TargetLaw) -> tuple[Tensor, Tensor]:
    """The whole target law on the draft vocabulary: q[c, Vd], and its mass outside [c]."""
    assert law.hidden is not None
    assert law.head is not None
    q = F.linear(law.hidden.to(law.head.dtype), law.head).float().softmax(-1)
    if law.draft_ids is None:
        return q, q.new_zeros(len(q))
    q = q[:, law.draft_ids]
    return q, (1 - q.sum(-1)).clamp(min=0)
