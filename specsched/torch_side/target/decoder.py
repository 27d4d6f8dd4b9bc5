"""The target model: a small decoder for the Llama and Qwen3 architectures, with a KV cache.

RMSNorm, rotary positions (half-split layout), grouped queries, SwiGLU, optional QK-norm. One forward takes
the tokens of all requests *flattened* into one batch (the paper's section 5.3): every token attends to its
own request's cache up to its own position, so a verify pass costs B = sum(1 + verified) tokens and no
padding in the matrix products. Loading weights is `weights.py`, text is `tokenizer.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import SpecschedError

if TYPE_CHECKING:
    from .tokenizer import Tokenizer
from .attention import grouped_attention, plan_groups
from .cache import KVCache
from .config import TargetConfig


class RMSNorm(nn.Module):
    """x / rms(x) * weight, the mean square in float32 whatever the dtype of x."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Any shape [..., size], same dtype out."""
        x32 = x.float()
        x32 = x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * x32.to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding, half-split: x [..., head_dim], cos and sin broadcastable to [..., head_dim / 2]."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def frequencies(theta: float, head_dim: int, device: torch.device | str | None = None) -> Tensor:
    """Angular frequency of each rotary pair, float64[head_dim / 2], radians a token."""
    return theta ** -(torch.arange(0, head_dim, 2, dtype=torch.float64, device=device) / head_dim)


def scaled(frequency: Tensor, scaling: tuple[float, float, float, float] | None) -> Tensor:
    """Frequencies with Llama 3.1's scaling (`TargetConfig.rope_scaling`), None leaves them."""
    if scaling is None:
        return frequency
    factor, low, high, context = scaling
    wavelength = 2 * math.pi / frequency
    smooth = ((context / wavelength - low) / (high - low)).clamp(0, 1)
    return (1 - smooth) * frequency / factor + smooth * frequency


def rope_frequencies(config: TargetConfig, device: torch.device | str = "cpu") -> Tensor:
    """`frequencies` of a target, Llama 3.1's scaling applied, float32[head_dim / 2]."""
    frequency = frequencies(config.rope_theta, config.head_dim, "cpu")
    return scaled(frequency, config.rope_scaling).to(device=device, dtype=torch.float32)


Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


