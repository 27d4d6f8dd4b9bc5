"""A decoder of any named shape with random weights and a paged KV cache, fit for a CUDA graph.

One pass takes B tokens of R requests, flattened; each attends to its request's pages up to its own position.
Inputs live in fixed buffers (`PassInputs`), nothing is read back to the host, so one graph of a size B serves
every division of B over requests and every context.

The kernels are PyTorch's (cuBLAS, flash attention with a block table, grouped matrix products for experts),
not an engine's: norms, rotary embedding and activation are not fused into their neighbours, pages hold 256
tokens where engines use 16, and fp8 is not built. Steps of a tuned engine are somewhat faster at small B.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...profile.shapes import ModelShape
from ..engine.sampling import laws
from ..target.decoder import frequencies
from .attention import Attend, gathered_attention
from .passes import PAGE, PassInputs

_EPS = 1e-6


@dataclass
class _Layer:
    attention_norm: Tensor
    qkv: Tensor  # [(heads + 2 kv) * head_dim, d]
    qk_norm: Tensor | None  # [heads + kv, head_dim]
    out: Tensor
    mlp_norm: Tensor
    router: Tensor | None  # [experts, d]
    gate_up: Tensor  # [2m, d], or [experts, 2m, d]
    down: Tensor  # [d, m], or [experts, d, m]


class PagedDecoder:
    """Random normal weights of `shape` on `device`; `pages` pages of normal KV per layer."""

    def __init__(
        self,
        shape: ModelShape,
        pages: int,
        dtype: torch.dtype,
        device: torch.device,
        page: int = PAGE,
        rope_theta: float = 1e6,
        seed: int = 0,
        attend: Attend = gathered_attention,
    ) -> None:
        self.shape, self.dtype, self.device, self.page = shape, dtype, device, page
        self._generator = torch.Generator(device).manual_seed(seed)
        self.attend = attend
        s = shape
        self.embedding = self._normal(s.vocab, s.hidden)
        self.head = self.embedding if s.tied else self._normal(s.vocab, s.hidden)
        self.norm = self._ones(s.hidden)
        self.layers = [self._layer() for _ in range(s.layers)]
        self._frequency = frequencies(rope_theta, s.head_dim, device).float()
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.grow(pages)

    def grow(self, pages: int) -> None:
        """Replace the KV cache by one of `pages` pages a layer."""
        self.pages = pages
        self.keys.clear()
        self.values.clear()
        for _ in range(self.shape.layers):
            for store in (self.keys, self.values):
                pool = torch.empty(
                    pages,
                    self.page,
                    self.shape.kv_heads,
                    self.shape.head_dim,
                    dtype=self.dtype,
                    device=self.device,
                )
                store.append(pool.normal_(generator=self._generator))

    def _normal(self, *size: int) -> Tensor:
        weight = torch.empty(size, dtype=self.dtype, device=self.device)
        return weight.normal_(0, 0.02, generator=self._generator)

    def _ones(self, *size: int) -> Tensor:
        return torch.ones(size, dtype=self.dtype, device=self.device)

    def _layer(self) -> _Layer:
        s = self.shape
        qwen, moe = s.family == "qwen3", s.experts > 0
        experts, inner = ((s.experts,), s.moe_intermediate) if moe else ((), s.intermediate)
        return _Layer(
            attention_norm=self._ones(s.hidden),
            qkv=self._normal((s.heads + 2 * s.kv_heads) * s.head_dim, s.hidden),
            qk_norm=self._ones(s.heads + s.kv_heads, s.head_dim) if qwen else None,
            out=self._normal(s.hidden, s.heads * s.head_dim),
            mlp_norm=self._ones(s.hidden),
            router=self._normal(s.experts, s.hidden) if moe else None,
            gate_up=self._normal(*experts, 2 * inner, s.hidden),
            down=self._normal(*experts, s.hidden, inner),
        )

    def forward(self, inputs: PassInputs) -> Tensor:
        """The pass: hidden states [B, d] after the final norm."""
        cos, sin = self._rope(inputs.position)
        x = F.embedding(inputs.tokens, self.embedding)
        for i, layer in enumerate(self.layers):
            x = x + self._attention(
                i, layer, F.rms_norm(x, x.shape[-1:], layer.attention_norm, _EPS), cos, sin, inputs
            )
            y = F.rms_norm(x, x.shape[-1:], layer.mlp_norm, _EPS)
            x = x + (_dense(layer, y) if layer.router is None else self._experts(layer, y))
        return F.rms_norm(x, x.shape[-1:], self.norm, _EPS)

    def logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """The LM head over all B rows, into `out` [B, V] where given."""
        return torch.mm(hidden, self.head.t(), out=out) if out is not None else hidden @ self.head.t()

    def _rope(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """cos and signed sin [B, 1, head_dim]: rotation is x * cos + roll(x) * sin."""
        angle = position.float().unsqueeze(-1) * self._frequency
        cos, sin = angle.cos(), angle.sin()
        both = torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)
        return both[0].to(self.dtype).unsqueeze(1), both[1].to(self.dtype).unsqueeze(1)

    def _attention(
        self, i: int, layer: _Layer, x: Tensor, cos: Tensor, sin: Tensor, inputs: PassInputs
    ) -> Tensor:
        s = self.shape
        heads = F.linear(x, layer.qkv).view(len(x), -1, s.head_dim)
        qk, v = heads[:, : s.heads + s.kv_heads], heads[:, s.heads + s.kv_heads :]
        if layer.qk_norm is not None:
            qk = F.rms_norm(qk, (s.head_dim,), None, _EPS) * layer.qk_norm
        qk = torch.addcmul(qk * cos, qk.roll(s.head_dim // 2, -1), sin)
        q, k = qk[:, : s.heads].contiguous(), qk[:, s.heads :]
        self.keys[i].view(-1, s.kv_heads, s.head_dim)[inputs.slot] = k
        self.values[i].view(-1, s.kv_heads, s.head_dim)[inputs.slot] = v
        return F.linear(self.attend(q, self.keys[i], self.values[i], inputs, True).flatten(1), layer.out)

    def _experts(self, layer: _Layer, x: Tensor) -> Tensor:
        """Top-k experts of every token, as grouped products over tokens sorted by expert; no host
        decision."""
        assert layer.router is not None
        k = self.shape.experts_per_token
        weight, chosen = F.linear(x, layer.router).float().softmax(-1).topk(k, dim=-1)
        weight = (weight / weight.sum(-1, keepdim=True)).to(x.dtype)
        expert, order = chosen.flatten().sort(stable=True)
        experts = torch.arange(self.shape.experts, device=x.device)
        ends = torch.searchsorted(expert, experts, right=True).to(torch.int32)
        rows = x[order // k]
        up = grouped(rows, layer.gate_up, ends)
        gate, value = up.chunk(2, dim=-1)
        out = grouped(F.silu(gate) * value, layer.down, ends) * weight.flatten()[order].unsqueeze(-1)
        return torch.zeros_like(x).index_add_(0, order // k, out)


def _dense(layer: _Layer, x: Tensor) -> Tensor:
    gate, value = F.linear(x, layer.gate_up).chunk(2, dim=-1)
    return F.linear(F.silu(gate) * value, layer.down)


def grouped(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Rows ends[e-1]..ends[e] of x [n, in] times weight[e] [out, in], for every expert e: [n, out]."""
    if x.device.type != "cpu":
        product: Any = getattr(F, "grouped_mm", None) or torch._grouped_mm
        return product(x, weight.transpose(1, 2), offs=ends)
    parts, begin = [], 0
    for e, end in enumerate(ends.tolist()):
        parts.append(F.linear(x[begin:end], weight[e]))
        begin = end
    return torch.cat(parts)


