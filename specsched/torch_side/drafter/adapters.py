"""Configs of other toolkits' drafters, as DeepSpec's, which the rest of the package reads.

z-lab and SpecForge write `DFlashDraftModel`: the same layers and names of tensors as DeepSpec's DFlash, but
`block_size` counts the anchor, layers and mask token stand under `dflash_config`, and embedding and LM head
are the target's. Layer ids count alike: the outputs of those decoder layers.
"""

from __future__ import annotations

from typing import Any

from ...errors import FormatError
from ...files.reader import Reader

DFLASH = "DFlashDraftModel"


def as_deepspec(document: Any, where: str) -> Any:
    """The config under DeepSpec's names, where it is one of another toolkit that is read; else as it is.

    Raises `FormatError` for what these drafters can have and ours do not compute.
    """
    named = document.get("architectures") if isinstance(document, dict) else None
    if not isinstance(named, list) or named[:1] != [DFLASH]:
        return document
    if "speculators_model_type" in document:
        raise FormatError(
            f"{where}: a checkpoint of speculators, with an LM head and a numbering of layers of its own, is "
            "not read; give the drafter in DeepSpec's or z-lab's layout"
        )
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
