"""Attention over pages: which library computes it on this card, and whether it computes it.

FlashAttention-3 where the card is Hopper's and its package is installed; else PyTorch's own FlashAttention-2,
with a warning: on pages it is several times slower for a few queries a request than for one. Each wants its
arguments its own way: 2 both tensors of cumulative lengths, 3 on pages the queries' alone. `check` compares
what the chosen one computes with plain attention before anything is timed.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import SpecschedError
from .passes import PAGE, PassInputs, page_table, positions_of

HOPPER = (9, 0)
TOLERANCE = 0.03  # of values of scale 1, in half precision
# Cached tokens and new ones of every request of the three passes that are compared.
CASES: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((0,), (5,)),
    ((9, 0, 700), (1, 4, 8)),
    (tuple(range(1, 1500, 97)), (1,) * 16),
)

Attend = Callable[[Tensor, Tensor, Tensor, PassInputs, bool], Tensor]
"""(q [B, H, hd], keys and values [pages, page, kv, hd], inputs, causal) -> [B, H, hd]."""


@dataclass(frozen=True)
class Kernel:
    """An attention over pages: whose it is, and what the reader of a profile must know of it."""

    attend: Attend
    library: str
    version: str
    warning: str | None = None


def choose(capability: tuple[int, int]) -> Kernel:
    """The best library for a card of this compute capability; SpecschedError where PyTorch has no paged
    attention at all."""
    varlen = _varlen()
    if capability == HOPPER and _activate("FA3"):
        return Kernel(_attend(varlen, both=False), "FlashAttention-3", _version("flash-attn-3"))
    why = "the package flash-attn-3 is not installed" if capability == HOPPER else "this card has no other"
    return Kernel(
        _attend(varlen, both=True),
        "FlashAttention-2 of PyTorch",
        torch.__version__,
        f"Attention is PyTorch's FlashAttention-2 ({why}): on pages it takes several times as long for a few "
        "tokens a request as for one, so that verifying drafts is priced too high; an engine's own kernels "
        "do not. `specsched profile --engine` measures those.",
    )


def _varlen() -> Any:
    try:
        module = importlib.import_module("torch.nn.attention.varlen")
    except ImportError:
        module = None
    found = getattr(module, "varlen_attn", None)
    if found is None or "block_table" not in inspect.signature(found).parameters:
        raise SpecschedError(
            f"measuring on a GPU needs varlen_attn with a block table; PyTorch {torch.__version__} has none; "
            "install PyTorch 2.11 or later"
        )
    return found


def _activate(name: str) -> bool:
    activate = getattr(torch.nn.attention, "activate_flash_attention_impl", None)
    if activate is None:
        return False
    try:
        activate(name)
    except (ImportError, RuntimeError, ValueError, OSError):  # not installed, or built for another PyTorch
        return False
    return True


def _version(package: str) -> str:
    for name in (package, package.replace("-", "_")):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "unknown"


def _attend(varlen: Any, both: bool) -> Attend:
    def attend(q: Tensor, keys: Tensor, values: Tensor, inputs: PassInputs, causal: bool) -> Tensor:
        out = varlen(
            q,
            keys,
            values,
            inputs.starts,
            inputs.key_starts if both else None,
            inputs.most,
            inputs.most_keys,
            window_size=(-1, 0) if causal else (-1, -1),
            enable_gqa=True,
            seqused_k=inputs.used,
            block_table=inputs.table,
        )
        return cast(Tensor, out)

    return attend


def gathered_attention(
    q: Tensor, keys: Tensor, values: Tensor, inputs: PassInputs, causal: bool = True
) -> Tensor:
    """The same by plain attention: pages gathered, requests padded. Where there is no GPU, and to compare."""
    slots = len(inputs.used)
    k, v = (pool[inputs.table.long()].flatten(1, 2).transpose(1, 2) for pool in (keys, values))
    rank = torch.arange(len(q), device=q.device) - inputs.starts.long()[inputs.row]
    padded = q.new_zeros(slots, inputs.most, *q.shape[1:])
    padded[inputs.row, rank] = q
    last = torch.zeros(slots, inputs.most, dtype=torch.int64, device=q.device)
    last[inputs.row, rank] = inputs.position if causal else inputs.used.long()[inputs.row] - 1
    mask = torch.arange(k.shape[2], device=q.device) <= last.unsqueeze(-1)
    repeat = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
    out = F.scaled_dot_product_attention(padded.transpose(1, 2), k, v, attn_mask=mask.unsqueeze(1))
    return out.transpose(1, 2)[inputs.row, rank]


def check(
    kernel: Kernel,
    device: torch.device,
    dtype: torch.dtype,
    heads: tuple[int, int, int],
    page: int = PAGE,
    cases: Sequence[tuple[tuple[int, ...], tuple[int, ...]]] = CASES,
) -> float:
    """Largest difference from plain attention over the cases, causal (the target) and not (the drafter).

    heads: (query heads, key heads, head_dim). Raises SpecschedError where it is above `TOLERANCE`.
    """
    rng, worst = np.random.default_rng(0), 0.0
    generator = torch.Generator(device).manual_seed(0)
    for contexts, widths in cases:
        inputs, pages = _case(np.array(contexts), np.array(widths), page, device, rng)
        q, keys, values = (
            torch.empty(size, device=device, dtype=dtype).normal_(generator=generator)
            for size in (
                (len(inputs.tokens), heads[0], heads[2]),
                (pages, page, heads[1], heads[2]),
                (pages, page, heads[1], heads[2]),
            )
        )
        for causal in (True, False):
            ours = kernel.attend(q, keys, values, inputs, causal).float()
            plain = gathered_attention(q.float(), keys.float(), values.float(), inputs, causal)
            difference = float((ours - plain).abs().max())
            if not difference <= TOLERANCE:  # nor where it is not a number
                raise SpecschedError(
                    f"{kernel.library} {kernel.version} computes another attention over pages than plain "
                    f"PyTorch (differs by {difference:.3g} with {len(contexts)} requests, up to "
                    f"{max(widths)} tokens each): its times would be those of something else; install "
                    "another version of it or of PyTorch, or --source compose"
                )
            worst = max(worst, difference)
    return worst


def _case(
    contexts: np.ndarray, widths: np.ndarray, page: int, device: torch.device, rng: np.random.Generator
) -> tuple[PassInputs, int]:
    needed = -(-(contexts + widths) // page)
    pages, slots = int(needed.sum()), len(contexts)
    table = page_table(contexts + widths, page, pages, slots, int(needed.max()), rng)
    most, keys = int(widths.max()), int((contexts + widths).max())
    inputs = PassInputs.empty(int(widths.sum()), slots, table.shape[1], most, keys, device)
    inputs.fill(positions_of(contexts, widths, table, page, slots))
    return inputs, pages
