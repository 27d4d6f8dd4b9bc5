"""vLLM's disk cache of its cost curves (`$VLLM_CACHE_ROOT/adaptive_verification/profile_*.json`, written with
VLLM_ENABLE_ADAPTIVE_VERIFICATION_PROFILE_CACHE=1).

The layout is that of pull request 52233, schema 1, as of its commits 9b88a8d6d and later: `draft_curve` and
`verify_curve` are lists of [requests or tokens, milliseconds], `factors` says where they were measured, and
`checksum` is the SHA-256 of the rest as JSON with sorted keys and no spaces.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np

from ...errors import FormatError, quoted
from ...profile import StepProfile
from ..document import Hints
from ..opened import Opened
from ..values import integer, mapping, need, numbers, step_seconds, whole
from .costs import cost_profile, draft_curve

KEYS = frozenset({"draft_curve", "verify_curve", "fingerprint", "factors"})


def read(opened: Opened, hints: Hints) -> tuple[StepProfile, list[str]]:
    """The profile of both curves; GPU, model and block size are the file's own where no hint names them.

    Raises `FormatError` for another schema, a checksum that does not fit, or curves that are none.
    """
    where = str(opened.path)
    if opened.data.get("schema") != 1:
        raise FormatError(f"{where}: schema {quoted(opened.data.get('schema'))} of vLLM's cache; known is 1")
    _check(opened.data, where)
    factors = mapping(opened.data["factors"], f"{where}: factors")
    parts = {key: _part(factors, key, where) for key in ("model", "hardware", "parallel", "profile")}
    tokens, ms = _curve(opened.data["verify_curve"], f"{where}: verify_curve")
    seconds = step_seconds(ms / 1e3, f"{where}: verify_curve", "ms")
    sizes = need(parts["profile"], "capture_sizes", f"{where}: factors.profile")
    limit = int(whole(sizes, f"{where}: factors.profile.capture_sizes", at_least=1)[-1])
    if limit < tokens[0]:
        raise FormatError(f"{where}: the capture limit {limit} is below the first size, {tokens[0]}")
    block = integer(need(parts["profile"], "k", f"{where}: factors.profile"), f"{where}: k", 1, 127)
    hints = {**_hints(parts), **hints}
    draft = draft_curve(
        *_curve(opened.data["draft_curve"], f"{where}: draft_curve"),
        int(hints.get("block_size") or block),
        hints.get("drafter"),
    )
    notes = _notes(parts)
    return cost_profile(opened.path, "vllm-cache", tokens, seconds, limit, draft, notes, hints), notes


def _part(factors: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    return mapping(factors.get(key) or {}, f"{where}: factors.{key}")


def _check(document: dict[str, Any], where: str) -> None:
    rest = {key: value for key, value in document.items() if key != "checksum"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    if hashlib.sha256(text.encode()).hexdigest() != document.get("checksum"):
        raise FormatError(
            f"{where}: its checksum does not fit: the file was changed after vLLM wrote it; have it written "
            "again"
        )


def _curve(points: Any, where: str) -> tuple[np.ndarray, np.ndarray]:
    """(sizes int64[n], milliseconds float64[n]) of a list of pairs."""
    if not isinstance(points, list) or not all(isinstance(p, list) and len(p) == 2 for p in points):
        raise FormatError(f"{where}: expected a list of [size, milliseconds]")
    return whole([p[0] for p in points], where), numbers([p[1] for p in points], where)


def _hints(parts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What the file says of its GPU and model, as hints."""
    found: dict[str, Any] = {
        "gpu": parts["hardware"].get("device_name"),
        "model": parts["model"].get("model"),
        "max_context": parts["profile"].get("max_model_len"),
        "gpu_count": parts["parallel"].get("tp"),
        "tensor": parts["parallel"].get("tp"),
    }
    return {key: value for key, value in found.items() if value is not None}


def _notes(parts: dict[str, dict[str, Any]]) -> list[str]:
    context = parts["profile"].get("context_len")
    if not isinstance(context, int):
        return []
    return [f"vLLM measured every size with {context} tokens of context a request: attention is inside."]
