"""A CUDA card that is not there: `torch.cuda` as far as measuring uses it, on CPU tensors.

Graphs refuse what a capture refuses (reading a value on the host, sizes that depend on values, tensors made
from host data); the paged attention asserts what FlashAttention-2 and -3 document of their arguments, and
computes by plain attention.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from specsched.torch_side.measure import card, host
from specsched.torch_side.measure.attention import gathered_attention
from specsched.torch_side.measure.passes import PassInputs

REFUSED = ("_local_scalar_dense", "nonzero", "unique", "masked_select", "lift_fresh", "is_nonzero")


class NoHostReads(TorchDispatchMode):
    """Refuses operators that a CUDA capture refuses."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().removeprefix("aten::")
        if name.split(".")[0].startswith(REFUSED):
            raise RuntimeError(f"operation not permitted when stream is capturing: {name}")
        return func(*args, **(kwargs or {}))


class Stream:
    def __init__(self, device: Any = None) -> None:
        self.waited = 0

    def wait_stream(self, other: Any) -> None:
        assert isinstance(other, Stream)
        self.waited += 1


class FakeCard:
    """State of the stand-in; `install` puts it in place of `torch.cuda`."""

    def __init__(self, name: str, capability: tuple[int, int], memory: int) -> None:
        self.name, self.capability, self.memory = name, capability, memory
        self.main, self.streams, self.captures, self.replays = Stream(), [], 0, 0
        self.library = "FA2"
        self.attention_calls = 0

    def install(self, patch: pytest.MonkeyPatch, fa3: bool = False) -> FakeCard:
        """Everything of `torch.cuda` that measuring calls."""
        fake = self

        class Graph:
            def __init__(self) -> None:
                self.work: Any = None

            def replay(self) -> None:
                assert self.captured, "a graph is replayed that captured nothing"
                fake.replays += 1

            captured = False

        class Event:
            def __init__(self, enable_timing: bool = False) -> None:
                assert enable_timing
                self.at: int | None = None

            def record(self) -> None:
                fake.clock += 1
                self.at = fake.clock

            def synchronize(self) -> None:
                assert self.at is not None

            def elapsed_time(self, end: Any) -> float:
                return 2.0 + 0.001 * (end.at - self.at)

        self.clock = 0

        @contextmanager
        def graph(made: Graph, pool: Any = None, stream: Any = None) -> Iterator[None]:
            assert pool == "pool"
            assert isinstance(stream, Stream)
            fake.streams.append(stream)
            with NoHostReads():
                yield
            made.captured = True
            fake.captures += 1

        @contextmanager
        def on_stream(stream: Stream) -> Iterator[None]:
            yield

        for name, value in {
            "is_available": lambda: True,
            "device_count": lambda: 1,
            "get_device_name": lambda index=None: fake.name,
            "get_device_capability": lambda index=None: fake.capability,
            "get_device_properties": lambda index=None: types.SimpleNamespace(),
            "set_device": lambda index: None,
            "mem_get_info": lambda index=None: (fake.memory, fake.memory),
            "current_stream": lambda index=None: fake.main,
            "Stream": Stream,
            "stream": on_stream,
            "CUDAGraph": Graph,
            "graph": graph,
            "graph_pool_handle": lambda: "pool",
            "Event": Event,
            "synchronize": lambda index=None: None,
            "empty_cache": lambda: None,
        }.items():
            patch.setattr(torch.cuda, name, value)
        patch.setattr(card, "Card", _CpuCard)
        patch.setattr(host, "_asked", _nvidia_smi)
        patch.setattr(torch.nn.attention, "activate_flash_attention_impl", self._activate(fa3))
        module = types.ModuleType("torch.nn.attention.varlen")
        module.varlen_attn = self.varlen_attn  # type: ignore[attr-defined]
        patch.setitem(sys.modules, "torch.nn.attention.varlen", module)
        return self

    def _activate(self, installed: bool) -> Any:
        def activate(name: str) -> None:
            assert name == "FA3"
            if not installed:
                raise ModuleNotFoundError("No module named 'flash_attn_interface'")
            self.library = "FA3"

        return activate

    def varlen_attn(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cu_seq_q: Tensor,
        cu_seq_k: Tensor | None,
        max_q: int,
        max_k: int,
        *,
        window_size: tuple[int, int] = (-1, -1),
        enable_gqa: bool = False,
        seqused_k: Tensor | None = None,
        block_table: Tensor | None = None,
    ) -> Tensor:
        """What the libraries document of a paged call, then plain attention."""
        self.attention_calls += 1
        if self.library == "FA2":
            assert cu_seq_k is not None, "FlashAttention-2: both cumulative tensors, or neither"
            assert key.shape[1] % 256 == 0, "FlashAttention-2: pages are multiples of 256"
            assert cu_seq_k.dtype == torch.int32
            assert cu_seq_k.shape == cu_seq_q.shape
        else:
            assert cu_seq_k is None, "FlashAttention-3: no lengths of keys where there is a page table"
            assert self.capability == (9, 0)
        assert seqused_k is not None
        assert block_table is not None
        for tensor in (cu_seq_q, seqused_k, block_table):
            assert tensor.dtype == torch.int32
            assert tensor.is_contiguous()
        assert {t.dtype for t in (query, key, value)} <= {torch.bfloat16, torch.float16}
        assert query.dtype == key.dtype == value.dtype
        assert query.dim() == 3
        assert key.dim() == value.dim() == 4
        assert query.stride(-1) == key.stride(-1) == value.stride(-1) == 1
        assert len(cu_seq_q) == len(seqused_k) + 1 == len(block_table) + 1
        assert enable_gqa
        assert query.shape[1] % key.shape[2] == 0
        assert query.shape[2] % 8 == 0
        assert window_size in ((-1, 0), (-1, -1))
        with torch.utils._python_dispatch._disable_current_modes():
            counts = cu_seq_q.diff()
            assert int(counts.max()) <= max_q
            assert int(seqused_k.max()) <= max_k <= block_table.shape[1] * key.shape[1]
            row = torch.arange(len(counts)).repeat_interleave(counts.long())
            rank = torch.arange(len(query)) - cu_seq_q.long()[row]
            position = seqused_k.long()[row] - counts.long()[row] + rank  # causal: aligned at the end
            inputs = PassInputs(
                tokens=row,
                position=position,
                slot=row,
                starts=cu_seq_q,
                used=seqused_k,
                key_starts=cu_seq_q,
                table=block_table,
                row=row,
                most=max_q,
                most_keys=max_k,
            )
            return gathered_attention(query, key, value, inputs, window_size == (-1, 0))


class _CpuCard(card.Card):
    """A card whose tensors lie on the CPU."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cpu")

    @device.setter
    def device(self, device: torch.device) -> None:
        assert device.type == "cuda"


def _nvidia_smi(fields: str, which: str) -> str:
    if fields in host._REASONS:
        return "0x0000000000000004\n"
    return "fake, 570.86.15, 1980 MHz, 2619 MHz, 1980 MHz, 41, 121.50 W, 700.00 W, Enabled, 0 %\n"
