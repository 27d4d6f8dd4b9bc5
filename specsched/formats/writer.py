"""The files that other engines load, written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from ..calibration import Calibration
from ..errors import FormatError
from ..profile import StepProfile
from ..trace import Trace
from . import sts, trtllm
from .acceptance import Acceptance
from .export import additive_parts, steps_at, whole_step
from .registry import CALIBRATION_TARGETS, PROFILE_TARGETS
from .sglang import tables as sglang
from .vllm import costs as vllm


def write(obj: Any, path: str | os.PathLike[str], to: str, **options: Any) -> list[str]:
    """Write a profile or calibration as another engine's file; returns notes on what the format cannot hold.

    Profiles: `to` = specsched, sglang (additive), sglang-1d (option `requests`), trtllm, vllm (CSV, and a
    second
    `*_draft.csv` when drafting costs something). Options `context` (tokens per request, default 2048 where
    attention is priced), `max_requests` (256), `max_tokens`. Calibrations: `to` = specsched, sglang, trtllm.
    """
    if to == "specsched" and isinstance(obj, StepProfile | Trace | Calibration | Acceptance):
        obj.save(path)
        return []
    if isinstance(obj, Calibration) and to in CALIBRATION_TARGETS:
        sts.write(obj, path, to)
        return []
    if isinstance(obj, StepProfile) and to in PROFILE_TARGETS:
        return _write_profile(obj, path, to, options)
    what = type(obj).__name__
    can = {"StepProfile": PROFILE_TARGETS, "Calibration": CALIBRATION_TARGETS}.get(what, ("specsched",))
    article = "an" if what[0] in "AEIO" else "a"
    raise FormatError(f"{article} {what} cannot be written as {to!r}; it can be written as {', '.join(can)}")


def _write_profile(
    profile: StepProfile, path: str | os.PathLike[str], to: str, options: dict[str, Any]
) -> list[str]:
    context, most = options.get("context"), options.get("max_tokens")
    if to == "sglang-1d":
        own = profile.decision
        if (
            not options.get("requests")
            and own is not None
            and own.requests is None
            and own.tokens.lookup == "floor"
        ):
            sglang.write_one_d(path, own.tokens.x.astype(np.int64), own.tokens.y)
            return ["The table its scheduler decides by, as it was read."]
        if not options.get("requests"):
            raise FormatError(
                "sglang-1d has no axis for requests: give requests, the number that will run (--requests R)"
            )
        tokens, seconds, notes = steps_at(profile, int(options["requests"]), context, most)
        sglang.write_one_d(path, tokens, seconds)
        return notes
    if to == "vllm":
        return _write_vllm(profile, path, options)
    parts = additive_parts(profile, context, options.get("max_requests"), most)
    notes = list(parts.notes)
    if to == "sglang":
        sglang.write_additive(path, parts)
        if profile.minimum_gain or profile.enabling_fraction:
            notes.append("minimum_gain and enabling_fraction have no place in SGLang's table.")
    else:
        trtllm.write_step_table(path, parts, profile.minimum_gain)
    return notes


def _write_vllm(profile: StepProfile, path: str | os.PathLike[str], options: dict[str, Any]) -> list[str]:
    """Verify cost by tokens at the requests that would fill them, draft cost by requests beside it."""
    path = Path(path)
    parts = additive_parts(
        profile,
        options.get("context"),
        options.get("max_requests"),
        options.get("max_tokens"),
        drafting=False,
    )
    tokens, notes = parts.tokens, list(parts.notes)
    context = options.get("context")
    if profile.capture_sizes is not None:
        limit = profile.graph_limit or 0
        sizes = profile.capture_sizes[profile.capture_sizes <= limit]
        tokens = np.concatenate([sizes, tokens[tokens > limit]])
    width = 1 + (profile.draft_block_size or 7)
    comments = [f"{profile.name}: verify cost of a step"]
    if profile.capture_sizes is not None:
        comments.append(f"capture limit {profile.graph_limit}")
    seconds = []
    for size in tokens:
        requests = int(options.get("requests") or max(1, -(-int(size) // width)))
        seconds.append(whole_step(profile, int(size), requests, context, drafting=False))
    if profile.attention is not None or profile.overhead is not None:
        asked = options.get("requests")
        at = f"{asked} requests" if asked else f"B / {width} requests, all drafts verified"
        notes.append(f"vLLM's table has no axis for requests: host and attention costs are those of {at}.")
    vllm.write_cost(path, "batch_tokens", tokens, np.array(seconds), comments)
    if profile.draft is not None:
        beside = path.with_name(f"{path.stem}_draft{path.suffix or '.csv'}")
        curve = profile.draft
        vllm.write_cost(beside, "num_reqs", curve.x, curve.y, [f"{profile.name}: draft cost by requests"])
        notes.append(f"Draft cost by requests is in {beside.name}.")
    return notes
