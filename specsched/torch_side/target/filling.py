"""Filling a target with weights, a tensor at a time, in the dtype asked for.

The target is built without memory (on torch's "meta" device) and gets its parameters one by one, so that the
peak is one copy of the model and one tensor of the file, whatever the file's dtype is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from ...errors import SpecschedError
from ...files.archive import files_of
from ...files.guard import reading
from .config import TargetConfig
from .decoder import Target
from .tokenizer import Tokenizer


def filled_target(
    config: TargetConfig,
    tokenizer: Tokenizer | None,
    tensors: Iterable[tuple[str, Tensor]],
    source: Path,
    device: str | torch.device,
    dtype: torch.dtype,
) -> Target:
    """The target of `config` with these tensors, named and shaped as `wanted_shapes` says, on `device` in
    `dtype`.

    Raises `SpecschedError` naming the tensor that holds NaN or infinity.
    """
    with torch.device("meta"):
        target = Target(config, tokenizer)
    target.where = str(source)
    for name, tensor in tensors:
        if not finite(tensor):
            raise SpecschedError(f"{source}: tensor {name!r} holds NaN or infinity; fetch the weights again")
        # A copy always: what is read may be a view of the file, which others may write over.
        own = torch.empty(tensor.shape, device=device, dtype=dtype).copy_(tensor)
        module, _, leaf = name.rpartition(".")
        setattr(target.get_submodule(module), leaf, nn.Parameter(own, requires_grad=False))
    if config.tie_word_embeddings:
        target.lm_head.weight = target.embed_tokens.weight
    # An identity: it makes the rotary table, which is float32 and no parameter, on the device of the weights.
    return target._apply(lambda tensor: tensor).eval()


def finite(tensor: Tensor) -> bool:
    """Whether all values are finite; `isfinite` would make copies of the tensor."""
    low, high = tensor.aminmax()
    return bool(low.isfinite()) and bool(high.isfinite())


def ignored(config: TargetConfig, name: str) -> bool:
    """Whether a tensor of a file has no place because it says nothing new."""
    return name.endswith("rotary_emb.inv_freq") or (config.tie_word_embeddings and name == "lm_head.weight")


def stream_safetensors(folder: Path, config: TargetConfig) -> Iterator[tuple[str, Tensor]]:
    """Names, without `model.`, and tensors of all `*.safetensors` of a folder, as views of the files."""
    from safetensors import safe_open

    for file in files_of(folder, "*.safetensors", SpecschedError):
        with reading(file, SpecschedError, "safetensors file"), safe_open(file, "pt") as held:
            for name in held.keys():  # noqa: SIM118 (no mapping)
                if not ignored(config, name.removeprefix("model.")):
                    yield name.removeprefix("model."), held.get_tensor(name)


def wanted_shapes(c: TargetConfig) -> dict[str, tuple[int, ...]]:
    """Shapes of the parameters of `Target(config)` by name."""
    queries, keys = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm": (c.hidden_size,),
        "self_attn.q_proj": (queries, c.hidden_size),
        "self_attn.k_proj": (keys, c.hidden_size),
        "self_attn.v_proj": (keys, c.hidden_size),
        "self_attn.o_proj": (c.hidden_size, queries),
        **({"self_attn.q_norm": (c.head_dim,), "self_attn.k_norm": (c.head_dim,)} if c.qk_norm else {}),
        "post_attention_layernorm": (c.hidden_size,),
        "mlp.gate_proj": (c.intermediate_size, c.hidden_size),
        "mlp.up_proj": (c.intermediate_size, c.hidden_size),
        "mlp.down_proj": (c.hidden_size, c.intermediate_size),
    }
    wanted = {
        f"layers.{i}.{name}.weight": shape
        for i in range(c.num_hidden_layers)
        for name, shape in layer.items()
    }
    wanted |= {"embed_tokens.weight": (c.vocab_size, c.hidden_size), "norm.weight": (c.hidden_size,)}
    if not c.tie_word_embeddings:
        wanted["lm_head.weight"] = (c.vocab_size, c.hidden_size)
    return wanted


def check_shapes(config: TargetConfig, shapes: dict[str, tuple[int, ...]], source: Path) -> None:
    """Refuse weights that are not those of the config, before anything of their size is read."""
    if not shapes:
        raise SpecschedError(f"{source} holds no *.safetensors; download the weights beside config.json")
    wanted = wanted_shapes(config)
    for name, shape in wanted.items():
        if name in shapes and shapes[name] != shape:
            raise SpecschedError(
                f"{source}: {name} has shape {shapes[name]}, config.json says {shape}; "
                "config.json and weights do not fit together"
            )
    for name in sorted(wanted.keys() - shapes.keys()):
        raise SpecschedError(
            f"{source}: tensor {name!r} is missing; config.json and weights do not fit together"
        )
    for name in sorted(shapes.keys() - wanted.keys()):
        if not ignored(config, name):
            raise SpecschedError(
                f"{source}: tensor {name!r} has no place in this architecture (biases, adapters?)"
            )
