"""Whether a trace and a profile speak of one model, one block and contexts that the model has."""

from __future__ import annotations

import re

import numpy as np

from ..errors import WorkloadError
from ..profile import StepProfile
from ..trace import Trace
from .requests import Requests

# Words of a name that change neither family nor size.
_SAME = frozenset(
    [
        "instruct",
        "base",
        "chat",
        "it",
        "hf",
        "thinking",
        "model",
        "meta",
        "synthetic",
        "fp8",
        "bf16",
        "fp16",
        "bfloat16",
        "float16",
        "float32",
        "awq",
        "gptq",
        "int4",
        "int8",
        "w4a16",
        "w8a8",
    ]
)


def same_model(one: str, other: str) -> bool:
    """Whether two names mean models of one family and size, their tuning and number format aside.

    Names are cut into words: those of the shorter must all be in the longer (`smollm2`, `SmolLM2-135M`).
    """
    a, b = _words(one), _words(other)
    return not a or not b or a <= b or b <= a


def _words(name: str) -> set[str]:
    last = name.replace("\\", "/").rstrip("/").rpartition("/")[2].lower()
    words = set(re.findall(r"[a-z0-9.]+", re.sub(r"\b(llama|qwen)[-_ ]?(\d)", r"\1\2", last)))
    return {word for word in words if word not in _SAME and not re.fullmatch(r"\d{4}", word)}


def mismatch(trace: Trace, profile: StepProfile, block_size: int) -> str | None:
    """One sentence where the trace is of another model or another block than the profile; None otherwise."""
    said = []
    target, model = trace.metadata.get("target"), profile.model.get("name")
    named = all(isinstance(name, str) and name not in ("", "unknown") for name in (target, model))
    if named and not same_model(str(target), str(model)):
        said.append(
            f"trace {trace.name!r} holds acceptance for {target}, profile {profile.name!r} the step costs of "
            f"{model}: right for neither, unless acceptance carries over"
        )
    drafted = profile.draft_block_size
    if profile.draft is not None and drafted is not None and drafted != block_size:
        said.append(
            f"draft cost of profile {profile.name!r} is for blocks of {drafted}; blocks of {block_size} are "
            "replayed at the same cost"
        )
    return "; ".join(said) or None


def prefill_twice(profile: StepProfile, prefill: str) -> list[str]:
    """What must be said where chunks are priced beside an overhead that may hold those of its sweep."""
    fit = (profile.fit or {}).get("overhead")
    unknown = isinstance(fit, dict) and fit.get("prompts", "unknown") == "unknown"
    if prefill != "chunked" or not unknown:
        return []
    return [
        f"overhead of profile {profile.name!r} was fitted without the prompts of its sweep: if the engine "
        "prefilled them, their chunks are counted twice here; fit it again with --prompt-tokens"
    ]


def refuse_long_context(profile: StepProfile, context: int | None) -> None:
    """Raise WorkloadError for a fixed context that the model does not have."""
    most = profile.model.get("max_context") or 0
    if context is not None and 0 < most < context:
        raise WorkloadError(
            f"a context of {context:,} tokens is more than max_context {most:,} of profile {profile.name!r}: "
            "an engine rejects such requests; lower the context, or correct model.max_context"
        )


def long_requests(profile: StepProfile, coming: Requests, lengths: np.ndarray | None = None) -> list[str]:
    """What must be said of requests longer than the model's context: an engine would reject or cut them.

    `lengths`: prompt and output tokens of each request; of `coming` where they are not given.
    """
    most = profile.model.get("max_context") or 0
    need = coming.requests[:, 1:].sum(axis=1, dtype=np.int64) if lengths is None else lengths
    share = float((need > most).mean()) if most and len(need) else 0.0
    if not share:
        return []
    return [
        f"{max(share, 0.01):.0%} of the requests are longer (up to {int(need.max()):,} tokens, prompt and "
        f"output) than max_context {most:,} of profile {profile.name!r}: an engine rejects or cuts them; "
        "here they are served"
    ]
