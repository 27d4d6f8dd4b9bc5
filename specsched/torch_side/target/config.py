"""What a target is: its shape, from config.json."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import quoted
from ...files.reader import Reader

ROPE_SCALING = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
"""Keys of Llama 3.1's scaling of rotary frequencies, in the order configs here hold them."""


@dataclass(frozen=True)
class TargetConfig:
    """Shape of a target. `qk_norm` and an explicit `head_dim` are what make Qwen3 differ from Llama here."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    qk_norm: bool = False
    tie_word_embeddings: bool = False
    eos_token_ids: tuple[int, ...] = ()
    name: str = "unnamed"
    rope_scaling: tuple[float, float, float, float] | None = None
    """Llama 3.1's frequency scaling: factor, low and high frequency factor, original context."""


def read_rope_scaling(rope: Reader) -> tuple[float, float, float, float] | None:
    """Llama 3.1's scaling in `rope_parameters` or `rope_scaling`, None for none; other scalings are refused
    with the reader's error."""
    kind = rope.document.get("rope_type") or rope.document.get("type") or "default"
    if kind == "default":
        return None
    if kind != "llama3":
        raise rope.error(
            f"{rope.where}: rope_type {quoted(kind)} is not supported, only 'default' and 'llama3'"
        )
    factor, low, high, context = (rope.number(k, minimum=1e-6, most=1e9) for k in ROPE_SCALING)
    if high <= low:
        raise rope.fail("high_freq_factor", f"is {high:g}; it must be above low_freq_factor, {low:g}")
    return factor, low, high, context
