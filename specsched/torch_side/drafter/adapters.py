"""Configs of other toolkits' drafters, as DeepSpec's, which the rest of the package reads. EAGLE-3's are in
`eagle_adapter.py`.

z-lab and SpecForge write `DFlashDraftModel`: the same layers and names of tensors as DeepSpec's DFlash, but
`block_size` counts the anchor, layers and mask token stand under `dflash_config`, and embedding and LM head
are the target's. Layer ids count alike: the outputs of those decoder layers.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ...errors import FormatError
from ...files.reader import Reader
from .eagle_adapter import eagle3_as_deepspec, is_eagle3

DFLASH = "DFlashDraftModel"


def as_deepspec(document: Any, where: str, names: Collection[str] = (), layers: int | None = None) -> Any:
    """The config under DeepSpec's names, where it is one of another toolkit that is read; else as it is.

    `names`: the tensors that come with it, under our names; `layers`: how many the target has, where known.
    Raises `FormatError` for what these drafters can have and ours do not compute.
    """
    if is_eagle3(document):
        return eagle3_as_deepspec(document, where, names, layers)
    named = document.get("architectures") if isinstance(document, dict) else None
    if not isinstance(named, list) or named[:1] != [DFLASH]:
        return document
    own = Reader(document, where, FormatError).mapping("dflash_config")
    for key in ("causal", "use_swa", "sample_from_anchor", "attention_value_scale"):
        if own.get(key):
            raise FormatError(f"{where}: dflash_config.{key} is not supported; use a drafter without it")
    if document.get("use_sliding_window"):
        raise FormatError(f"{where}: use_sliding_window is not supported; use a drafter without it")
    merged = {**document, **{key: value for key, value in own.items() if value is not None}}
    block = Reader(merged, where, FormatError).integer("block_size", minimum=2, most=128)
    kept = {"architectures": ["Qwen3DFlashModel"], "block_size": block - 1}
    return {**merged, **kept, "specsched": {"shared_embeddings": True}}
