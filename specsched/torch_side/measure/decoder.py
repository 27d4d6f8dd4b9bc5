"""A decoder of any named shape with random weights and a paged KV cache, fit for a CUDA graph.

One pass takes B tokens of R requests, flattened; each attends to its request's pages up to its own position.
Inputs live in fixed buffers (`PassInputs`), nothing is read back to the host, so one graph of a size B serves
every division of B over requests and every context.

The kernels are PyTorch's (cuBLAS, flash attention with a block table, grouped matrix products for experts),
not an engine's: norms, rotary embedding and activation are not fused into their neighbours, pages hold 256
tokens where engines use 16, and fp8 is not built. Steps of a tuned engine are somewhat faster at small B.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import SpecschedError
from ...profile.shapes import ModelShape
from ..engine.sampling import draw, laws

PAGE = 256  # flash attention's own limit: pages are a multiple of it
_EPS = 1e-6


@dataclass
class PassInputs:
    """The buffers a pass reads, for B tokens and up to S requests (those beyond R are empty)."""

    tokens: Tensor  # int64[B]
    position: Tensor  # int64[B]
    slot: Tensor  # int64[B]: page * PAGE + offset, where each token's key and value go
    starts: Tensor  # int32[S + 1]: first row of each request, and B
    used: Tensor  # int32[S]: keys of each request, this pass's own included
    table: Tensor  # int32[S, P]: pages of each request
    row: Tensor  # int64[B]: request of each token (only the fallback attention reads it)
    most: int  # most tokens of one request
    most_keys: int  # most keys of one request

    @classmethod
    def empty(
        cls, tokens: int, slots: int, pages: int, most: int, most_keys: int, device: torch.device
    ) -> PassInputs:
        """Zeroed buffers."""

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        i32 = torch.int32
        wide = zeros(tokens), zeros(tokens), zeros(tokens)
        narrow = zeros(slots + 1, dtype=i32), zeros(slots, dtype=i32), zeros(slots, pages, dtype=i32)
        return cls(*wide, *narrow, zeros(tokens), most, most_keys)


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
    ) -> None:
        self.shape, self.dtype, self.device, self.page = shape, dtype, device, page
        self._generator = torch.Generator(device).manual_seed(seed)
        self._attend = flash_attention() if device.type == "cuda" else gathered_attention
        s = shape
        self.embedding = self._normal(s.vocab, s.hidden)
        self.head = self.embedding if s.tied else self._normal(s.vocab, s.hidden)
        self.norm = self._ones(s.hidden)
        self.layers = [self._layer() for _ in range(s.layers)]
        self._frequency = rope_theta ** -(torch.arange(0, s.head_dim, 2, device=device) / s.head_dim)
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
        return F.linear(self._attend(q, self.keys[i], self.values[i], inputs).flatten(1), layer.out)

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
    if x.is_cuda:
        product: Any = getattr(F, "grouped_mm", None) or torch._grouped_mm
        return product(x, weight.transpose(1, 2), offs=ends)
    parts, begin = [], 0
    for e, end in enumerate(ends.tolist()):
        parts.append(F.linear(x[begin:end], weight[e]))
        begin = end
    return torch.cat(parts)


# --- attention ----------------------------------------------------------------------------------------------

Attend = Callable[[Tensor, Tensor, Tensor, PassInputs], Tensor]


def flash_attention() -> Attend:
    """Flash attention over pages; raises SpecschedError where this PyTorch does not have it."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        varlen_attn = None  # type: ignore[assignment]
    if varlen_attn is None or "block_table" not in inspect.signature(varlen_attn).parameters:
        raise SpecschedError(
            f"measuring on a GPU needs varlen_attn with a block table; PyTorch {torch.__version__} has none; "
            "install PyTorch 2.11 or later"
        )

    def attend(q: Tensor, keys: Tensor, values: Tensor, inputs: PassInputs) -> Tensor:
        out = varlen_attn(
            q,
            keys,
            values,
            inputs.starts,
            None,
            inputs.most,
            inputs.most_keys,
            window_size=(-1, 0),
            enable_gqa=True,
            seqused_k=inputs.used,
            block_table=inputs.table,
        )
        return cast(Tensor, out)

    return attend


def gathered_attention(q: Tensor, keys: Tensor, values: Tensor, inputs: PassInputs) -> Tensor:
    """The same without flash attention: pages gathered, requests padded. For machines without a GPU."""
    slots = len(inputs.used)
    k, v = (pool[inputs.table.long()].flatten(1, 2).transpose(1, 2) for pool in (keys, values))
    rank = torch.arange(len(q), device=q.device) - inputs.starts.long()[inputs.row]
    padded = q.new_zeros(slots, inputs.most, *q.shape[1:])
    padded[inputs.row, rank] = q
    own = torch.zeros(slots, inputs.most, dtype=torch.int64, device=q.device)
    own[inputs.row, rank] = inputs.position
    mask = torch.arange(k.shape[2], device=q.device) <= own.unsqueeze(-1)
    repeat = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
    out = F.scaled_dot_product_attention(padded.transpose(1, 2), k, v, attn_mask=mask.unsqueeze(1))
    return out.transpose(1, 2)[inputs.row, rank]


# --- what follows the pass ----------------------------------------------------------------------------------


@dataclass
class Verdict:
    """Inputs of the rejection sampler for R requests; row b of `proposal` is the law that token b + 1 came
    from."""

    drafted: Tensor  # int64[B]: the token after each row, where the row has one
    proposal: Tensor  # float32[B, V]
    starts: Tensor  # int64[R]
    lengths: Tensor  # int64[R]: drafts of each request
    uniform: Tensor  # float32[B], for acceptance
    emit: Tensor  # float32[R], for the corrected or bonus token


def reject(logits: Tensor, v: Verdict, block_size: int) -> tuple[Tensor, Tensor]:
    """Rejection sampling over logits [B, V]: (accepted int64[R], next token int64[R]), all on the device."""
    law = laws(logits, 1.0)
    p_target = law.gather(1, v.drafted.unsqueeze(1)).squeeze(1)
    p_draft = v.proposal.gather(1, v.drafted.unsqueeze(1)).squeeze(1)
    passed = v.uniform * p_draft < p_target
    k = torch.arange(block_size, device=logits.device)
    at = (v.starts.unsqueeze(1) + k).clamp(max=len(logits) - 1)
    seen = k < v.lengths.unsqueeze(1)
    accepted = (passed[at] & seen).long().cumprod(1).sum(1)
    last = v.starts + accepted
    final = law[last]
    rest = (final - v.proposal[last]).clamp_(min=0)
    use_rest = (accepted < v.lengths).unsqueeze(1) & (rest.sum(-1, keepdim=True) > 0)
    return accepted, draw(torch.where(use_rest, rest, final), v.emit)