class _Attention(nn.Module):
    def __init__(self, c: TargetConfig) -> None:
        super().__init__()
        self.config = c
        self.q_proj = nn.Linear(c.hidden_size, c.num_attention_heads * c.head_dim, bias=False)
        self.k_proj = nn.Linear(c.hidden_size, c.num_key_value_heads * c.head_dim, bias=False)
        self.v_proj = nn.Linear(c.hidden_size, c.num_key_value_heads * c.head_dim, bias=False)
        self.o_proj = nn.Linear(c.num_attention_heads * c.head_dim, c.hidden_size, bias=False)
        if c.qk_norm:
            self.q_norm = RMSNorm(c.head_dim, c.rms_norm_eps)
            self.k_norm = RMSNorm(c.head_dim, c.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        c = self.config
        lead = x.shape[:-1]
        q = self.q_proj(x).view(*lead, c.num_attention_heads, c.head_dim)
        k = self.k_proj(x).view(*lead, c.num_key_value_heads, c.head_dim)
        v = self.v_proj(x).view(*lead, c.num_key_value_heads, c.head_dim)
        if c.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        return self.o_proj(attend(rotate(q, cos, sin), rotate(k, cos, sin), v))


class MLP(nn.Module):
    """SwiGLU; parameter names are Hugging Face's."""

    def __init__(self, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, intermediate, bias=False)
        self.up_proj = nn.Linear(hidden, intermediate, bias=False)
        self.down_proj = nn.Linear(intermediate, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden] -> [..., hidden]."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class _Layer(nn.Module):
    def __init__(self, c: TargetConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.self_attn = _Attention(c)
        self.post_attention_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.mlp = MLP(c.hidden_size, c.intermediate_size)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, attend)
        return x + self.mlp(self.post_attention_layernorm(x))


class Target(nn.Module):
    """A decoder with random weights; `load_target` fills them. Parameter names are Hugging Face's without
    `model.`."""

    def __init__(self, config: TargetConfig, tokenizer: Tokenizer | None = None) -> None:
        super().__init__()
        self.config = config
        self.tokenizer = tokenizer
        self.where = f"target {config.name!r}"  # its file or folder, for messages
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.embed_tokens.weight
        self._head32: Tensor | None = None
        self.register_buffer("_frequency", rope_frequencies(config), persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Target:
        super()._apply(fn, recurse)
        self._head32 = None
        # A cast to bfloat16 must not reach the rotary table: at position 500 it would be off by radians.
        self._frequency = rope_frequencies(self.config, self.embed_tokens.weight.device)
        return self

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.embed_tokens.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights and of the hidden states."""
        return self.embed_tokens.weight.dtype

    def new_cache(self, slots: int, capacity: int) -> KVCache:
        """A cache of this target's shape, device and dtype."""
        return KVCache(self.config, slots, capacity, self.device, self.dtype)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [..., d] after the final norm -> logits [..., vocab_size]."""
        return self.lm_head(hidden)

    def precise_logits(self, hidden: Tensor) -> Tensor:
        """`logits` in float32. For sampling on a CPU the head itself is float32 (a copy is kept): bfloat16
        logits near 20 are an eighth apart, which would be a visibly different law. SpecschedError for NaN, to
        which finite weights can overflow."""
        if self.dtype != torch.bfloat16 or self.device.type != "cpu":
            logits = self.logits(hidden).float()
        else:
            if self._head32 is None:
                self._head32 = self.lm_head.weight.detach().float()
            logits = F.linear(hidden.float(), self._head32)
        if not bool(logits.isfinite().all()):
            raise SpecschedError(f"{self.where}: its logits are not finite; are its weights damaged?")
        return logits

    def _rope(self, position: Tensor) -> tuple[Tensor, Tensor]:
        angle = position.to(torch.float32).unsqueeze(-1) * self._frequency
        return angle.cos().to(self.dtype).unsqueeze(-2), angle.sin().to(self.dtype).unsqueeze(-2)

    def _run(
        self, x: Tensor, position: Tensor, attend: Callable[..., Tensor], layers: tuple[int, ...]
    ) -> tuple[Tensor, Tensor]:
        _check_layers(layers, self.config)
        cos, sin = self._rope(position)
        kept: dict[int, Tensor] = {-1: x}
        for i, layer in enumerate(self.layers):
            x = layer(x, cos, sin, lambda q, k, v, i=i: attend(i, q, k, v))
            if i in layers:
                kept[i] = x
        features = torch.cat([kept[i] for i in layers], dim=-1) if layers else x[..., :0]
        return self.norm(x), features

    def forward(
        self,
        tokens: Tensor,
        request: Tensor,
        position: Tensor,
        cache: KVCache,
        feature_layers: tuple[int, ...] = (),
    ) -> tuple[Tensor, Tensor]:
        """One ragged pass: token b of cache slot request[b] at position[b], all int64[B].

        Writes keys and values at (request, position), attends to positions <= own of the same slot, sets the
        slots' lengths. Tokens of one request need not be adjacent. Returns (hidden [B, d] after the final
        norm, features [B, len(feature_layers) * d]: the outputs of those decoder layers, -1 the embedding's).
        Raises `SpecschedError` when a position lies beyond the capacity or leaves a gap in a slot.
        """
        device = self.device
        request_host, position_host = request.cpu(), position.cpu()
        groups = plan_groups(request_host, position_host, cache, self.config, device)
        request, position = request.to(device), position.to(device)

        def attend(i: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            cache.keys[i][request, :, position] = k
            cache.values[i][request, :, position] = v
            if len(groups) == 1 and groups[0].tokens is None:
                return grouped_attention(q, cache.keys[i], cache.values[i], groups[0])
            out = q.new_empty(q.shape[0], q.shape[1] * q.shape[2])
            for g in groups:
                out[g.tokens] = grouped_attention(q[g.tokens], cache.keys[i], cache.values[i], g)
            return out

        hidden, features = self._run(self.embed_tokens(tokens.to(device)), position, attend, feature_layers)
        ends = torch.zeros_like(cache.lengths).scatter_reduce(0, request_host, position_host + 1, "amax")
        touched = request_host.unique()
        cache.lengths[touched] = ends[touched]
        return hidden, features

    def parallel(self, tokens: Tensor, feature_layers: tuple[int, ...] = ()) -> tuple[Tensor, Tensor]:
        """Whole texts at once without a cache: tokens int64[n, t] -> (hidden [n, t, d], features [n, t, len
        * d]).

        Causal, so padding on the right changes nothing before it. For training and for features of known
        text.
        """
        c = self.config

        def attend(i: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            repeat = c.num_attention_heads // c.num_key_value_heads
            k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return out.transpose(1, 2).flatten(2)

        tokens = tokens.to(self.device)
        position = torch.arange(tokens.shape[1], device=self.device)
        return self._run(self.embed_tokens(tokens), position, attend, feature_layers)


def _check_layers(layers: tuple[int, ...], config: TargetConfig) -> None:
    for i in layers:
        if not -1 <= i < config.num_hidden_layers:
            raise SpecschedError(
                f"feature layer {i} of target {config.name!r} does not exist: it has the embedding (-1) and "
                f"layers 0..{config.num_hidden_layers - 1}; correct target_layer_ids of the drafter"
            )
