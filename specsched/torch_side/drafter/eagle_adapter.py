"""EAGLE-3 drafters as other toolkits write them, under DeepSpec's names.

                  EAGLE, SpecForge, ModelOpt               speculators (vLLM)
    config        one level, `eagle_config` beside it      `transformer_layer_config`, the rest beside it
    tensors       midlayer.*                               layers.0.*
    layer ids     outputs of these layers                  inputs of these layers, 0 the embedding
    without ids   of n layers those before 2, n/2 and n - 3, in both

Both hold `d2t`, by how much the token that a draft token stands for lies above it, an LM head over the draft
vocabulary, and at times the target's embedding. Where a key means one thing to its trainer and another to an
engine, it is read as its trainer's toolkit and that toolkit's engine (SGLang for SpecForge, vLLM for
speculators) do: vLLM counts the ids of `eagle_config` as inputs too, so it reads the layer below.

Sources: modeling/draft/llama3_eagle.py and algorithms/model_providers.py of SpecForge, models/eagle3 of
speculators, `llama_eagle3.py` of vLLM and SGLang, eagle/model/cnets.py of SafeAILab/EAGLE.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ...errors import FormatError, is_whole, quoted
from ...files.reader import Reader, kind_of
from .config import EAGLE3

LAYERS = "eagle_aux_hidden_state_layer_ids"
DEFAULT_BLOCK = 7  # drafts where the config names no number; EAGLE-3 drafts as many as it is asked for
# Keys that change the computation, and what they must be where they are given.
_PLAIN = {
    "attention_bias": False,
    "mlp_bias": False,
    "bias": False,
    "qkv_bias": False,
    "use_sliding_window": False,
    "hidden_act": "silu",
    "logit_scale": 1,
    "num_hidden_layers": 1,
}
_PLAIN_EAGLE = {
    "use_aux_hidden_state": True,
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
    "parallel_draft_step": 1,
}
_FOREIGN = {
    "num_experts": "experts (MoE)",
    "num_local_experts": "experts (MoE)",
    "n_routed_experts": "experts (MoE)",
    "kv_lora_rank": "latent attention (MLA)",
    "quantization_config": "quantised weights",
}


def is_eagle3(document: Any) -> bool:
    """Whether a parsed config.json is of one of these layouts (EAGLE's own names LlamaForCausalLM)."""
    if not isinstance(document, dict):
        return False
    named = document.get("architectures")
    first = named[0] if isinstance(named, list) and named else None
    own = first == "LlamaForCausalLM" and document.get("draft_vocab_size") is not None
    return "speculators_model_type" in document or first in EAGLE3 or own


def names_layers(document: dict[str, Any]) -> bool:
    """Whether a config of these layouts says which layers of the target are read."""
    parts = (document, document.get("eagle_config"))
    return any(isinstance(part, dict) and part.get(LAYERS) for part in parts)


def tensor_name(name: str) -> str | None:
    """Our name of a tensor of these layouts; None for what says nothing new (mask, parts of the target)."""
    name = name.removeprefix("model.")
    if name == "t2d" or name.startswith("verifier_") or name.endswith("rotary_emb.inv_freq"):
        return None
    return f"layers.0.{name.removeprefix('midlayer.')}" if name.startswith("midlayer.") else name


def eagle3_as_deepspec(
    document: dict[str, Any], where: str, names: Collection[str], layers: int | None
) -> dict[str, Any]:
    """The config under DeepSpec's names; `names` are the tensors held (ours), `layers` the target's layers.

    Raises `FormatError` for what such a drafter can have and ours does not compute.
    """
    read = Reader(document, where, FormatError)
    if "speculators_model_type" in document:
        parts = _of_speculators(read)
    else:
        parts = _of_one_level(read)
    decoder, ids, own = parts
    _refuse_foreign(decoder, _PLAIN)
    for key, what in _FOREIGN.items():
        if decoder.document.get(key):
            raise decoder.fail(key, f"is set: {what}, which is not computed here; use another drafter")
    hidden = decoder.integer("hidden_size", minimum=1)
    if read.integer("target_hidden_size", hidden) != hidden:
        raise read.fail("target_hidden_size", f"is not the drafter's hidden_size {hidden}; both must agree")
    if decoder.document.get("tie_word_embeddings") and "lm_head.weight" not in names:
        raise decoder.fail(
            "tie_word_embeddings", "is true and there is no lm_head; that is not computed here"
        )
    vocabulary = decoder.integer("vocab_size", minimum=1)
    few = read.integer("draft_vocab_size", vocabulary, 1)
    heads = decoder.integer("num_attention_heads", minimum=1)
    wide = 128 if decoder.document.get("model_type") == "qwen3" else max(hidden // heads, 1)
    rope = decoder.block("rope_parameters") or decoder.block("rope_scaling")
    theta = (rope if rope is not None and rope.has("rope_theta") else decoder).number("rope_theta", 1e4)
    own |= {
        "draft_vocab_size": None if few == vocabulary else few,
        "shared_embeddings": True,
        "own_embedding": "embed_tokens.weight" in names,
        "own_head": "lm_head.weight" in names,
        "qk_norm": "layers.0.self_attn.q_norm.weight" in names,
    }
    return {
        "architectures": ["Qwen3Eagle3Model"],
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": decoder.integer("intermediate_size", minimum=1),
        "num_hidden_layers": 1,
        "num_attention_heads": heads,
        "num_key_value_heads": decoder.integer("num_key_value_heads", heads, 1),
        "head_dim": decoder.integer("head_dim", wide, 1),
        "rms_norm_eps": decoder.number("rms_norm_eps", 1e-6),
        "layer_types": decoder.document.get("layer_types"),
        "rope_parameters": {**(rope.document if rope else {}), "rope_theta": theta},
        "block_size": _block_size(read),
        "target_layer_ids": ids if ids is not None else _default_ids(read, layers),
        "specsched": {key: value for key, value in own.items() if value is not None},
    }


def _of_speculators(read: Reader) -> tuple[Reader, list[int] | None, dict[str, Any]]:
    """Decoder's keys, layer ids as outputs (None: the default ones), switches."""
    read.text("speculators_model_type", choices=("eagle3",))
    decoder = read.block("transformer_layer_config")
    if decoder is None:
        raise read.fail("transformer_layer_config", "is missing; a drafter of speculators has it")
    decoder.text("model_type", "llama", choices=("llama", "qwen3"))
    if not read.has("norm_before_residual"):
        # speculators takes false where it is left out, vLLM true.
        raise read.fail("norm_before_residual", "is missing, and engines differ in what that means; add it")
    ids = _ids(read, LAYERS)
    return decoder, None if ids is None else [i - 1 for i in ids], _switches(read)


def _of_one_level(read: Reader) -> tuple[Reader, list[int] | None, dict[str, Any]]:
    eagle = read.block("eagle_config") or Reader({}, read.where, FormatError)
    _refuse_foreign(eagle, _PLAIN_EAGLE)
    above, inside = _ids(read, LAYERS), _ids(eagle, LAYERS)
    # At the top it is vLLM that reads them, and counts inputs.
    ids = inside if above is None else [i - 1 for i in above]
    if inside is not None and ids != inside:
        raise read.fail(
            LAYERS,
            f"(inputs of layers {above}) and eagle_config's (outputs of {inside}) are not the same; remove "
            "one",
        )
    return read, ids, {**_switches(read), **_switches(eagle)}


def _switches(read: Reader) -> dict[str, Any]:
    """Which norms there are, of the keys that are given."""
    given = {}
    for key in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"):
        value = read.document.get(key)
        if value is not None and not isinstance(value, bool):
            raise read.fail(key, f"is {kind_of(value)}; it must be true or false")
        given[key] = bool(value)
    if given["norm_before_fc"] and given["fc_norm"]:
        raise read.fail("fc_norm", "and norm_before_fc are both true; a drafter has one of them")
    norm = "whole" if given["norm_before_fc"] else "each" if given["fc_norm"] else None
    return {
        key: value
        for key, value in (
            ("norm_before_residual", given["norm_before_residual"]),
            ("feature_norm", norm),
            ("norm_feedback", given["norm_output"]),
        )
        if value
    }


def _refuse_foreign(read: Reader, plain: dict[str, Any]) -> None:
    for key, wanted in plain.items():
        value = read.document.get(key)
        if value is not None and value != wanted:
            raise read.fail(key, f"is {_shown(value)}; only {_shown(wanted)} is computed here")


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else quoted(value)


def _ids(read: Reader, key: str) -> list[int] | None:
    """Layer ids, rising as engines collect them whatever their order; None where there are none."""
    values = read.document.get(key)
    if values is None or values == []:
        return None
    if not isinstance(values, list) or not all(is_whole(value, 0, 1000) for value in values):
        raise read.fail(key, f"is {quoted(values)}; it must be a list of layers of the target")
    return sorted(values)


def _default_ids(read: Reader, layers: int | None) -> list[int]:
    if layers is None:
        raise read.fail(LAYERS, "is missing, and they depend on the target")
    ids = [1, layers // 2 - 1, layers - 4]
    if not 1 < ids[1] < ids[2]:
        raise read.fail(
            LAYERS,
            f"is missing, and a target of {layers} layers has no default ones (it takes 7)",
        )
    return ids


def _block_size(read: Reader) -> int:
    """Drafts a step: speculators' `speculative_tokens`, else the steps of training, else 7."""
    methods = read.mapping("speculators_config").get("proposal_methods")
    if isinstance(methods, list) and methods:
        first = Reader(methods[0], read.where, FormatError, "speculators_config.proposal_methods[0].")
        return first.integer("speculative_tokens", DEFAULT_BLOCK, 1, 127)
    return read.integer("ttt_length", DEFAULT_BLOCK, 1, 127)
