"""The buffers one pass reads, and how requests are laid out in them: rows, positions, pages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

PAGE = 256  # flash attention's own limit: pages are a multiple of it


@dataclass
class PassInputs:
    """The buffers a pass reads, for B tokens and up to S requests (those beyond R are empty)."""

    tokens: Tensor  # int64[B]
    position: Tensor  # int64[B]
    slot: Tensor  # int64[B]: page * PAGE + offset, where each token's key and value go
    starts: Tensor  # int32[S + 1]: first row of each request, and B
    used: Tensor  # int32[S]: keys of each request, this pass's own included
    key_starts: Tensor  # int32[S + 1]: sums of `used` before each request, and over all
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
        return cls(
            tokens=zeros(tokens),
            position=zeros(tokens),
            slot=zeros(tokens),
            starts=zeros(slots + 1, dtype=i32),
            used=zeros(slots, dtype=i32),
            key_starts=zeros(slots + 1, dtype=i32),
            table=zeros(slots, pages, dtype=i32),
            row=zeros(tokens),
            most=most,
            most_keys=most_keys,
        )

    def fill(self, arrays: dict[str, np.ndarray]) -> None:
        """Copy integer arrays into the buffers of their names."""
        for name, array in arrays.items():
            buffer: Tensor = getattr(self, name)
            buffer.copy_(torch.from_numpy(array).to(buffer.dtype))


def page_table(
    total: np.ndarray, page: int, pages: int, slots: int, table_width: int, rng: np.random.Generator
) -> np.ndarray:
    """int64[slots, table_width]: pages for requests of `total` tokens, drawn at random, none twice.

    Raises MemoryError when the pool of `pages` has too few.
    """
    needed = -(-total // page)
    if int(needed.sum()) > pages or int(needed.max()) > table_width:
        raise MemoryError(f"{int(needed.sum())} pages of KV are needed, the cache has {pages}")
    table = np.zeros((slots, table_width), dtype=np.int64)
    table[np.repeat(np.arange(len(total)), needed), ranks(needed)] = rng.permutation(pages)[: needed.sum()]
    return table


def positions_of(
    contexts: np.ndarray, widths: np.ndarray, table: np.ndarray, page: int, slots: int
) -> dict[str, np.ndarray]:
    """The integer arrays of `PassInputs` for requests with `contexts` cached tokens that send `widths` more,
    their pages in `table`. No random numbers: what an engine's host computes too."""
    requests, tokens = len(contexts), int(widths.sum())
    total = contexts + widths
    row = np.repeat(np.arange(requests), widths)
    position = contexts[row] + ranks(widths)
    starts = np.full(slots + 1, tokens, dtype=np.int64)
    starts[:requests] = np.cumsum(widths) - widths
    used = np.zeros(slots, dtype=np.int64)
    used[:requests] = total
    return {
        "position": position,
        "slot": table[row, position // page] * page + position % page,
        "starts": starts,
        "used": used,
        "key_starts": np.concatenate([[0], np.cumsum(used)]),
        "table": table,
        "row": row,
    }


def layout(
    contexts: np.ndarray,
    widths: np.ndarray,
    page: int,
    pages: int,
    slots: int,
    table_width: int,
    rng: np.random.Generator,
) -> dict[str, np.ndarray]:
    """`positions_of` with a `page_table` drawn for them. Raises MemoryError when there are too few pages."""
    table = page_table(contexts + widths, page, pages, slots, table_width, rng)
    return positions_of(contexts, widths, table, page, slots)


def ranks(counts: np.ndarray) -> np.ndarray:
    """0 .. n - 1 for each n of `counts`, one after another."""
    return np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
