"""The drafter of a GPU profile: DSpark of the model's width, random weights, drafted without asking the host.

`draft_block` is `DSpark.draft` as fixed-shape tensor work, so that a CUDA graph can hold it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from ...profile.shapes import ModelShape
from ..drafter.config import DrafterConfig
from ..drafter.dspark import DSpark
from ..engine.sampling import draw

LAYERS, MARKOV_RANK = 5, 256


class DraftInputs(NamedTuple):
    """Inputs of one drafting step for R requests, and what it observes first."""

    anchors: Tensor  # int64[R]
    positions: Tensor  # int64[R]
    pairs: list[tuple[Tensor, Tensor]]  # per layer keys and values [R, kv heads, context, head_dim]
    uniform: Tensor  # float32[R, γ]
    features: Tensor  # [n, F]: features of the tokens settled by the last step
    settled: Tensor  # int64[n]: their positions


def drafter_config(shape: ModelShape, block_size: int) -> DrafterConfig:
    """The paper's drafter for a target of `shape`: five layers, five feature layers, Markov rank 256."""
    layers = min(LAYERS, shape.layers)
    taps = sorted({round(1 + i * (shape.layers - 2) / max(layers - 1, 1)) for i in range(layers)})
    return DrafterConfig(
        kind="dspark",
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=LAYERS,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        block_size=block_size,
        target_layer_ids=tuple(min(t, shape.layers - 1) for t in taps),
        markov_rank=MARKOV_RANK,
        markov_head_type="vanilla",
        enable_confidence_head=True,
        confidence_head_with_markov=True,
        num_target_layers=shape.layers,
    )


def random_drafter(
    shape: ModelShape, block_size: int, embedding: Tensor, head: Tensor, seed: int = 0
) -> DSpark:
    """A DSpark of normal weights on the device and in the dtype of the target's `embedding` and `head`."""
    with torch.device(embedding.device), _default_dtype(embedding.dtype):
        drafter = DSpark(drafter_config(shape, block_size))
    generator = torch.Generator(embedding.device).manual_seed(seed)
    with torch.no_grad():
        for parameter in drafter.parameters():
            if parameter.dim() == 2 and parameter.numel():
                parameter.normal_(0, 0.02, generator=generator)
    drafter.attach(embedding, head)
    return drafter.eval().requires_grad_(False)


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def draft_block(drafter: DSpark, inputs: DraftInputs) -> tuple[Tensor, Tensor, Tensor]:
    """Observe, then draft: tokens int64[R, γ], laws float32[R, γ, V], confidence logits float32[R, γ].

    The keys made of the observed features are computed and dropped: writing them is one more copy.
    """
    if len(inputs.settled):
        drafter.context_keys(inputs.features, inputs.settled)
    visible = torch.arange(inputs.pairs[0][0].shape[2], device=inputs.anchors.device)
    seen = visible < inputs.positions[:, None, None]
    hidden = drafter.block_hidden(
        inputs.anchors.unsqueeze(1), inputs.positions.unsqueeze(1), inputs.pairs, seen
    ).squeeze(1)
    base = drafter.base_logits(hidden)
    head, confidence = drafter.markov_head, drafter.confidence_head
    assert head is not None
    assert confidence is not None
    state = head.start(len(hidden))
    previous = inputs.anchors
    tokens, laws, scores = [], [], []
    for k in range(drafter.block_size):
        state, latent = head.step(state, previous, hidden[:, k])
        scores.append(confidence(hidden[:, k], head.markov_w1(previous)))
        law = drafter.probabilities(base[:, k].float() + head.markov_w2(latent).float(), 1.0)
        previous = draw(law, inputs.uniform[:, k])
        tokens.append(previous)
        laws.append(law)
    return torch.stack(tokens, 1), torch.stack(laws, 1), torch.stack(scores, 1)
