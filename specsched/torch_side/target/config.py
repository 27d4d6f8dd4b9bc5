"""What a target is: its shape, from config.json."""

from __future__ import annotations

from dataclasses import dataclass


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
