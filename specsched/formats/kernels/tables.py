"""Measured kernels of PyPI's `aiconfigurator-core` (NVIDIA, Apache-2.0): one model's parts of a step, in
seconds.

The package answers any shape; here each answer also says what it rests on: `silicon` (the very shape was
measured), `interpolated` (between measured shapes) or `estimated` (bytes over bandwidth). Tables known to be
wrong are refused by name. A token count between two measured ones is interpolated whatever the label of its
part says.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import json
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ProfileError
from ...profile.shapes import ModelShape

PACKAGE, WANTED = "aiconfigurator-core", (0, 12)
SYSTEMS = {
    "a100-sxm": "a100_sxm",
    "h100-sxm": "h100_sxm",
    "h200-sxm": "h200_sxm",
    "b200-sxm": "b200_sxm",
    "b300-sxm": "b300_sxm",
    "gb200": "gb200",
    "l40s": "l40s",
    "rtx-pro-6000": "rtx_pro_6000_server",
}
BACKENDS = ("vllm", "sglang", "trtllm")
DTYPES = {"bfloat16": "bfloat16", "float16": "bfloat16", "fp8": "fp8", "fp8_block": "fp8_block"}
# Off these sizes vLLM's fp8 GEMM takes a slow path, up to 2.7 times the time of the aligned neighbour.
_ALIGNED = 16
_ATTENTION = "attention"


def refuse_known_bad(system: str, backend: str, dtype: str) -> None:
    """Raise `ProfileError` for tables of the package that are known to be wrong, saying how."""
    if backend == "vllm" and dtype == "fp8_block":
        raise ProfileError(
            "aiconfigurator's vLLM fp8_block GEMM table is refused: small sizes show the launch time of its "
            "benchmark, "
            "not of the kernel; use dtype fp8, or another backend"
        )
    if system in ("b200_sxm", "gb200", "b300_sxm") and dtype.startswith("fp8"):
        raise ProfileError(
            f"aiconfigurator's {system} fp8 GEMM table is refused: it is bimodal, the same shape is 2 to 3 "
            "times slower at "
            "random sizes; use dtype bfloat16"
        )


def require_package() -> str:
    """The installed version of the optional dependency; `ProfileError` when it is absent or not 0.12."""
    try:
        version = importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        raise ProfileError(
            "composing needs measured kernel tables that are not installed: pip install 'specsched[compose]' "
            "(82 MB); "
            "or use a bundled profile, or --source roofline"
        ) from None
    if tuple(int(part) for part in version.split(".")[:2]) != WANTED:
        raise ProfileError(
            f"{PACKAGE} {version} is installed; this reader knows 0.12: pip install 'specsched[compose]'"
        )
    return version


class Kernels:
    """Seconds of the parts of one model's step on `tensor` GPUs of `system`, all layers together.

    Raises `ProfileError` for a table known to be wrong, and when the package has no table for the choice.
    """

    def __init__(
        self, system: str, backend: str, shape: ModelShape, tensor: int, dtype: str, kv_dtype: str
    ) -> None:
        self.version = require_package()
        if backend not in BACKENDS:
            raise ProfileError(f"unknown backend {backend!r}; known: {', '.join(BACKENDS)}")
        if dtype not in DTYPES:
            raise ProfileError(f"unknown dtype {dtype!r}; known: {', '.join(DTYPES)}")
        refuse_known_bad(system, backend, dtype)
        self.system, self.backend, self.shape, self.tensor = system, backend, shape, tensor
        self.quant = DTYPES[dtype]
        self._handle = _compile(system, backend, shape, tensor, self.quant, DTYPES[kv_dtype])
        self._count = _operations(self._handle)
        self._grid = _measured_grid(system, backend, self.quant)
        # On vLLM's fp8 table only aligned sizes are believed; the rest is drawn between them.
        self._aligned_only = self.quant == "fp8" and backend == "vllm"

    # -- what was measured -----------------------------------------------------------------------------------

    @property
    def tables(self) -> str:
        """Where the numbers come from, for provenance."""
        return f"{self.system}, {self.backend} {self._grid.version}"

    @property
    def measured_tokens(self) -> np.ndarray:
        """int64[n]: token counts the GEMM table was measured at (the believed ones), rising."""
        sizes = self._grid.tokens
        return sizes[(sizes < _ALIGNED) | (sizes % _ALIGNED == 0)] if self._aligned_only else sizes

    def label(self, part: str) -> str:
        """silicon, interpolated or estimated: what a part's seconds rest on."""
        return self._labels[part]

    @functools.cached_property
    def _labels(self) -> dict[str, str]:
        labels = {}
        shapes = self._gemm_shapes()
        for name, _, _, source in self._evaluate(1, 128, 1):
            part = _short(name)
            label = "silicon" if source == "silicon" else "estimated"
            if label == "silicon" and part in shapes and shapes[part] not in self._grid.shapes:
                label = "interpolated"
            labels[part] = label
        return labels

    def _gemm_shapes(self) -> dict[str, tuple[int, int]]:
        """(n, k) of each GEMM on one GPU."""
        s, tp = self.shape, self.tensor
        return {
            "qkv_gemm": ((s.heads + 2 * max(s.kv_heads, tp)) * s.head_dim // tp, s.hidden),
            "proj_gemm": (s.hidden, s.heads * s.head_dim // tp),
            "gate_ffn1_gemm": (2 * s.intermediate // tp, s.hidden),
            "ffn2_gemm": (s.hidden, s.intermediate // tp),
            "logits_gemm": (s.vocab // tp, s.hidden),
            "router_gemm": (s.experts, s.hidden),
        }

    # -- seconds ---------------------------------------------------------------------------------------------

    def parts(self, tokens: int) -> dict[str, float]:
        """Seconds of everything but attention for a pass of B tokens, by part."""
        if self._aligned_only and tokens not in self._believed:
            sizes = self.measured_tokens
            i = int(np.searchsorted(sizes, tokens))
            if i == len(sizes):
                return self._parts_at(tokens)
            low, high = int(sizes[i - 1]), int(sizes[i])
            before, after = self._parts_at(low), self._parts_at(high)
            share = (tokens - low) / (high - low)
            return {name: before[name] + share * (after[name] - before[name]) for name in before}
        return self._parts_at(tokens)

    @functools.cached_property
    def _believed(self) -> frozenset[int]:
        return frozenset(self.measured_tokens.tolist())

    def _parts_at(self, tokens: int) -> dict[str, float]:
        out: dict[str, float] = {}
        for name, ms, _, _ in self._evaluate(1, 1, tokens):
            if _short(name) != _ATTENTION:
                out[_short(name)] = out.get(_short(name), 0.0) + ms / 1e3
        return out

    def attention(self, requests: int, context: int) -> float:
        """Seconds of decode attention of R requests with `context` tokens each (up to 8 query tokens read
        KV once).
        """
        return (
            sum(
                ms
                for name, ms, _, _ in self._evaluate(requests, context, requests)
                if _short(name) == _ATTENTION
            )
            / 1e3
        )

    def gemm(self, n: int, k: int, tokens: int) -> float:
        """Seconds of one bfloat16 GEMM [tokens, k] x [k, n], as one kernel."""
        gemm = {"name": "gemm", "scale_factor": 1.0, "n": n, "k": k, "quant_mode": "bfloat16"}
        gemm |= {"scale_num_tokens": 1, "low_precision_input": False, "seq_split": 1, "below_grid_sol": False}
        return self._one({"Gemm": gemm}, 1, 1, tokens)

    def small(self, bytes_per_token: float, tokens: int) -> float:
        """Seconds of one small kernel (norm, rope, activation): launch plus bytes over bandwidth,
        estimated.
        """
        op = {"name": "small", "scale_factor": 1.0, "bytes_per_token": bytes_per_token}
        return self._one({"Elementwise": {**op, "scale_num_tokens": 1, "seq_split": 1}}, 1, 1, tokens)

    def all_reduce(self, tokens: int) -> float:
        """Seconds of one all-reduce of [tokens, hidden] over the tensor-parallel group; 0 on one GPU."""
        if self.tensor == 1:
            return 0.0
        op = {"name": "ar", "scale_factor": 1.0, "hidden_size": self.shape.hidden, "tp_size": self.tensor}
        return self._one({"CustomAllReduce": {**op, "quant": "half", "seq_split": 1}}, 1, 1, tokens)

    def layer_attention(self, requests: int, context: int) -> float:
        """Seconds of one layer's bfloat16 decode attention in the shape of the target's heads."""
        s, tp = self.shape, self.tensor
        op = {"name": "a", "scale_factor": 1.0, "n": s.heads // tp, "n_kv": max(s.kv_heads // tp, 1)}
        op |= {
            "head_size": s.head_dim,
            "window_size": 0,
            "kv_cache_dtype": "bfloat16",
            "lane_order": ["default"],
        }
        return self._one({"GenerationAttention": op}, requests, context, requests)

    def _one(self, op: dict[str, Any], requests: int, context: int, tokens: int) -> float:
        found = self._handle.evaluate_ops_json(
            json.dumps([op]), is_context=False, batch_size=requests, s=context, x=tokens
        )
        return float(found[0][1]) / 1e3

    def _evaluate(self, requests: int, context: int, tokens: int) -> list[tuple[str, float, float, str]]:
        return list(
            self._handle.evaluate_generation_ops(
                list(range(self._count)), batch_size=requests, s=context, x=tokens
            )
        )


def _short(name: str) -> str:
    return name.removeprefix("generation_")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The package logs a line per fallback table it loads, of families these models do not use."""
    logger = logging.getLogger("aiconfigurator_core")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _compile(system: str, backend: str, shape: ModelShape, tensor: int, quant: str, kv_quant: str) -> Any:
    from aiconfigurator_core.sdk import EngineHandle

    moe = {"moe_tp_size": tensor, "moe_ep_size": 1, "moe_quant_mode": quant} if shape.experts else {}
    with tempfile.TemporaryDirectory() as folder, _quiet():
        # A local config: a name the package does not know would be looked up on the network.
        (Path(folder) / "config.json").write_text(json.dumps(shape.config()), encoding="utf-8")
        try:
            return EngineHandle.compile(
                folder,
                system,
                backend,
                tp_size=tensor,
                gemm_quant_mode=quant,
                kvcache_quant_mode=kv_quant,
                **moe,
            )
        except Exception as error:
            raise ProfileError(
                f"aiconfigurator has no {backend} tables for {shape.name} on {system} ({quant}, tensor "
                f"{tensor}): {error}"
            ) from None


def _operations(handle: Any) -> int:
    """How many parts a step has (14 dense, 13 for a mixture): the package does not say, so they are counted.

    A part it cannot answer raises `ProfileError`: left out in silence it would make steps too short.
    """
    for count in range(64):
        try:
            handle.evaluate_generation_ops([count], batch_size=1, s=128, x=1)
        except ValueError as error:
            if "out of range" in str(error):
                return count
            raise ProfileError(f"aiconfigurator cannot price part {count + 1} of a step: {error}") from None
    raise ProfileError("aiconfigurator: cannot tell how many parts a step has; is the version supported?")


class _Grid:
    """What the GEMM table of one (system, backend, quantisation) was measured at."""

    def __init__(self, version: str, tokens: np.ndarray, shapes: frozenset[tuple[int, int]]) -> None:
        self.version, self.tokens, self.shapes = version, tokens, shapes


@functools.lru_cache(maxsize=8)
def _measured_grid(system: str, backend: str, quant: str) -> _Grid:
    import aiconfigurator_core
    import pyarrow.parquet as pq
    from aiconfigurator_core.sdk import perf_database

    with _quiet():
        version = str(perf_database.resolve_query_version(system, backend, "current"))
    root = Path(aiconfigurator_core.__file__).parent / "systems" / "data" / system / "gemm" / backend
    path = root / version / "gemm_perf.parquet"
    if not path.is_file():
        # The package falls back to another table then: nothing is known to be measured, all counts as
        # interpolated.
        return _Grid(version, np.array([1]), frozenset())
    table = pq.read_table(path, columns=["m", "n", "k"], filters=[("gemm_dtype", "=", quant)])
    m, n, k = (table[name].to_numpy() for name in ("m", "n", "k"))
    return _Grid(version, np.unique(m).astype(np.int64), frozenset(zip(n.tolist(), k.tolist(), strict=True)))
