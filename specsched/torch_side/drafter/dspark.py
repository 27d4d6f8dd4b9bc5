"""DSpark: a parallel backbone over injected target features, a sequential head, a confidence head (section
3).

    slots   [ anchor | mask | mask | ... ]   γ inputs, position anchor .. anchor + γ - 1
    predict [ a + 1  | a + 2 | ...       ]   γ logits: the anchor's own slot is the first predicted position

DFlash, the parallel baseline, is the same backbone with γ masks beside the anchor and no heads; Eagle3 is
`eagle.py`. `load_drafter` reads any of them, in the DeepSpec checkpoint layout.
"""

from __future__ import annotations

import os
from typing import Any, cast

import torch
from torch import Tensor, nn

from ...errors import FormatError, SpecschedError
from ..target.decoder import MLP, RMSNorm, Target
from .base import (
    Attention,
    DraftBlock,
    DraftContext,
    Drafter,
    Law,
    Sampler,
    Teacher,
    TeacherBatch,
    peak_confidence,
)
from .checkpoint import EMBEDDING, HEAD, Checkpoint, check_tensors, fill, open_checkpoint, write_checkpoint
from .config import DrafterConfig
from .heads import ConfidenceHead, draft_stats, make_markov_head

__all__ = [
    "DFlash",
    "DSpark",
    "DraftBlock",
    "DraftContext",
    "Drafter",
    "load_drafter",
    "make_drafter",
    "save_drafter",
]


class _Layer(nn.Module):
    """One decoder layer of the backbone: bidirectional inside a block, reading the injected context."""

    def __init__(self, c: DrafterConfig) -> None:
        super().__init__()
        self.self_attn = Attention(c, c.hidden_size)
        self.mlp = MLP(c.hidden_size, c.intermediate_size)
        self.input_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)

    def forward(
        self, x: Tensor, rope: tuple[Tensor, Tensor], context: tuple[Tensor, Tensor], visible: Tensor
    ) -> Tensor:
        y = self.input_layernorm(x)
        attention = self.self_attn
        own = attention.keys_values(y, *rope)
        x = x + attention.attend(attention.queries(y, *rope), context, visible, own)
        return x + self.mlp(self.post_attention_layernorm(x))