# --- what follows the pass ----------------------------------------------------------------------------------


@dataclass
class Verdict:
    """Inputs of the rejection sampler for R requests.

    Row b of `proposal` is the distribution that token b + 1 was drawn from; None for greedy drafts, which
    put all of it on the token drafted.
    """

    drafted: Tensor  # int64[B]: the token after each row, where the row has one
    proposal: Tensor | None  # float32[B, V]
    starts: Tensor  # int64[R]
    lengths: Tensor  # int64[R]: drafts of each request
    uniform: Tensor  # float32[B], for acceptance


def reject(logits: Tensor, v: Verdict, block_size: int) -> tuple[Tensor, Tensor]:
    """Rejection sampling over logits [B, V]: (accepted int64[R], next token int64[R]), all on the device."""
    law = laws(logits, 1.0)
    drafted = v.drafted.unsqueeze(1)
    bound: Tensor = v.uniform
    if v.proposal is not None:
        bound = bound * v.proposal.gather(1, drafted).squeeze(1)
    passed = bound < law.gather(1, drafted).squeeze(1)
    k = torch.arange(block_size, device=logits.device)
    at = (v.starts.unsqueeze(1) + k).clamp(max=len(logits) - 1)
    seen = k < v.lengths.unsqueeze(1)
    accepted = (passed[at] & seen).long().cumprod(1).sum(1)
    last = v.starts + accepted
    final = law[last]
    if v.proposal is None:
        rest = final.scatter(1, drafted[last], 0.0)
    else:
        rest = (final - v.proposal[last]).clamp_(min=0)
    use_rest = (accepted < v.lengths).unsqueeze(1) & (rest.sum(-1, keepdim=True) > 0)
    return accepted, race(torch.where(use_rest, rest, final))


def race(law: Tensor) -> Tensor:
    """int64[n] drawn from law [n, V] (any positive scale) as engines draw: the first of exponential clocks.

    One pass over the vocabulary, where the inverse of a cumulative sum takes several.
    """
    return (law / torch.empty_like(law).exponential_().clamp_(min=1e-30)).argmax(-1)
