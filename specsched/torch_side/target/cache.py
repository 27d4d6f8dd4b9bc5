"""The KV cache of a target: a slot a request."""

from __future__ import annotations

import torch

from ...errors import SpecschedError
from .config import TargetConfig


class KVCache:
    """Keys and values of `slots` requests. `keys[i]`, `values[i]`: [slots, kv heads, capacity, head_dim].

    `lengths` int64[slots] (on the CPU) says how many positions of a slot hold settled text, by
    `Target.forward`; rolling back is setting it: what lies beyond is overwritten before it can be attended
    to.
    """

    def __init__(
        self,
        config: TargetConfig,
        slots: int,
        capacity: int,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if slots < 1 or capacity < 1:
            raise SpecschedError(
                f"a KV cache of {slots} slots x {capacity} tokens holds nothing; both must be >= 1"
            )
        shape = (slots, config.num_key_value_heads, capacity, config.head_dim)
        self.slots, self.capacity = slots, capacity
        layers = range(config.num_hidden_layers)
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in layers]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in layers]
        self.lengths = torch.zeros(slots, dtype=torch.int64)
