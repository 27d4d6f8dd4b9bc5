"""`--source compose`: a step profile from the measured kernels of `aiconfigurator-core`.

verify(B) = all GEMMs, small kernels, experts and all-reduces of a pass of B tokens, head over B rows
included; attention depends on the requests and their context, not on the tokens verified: up to 8 of a
request read its KV once. The drafter is composed too. Against end-to-end rows of the same engine on one GPU
the median error is 1.5 %.
"""

from __future__ import annotations

from typing import Any

from ...errors import ProfileError
from ...profile import StepProfile
from ...profile.architecture import find_model
from ...profile.shapes import Gpu, find_gpu, require_plain, require_runnable
from .composition import (
    DRAFTER_LAYERS,
    FEATURE_LAYERS,
    MARKOV_RANK,
    NOT_INCLUDED,
    Pieces,
    Subject,
    assemble,
    drafter_note,
)
from .tables import SYSTEMS, Kernels

LICENCE = "Apache-2.0 (NVIDIA, aiconfigurator-core)"
_SHORT = {"bfloat16": "bf16", "float16": "fp16"}


def compose_profile(
    gpu: str,
    model: str,
    tensor: int = 1,
    dtype: str = "bfloat16",
    kv_dtype: str | None = None,
    backend: str = "vllm",
    block_size: int = 7,
    draft_context: int = 2048,
    capture_limit: int = 512,
    name: str | None = None,
) -> StepProfile:
    """Compose `model` (a preset or config.json) on `tensor` GPUs from one backend's kernel tables.

    `kv_dtype`: that of the weights unless given (fp8 weights: fp8). `draft_context`: tokens of context per
    request at which the drafter's attention is priced, because a draft cost has requests alone as its axis.
    Raises `ProfileError`: package absent, GPU without tables, tables known to be wrong, unknown names.
    """
    key, limits = find_gpu(gpu)
    shape = find_model(model)
    require_plain(shape, "--source compose")
    if key not in SYSTEMS:
        raise ProfileError(f"aiconfigurator has no tables for {gpu}; it has {', '.join(SYSTEMS)}")
    weights = "fp8" if dtype.startswith("fp8") else dtype
    require_runnable(shape, limits, tensor, weights)
    kv = kv_dtype or ("fp8" if dtype.startswith("fp8") else "bfloat16")
    kernels = Kernels(SYSTEMS[key], backend, shape, tensor, dtype, kv)
    pieces = Pieces(
        verify=lambda tokens: sum(kernels.parts(tokens).values()),
        attention=kernels.attention,
        draft=lambda requests: draft_seconds(kernels, requests, block_size, draft_context),
        eager_sizes=[int(t) for t in kernels.measured_tokens if t <= 8192],
    )
    _refuse_guesses(kernels, limits)
    provenance = {
        "method": "composed",
        "source": f"aiconfigurator-core {kernels.version} (PyPI): {kernels.tables}",
        "licence": LICENCE,
        "date": "",
        "tool": "specsched.formats.aiconfigurator",
        "host": {},
        "notes": " ".join([*_notes(kernels, draft_context), NOT_INCLUDED]),
        "changes": "kernel times summed over layers, attention split into attention(N) and overhead(R), "
        "ms to seconds",
        "parts": parts_of(kernels),
    }
    return assemble(
        name or f"{key}_{shape.name.lower()}_{_SHORT.get(dtype, dtype)}_tp{tensor}",
        pieces,
        Subject(shape, limits, tensor, weights, kv),
        provenance,
        block_size,
        capture_limit,
    )


def _refuse_guesses(kernels: Kernels, gpu: Gpu) -> None:
    """Raise `ProfileError` where the package answers without a measurement, or faster than memory can be
    read.
    """
    guessed = [part for part in ("qkv_gemm", "attention") if kernels.label(part) == "estimated"]
    if guessed:
        raise ProfileError(
            f"aiconfigurator has no measured {' and '.join(guessed)} table for {kernels.quant} on "
            f"{kernels.tables}: "
            "it would guess; choose another dtype or backend, or --source roofline"
        )
    shape = kernels.shape
    mlp = shape.mlp_parameters * max(shape.experts_per_token, 1)
    width = 1.0 if kernels.quant.startswith("fp8") else 2.0
    least = shape.layers * (shape.attention_parameters + mlp) * width / kernels.tensor / gpu.bandwidth
    step = sum(kernels.parts(1).values())
    if step < 0.9 * least:
        raise ProfileError(
            f"aiconfigurator composes a pass of one token in {step * 1e3:.2f} ms on {kernels.tables}, faster "
            "than "
            f"the {least * 1e3:.2f} ms that reading the weights takes; its tables for this choice are wrong"
        )


def _notes(kernels: Kernels, draft_context: int) -> list[str]:
    notes = [
        "Composed from separately measured kernels, not measured as a step; token counts between measured "
        "ones are "
        "interpolated, so cliffs between them are smeared.",
        drafter_note(kernels.shape, draft_context),
    ]
    if kernels.quant == "fp8" and kernels.backend == "vllm":
        notes.append(
            "fp8: only aligned token counts of the GEMM table are used; unaligned ones are known to be wrong."
        )
    if kernels.quant == "fp8" and kernels.backend == "trtllm":
        notes.append("TensorRT-LLM's fp8 tables came out 13-29 % slower than end-to-end rows of that engine.")
    return notes


def parts_of(kernels: Kernels, tokens: int = 64) -> list[dict[str, Any]]:
    """Each part of a step of `tokens` tokens (8 requests, 1,024 tokens of context): its share and what it
    rests on.
    """
    seconds = {**kernels.parts(tokens), "attention": kernels.attention(8, 1024)}
    total = sum(seconds.values())
    return [
        {"part": part, "label": kernels.label(part), "share": round(value / total, 4)}
        for part, value in seconds.items()
        if value > 0
    ]


def draft_seconds(kernels: Kernels, requests: int, block_size: int, context: int) -> float:
    """Seconds to draft one block for each of R requests: five dense bfloat16 layers over R·γ tokens in
    parallel.

    The features of the tokens just emitted are projected once, the head reads R·γ rows, and the Markov head
    adds one rank-256 product over the vocabulary per position.
    """
    s, tp = kernels.shape, kernels.tensor
    tokens = requests * block_size
    heads = s.heads * s.head_dim // tp
    layer = (
        kernels.gemm(heads + 2 * max(s.kv_heads // tp, 1) * s.head_dim, s.hidden, tokens)
        + kernels.layer_attention(requests, context)
        + kernels.gemm(s.hidden, heads, tokens)
        + kernels.gemm(2 * s.intermediate // tp, s.hidden, tokens)
        + kernels.gemm(s.hidden, s.intermediate // tp, tokens)
        + 2 * kernels.small(8.0 * s.hidden, tokens)
        + kernels.small(6.0 * s.intermediate / tp, tokens)
        + 2 * kernels.all_reduce(tokens)
    )
    features = kernels.gemm(s.hidden, FEATURE_LAYERS * s.hidden // tp, tokens)
    head = kernels.gemm(s.vocab // tp, s.hidden, tokens)
    markov = block_size * kernels.gemm(s.vocab // tp, MARKOV_RANK, requests)
    return DRAFTER_LAYERS * layer + features + head + markov
