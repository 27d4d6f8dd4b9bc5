"""A step profile from vendor limits alone: the last resort where nothing was measured.

Every part of a step takes the larger of bytes / bandwidth and FLOPs / peak; host time, launches, kernel
efficiency and tile edges are left out. Against measured steps the result is 1.3 to 5 times optimistic and it
has no cliffs, so it may rank GPUs, never size them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .architecture import find_model
from .profile import StepProfile
from .shapes import Gpu, ModelShape, find_gpu, require_runnable

OPTIMISM = (1.3, 5.0)
DRAFTER_LAYERS, MARKOV_RANK, FEATURE_LAYERS = 5, 256, 5
_TOKENS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096)
_REQUESTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def roofline_profile(
    gpu: str,
    model: str,
    tensor: int = 1,
    dtype: str = "bfloat16",
    kv_dtype: str | None = None,
    block_size: int = 7,
) -> StepProfile:
    """The roofline of `model` (a preset or a config.json) on `tensor` GPUs, with a five-layer parallel
    drafter.

    Raises `ProfileError` for an unknown GPU, model or dtype, for fp8 on a GPU without it, and for a model
    whose weights do not fit.
    """
    key, limits = find_gpu(gpu)
    shape = find_model(model)
    if shape.quantization is not None:
        # The checkpoint says what its weights are; a dtype asked for cannot widen them.
        dtype = shape.quantization.dtype
    require_runnable(shape, limits, tensor, dtype)
    weights = shape.weight_bytes(dtype)
    peak = limits.fp8_flops if dtype == "fp8" and limits.fp8_flops else limits.bf16_flops
    line = _Line(shape, limits, peak, tensor, shape.layer_width(dtype))
    per_token = shape.kv_bytes_per_token(kv_dtype or ("fp8" if dtype == "fp8" else "bfloat16"))
    most_kv = 1 << 22
    draft_weights, draft_per_token = shape.drafter_bytes(DRAFTER_LAYERS, MARKOV_RANK, FEATURE_LAYERS)
    document = {
        "schema": "specsched/profile/1",
        "name": f"{key}_{shape.name.lower()}_{dtype}_tp{tensor}_roofline",
        "gpu": {"name": limits.name, "count": tensor, "memory_bytes": limits.memory_bytes},
        "model": {
            "name": shape.name,
            "weight_bytes": weights,
            "kv_bytes_per_token": per_token,
            "max_context": shape.max_context,
            "dtype": dtype,
        },
        "parallel": {"tensor": tensor, "data": 1},
        "verify": {
            "tokens": list(_TOKENS),
            "seconds": [line.forward(b, shape.layers) for b in _TOKENS],
            "lookup": "linear",
            "beyond": "slope",
        },
        "attention": {
            "kv_tokens": [0, most_kv],
            "seconds": [0.0, most_kv * per_token / tensor / limits.bandwidth],
        },
        "draft": {
            "requests": list(_REQUESTS),
            "seconds": [line.draft(r, block_size) for r in _REQUESTS],
            "block_size": block_size,
            "drafter": f"{DRAFTER_LAYERS} layers like the target's, Markov rank {MARKOV_RANK} (roofline)",
            "weight_bytes": draft_weights,
            "kv_bytes_per_token": draft_per_token,
        },
        "provenance": {
            "method": "roofline",
            "source": "vendor limits: memory bandwidth, dense FLOP/s, link bandwidth",
            "licence": "none needed: computed from public specifications",
            "date": "",
            "tool": "specsched.roofline",
            "host": {},
            "notes": f"{OPTIMISM[0]} to {OPTIMISM[1]:g} times optimistic against measured steps; "
            "no cliffs, no host time.",
        },
    }
    return StepProfile.from_dict(document)


class _Line:
    """Seconds of parts of a forward pass at the limits of one GPU out of `tensor`."""

    def __init__(self, shape: ModelShape, gpu: Gpu, peak: float, tensor: int, width: float) -> None:
        self.shape, self.gpu, self.peak, self.tensor, self.width = shape, gpu, peak, tensor, width

    def _matmul(self, weights: float, tokens: float, width: float | None = None) -> float:
        """`weights` parameters read once, two FLOPs per parameter and token."""
        read = weights * (self.width if width is None else width) / self.tensor / self.gpu.bandwidth
        return max(read, 2.0 * weights * tokens / self.tensor / self.peak)

    def _mlp(self, tokens: int) -> float:
        shape = self.shape
        if not shape.experts:
            return self._matmul(shape.mlp_parameters, tokens)
        # Tokens choose experts independently at best: the expected share of experts that anyone needs is
        # read.
        touched = shape.experts * (1.0 - (1.0 - shape.experts_per_token / shape.experts) ** tokens)
        read = touched * shape.mlp_parameters * self.width / self.tensor / self.gpu.bandwidth
        work = 2.0 * shape.experts_per_token * shape.mlp_parameters * tokens / self.tensor / self.peak
        return max(read, work)

    def forward(self, tokens: int, layers: int) -> float:
        """A pass of `tokens` through `layers` and the head, attention over the cache left out."""
        layer = self._matmul(self.shape.attention_parameters, tokens) + self._mlp(tokens)
        if self.tensor > 1:
            # Two all-reduces per layer: each GPU sends its share of the activations twice around the ring.
            moved = 2.0 * (self.tensor - 1) / self.tensor * tokens * self.shape.hidden * 2.0
            layer += 2.0 * moved / self.gpu.link
        return layers * layer + self._matmul(self.shape.vocab * self.shape.hidden, tokens, 2.0)

    def draft(self, requests: int, block_size: int) -> float:
        """One block for each of R requests: the parallel layers, the head, and the Markov head step by
        step.
        """
        dense = self.shape
        if dense.experts:
            # A drafter of a mixture has dense layers of the target's width.
            dense = replace(dense, experts=0)
        line = _Line(dense, self.gpu, self.gpu.bf16_flops, self.tensor, 2.0)
        markov = block_size * line._matmul(MARKOV_RANK * dense.vocab, requests)
        return float(np.float64(line.forward(requests * block_size, DRAFTER_LAYERS) + markov))
