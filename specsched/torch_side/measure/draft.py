"""The drafter of a GPU profile: of a given config or the paper's, random weights, drafted without asking the
host.

`draft_block` is `DSpark.draft` as fixed-shape tensor work over paged keys, so that a CUDA graph can hold it
and no padded scores are made.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import FormatError, SpecschedError
from ...files import read_json
from ...profile.shapes import ModelShape
from ..drafter.adapters import as_deepspec
from ..drafter.base import peak_confidence
from ..drafter.config import DrafterConfig
from ..drafter.dspark import DFlash, DSpark, _Layer
from ..drafter.heads import draft_stats
from .attention import Attend
from .decoder import race
from .passes import PassInputs

LAYERS, MARKOV_RANK = 5, 256


class DraftInputs(NamedTuple):
    """Inputs of one drafting step for R requests, and what it observes first."""

    anchors: Tensor  # int64[R]
    block: PassInputs  # every request's block (anchor and masks) behind its context
    keys: list[Tensor]  # per layer [pages, page, kv heads, head_dim]
    values: list[Tensor]  # likewise
    features: Tensor  # [n, F]: features of the tokens settled by the last step
    settled: Tensor  # int64[n]: their positions
    settled_slot: Tensor  # int64[n]: where their keys go


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


def config_for(drafter: str | None, shape: ModelShape, block_size: int | None) -> DrafterConfig:
    """The config of a drafter's folder or `config.json`, else the paper's; `block_size` overrules its own.

    Raises SpecschedError for a drafter of another target, and for a kind that is not timed here.
    """
    if drafter is None:
        return drafter_config(shape, block_size or 7)
    path = Path(drafter)
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        raise SpecschedError(
            f"no drafter at {drafter!r}; --drafter is a folder with a config.json, or such a file: the "
            "drafter is built from it with random weights"
        )
    document = as_deepspec(read_json(path, FormatError), str(path), layers=shape.layers)
    config = DrafterConfig.from_dict(document, str(path))
    if config.kind not in ("dspark", "dflash"):
        raise SpecschedError(
            f"{path}: an {config.kind} drafter runs once per token, which is not timed here; give a dspark "
            "or dflash drafter, or leave --drafter out for the paper's DSpark"
        )
    theirs, ours = (config.hidden_size, config.vocab_size), (shape.hidden, shape.vocab)
    if theirs != ours:
        raise SpecschedError(
            f"{path}: the drafter is {theirs[0]} wide over {theirs[1]} tokens, {shape.name} {ours[0]} over "
            f"{ours[1]}; give a drafter of this target"
        )
    return config if block_size is None else config.replace(block_size=block_size)


def random_drafter(config: DrafterConfig, embedding: Tensor, head: Tensor, seed: int = 0) -> DSpark:
    """A drafter of `config` with normal weights, on the device and in the dtype of the target's `embedding`
    and `head`."""
    few = config.draft_vocab_size
    with torch.device(embedding.device), _default_dtype(embedding.dtype):
        ids = None if few is None else torch.arange(few)
        drafter = (DFlash if config.kind == "dflash" else DSpark)(config, ids)
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


def draft_block(
    drafter: DSpark, inputs: DraftInputs, attend: Attend, greedy: bool = True
) -> tuple[Tensor, Tensor]:
    """Observe, then draft: tokens int64[R, γ], confidence logits float32[R, γ].

    `greedy`: the most likely token, as engines draft unless told otherwise; else drawn.
    """
    if len(inputs.settled):
        made = drafter.context_keys(inputs.features, inputs.settled)
        for pair, keys, values in zip(made, inputs.keys, inputs.values, strict=True):
            _write(keys, values, inputs.settled_slot, *pair)
    hidden = _hidden(drafter, inputs, attend)
    base = drafter.base_logits(hidden)
    head, confidence = drafter.markov_head, drafter.confidence_head
    if head is None and confidence is None:
        return _pick(drafter, base.flatten(0, 1), greedy).view(base.shape[:2]), peak_confidence(base)
    state = hidden[:, 0] if head is None else head.start(len(hidden))
    previous = inputs.anchors
    tokens, scores = [], []
    for k in range(drafter.block_size):
        logits, embedded = base[:, k], None
        if head is not None:
            state, latent = head.step(state, previous, hidden[:, k])
            embedded = head.markov_w1(previous)
            logits = logits + head.markov_w2(latent)
        if confidence is None:
            scores.append(peak_confidence(logits))
        else:
            stats = draft_stats(logits.float()) if drafter.config.confidence_draft_stats else None
            scores.append(confidence(hidden[:, k], embedded, stats))
        previous = _pick(drafter, logits, greedy)
        tokens.append(previous)
    return torch.stack(tokens, 1), torch.stack(scores, 1)


def _pick(drafter: DSpark, logits: Tensor, greedy: bool) -> Tensor:
    chosen: Tensor = logits.argmax(-1) if greedy else race(logits.float().softmax(-1))
    return chosen if drafter.draft_ids is None else drafter.draft_ids[chosen]


def _hidden(drafter: DSpark, inputs: DraftInputs, attend: Attend) -> Tensor:
    """`DSpark.block_hidden` of one block a request, over pages: [R, γ, d]."""
    c, width = drafter.config, drafter.block_size + drafter.masks_beside_anchor
    ids = torch.full((len(inputs.anchors), width), c.mask_token_id, device=inputs.anchors.device)
    ids[:, 0] = inputs.anchors
    x = F.embedding(ids.flatten(), drafter.embed_tokens.weight)
    rope = drafter.rope(inputs.block.position)
    for module, keys, values in zip(drafter.layers, inputs.keys, inputs.values, strict=True):
        layer = cast(_Layer, module)
        y = layer.input_layernorm(x)
        _write(keys, values, inputs.block.slot, *layer.self_attn.keys_values(y, *rope))
        q = layer.self_attn.queries(y, *rope).transpose(0, 1).contiguous()
        x = x + layer.self_attn.o_proj(attend(q, keys, values, inputs.block, False).flatten(1))
        x = x + layer.mlp(layer.post_attention_layernorm(x))
    return drafter.norm(x).view(len(ids), width, -1)[:, drafter.masks_beside_anchor :]


def _write(keys: Tensor, values: Tensor, slot: Tensor, k: Tensor, v: Tensor) -> None:
    """k and v [kv heads, n, head_dim] to the places `slot` [n] of paged stores."""
    for pool, new in ((keys, k), (values, v)):
        pool.view(-1, *pool.shape[2:])[slot] = new.transpose(0, 1)
