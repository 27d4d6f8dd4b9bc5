"""Jagged profiles from microsoft/vidur's kernel timings (MIT): GEMMs measured at every eighth token count.

Other tables are coarse in tokens and draw straight lines over tile edges; this one shows the real staircase,
with its inversions. Attention, all-reduce and the head come from `aiconfigurator`, since vidur's are of other
shapes.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import FormatError, ProfileError
from ...files.strict import read_text
from ...files.table import read_columns
from ...profile import StepProfile
from ...profile.architecture import find_model
from ...profile.shapes import find_gpu, require_plain
from ..values import numbers, whole
from .aiconfigurator import LICENCE, draft_seconds
from .composition import NOT_INCLUDED, Pieces, Subject, assemble, drafter_note
from .tables import SYSTEMS, Kernels

# Per layer; `add` is timed once and runs twice (after attention and after the MLP), norms are timed one each.
PER_LAYER = {
    "input_layernorm": 1,
    "attn_pre_proj": 1,
    "attn_rope": 1,
    "attn_post_proj": 1,
    "post_attention_layernorm": 1,
    "mlp_up_proj": 1,
    "mlp_act": 1,
    "mlp_down_proj": 1,
    "add": 2,
}
COMMIT = "7d47513363ec447a741ac5e47241580b47724fbf"


def read_kernels(path: str | os.PathLike[str], tensor: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """(tokens int64[n] rising, {kernel: seconds of one call, float64[n]}) of a median table in µs, one
    `tp`.
    """
    path = Path(path)
    cells = read_columns(path, read_text(path, FormatError), FormatError)
    missing = {"tp", "m", "emb", *PER_LAYER} - cells.keys()
    if missing:
        raise FormatError(
            f"{path}: no columns {', '.join(sorted(missing))}; expected vidur's MLP kernels in µs"
        )
    chosen = [i for i, degree in enumerate(cells["tp"]) if degree == str(tensor)]
    if not chosen:
        raise FormatError(f"{path}: no rows of tp {tensor}; there are {', '.join(sorted(set(cells['tp'])))}")
    tokens = whole([cells["m"][i] for i in chosen], f"{path}: m")
    columns = {"emb": 1, **PER_LAYER}
    kernels = {
        name: numbers([cells[name][i] for i in chosen], f"{path}: {name}", positive=False) / 1e6
        for name in columns
    }
    return tokens, kernels


def compose_jagged(
    path: str | os.PathLike[str],
    gpu: str,
    model: str,
    tensor: int,
    measured_model: str,
    block_size: int = 7,
    draft_context: int = 2048,
    capture_limit: int = 512,
) -> StepProfile:
    """A profile whose verify curve is vidur's raw medians, `measured_model` being the model they were timed
    with.

    Raises `ProfileError` where `aiconfigurator-core` is absent or the capture sizes were not measured.
    """
    key, limits = find_gpu(gpu)
    shape = find_model(model)
    require_plain(shape, "composing")
    tokens, kernels = read_kernels(path, tensor)
    rest = Kernels(SYSTEMS[key], "vllm", shape, tensor, "float16", "float16")
    layer = np.sum([kernels[name] * times for name, times in PER_LAYER.items()], axis=0)
    known = {int(b): i for i, b in enumerate(tokens)}

    def verify(size: int) -> float:
        if size not in known:
            raise ProfileError(
                f"{path}: {size} tokens were not measured; captured sizes must be among its rows"
            )
        i = known[size]
        head = rest.gemm(shape.vocab // tensor, shape.hidden, size)
        return float(shape.layers * (layer[i] + 2 * rest.all_reduce(size)) + kernels["emb"][i] + head)

    far = int(tokens[-1])

    def beyond(size: int) -> float:
        """Past the last row the curve goes on with the mean slope of its last quarter, whatever its last
        step did.
        """
        start = int(tokens[np.searchsorted(tokens, far * 3 // 4)])
        return verify(far) + (verify(far) - verify(start)) / (far - start) * (size - far)

    pieces = Pieces(
        verify=lambda size: verify(size) if size <= far else beyond(size),
        attention=rest.attention,
        draft=lambda requests: draft_seconds(rest, requests, block_size, draft_context),
        eager_sizes=[*map(int, tokens), 2 * far, 4 * far],
    )
    return assemble(
        f"{key}_{shape.name.lower()}_fp16_tp{tensor}_jagged",
        pieces,
        Subject(shape, limits, tensor, "float16", "float16"),
        _provenance(Path(path), rest, measured_model, draft_context, tensor),
        block_size,
        capture_limit,
    )


def _provenance(path: Path, rest: Kernels, measured: str, context: int, tensor: int) -> dict[str, Any]:
    reduce = " and all-reduces" if tensor > 1 else ""
    return {
        "method": "composed",
        "source": f"microsoft/vidur @ {COMMIT[:7]}, data/profiling/compute ({path.stem}); attention{reduce}, "
        f"head and drafter: aiconfigurator-core {rest.version} (PyPI): {rest.tables}",
        "licence": f"MIT (microsoft/vidur); {LICENCE}",
        "date": "",
        "tool": "specsched.formats.vidur",
        "host": {},
        "notes": " ".join(
            [
                f"Composed, not measured as a step. Layer kernels are medians timed with {measured}, raw: "
                "cliffs and inversions are the hardware's; past their last size the mean slope goes on.",
                drafter_note(rest.shape, context),
                NOT_INCLUDED,
            ]
        ),
        "changes": "medians over runs, per-layer kernels times layers, µs to seconds, attention split into "
        "attention(N) and overhead(R)",
        "parts": [
            *({"part": name, "label": "silicon"} for name in ("emb", *PER_LAYER)),
            {"part": "logits_gemm", "label": rest.label("logits_gemm")},
            {"part": "attention", "label": rest.label("attention")},
            *([{"part": "all_reduce", "label": "silicon"}] if tensor > 1 else []),
        ],
    }
