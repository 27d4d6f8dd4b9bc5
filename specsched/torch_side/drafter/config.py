"""What a drafter is made of: one frozen dataclass, read from and written to the DeepSpec `config.json`.

Keys that DeepSpec does not know are grouped under `specsched`; a file without that group is read as the
official implementation reads it, so published checkpoints need no change.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any

from ...errors import FormatError, is_whole, quoted
from ...files.guard import reading
from ...files.reader import Reader, kind_of
from ..target.config import ROPE_SCALING, read_rope_scaling

HEAD_TYPES = ("none", "vanilla", "gated", "rnn")
FEATURE_NORMS = ("none", "whole", "each")
KINDS = {"Qwen3DSparkModel": "dspark", "Qwen3DFlashModel": "dflash", "Qwen3Eagle3Model": "eagle3"}
EAGLE3 = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "Eagle3Qwen3ForCausalLM")
FOREIGN = ("DFlashDraftModel", *EAGLE3)
"""Architectures of other toolkits, which `adapters.py` brings to these."""
_EAGLE3_ONLY = {
    "qk_norm": True,
    "norm_before_residual": False,
    "feature_norm": "none",
    "norm_feedback": False,
}
_OWN_KEYS = {
    "draft_vocab_size": None,
    "shared_embeddings": False,
    "confidence_draft_stats": False,
    "own_embedding": False,
    "own_head": False,
    **_EAGLE3_ONLY,
}
"""Keys that DeepSpec does not know, with what they are in its own drafters; written where they differ."""


@dataclass(frozen=True)
class DrafterConfig:
    """Sizes and switches of a drafter. Fields up to `num_target_layers` are DeepSpec's own names.

    `target_layer_ids`: decoder layers of the target whose outputs are the features (-1: the embedding).
    `draft_vocab_size`: rows of the LM head the drafter may propose (None: all of them). Elsewhere its
    probability is exactly 0, which keeps rejection sampling lossless.
    `shared_embeddings`: the file holds no `embed_tokens` and `lm_head`; they are the target's own.
    `confidence_draft_stats`: the confidence head also sees the entropy and the largest probability of the
    draft distribution at its position (functions of the context and of the tokens before it).
    `own_embedding`, `own_head`: the file holds an embedding [V, d], an LM head [Vd, d], of its own even where
    the rest is shared.

    `rope_scaling`: as in `TargetConfig`.

    Of Eagle3 drafters only: `qk_norm`: queries and keys are normed (DeepSpec's and Qwen3's are, Llama's are
    not). `norm_before_residual`: the layer's residual is the normed feature. `feature_norm`: features are
    normed before `fc`, "whole" as one vector or "each" layer by itself. `norm_feedback`: the next step's
    feature is the layer's output after the final norm (EAGLE 3.1), not before it.
    """

    kind: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    block_size: int
    target_layer_ids: tuple[int, ...]
    mask_token_id: int = 0
    markov_rank: int = 0
    markov_head_type: str = "none"
    enable_confidence_head: bool = False
    confidence_head_with_markov: bool = False
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1e6
    num_target_layers: int = 0
    draft_vocab_size: int | None = None
    shared_embeddings: bool = False
    confidence_draft_stats: bool = False
    rope_scaling: tuple[float, float, float, float] | None = None
    own_embedding: bool = False
    own_head: bool = False
    qk_norm: bool = True
    norm_before_residual: bool = False
    feature_norm: str = "none"
    norm_feedback: bool = False

    def __post_init__(self) -> None:
        def need(ok: bool, message: str) -> None:
            if not ok:
                raise FormatError(f"drafter config: {message}")

        need(self.kind in KINDS.values(), f"kind {self.kind!r} is none of {', '.join(KINDS.values())}")
        need(self.block_size >= 1, f"block_size must be at least 1, is {self.block_size}")
        need(
            self.markov_head_type in HEAD_TYPES,
            f"markov_head_type {self.markov_head_type!r} is none of {', '.join(HEAD_TYPES)}",
        )
        need(
            (self.markov_head_type == "none") == (self.markov_rank == 0),
            "markov_rank is 0 exactly when markov_head_type is none; "
            f"got rank {self.markov_rank} and type {self.markov_head_type!r}",
        )
        need(
            not (self.confidence_head_with_markov and self.markov_rank == 0),
            "confidence_head_with_markov needs a Markov head (markov_rank > 0)",
        )
        need(bool(self.target_layer_ids), "target_layer_ids is empty; name at least one target layer")
        ids = self.target_layer_ids
        need(
            all(a < b for a, b in pairwise(ids)),
            f"target_layer_ids {list(ids)} must strictly increase",
        )
        need(
            self.num_attention_heads % self.num_key_value_heads == 0,
            f"{self.num_attention_heads} attention heads cannot be shared by "
            f"{self.num_key_value_heads} key-value heads",
        )
        need(self.head_dim % 2 == 0, f"head_dim {self.head_dim} is odd; rotary positions need an even one")
        need(
            self.kind == "dspark" or self.markov_rank == 0,
            f"a {self.kind} drafter has no Markov head; set markov_rank 0",
        )
        need(
            self.feature_norm in FEATURE_NORMS,
            f"feature_norm {self.feature_norm!r} is none of {', '.join(FEATURE_NORMS)}",
        )
        plain = all(getattr(self, name) == default for name, default in _EAGLE3_ONLY.items())
        need(
            self.kind == "eagle3" or plain,
            f"a {self.kind} drafter has none of {', '.join(_EAGLE3_ONLY)}; leave them out",
        )
        need(
            0 <= self.mask_token_id < self.vocab_size,
            f"mask_token_id {self.mask_token_id} is outside the vocabulary of {self.vocab_size}",
        )

    @property
    def feature_size(self) -> int:
        """Width of the concatenated target features of one position."""
        return len(self.target_layer_ids) * self.hidden_size

    def replace(self, **changes: Any) -> DrafterConfig:
        """A copy with some fields changed (validated again)."""
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """The DeepSpec `config.json`, with our own keys under `specsched`."""
        architecture = next(a for a, kind in KINDS.items() if kind == self.kind)
        own = {n: getattr(self, n) for n, default in _OWN_KEYS.items() if getattr(self, n) != default}
        document = {f.name: getattr(self, f.name) for f in fields(self)}
        for name in ("kind", "rope_theta", "rope_scaling", *_OWN_KEYS):
            del document[name]
        rope: dict[str, Any] = {"rope_theta": self.rope_theta, "rope_type": "default"}
        if self.rope_scaling is not None:
            rope |= {"rope_type": "llama3", **dict(zip(ROPE_SCALING, self.rope_scaling, strict=True))}
        document |= {
            "architectures": [architecture],
            "model_type": "qwen3",
            "target_layer_ids": list(self.target_layer_ids),
            "rope_parameters": rope,
            "attention_bias": False,
            "hidden_act": "silu",
            "tie_word_embeddings": False,
        }
        if self.markov_rank == 0:
            del document["markov_head_type"]
        if own:
            document["specsched"] = own
        return document

    @classmethod
    def from_dict(cls, document: dict[str, Any], where: str = "config.json") -> DrafterConfig:
        """Read a DeepSpec (or our) `config.json`; `where` names the file in errors.

        Raises FormatError for another architecture, a missing key, or a feature we do not compute.
        """
        read = Reader(document, where, FormatError)
        named = document.get("architectures")
        architecture = (
            named[0] if isinstance(named, list) and named and isinstance(named[0], str) else "nothing"
        )
        if architecture not in KINDS:
            raise FormatError(
                f"{where}: architecture {architecture!r} is not a drafter we read "
                f"({', '.join((*KINDS, *FOREIGN))}); is it a target model's folder?"
            )
        if document.get("attention_bias"):
            raise FormatError(f"{where}: attention_bias is true; drafters with biases are not supported")
        types = document.get("layer_types") or []
        if not isinstance(types, list) or any(t != "full_attention" for t in types):
            raise FormatError(f"{where}: layer_types has sliding attention; only full_attention is supported")
        rope = read.block("rope_parameters") or read.block("rope_scaling") or Reader({}, where, FormatError)
        own = read.mapping("specsched")
        known = {f.name: f for f in fields(cls)}
        values: dict[str, Any] = {"kind": KINDS[architecture]}
        for name in known:
            if name in document and document[name] is not None:
                values[name] = document[name]
            elif name in own:
                values[name] = own[name]
        source = rope if rope.has("rope_theta") else read
        values["rope_theta"] = source.number("rope_theta", 1e6, 1.0, most=1e12)
        values["rope_scaling"] = read_rope_scaling(rope)
        _check_types(values, where)
        if KINDS[architecture] == "eagle3" and "block_size" not in values:
            values["block_size"] = read.integer("ttt_length", 7, 1, 127)
        if values.get("markov_rank", 0) == 0:
            values["markov_head_type"] = "none"
        if not values.get("enable_confidence_head", False):
            values["confidence_head_with_markov"] = False
        missing = [
            n for n, f in known.items() if n not in values and repr(f.default).startswith("<dataclasses")
        ]
        if missing == ["head_dim"] and values.get("num_attention_heads"):
            values["head_dim"] = values["hidden_size"] // values["num_attention_heads"]
            missing = []
        if missing:
            raise FormatError(f"{where}: key {missing[0]!r} is missing; a DeepSpec drafter config has it")
        with reading(where, FormatError, "drafter config"):
            return cls(**values)


_MOST = {
    "vocab_size": 2**24,
    "hidden_size": 2**17,
    "intermediate_size": 2**20,
    "num_hidden_layers": 1000,
    "num_attention_heads": 4096,
    "num_key_value_heads": 4096,
    "head_dim": 4096,
    "block_size": 127,
    "mask_token_id": 2**24,
    "markov_rank": 2**17,
    "num_target_layers": 1000,
    "draft_vocab_size": 2**24,
}
_MAY_BE_ZERO = ("mask_token_id", "markov_rank", "num_target_layers")
_SWITCHES = (
    "enable_confidence_head",
    "confidence_head_with_markov",
    *(name for name, default in _OWN_KEYS.items() if isinstance(default, bool)),
)


def _check_types(values: dict[str, Any], where: str) -> None:
    """Refuse values of a config that have no meaning, before anything of their size is made."""
    read = Reader(values, where, FormatError)
    for key, most in _MOST.items():
        if read.has(key):
            values[key] = read.integer(key, minimum=0 if key in _MAY_BE_ZERO else 1, most=most)
    for key in _SWITCHES:
        if not isinstance(values.get(key, False), bool):
            raise read.fail(key, f"is {kind_of(values[key])}; it must be true or false")
    if "rms_norm_eps" in values:
        values["rms_norm_eps"] = read.number("rms_norm_eps", most=1.0)
    if "markov_head_type" in values:
        read.text("markov_head_type", choices=HEAD_TYPES)
    if "feature_norm" in values:
        read.text("feature_norm", choices=FEATURE_NORMS)
    ids = values.get("target_layer_ids", ())
    if not isinstance(ids, list | tuple) or len(ids) > 1000:
        raise read.fail("target_layer_ids", f"is {kind_of(ids)}; it must be a list of up to 1000 layers")
    for i, layer in enumerate(ids):
        if not is_whole(layer, -1, 999):
            raise read.fail(f"target_layer_ids[{i}]", f"is {quoted(layer)}; it must be a layer of the target")
    values["target_layer_ids"] = tuple(ids)
