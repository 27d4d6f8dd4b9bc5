r"""Eagle3, the autoregressive baseline: one layer that reads (next token, feature) pairs and feeds itself.

index j reads the pair (token j+1, feature of j) and predicts token j+2; the first query sits at anchor-1.
After the first step the layer's own output stands in for the feature (training-time test does the same).

    feature -> [feature_norm] -> fc -> hidden_norm -> pair with input_layernorm(token) -> attention
                                   \-> residual, before hidden_norm (after it: norm_before_residual)
    + residual -> MLP -> output -> norm -> LM head
                           \-> the next feature, before norm (after it: norm_feedback)
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from ...errors import SpecschedError
from ..target.decoder import MLP, RMSNorm
from .base import Attention, DraftBlock, DraftContext, Drafter, Law, Sampler, Teacher, TeacherBatch
from .base import peak_confidence as _peak
from .config import DrafterConfig


class _Eagle3Layer(nn.Module):
    def __init__(self, c: DrafterConfig) -> None:
        super().__init__()
        self.self_attn = Attention(c, 2 * c.hidden_size)
        self.mlp = MLP(c.hidden_size, c.intermediate_size)
        self.hidden_norm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.input_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)

    def pair(self, embedded: Tensor, normed: Tensor) -> Tensor:
        """The attention's input, of an embedding and a feature after `hidden_norm`: [..., 2d]."""
        return torch.cat([self.input_layernorm(embedded), normed], dim=-1)


class Eagle3(Drafter):
    """EAGLE-3 with DeepSpec's parameter names. It has no confidence head: see `peak_confidence`."""

    keeps_features = True  # a feature is paired with the *next* token

    def __init__(self, config: DrafterConfig, draft_ids: Tensor | None = None) -> None:
        super().__init__(config, draft_ids)
        if config.num_hidden_layers != 1:
            raise SpecschedError(f"Eagle3 has one layer, the config says {config.num_hidden_layers}")
        self.layers = nn.ModuleList([_Eagle3Layer(config)])
        d, eps = config.hidden_size, config.rms_norm_eps
        self.input_norm = RMSNorm(config.feature_size, eps) if config.feature_norm == "whole" else None
        layers = config.target_layer_ids if config.feature_norm == "each" else ()
        self.fc_norm = nn.ModuleList(RMSNorm(d, eps) for _ in layers)

    def fuse(self, features: Tensor) -> Tensor:
        """Target features [..., F] of one position -> [..., d]."""
        if self.input_norm is not None:
            features = self.input_norm(features)
        if len(self.fc_norm):
            parts = features.chunk(len(self.fc_norm), dim=-1)
            features = torch.cat([norm(x) for norm, x in zip(self.fc_norm, parts, strict=True)], dim=-1)
        return self.fc(features)

    @property
    def layer(self) -> _Eagle3Layer:
        """The one layer."""
        return cast(_Eagle3Layer, self.layers[0])

    def _step(
        self,
        tokens: Tensor,
        feature: Tensor,
        position: Tensor,
        context: tuple[Tensor, Tensor],
        visible: Tensor,
        own: tuple[Tensor, Tensor] | None,
    ) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """One step of B x A blocks: tokens, position [B, A], feature [B, A, d] -> (what the LM head is
        applied to [B, A, d], the next feature [B, A, d], own keys).
        """
        layer = self.layer
        normed = layer.hidden_norm(feature)
        x = layer.pair(self.embed_tokens(tokens), normed).unsqueeze(2)
        rope = self.rope(position.unsqueeze(-1))
        k, v = layer.self_attn.keys_values(x, *rope)
        own = (k, v) if own is None else (torch.cat([own[0], k], -2), torch.cat([own[1], v], -2))
        y = layer.self_attn.attend(layer.self_attn.queries(x, *rope), context, visible, own)
        middle = (normed if self.config.norm_before_residual else feature) + y.squeeze(2)
        output = middle + layer.mlp(layer.post_attention_layernorm(middle))
        hidden = self.norm(output)
        return hidden, hidden if self.config.norm_feedback else output, own

    def teacher(self, batch: TeacherBatch) -> Teacher:
        """Training-time test: γ steps that feed their own outputs, true tokens as inputs."""
        layer = self.layer
        length = batch.features.shape[1]
        everywhere = torch.arange(length, device=batch.features.device)
        fused = self.fuse(batch.features)
        embedded = self.embed_tokens(batch.tokens[:, 1 : length + 1])
        pairs = layer.pair(embedded, layer.hidden_norm(fused))
        context = layer.self_attn.keys_values(pairs, *self.rope(everywhere.expand(len(fused), -1)))
        visible = everywhere < batch.anchors.unsqueeze(-1) - 1
        index = (batch.anchors - 1).unsqueeze(-1).expand(-1, -1, fused.shape[-1])
        feature = fused.gather(1, index)
        inputs = batch.windows(self.block_size).view(*batch.anchors.shape, -1)
        own, hidden = None, []
        for k in range(self.block_size):
            position = batch.anchors - 1 + k
            normed, feature, own = self._step(inputs[..., k], feature, position, context, visible, own)
            hidden.append(normed)
        return Teacher(torch.stack(hidden, dim=2).flatten(0, 1), None, None)

    def extend_context(
        self, context: DraftContext, slots: Tensor, positions: Tensor, features: Tensor, tokens: Tensor | None
    ) -> None:
        if tokens is None:
            raise SpecschedError("Eagle3 pairs features with tokens: pass tokens= to observe")
        assert context.fused is not None
        context.fused[slots, positions] = self.fuse(features.to(self.fc.weight.dtype))
        # The pair at j waits for token j + 1: every observed token completes the pair before it.
        later = positions > 0
        slots, before, tokens = slots[later], positions[later] - 1, tokens[later]
        layer = self.layer
        normed = layer.hidden_norm(context.fused[slots, before])
        pairs = layer.pair(self.embed_tokens(tokens), normed)
        k, v = layer.self_attn.keys_values(pairs, *self.rope(before))
        context.keys[0][slots, :, before] = k.transpose(0, 1)
        context.values[0][slots, :, before] = v.transpose(0, 1)

    @torch.no_grad()
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
        """See `Drafter.draft`; an anchor needs at least one token before it."""
        slots = torch.arange(len(anchor_tokens), device=anchor_tokens.device) if slots is None else slots
        self._check_anchors(anchor_positions, context, slots)
        if int(anchor_positions.min()) < 1:
            raise SpecschedError(
                "Eagle3 cannot draft after an anchor at position 0; it reads the token before"
            )
        assert context.fused is not None
        length = int(anchor_positions.max())
        pair = (context.keys[0][slots][:, :, :length], context.values[0][slots][:, :, :length])
        start = anchor_positions.unsqueeze(-1) - 1
        visible = torch.arange(length, device=start.device) < start.unsqueeze(-1)
        feature = context.fused[slots, anchor_positions - 1].unsqueeze(1)
        previous, own = anchor_tokens, None
        tokens, laws, confidences, logits = [], [], [], []
        for k in range(self.block_size):
            hidden, feature, own = self._step(previous.unsqueeze(1), feature, start + k, pair, visible, own)
            step = self.base_logits(hidden.squeeze(1)).float()
            p = self.probabilities(step, temperature, law)
            previous = self._draw(k, p, generator, sampler)
            tokens.append(previous)
            laws.append(p)
            confidences.append(_peak(step))
            logits.append(step)
        return self._block(tokens, laws, confidences, logits)
