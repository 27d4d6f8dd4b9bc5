"""The shape a Hugging Face `config.json` describes: an architecture known exactly, or a refusal by name.

Every key that changes the bytes or the FLOPs of a step is read or refused: a layer without a KV cache, a
window, an expert or a weight of four bits that nobody looked at makes memory and speed wrong by factors.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import ProfileError, is_whole
from ..files.disk import read_json
from ..files.guard import reading
from .shapes import MODELS, ModelShape, Quantization, unknown

# model_type: (family, the class of its decoder)
_MOST = 2**31 - 1  # of any number of a config
KNOWN = {
    "llama": ("llama", "LlamaForCausalLM"),
    "mistral": ("llama", "MistralForCausalLM"),
    "qwen2": ("llama", "Qwen2ForCausalLM"),
    "qwen3": ("qwen3", "Qwen3ForCausalLM"),
    "qwen3_moe": ("qwen3", "Qwen3MoeForCausalLM"),
}
_DRAFTER = re.compile(r"eagle|dspark|dflash|medusa|hydra|mtp|nextn|draft|speculator", re.IGNORECASE)
_DRAFTER_KEYS = ("markov_rank", "draft_vocab_size", "dflash_config", "eagle_config", "speculators_config")
# Keys of other architectures, in words; where one is set, bytes or FLOPs are not those of a plain decoder.
_FOREIGN = {
    "kv_lora_rank": "latent attention (MLA)",
    "q_lora_rank": "latent attention (MLA)",
    "full_attention_interval": "linear attention in most layers",
    "linear_num_value_heads": "linear attention",
    "attn_layer_period": "layers without attention",
    "hybrid_override_pattern": "layers without attention",
    "attention_chunk_size": "attention in chunks",
    "sliding_window_pattern": "windowed layers",
    "cross_attention_layers": "cross attention",
    "num_kv_shared_layers": "layers that share their KV",
    "block_configs": "layers of different shapes",
    "num_nextn_predict_layers": "layers that predict further tokens",
    "shared_expert_intermediate_size": "shared experts",
    "n_shared_experts": "shared experts",
    "n_routed_experts": "routed experts under another name",
    "moe_layer_freq": "experts in some layers only",
    "first_k_dense_replace": "experts in some layers only",
    "interleave_moe_layer_step": "experts in some layers only",
    "intermediate_size_mlp": "dense layers of another width",
    "mlp_only_layers": "experts in some layers only",
    "text_config": "a model of several parts",
}


def find_model(name: str | os.PathLike[str]) -> ModelShape:
    """A preset's shape, or that of a `config.json` (the file or its folder); raises `ProfileError`."""
    path = Path(name)
    if path.is_dir():
        path = path / "config.json"
    if path.is_file():
        with reading(path, ProfileError, "model config"):
            return shape_of(read_json(path, ProfileError), str(path))
    key = str(name).lower().split("/")[-1].replace("_", "-")
    key = key.replace("meta-llama-3.1", "llama3").replace("llama-3.1", "llama3").replace("llama-3", "llama3")
    if key not in MODELS:
        raise ProfileError(unknown("model", str(name), list(MODELS)) + ", or the path of a config.json")
    return MODELS[key]


def shape_of(config: Any, where: str) -> ModelShape:
    """The shape that `config` (a parsed `config.json`) describes.

    Raises `ProfileError` naming what is missing, what is not modelled, or that it is a drafter.
    """
    if not isinstance(config, Mapping):
        raise ProfileError(f"{where}: expected a JSON object")
    _refuse_drafters(config, where)
    kind = str(config.get("model_type") or "")
    if kind not in KNOWN:
        raise ProfileError(f"{where}: {_unmodelled(config, kind)}")
    family, decoder = KNOWN[kind]
    named = config.get("architectures") or [decoder]
    if not isinstance(named, Sequence) or isinstance(named, str) or list(named) != [decoder]:
        raise ProfileError(
            f"{where}: architectures is {named!r}; {kind} is modelled as {decoder} alone: use its config.json"
        )
    _refuse_foreign_keys(config, kind, where)
    wanted = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
    missing = [key for key in wanted if not is_whole(config.get(key), 1, _MOST)]
    if missing:
        raise ProfileError(f"{where}: missing or not a whole number above 0: {', '.join(missing)}")
    heads = config["num_attention_heads"]
    experts = _experts(config, kind, where)
    return ModelShape(
        name=str(config.get("_name_or_path") or Path(where).parent.name or "model"),
        hidden=config["hidden_size"],
        layers=config["num_hidden_layers"],
        heads=heads,
        kv_heads=_optional(config, "num_key_value_heads", where) or heads,
        head_dim=_optional(config, "head_dim", where) or _head_dim(config, family),
        intermediate=config["intermediate_size"],
        vocab=config["vocab_size"],
        max_context=_optional(config, "max_position_embeddings", where),
        family=family,
        tied=bool(config.get("tie_word_embeddings", False)),
        quantization=_quantization(config.get("quantization_config"), where),
        where=where,
        **experts,
    )