class DSpark(Drafter):
    """The paper's drafter. Parameter names are those of DeepSpec's `Qwen3DSparkModel`."""

    masks_beside_anchor = 0

    def __init__(self, config: DrafterConfig, draft_ids: Tensor | None = None) -> None:
        super().__init__(config, draft_ids)
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.num_hidden_layers))
        self.markov_head = make_markov_head(config)
        self.confidence_head = ConfidenceHead(config) if config.enable_confidence_head else None

    # --- the backbone ---------------------------------------------------------------------------------------

    def context_keys(self, features: Tensor, positions: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Fuse features (eq. 2) and inject them (eq. 3): features[..., t, F], positions int64[..., t].

        Returns per layer keys and values [..., kv heads, t, head_dim].
        """
        fused = self.hidden_norm(self.fc(features))
        rope = self.rope(positions)
        return [cast(_Layer, layer).self_attn.keys_values(fused, *rope) for layer in self.layers]

    def block_hidden(
        self,
        anchor_tokens: Tensor,
        anchor_positions: Tensor,
        context: list[tuple[Tensor, Tensor]],
        visible: Tensor,
    ) -> Tensor:
        """The backbone over blocks: anchors int64[B, A], context per layer [B, kv, S, hd], visible bool[B,
        A, S].

        Returns the hidden states the γ predictions are read from: [B, A, γ, d].
        """
        width = self.block_size + self.masks_beside_anchor
        inputs = torch.full(
            (*anchor_tokens.shape, width), self.config.mask_token_id, device=anchor_tokens.device
        )
        inputs[..., 0] = anchor_tokens
        x = self.embed_tokens(inputs)
        positions = anchor_positions.unsqueeze(-1) + torch.arange(width, device=anchor_positions.device)
        rope = self.rope(positions)
        for layer, layer_context in zip(self.layers, context, strict=True):
            x = layer(x, rope, layer_context, visible)
        return self.norm(x)[..., self.masks_beside_anchor :, :]

    # --- training -------------------------------------------------------------------------------------------

    def teacher(self, batch: TeacherBatch) -> Teacher:
        """Teacher-forced pass: the whole block at once, true tokens before every position."""
        length = batch.features.shape[1]
        everywhere = torch.arange(length, device=batch.features.device)
        context = self.context_keys(batch.features, everywhere.expand(len(batch.features), -1))
        visible = everywhere < batch.anchors.unsqueeze(-1)
        tokens = batch.tokens.gather(1, batch.anchors)
        hidden = self.block_hidden(tokens, batch.anchors, context, visible).flatten(0, 1)
        if self.markov_head is None:
            return Teacher(hidden, None, None)
        previous = batch.windows(self.block_size)
        latent = self.markov_head.block_latent(previous, hidden)
        return Teacher(hidden, latent, self.markov_head.markov_w1(previous))

    # --- decoding -------------------------------------------------------------------------------------------

    def extend_context(
        self, context: DraftContext, slots: Tensor, positions: Tensor, features: Tensor, tokens: Tensor | None
    ) -> None:
        pairs = self.context_keys(features.to(self.fc.weight.dtype), positions)
        for i, (k, v) in enumerate(pairs):  # [kv, n, hd]
            context.keys[i][slots, :, positions] = k.transpose(0, 1)
            context.values[i][slots, :, positions] = v.transpose(0, 1)

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
        """See `Drafter.draft`."""
        slots = torch.arange(len(anchor_tokens), device=anchor_tokens.device) if slots is None else slots
        self._check_anchors(anchor_positions, context, slots)
        hidden = self._hidden_rows(anchor_tokens, anchor_positions, context, slots)
        base = self.base_logits(hidden)
        head = self.markov_head
        state = hidden[:, 0] if head is None else head.start(len(hidden))
        previous = anchor_tokens
        tokens, laws, confidences, logits = [], [], [], []
        for k in range(self.block_size):
            step = base[:, k].float()
            embedded = None
            if head is not None:
                state, latent = head.step(state, previous, hidden[:, k])
                step = step + head.markov_w2(latent).float()
                embedded = head.markov_w1(previous)
            if self.confidence_head is None:
                confidences.append(peak_confidence(step))
            else:
                stats = draft_stats(step) if self.config.confidence_draft_stats else None
                confidences.append(self.confidence_head(hidden[:, k], embedded, stats))
            p = self.probabilities(step, temperature, law)
            previous = self._draw(k, p, generator, sampler)
            tokens.append(previous)
            laws.append(p)
            logits.append(step)
        return self._block(tokens, laws, confidences, logits)

    def _hidden_rows(self, tokens: Tensor, positions: Tensor, context: DraftContext, slots: Tensor) -> Tensor:
        """Hidden states [R, γ, d] of R rows. Rows of one slot share its keys: rows become [slots,
        anchors].
        """
        used, group, counts = slots.unique(return_inverse=True, return_counts=True)
        if len(used) == len(slots):
            order = torch.arange(len(slots), device=slots.device)
            used, rank, most = slots, torch.zeros_like(order), 1
            group = order
        else:
            order = torch.argsort(group, stable=True)
            starts = counts.cumsum(0) - counts
            rank = torch.empty_like(order)
            rank[order] = torch.arange(len(order), device=order.device) - starts.repeat_interleave(counts)
            most = int(counts.max())
        grid_tokens = tokens.new_zeros(len(used), most)
        grid_positions = positions.new_zeros(len(used), most)
        grid_tokens[group, rank] = tokens
        grid_positions[group, rank] = positions
        length = int(positions.max())
        pairs = [
            (k[:, :, :length][used], v[:, :, :length][used])
            for k, v in zip(context.keys, context.values, strict=True)
        ]
        visible = torch.arange(length, device=positions.device) < grid_positions.unsqueeze(-1)
        return self.block_hidden(grid_tokens, grid_positions, pairs, visible)[group, rank]


class DFlash(DSpark):
    """The parallel baseline: the anchor beside γ masks, predictions read at the masks, every position
    alone.
    """

    masks_beside_anchor = 1


def _kinds() -> dict[str, type[Drafter]]:
    from .eagle import Eagle3

    return {"dspark": DSpark, "dflash": DFlash, "eagle3": Eagle3}


def make_drafter(
    config: DrafterConfig, target: Target, draft_ids: Tensor | None = None, seed: int = 0
) -> Drafter:
    """A drafter with fresh weights (normal, 0.02; from `seed`), attached to its target.

    `draft_ids` int64[draft_vocab_size]: the vocabulary rows it may propose, when the config restricts them.
    """
    if config.hidden_size != target.config.hidden_size or config.vocab_size != target.config.vocab_size:
        raise SpecschedError(
            f"the drafter is {config.hidden_size} wide over {config.vocab_size} tokens, its target "
            f"{target.config.hidden_size} over {target.config.vocab_size}; both must agree"
        )
    drafter = _kinds()[config.kind](config, draft_ids)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in drafter.named_parameters():
            if parameter.dim() == 2:
                # Inside gated and RNN heads the token would be drowned by the hidden state at 0.02.
                inner = config.markov_head_type in ("gated", "rnn") and name.startswith("markov_head.")
                spread = 0.02
                if inner and name.endswith("_proj.weight"):
                    spread = parameter.shape[1] ** -0.5
                elif inner:
                    spread = 0.5
                parameter.normal_(0, spread, generator=generator)
            elif name.endswith("bias"):
                parameter.zero_()
        if drafter.markov_w2 is not None:
            drafter.markov_w2.zero_()  # the bias starts at nothing: U_k alone
        drafter.norm.weight.copy_(target.norm.weight)  # the frozen LM head expects inputs of this scale
    drafter = drafter.to(device=target.device, dtype=target.dtype)
    drafter.attach_target(target)
    return drafter


def load_drafter(
    name_or_path: str | os.PathLike[str],
    target: Target,
    dtype: torch.dtype | None = None,
    block_size: int | None = None,
) -> Drafter:
    """Load a drafter ready to run on `target`'s device: a folder in DeepSpec's layout or one of those that
    `adapters.py` reads, or a bundled model's name.

    A file without `embed_tokens` or `lm_head` takes them from the target. `dtype` defaults to the target's;
    weights are read a tensor at a time, so that the peak is one copy of them in `dtype` and one tensor.
    `block_size` drafts fewer (or more) tokens than the drafter was trained for.
    Raises FormatError when the file does not hold what its config promises.
    """
    checkpoint = open_checkpoint(name_or_path, target.config.num_hidden_layers)
    _check_target(checkpoint.config, target, checkpoint.where)
    if block_size is not None:
        checkpoint = checkpoint._replace(config=checkpoint.config.replace(block_size=block_size))
    config, dtype = checkpoint.config, dtype or target.dtype
    drafter = outline(checkpoint)
    drafter.where = f"{checkpoint.where} on {target.where}"  # either may be damaged
    held = fill(drafter, checkpoint, target.device, dtype)
    if drafter.draft_ids is not None:
        drafter.draft_ids = drafter.draft_ids.to(target.device)
    theirs = target.embed_tokens.weight
    embed = held.get(EMBEDDING, theirs)
    if embed.dtype == theirs.dtype and torch.equal(embed, theirs):
        embed = theirs  # most checkpoints' own embedding is a copy of it
        drafter.config = config.replace(own_embedding=False)
    drafter.attach(embed, held.get(HEAD, target.lm_head.weight))
    return drafter.eval().requires_grad_(False)


def outline(checkpoint: Checkpoint) -> Drafter:
    """The drafter of a checkpoint without memory, on the "meta" device.

    Raises FormatError for tensors that are not those of the config, before anything of their size is made.
    """
    with torch.device("meta"):
        drafter = _kinds()[checkpoint.config.kind](checkpoint.config, checkpoint.draft_ids)
    check_tensors(checkpoint, {k: v.shape for k, v in drafter.own_state().items()})
    return drafter


def _check_target(config: DrafterConfig, target: Target, where: str) -> None:
    """Refuse a drafter of another target."""
    if config.num_target_layers and config.num_target_layers != target.config.num_hidden_layers:
        raise FormatError(
            f"{where}: trained on a target of {config.num_target_layers} layers, this one has "
            f"{target.config.num_hidden_layers}; load the target it was trained on"
        )
    deepest = max(config.target_layer_ids)
    if deepest >= target.config.num_hidden_layers:
        raise FormatError(
            f"{where}: target_layer_ids names layer {deepest}, and the target has "
            f"{target.config.num_hidden_layers}; load the target it was trained on"
        )
    if config.vocab_size != target.config.vocab_size or config.hidden_size != target.config.hidden_size:
        raise FormatError(
            f"{where}: vocabulary {config.vocab_size} and hidden size {config.hidden_size}, the target's are "
            f"{target.config.vocab_size} and {target.config.hidden_size}; this drafter belongs to another "
            "target"
        )


def save_drafter(
    drafter: Drafter,
    folder: str | os.PathLike[str],
    dtype: torch.dtype = torch.bfloat16,
    share_embeddings: bool = True,
    notes: dict[str, Any] | None = None,
) -> None:
    """Write `config.json` + `model.safetensors`, atomically. With `share_embeddings=False` the file is a
    whole DeepSpec checkpoint (only possible without a draft vocabulary, or with a head of its own); what is
    the drafter's own is written always. `notes` go under `specsched.notes`."""
    state = drafter.own_state()
    config = drafter.config.replace(shared_embeddings=share_embeddings)
    if not share_embeddings and drafter.draft_ids is not None and not config.own_head:
        raise FormatError("a drafter with a reduced draft vocabulary cannot carry the target's LM head")
    if config.own_embedding or not share_embeddings:
        state[EMBEDDING] = drafter.embed_tokens.weight
    if config.own_head or not share_embeddings:
        state[HEAD] = drafter.head_weight
    write_checkpoint(folder, config, drafter.draft_ids, state, dtype, notes)
