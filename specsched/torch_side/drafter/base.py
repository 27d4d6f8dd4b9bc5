"""What all drafters share: the frozen embedding and LM head, the per-slot context store, and sampling.

A context slot holds, per drafter layer, the keys and values made from the target's features of settled text:

    position   0 ........ anchor-1 | anchor  anchor+1 ..
    context    [ keys from features | not read: the anchor and the drafts are the block's own inputs ]

so rolling back after a rejection needs no call: whatever lies at or beyond the anchor is never read, and is
overwritten by the next `observe`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import SpecschedError
from ..target.decoder import RMSNorm, Target, frequencies, rotate, scaled
from .config import DrafterConfig
from .heads import ConfidenceHead, MarkovHead

Law = Callable[[Tensor], Tensor]
"""Draft logits float32[R, Vd] -> the law drafts are drawn from, float32[R, Vd]."""

Sampler = Callable[[int, Tensor], Tensor]
"""(position k from 0, probabilities float32[R, V]) -> tokens int64[R]: replaces the drafter's own drawing."""


class DraftBlock(NamedTuple):
    """One drafted block for R requests."""

    tokens: Tensor
    """int64[R, γ]"""
    probabilities: Tensor
    """float32[R, γ, V]: the law each token was drawn from, after temperature (one-hot at temperature 0)."""
    confidence_logit: Tensor
    """float32[R, γ]: raw, before calibration; position k depends on drafted tokens before k only."""
    logits: Tensor
    """float32[R, γ, Vd]: draft logits before temperature, over the draft vocabulary (Vd = V without one)."""


class Teacher(NamedTuple):
    """A teacher-forced pass over n blocks, for training. Tokens before position k are the target's own."""

    hidden: Tensor
    """float[n, γ, d] that the LM head is applied to"""
    latent: Tensor | None
    """float[n, γ, r] that W2 of the Markov head is applied to, None without one"""
    embedded: Tensor | None
    """float[n, γ, r]: W1[x_{k-1}], an input of the confidence head; None without a Markov head"""


class TeacherBatch(NamedTuple):
    """Inputs of a teacher-forced pass: B texts padded to S positions, A anchors each, n = B·A blocks."""

    tokens: Tensor
    """int64[B, S + γ]: the texts, padded with any valid token"""
    features: Tensor
    """float[B, S, F]: target features of those tokens"""
    anchors: Tensor
    """int64[B, A]: positions of the anchors, 1 <= anchor < S"""

    def windows(self, width: int) -> Tensor:
        """Tokens anchor .. anchor + width - 1: int64[B·A, width]."""
        index = self.anchors.unsqueeze(-1) + torch.arange(width, device=self.anchors.device)
        return self.tokens.gather(1, index.flatten(1)).view(-1, width)