def _optional(config: Mapping[str, Any], key: str, where: str) -> int:
    """A whole number, or 0 where the key is absent or null."""
    value = config.get(key)
    if value is None or value == 0:
        return 0
    if not is_whole(value, 1, _MOST):
        raise ProfileError(f"{where}: {key} is {value!r}; it must be a whole number above 0")
    return int(value)


def _head_dim(config: Mapping[str, Any], family: str) -> int:
    """The default of the architecture's own class: Qwen3's heads are 128 wide whatever the hidden size."""
    return 128 if family == "qwen3" else max(config["hidden_size"] // config["num_attention_heads"], 1)


def _refuse_drafters(config: Mapping[str, Any], where: str) -> None:
    named = config.get("architectures") or []
    classes = [str(name) for name in named] if isinstance(named, list | tuple) else [str(named)]
    signs = [name for name in [*classes, str(config.get("model_type") or "")] if _DRAFTER.search(name)]
    signs += [key for key in _DRAFTER_KEYS if config.get(key) is not None]
    if signs:
        raise ProfileError(
            f"{where} is the config of a drafter ({signs[0]}), not of a target: give the config.json of the "
            "model it drafts for"
        )


def _unmodelled(config: Mapping[str, Any], kind: str) -> str:
    """Why an architecture is refused, with what its config does say about its KV."""
    said = f"model_type {kind!r} is not modelled" if kind else "model_type is absent"
    kinds = [f"{config[key]} {word}" for key, word in _PARTS if is_whole(config.get(key), 1, _MOST)]
    full = _full_attention(config)
    if full is not None:
        kinds.insert(0, f"KV in {full[0]} of {full[1]} layers")
    seen = f" (it has {', '.join(kinds)}, which a plain decoder has not)" if kinds else ""
    return (
        f"{said}{seen}; known: {', '.join(KNOWN)}. Time steps with an engine that runs it and "
        "read its table with `specsched convert`"
    )


_PARTS = (("num_experts", "experts"), ("num_local_experts", "experts"), ("n_routed_experts", "experts"))


def _full_attention(config: Mapping[str, Any]) -> tuple[int, int] | None:
    """(layers with a whole KV cache, layers) where the config tells them apart."""
    types, layers = config.get("layer_types"), config.get("num_hidden_layers")
    if isinstance(types, list) and types:
        return types.count("full_attention"), len(types)
    every = config.get("full_attention_interval")
    if is_whole(layers) and is_whole(every, 1, _MOST):
        return layers // every, layers
    return None


def _refuse_foreign_keys(config: Mapping[str, Any], kind: str, where: str) -> None:
    for key, what in _FOREIGN.items():
        if config.get(key) not in (None, 0, False, [], {}):
            raise ProfileError(
                f"{where}: {key} is set, which means {what}; {kind} is modelled without: its bytes and FLOPs "
                "would be wrong"
            )
    types = config.get("layer_types")
    if types is not None:
        other = sorted({str(t) for t in types} - {"full_attention"}) if isinstance(types, list) else [types]
        if other or len(types) != config.get("num_hidden_layers"):
            raise ProfileError(
                f"{where}: layer_types holds {', '.join(map(str, other)) or 'another number of layers'}; "
                "only full_attention in every layer is modelled: the KV cache would be wrong"
            )
    window = config.get("sliding_window")
    # Qwen's configs name a window and switch it off.
    if window and config.get("use_sliding_window", kind in ("mistral", "llama")):
        longest = config.get("max_position_embeddings") or 0
        if not is_whole(window, 1, _MOST) or window < longest:
            raise ProfileError(
                f"{where}: sliding_window is {window!r}; windowed attention is not modelled: the KV cache "
                "would be wrong"
            )
    if config.get("decoder_sparse_step") not in (None, 1):
        raise ProfileError(f"{where}: decoder_sparse_step is set; experts in every layer are modelled alone")


def _experts(config: Mapping[str, Any], kind: str, where: str) -> dict[str, int]:
    given = [key for key in ("num_experts", "num_local_experts") if config.get(key)]
    if kind != "qwen3_moe":
        if given:
            raise ProfileError(
                f"{where}: {given[0]} is {config[given[0]]!r}, and {kind} is modelled without experts: its "
                "weights would be counted as those of a dense model"
            )
        return {}
    keys = (given[0] if given else "num_experts", "num_experts_per_tok", "moe_intermediate_size")
    missing = [key for key in keys if not is_whole(config.get(key), 1, _MOST)]
    if missing:
        raise ProfileError(f"{where}: missing or not a whole number above 0: {', '.join(missing)}")
    count, used, width = (int(config[key]) for key in keys)
    return {"experts": count, "experts_per_token": used, "moe_intermediate": width}


# -- quantized checkpoints --------------------------------------------------------------------------------

_KEPT = re.compile(r"lm_head|embed|norm|mlp\.gate(?![_\w])|router")


def _quantization(block: Any, where: str) -> Quantization | None:
    """What `quantization_config` makes of the layers' weights; `ProfileError` naming what is not modelled."""
    if not block:
        return None
    if not isinstance(block, Mapping):
        raise ProfileError(f"{where}: quantization_config is {block!r}; expected an object")
    method = str(block.get("quant_method") or block.get("quant_algo") or "unnamed").lower()
    spared = [*_list(block.get("ignore")), *_list(block.get("modules_to_not_convert"))]
    partly = [str(name) for name in spared if not _KEPT.search(str(name))]
    if partly:
        raise ProfileError(
            f"{where}: quantization_config leaves layers as they were ({partly[0]!r}); a checkpoint "
            "quantized in part is not modelled"
        )
    bits, floats = _bits(block, method, where)
    group = _group(block)
    # A scale of two bytes and a zero point of as many bits as a weight, for every group.
    extra = (16.0 + bits) / group if not floats and group else 0.0
    return Quantization(method, "fp8" if floats else f"int{bits}", (bits + extra) / 8.0)


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value] if value else []


