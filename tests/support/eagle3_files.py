"""Small random EAGLE-3 drafters in the layouts that people have.

Entries and names are those of the public configs, scaled down: SpecForge's configs/*.json, EAGLE's
traineagle3/config.json, speculators' Eagle3SpeculatorConfig.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

VOCAB, DRAFTED, HIDDEN, MIDDLE, HEADS, KV, SIZE = 24, 9, 16, 20, 4, 2, 6
TARGET = {"vocab_size": VOCAB, "hidden_size": HIDDEN, "num_hidden_layers": 8}
LLAMA3 = {
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
    "rope_type": "llama3",
}


def spec_forge(**changes: Any) -> dict[str, Any]:
    """SpecForge's qwen3-8b-eagle3.json."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "head_dim": SIZE,
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "initializer_range": 0.02,
        "intermediate_size": MIDDLE,
        "max_position_embeddings": 40960,
        "max_window_layers": 36,
        "model_type": "llama",
        "num_attention_heads": HEADS,
        "num_hidden_layers": 1,
        "num_key_value_heads": KV,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": VOCAB,
        "draft_vocab_size": DRAFTED,
    } | changes


def eagle(**changes: Any) -> dict[str, Any]:
    """EAGLE's own: a LlamaForCausalLM, without head_dim and rope_theta."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "intermediate_size": MIDDLE,
        "max_position_embeddings": 2048,
        "model_type": "llama",
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV,
        "num_hidden_layers": 1,
        "pad_token_id": 0,
        "rms_norm_eps": 1e-05,
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
        "vocab_size": VOCAB,
        "draft_vocab_size": DRAFTED,
    } | changes


def speculators(decoder: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """speculators': the decoder's keys in a block of their own."""
    layer = {
        "attention_bias": False,
        "head_dim": SIZE,
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "intermediate_size": MIDDLE,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": HEADS,
        "num_hidden_layers": 1,
        "num_key_value_heads": KV,
        "rms_norm_eps": 1e-05,
        "rope_theta": 500000.0,
        "vocab_size": VOCAB,
    } | (decoder or {})
    return {
        "architectures": ["Eagle3Speculator"],
        "draft_vocab_size": DRAFTED,
        "norm_before_residual": False,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "verifier": {"architectures": ["Qwen3ForCausalLM"], "name_or_path": "Qwen/Qwen3-8B"},
        },
        "speculators_model_type": "eagle3",
        "target_hidden_size": None,
        "transformer_layer_config": layer,
    } | changes


def tensors_of(config: dict[str, Any], embedding: bool = False, seed: int = 3) -> dict[str, Tensor]:
    """Random tensors under the names, and in the shapes, that the config's toolkit writes."""
    layer = config.get("transformer_layer_config", config)
    own = {**config, **config.get("eagle_config", {})}
    size, middle = layer.get("head_dim", HIDDEN // HEADS), layer["intermediate_size"]
    first = "layers.0." if "speculators_model_type" in config else "midlayer."
    features = len(own.get("eagle_aux_hidden_state_layer_ids") or (0, 0, 0))
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (HIDDEN, features * HIDDEN),
        "norm.weight": (HIDDEN,),
        "lm_head.weight": (config.get("draft_vocab_size") or VOCAB, HIDDEN),
        f"{first}hidden_norm.weight": (HIDDEN,),
        f"{first}input_layernorm.weight": (HIDDEN,),
        f"{first}post_attention_layernorm.weight": (HIDDEN,),
        f"{first}self_attn.q_proj.weight": (HEADS * size, 2 * HIDDEN),
        f"{first}self_attn.k_proj.weight": (KV * size, 2 * HIDDEN),
        f"{first}self_attn.v_proj.weight": (KV * size, 2 * HIDDEN),
        f"{first}self_attn.o_proj.weight": (HIDDEN, HEADS * size),
        f"{first}mlp.gate_proj.weight": (middle, HIDDEN),
        f"{first}mlp.up_proj.weight": (middle, HIDDEN),
        f"{first}mlp.down_proj.weight": (HIDDEN, middle),
    }
    if layer["model_type"] == "qwen3":
        shapes |= {f"{first}self_attn.{name}_norm.weight": (size,) for name in "qk"}
    if own.get("norm_before_fc"):
        shapes["input_norm.weight"] = (features * HIDDEN,)
    if own.get("fc_norm"):
        shapes |= {f"fc_norm.{i}.weight": (HIDDEN,) for i in range(features)}
    if embedding:
        shapes["embed_tokens.weight"] = (VOCAB, HIDDEN)
    generator = torch.Generator().manual_seed(seed)
    made: dict[str, Tensor] = {}
    for name, shape in shapes.items():
        noise = torch.randn(shape, generator=generator)
        made[name] = 1 + 0.3 * noise if len(shape) == 1 else 0.4 * noise
    few = config.get("draft_vocab_size")
    if few is not None and few < VOCAB:
        kept = torch.randperm(VOCAB, generator=generator)[:few].sort().values
        made["d2t"] = kept - torch.arange(few)
        made["t2d"] = torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, kept, True)
    return made


def written(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor] | None = None) -> Path:
    """A folder with these, as its toolkit leaves it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors_of(config) if tensors is None else tensors, folder / "model.safetensors")
    return folder