class Attention(nn.Module):
    """Grouped-query attention of block positions over the injected context (eq. 3) and over their own block.

    Parameter names are DeepSpec's. `input_width` is d, or 2d for Eagle3 whose input is a pair.
    """

    def __init__(self, c: DrafterConfig, input_width: int) -> None:
        super().__init__()
        self.c = c
        self.q_proj = nn.Linear(input_width, c.num_attention_heads * c.head_dim, bias=False)
        self.k_proj = nn.Linear(input_width, c.num_key_value_heads * c.head_dim, bias=False)
        self.v_proj = nn.Linear(input_width, c.num_key_value_heads * c.head_dim, bias=False)
        self.o_proj = nn.Linear(c.num_attention_heads * c.head_dim, c.hidden_size, bias=False)
        self.q_norm = RMSNorm(c.head_dim, c.rms_norm_eps) if c.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(c.head_dim, c.rms_norm_eps) if c.qk_norm else nn.Identity()

    def keys_values(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """x[..., t, width] -> keys and values [..., kv heads, t, head_dim], keys normed and rotated."""
        shape = (*x.shape[:-1], self.c.num_key_value_heads, self.c.head_dim)
        k = self.k_norm(self.k_proj(x).view(shape)).transpose(-2, -3)
        v = self.v_proj(x).view(shape).transpose(-2, -3)
        return rotate(k, cos.unsqueeze(-3), sin.unsqueeze(-3)), v

    def queries(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x[..., t, width] -> [..., heads, t, head_dim]."""
        q = self.q_proj(x).view(*x.shape[:-1], self.c.num_attention_heads, self.c.head_dim)
        return rotate(self.q_norm(q).transpose(-2, -3), cos.unsqueeze(-3), sin.unsqueeze(-3))

    def attend(
        self, q: Tensor, context: tuple[Tensor, Tensor], visible: Tensor, own: tuple[Tensor, Tensor]
    ) -> Tensor:
        """q[B, A, H, t, hd]; context k, v [B, kv, S, hd]; visible bool[B, A, S]; own k, v [B, A, kv, u, hd].

        Every query of a block sees the same context and the whole of `own`. Returns [B, A, t, d].
        """
        b, a, heads, t, size = q.shape
        kv = self.c.num_key_value_heads
        group = heads // kv
        s = context[0].shape[2]
        q = q.view(b, a, kv, group * t, size) * (size**-0.5)
        folded = q.permute(0, 2, 1, 3, 4).reshape(b, kv, a * group * t, size)
        far = (folded @ context[0].transpose(-1, -2)).view(b, kv, a, group * t, s)
        far = far.masked_fill(~visible[:, None, :, None, :], -math.inf)
        near = (q @ own[0].transpose(-1, -2)).permute(0, 2, 1, 3, 4)
        weights = torch.cat([far, near], dim=-1).float().softmax(-1).to(q.dtype)
        far, near = weights.split([s, weights.shape[-1] - s], dim=-1)
        out = (far.reshape(b, kv, a * group * t, s) @ context[1]).view(b, kv, a, group * t, size)
        out = out.permute(0, 2, 1, 3, 4) + near.permute(0, 2, 1, 3, 4) @ own[1]
        out = out.reshape(b, a, heads, t, size).transpose(2, 3).reshape(b, a, t, heads * size)
        return self.o_proj(out)


class DraftContext:
    """Per-slot keys and values of settled text, [layers][slots, kv heads, capacity, head_dim]; grows by
    itself.

    `observe` after every target forward, with the features of the tokens that are settled; `draft` then
    reads positions below each anchor. `fused` [slots, capacity, d] is there where the drafter
    `keeps_features`, else None.
    """

    def __init__(self, drafter: Drafter, slots: int, capacity: int = 256) -> None:
        self.drafter = drafter
        self.slots, self.capacity = slots, max(capacity, 1)
        c, weight = drafter.config, drafter.fc.weight
        shape = (slots, c.num_key_value_heads, self.capacity, c.head_dim)
        self.keys = [weight.new_zeros(shape) for _ in range(c.num_hidden_layers)]
        self.values = [weight.new_zeros(shape) for _ in range(c.num_hidden_layers)]
        keeps = drafter.keeps_features
        self.fused = weight.new_zeros(slots, self.capacity, c.hidden_size) if keeps else None
        self.lengths = torch.zeros(slots, dtype=torch.int64)

    def observe(
        self, slots: Tensor, positions: Tensor, features: Tensor, tokens: Tensor | None = None
    ) -> None:
        """Store the features [n, F] of settled tokens: slots, positions, tokens int64[n].

        `tokens` (the tokens at those positions) are needed by Eagle3 only. Positions of a slot must arrive
        without gaps (checked); observing a position again overwrites it.
        """
        if len(positions) == 0:
            return
        host_slots, host_positions = slots.cpu(), positions.cpu()
        top = int(host_positions.max())
        if top >= self.capacity:
            self._grow(top + 1)
        low = torch.full_like(self.lengths, self.capacity).scatter_reduce(
            0, host_slots, host_positions, "amin"
        )
        gap = (low > self.lengths) & (low < self.capacity)
        if bool(gap.any()):
            slot = int(gap.nonzero()[0])
            raise SpecschedError(
                f"drafter context, slot {slot}: features start at position {int(low[slot])} but only "
                f"{int(self.lengths[slot])} are stored; observe the missing positions first"
            )
        with torch.no_grad():
            self.drafter.extend_context(self, slots, positions, features, tokens)
        ends = torch.zeros_like(self.lengths).scatter_reduce(0, host_slots, host_positions + 1, "amax")
        touched = host_slots.unique()
        self.lengths[touched] = ends[touched]

    def clear(self, slots: Tensor) -> None:
        """Forget these slots (int64[n]): a new request may move in."""
        self.lengths[slots.cpu()] = 0

    def _grow(self, needed: int) -> None:
        extra = max(needed, 2 * self.capacity) - self.capacity
        self.keys = [F.pad(k, (0, 0, 0, extra)) for k in self.keys]
        self.values = [F.pad(v, (0, 0, 0, extra)) for v in self.values]
        if self.fused is not None:
            self.fused = F.pad(self.fused, (0, 0, 0, extra))
        self.capacity += extra


class Drafter(nn.Module):
    """Base of DSpark, DFlash and Eagle3: shared frozen embedding and LM head, context, drawing of tokens.

    It makes `fc`, from the target's features [..., F] to the width [..., d], and `norm`, before the LM head;
    a kind uses both. A kind without a confidence head gives `peak_confidence`.
    """

    keeps_features: ClassVar[bool] = False  # True: the context keeps what `fc` makes, in `DraftContext.fused`
    draft_ids: Tensor | None
    head_weight: Tensor
    markov_head: MarkovHead | None
    confidence_head: ConfidenceHead | None

    def __init__(self, config: DrafterConfig, draft_ids: Tensor | None = None) -> None:
        super().__init__()
        self.config = config
        self.block_size = config.block_size
        self.target_layer_ids = config.target_layer_ids
        c = config
        if (draft_ids is None) != (c.draft_vocab_size is None):
            raise SpecschedError("a drafter has draft_ids exactly when its config has a draft_vocab_size")
        self.fc = nn.Linear(c.feature_size, c.hidden_size, bias=False)
        self.norm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.register_buffer("draft_ids", draft_ids, persistent=False)
        self.register_buffer("head_weight", torch.zeros(0), persistent=False)
        self.embed_tokens = nn.Embedding(0, c.hidden_size)
        self.where = "the drafter"  # its folder, for messages
        self.markov_head = self.confidence_head = None

    # --- the frozen half, shared with the target ------------------------------------------------------------

    def attach(self, embed_weight: Tensor, head_weight: Tensor) -> None:
        """Use these as frozen embedding [V, d] and LM head [V, d] (the target's own, or a checkpoint's
        copy); a head of the drafter's own (`own_head`) has the rows of its draft vocabulary, [Vd, d].
        """
        c = self.config
        rows = (c.draft_vocab_size or c.vocab_size) if c.own_head else c.vocab_size
        for name, weight, wanted in (
            ("embedding", embed_weight, c.vocab_size),
            ("LM head", head_weight, rows),
        ):
            if tuple(weight.shape) != (wanted, c.hidden_size):
                raise SpecschedError(
                    f"the {name} is {list(weight.shape)} but the drafter wants "
                    f"[{wanted}, {c.hidden_size}]; this drafter belongs to another target"
                )
        like = self.fc.weight
        embed_weight = embed_weight.detach().to(like)
        self.embed_tokens = nn.Embedding.from_pretrained(embed_weight, freeze=True)
        head_weight = head_weight.detach().to(like)
        whole = self.draft_ids is None or c.own_head
        self.head_weight = head_weight if whole else head_weight[self.draft_ids]

    def attach_target(self, target: Target) -> None:
        """`attach` with the target's weights (no copy where device and dtype agree)."""
        self.attach(target.embed_tokens.weight, target.lm_head.weight)

    def own_state(self) -> dict[str, Tensor]:
        """The trained tensors by DeepSpec name, without embedding and LM head."""
        return {k: v for k, v in self.state_dict().items() if not k.startswith("embed_tokens.")}

    def held_state(self) -> dict[str, Tensor]:
        """`own_state`, with the embedding and the LM head where they are the drafter's own."""
        c = self.config
        own = {"embed_tokens.weight": self.embed_tokens.weight} if c.own_embedding else {}
        return self.own_state() | own | ({"lm_head.weight": self.head_weight} if c.own_head else {})

    def own_parameters(self) -> list[nn.Parameter]:
        """The trainable parameters."""
        return [p for name, p in self.named_parameters() if not name.startswith("embed_tokens.")]

    def memory(self) -> dict[str, int]:
        """{weight_bytes, kv_bytes_per_token}: its own tensors, and keys and values of a token of context."""
        c, own = self.config, list(self.held_state().values())
        width = max((p.element_size() for p in own), default=0)
        return {
            "weight_bytes": sum(p.numel() * p.element_size() for p in own),
            "kv_bytes_per_token": 2 * c.num_hidden_layers * c.num_key_value_heads * c.head_dim * width,
        }

    # --- what the kinds implement ---------------------------------------------------------------------------

    def teacher(self, batch: TeacherBatch) -> Teacher:
        """Teacher-forced pass for training: what `draft` would see if it drew the tokens of the text."""
        raise NotImplementedError

    def extend_context(
        self, context: DraftContext, slots: Tensor, positions: Tensor, features: Tensor, tokens: Tensor | None
    ) -> None:
        """Write what `draft` reads into the context: `keys` and `values`, or `fused`.

        `DraftContext.observe` calls it with n settled tokens: slots, positions, tokens int64[n],
        features [n, F].
        """
        raise NotImplementedError

    def draft(
        self,
        anchor_tokens: Tensor,
        anchor_positions: Tensor,
        context: DraftContext,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
        sampler: Sampler | None = None,
        slots: Tensor | None = None,
        law: Law | None = None,
    ) -> DraftBlock:
        """Draft γ tokens after each of R anchors: anchor_tokens, anchor_positions int64[R].

        `slots` int64[R] says whose context each row reads (default row r reads slot r; a slot may serve many
        rows, as in dense recording). Tokens are drawn from `generator`, or by `sampler`, or are the argmax at
        temperature 0. `law` makes the laws instead of `temperature`. Raises SpecschedError when a context is
        shorter than its anchor position.
        """
        raise NotImplementedError

    # --- shared pieces --------------------------------------------------------------------------------------

    def new_context(self, slots: int, capacity: int = 256) -> DraftContext:
        """An empty context store for this drafter."""
        return DraftContext(self, slots, capacity)

    def base_logits(self, hidden: Tensor) -> Tensor:
        """LM head of the drafter: hidden[..., d] -> [..., Vd] over the draft vocabulary."""
        return F.linear(hidden, self.head_weight)

    @property
    def markov_w2(self) -> Tensor | None:
        """W2 of the Markov head, [Vd, r], None without one."""
        return None if self.markov_head is None else self.markov_head.markov_w2.weight

    def rope(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin [..., head_dim / 2] at int64 positions, computed in float32."""
        frequency = frequencies(self.config.rope_theta, self.config.head_dim, positions.device)
        frequency = scaled(frequency, self.config.rope_scaling)
        angle = positions.float().unsqueeze(-1) * frequency.float()
        dtype = self.fc.weight.dtype
        return angle.cos().to(dtype), angle.sin().to(dtype)

    def probabilities(self, logits: Tensor, temperature: float, law: Law | None = None) -> Tensor:
        """Draft law over the whole vocabulary: logits[R, Vd] -> float32[R, V].

        Raises SpecschedError where logits are not finite.
        """
        logits = logits.float()
        self._refuse_overflow(logits, "draft logits")
        if law is not None:
            p = law(logits)
        elif temperature == 0:
            p = F.one_hot(logits.argmax(-1), logits.shape[-1]).float()
        else:
            p = (logits / temperature).softmax(-1)
        if self.draft_ids is None:
            return p
        whole = p.new_zeros(len(p), self.config.vocab_size)
        return whole.index_copy_(1, self.draft_ids, p)

    def _refuse_overflow(self, values: Tensor, what: str) -> None:
        # Finite weights can overflow on the way; what is not finite would be drawn as a token past the
        # vocabulary.
        if not bool(values.isfinite().all()):
            raise SpecschedError(f"{self.where}: its {what} are NaN or infinite; are weights damaged?")

    def _block(self, *parts: list[Tensor]) -> DraftBlock:
        """The block of what was drawn position by position: tokens, laws, confidences, logits."""
        block = DraftBlock(*(torch.stack(part, dim=1) for part in parts))
        self._refuse_overflow(block.confidence_logit, "confidences")
        return block

    def _draw(self, k: int, p: Tensor, generator: torch.Generator | None, sampler: Sampler | None) -> Tensor:
        if sampler is not None:
            return sampler(k, p)
        if bool((p.amax(-1) == 1).all()):
            return p.argmax(-1)
        return torch.multinomial(p, 1, generator=generator).squeeze(-1)

    def _check_anchors(self, positions: Tensor, context: DraftContext, slots: Tensor) -> None:
        short = context.lengths[slots.cpu()] < positions.cpu()
        if bool(short.any()):
            r = int(short.nonzero()[0])
            slot = int(slots[r])
            raise SpecschedError(
                f"row {r}: the anchor is at position {int(positions[r])} but slot {slot} holds features of "
                f"{int(context.lengths[slot])} positions; observe the target's features up to it first"
            )


def peak_confidence(logits: Tensor) -> Tensor:
    """Confidence logit of a drafter without a confidence head: the log-odds of its largest probability.

    logits [..., V] -> float32 [...]. It does not depend on the token drawn, so schedules stay lossless.
    """
    top = torch.log_softmax(logits.float(), dim=-1).amax(-1).clamp(max=-1e-6)
    return top - torch.log(-torch.expm1(top))
