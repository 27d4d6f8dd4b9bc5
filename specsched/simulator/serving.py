"""How an engine is set up: limits, prefill, replicas, KV memory."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from ..errors import WorkloadError, is_whole, nearest
from ..profile import StepProfile
from ..profile.tables import NO_LIMIT

PREFILLS = ("disaggregated", "chunked")
ROUTERS = ("round-robin", "least-outstanding", "two-choices")
MAX_RUNNING = 256
BATCH_TOKENS = 8192
KV_RESERVE = 0.1


@dataclass(frozen=True)
class Serving:
    """How the engines are set up. `simulate` documents each field; limits are per engine (rank)."""

    prefill: str = "disaggregated"
    context: int | None = None
    max_running: int | None = None
    batch_tokens: int = BATCH_TOKENS
    kv_reserve: float = KV_RESERVE
    graph_bytes: int = 0
    kv_tokens: int | None = None
    replicas: int = 1
    ranks_per_group: int = 1
    router: str = "least-outstanding"
    warmup: float = 0.1

    def __post_init__(self) -> None:
        """Raises WorkloadError naming the field that cannot be run."""
        if self.prefill not in PREFILLS:
            raise WorkloadError(f"prefill is {self.prefill!r}; choose {' or '.join(PREFILLS)}")
        if self.router not in ROUTERS:
            raise WorkloadError(f"router is {self.router!r}; choose one of {', '.join(ROUTERS)}")
        for name in ("max_running", "batch_tokens", "kv_tokens", "replicas", "ranks_per_group"):
            if getattr(self, name) is not None:
                require_whole(name, getattr(self, name), 1)
        for name in ("context", "graph_bytes"):
            if getattr(self, name) is not None:
                require_whole(name, getattr(self, name), 0)
        for name in ("kv_reserve", "warmup"):
            value = getattr(self, name)
            if not 0.0 <= value < 1.0:
                raise WorkloadError(f"{name} is {value}; it is a share, from 0 to below 1")
        if self.replicas % self.ranks_per_group:
            raise WorkloadError(
                f"{self.replicas} replicas cannot step in groups of {self.ranks_per_group}; "
                "make replicas a multiple of ranks_per_group"
            )


def serving_of(given: Serving | None, options: dict[str, Any], **defaults: Any) -> Serving:
    """`given`, or the `Serving` of these keywords. WorkloadError for both at once, or an unknown keyword."""
    known = [field.name for field in dataclasses.fields(Serving)]
    for name in options:
        if name not in known:
            raise WorkloadError(f"no setting {name!r};{nearest(name, known)} settings: {', '.join(known)}")
    if given is None:
        return Serving(**{**defaults, **options})
    if options:
        raise WorkloadError(
            f"serving is given, and {', '.join(options)} beside it; put everything into one Serving"
        )
    return given


def kv_capacity(profile: StepProfile, serving: Serving, drafting: bool = False) -> int:
    """KV tokens one engine holds: `kv_tokens` if given, else the profile's; NO_LIMIT where it is unknown.

    `drafting`: beside a loaded drafter, where the profile knows its memory.
    """
    if serving.kv_tokens is not None:
        return serving.kv_tokens
    known = profile.kv_capacity_tokens(serving.kv_reserve, drafting)
    if known is None:
        return NO_LIMIT
    graphs = len(profile.capture_sizes) if profile.capture_sizes is not None else 0
    taken = math.ceil(graphs * serving.graph_bytes / (profile.kv_bytes(drafting) or 1))
    out: int = max(known - taken, 0)
    return out


def require_whole(name: str, value: Any, least: int) -> None:
    if not is_whole(value, least):
        raise WorkloadError(f"{name} is {value!r}; it must be a whole number of at least {least}")
