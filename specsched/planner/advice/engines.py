"""What vLLM, SGLang and TensorRT-LLM do unless told otherwise, and what they can be told.

Read in vLLM 0.33.0 and SGLang 0.5.23 (their published packages) and in TensorRT-LLM's main branch of 2026-11
(llmapi/llm_args.py at 0004396); the confidence options of TensorRT-LLM 1.4.0rc4 could not be read there, and
are taken from its release.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ...profile import StepProfile

Name = Literal["vllm", "sglang", "trtllm"]
METHODS = ("dspark", "dflash", "eagle3", "mtp")
H100_CLASS = 70 * 2**30  # bytes of a GPU from which vLLM runs up to 1024 requests at once


@dataclass(frozen=True)
class Engine:
    """One engine: its defaults, and which policies it has for a kind of drafter."""

    name: Name
    title: str
    read_in: str  # the version its options were read in
    schedules: tuple[str, ...]  # methods with a schedule by batch size
    adapts: tuple[str, ...]  # methods whose verification follows confidences and costs
    by_requests: bool  # captured sizes are numbers of requests, each as wide as a block; else tokens
    grid: Callable[[int], list[int]]  # its captured sizes up to a largest, in its own unit
    lag_option: bool = False


def vllm_grid(most: int) -> list[int]:
    """vLLM's sizes in tokens: 1, 2, 4, every 8 below 256, then every 16."""
    return [s for s in (1, 2, 4, *range(8, 256, 8), *range(256, most + 1, 16)) if s <= most]


def sglang_grid(most: int) -> list[int]:
    """SGLang's numbers of requests where it drafts, with the largest."""
    sizes = [
        *range(1, 9),
        *range(10, 33, 2),
        *range(40, 65, 4),
        *range(72, 257, 8),
        *range(272, most + 1, 16),
    ]
    return sorted({*(s for s in sizes if s <= most), most})


def trtllm_grid(most: int) -> list[int]:
    """TensorRT-LLM's numbers of requests with padding, with the largest."""
    sizes = [1, 2, 4, *range(8, 129, 8), *range(192, most + 1, 64)]
    return sorted({*(s for s in sizes if s <= most), most})


VLLM = Engine("vllm", "vLLM", "0.33.0", METHODS, METHODS, by_requests=False, grid=vllm_grid)
SGLANG = Engine(
    "sglang", "SGLang", "0.5.23", (), ("dspark",), by_requests=True, grid=sglang_grid, lag_option=True
)
TRTLLM = Engine(
    "trtllm",
    "TensorRT-LLM",
    "main of 2026-11; confidence options of 1.4.0rc4",
    ("dflash", "eagle3", "mtp"),
    ("dspark",),
    by_requests=True,
    grid=trtllm_grid,
)
ENGINES = (VLLM, SGLANG, TRTLLM)


def default_seqs(engine: Engine, profile: StepProfile, drafts: bool) -> int | None:
    """Most requests at once unless told otherwise; None: what memory holds."""
    if engine is VLLM:
        memory, name = profile.gpu.get("memory_bytes") or 0, str(profile.gpu.get("name") or "").lower()
        return 1024 if memory >= H100_CLASS and "a100" not in name else 256
    if engine is SGLANG:
        return 48 if drafts else None
    return 2048


def default_sizes(
    engine: Engine, profile: StepProfile, seqs: int, widths: list[int], most: int
) -> tuple[int, ...]:
    """Captured sizes in tokens that the engine takes by itself, up to `most` tokens.

    widths: tokens of a request in a pass, 1 + k for every k of its schedule.
    """
    wide = max(widths)
    if engine.by_requests:
        return in_tokens(engine.grid(min(seqs, _most_requests(engine, profile))), [wide], most)
    limit = min(512 if not _blackwell(profile) else 1024, seqs * wide * 2)
    uniform = {n * w for w in widths if wide > 1 for n in vllm_grid(min(seqs, limit)) if n * w <= limit}
    return tuple(sorted(s for s in {*vllm_grid(limit), *uniform} if s <= most)) or (1,)


def in_tokens(counts: list[int], widths: list[int], most: int) -> tuple[int, ...]:
    """Tokens of passes of so many requests, each of these widths, up to `most` tokens."""
    return tuple(sorted({n * w for n in counts for w in widths if n * w <= most})) or (min(widths),)


def _most_requests(engine: Engine, profile: StepProfile) -> int:
    """The largest number of requests captured by default."""
    if engine is TRTLLM:
        return 128
    big = (profile.gpu.get("memory_bytes") or 0) >= 160 * 2**30 or profile.gpus >= 4
    return 512 if big else 256


def _blackwell(profile: StepProfile) -> bool:
    name = str(profile.gpu.get("name") or "").upper()
    return any(word in name for word in ("B200", "B300", "GB200", "GB300"))