def _groups(block: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    groups = block.get("config_groups")
    return [g for g in groups.values() if isinstance(g, Mapping)] if isinstance(groups, Mapping) else []


def _weights(group: Mapping[str, Any]) -> Mapping[str, Any]:
    weights = group.get("weights")
    return weights if isinstance(weights, Mapping) else {}


def _bits(block: Mapping[str, Any], method: str, where: str) -> tuple[int, bool]:
    """(bits of a weight, whether they are eight-bit floats, which the GPU computes with as they are)."""
    bits: Any = None
    floats = method == "fp8" or str(block.get("quant_algo")).upper() == "FP8"
    if method in ("gptq", "awq", "auto-round", "auto_round"):
        bits = block.get("bits", block.get("w_bit"))
    elif floats:
        bits = 8
    elif method == "compressed-tensors" and len(_groups(block)) == 1:
        group = _groups(block)[0]
        weights = _weights(group)
        floats = weights.get("type") == "float" and weights.get("num_bits") == 8
        # Whole numbers are modelled as stored narrow and computed wide: not where activations are narrow too.
        if floats or (weights.get("type", "int") == "int" and not group.get("input_activations")):
            bits = weights.get("num_bits")
    if bits not in (4, 8):
        raise ProfileError(
            f"{where}: quantization_config {method} is not modelled as it stands here; known: fp8, and "
            "weights of 4 or 8 bits by gptq, awq, auto-round and compressed-tensors; or give the "
            "config.json of the checkpoint before quantization with --dtype"
        )
    return int(bits), floats


def _group(block: Mapping[str, Any]) -> int:
    inner = _weights(_groups(block)[0]).get("group_size") if _groups(block) else None
    value = block.get("group_size", block.get("q_group_size", inner))
    return value if isinstance(value, int) and is_whole(value, 1, _MOST) else 0
