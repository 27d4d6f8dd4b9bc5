"""What a drafter's folder holds, from its config and the headers of its weights; none of them is read."""

from __future__ import annotations

import math
import os
from typing import Any

from ...documents.inspection import DrafterInspection
from ...errors import FormatError
from ...files.disk import read_json
from .adapters import DFLASH
from .checkpoint import EMBEDDING, HEAD, find_model, open_checkpoint
from .config import DrafterConfig
from .dspark import outline
from .eagle_adapter import is_eagle3, names_layers

_ANY = 1000  # layers of a target that is not known


def describe(name_or_path: str | os.PathLike[str]) -> DrafterInspection:
    """The drafter in a folder or of a bundled name. Raises FormatError as loading it would, but for what only
    its target shows."""
    folder = find_model(name_or_path)
    document = read_json(folder / "config.json", FormatError)
    implied = is_eagle3(document) and not names_layers(document)
    checkpoint = open_checkpoint(folder, _ANY if implied else None)
    outline(checkpoint)
    c, shapes = checkpoint.config, checkpoint.shapes
    held = {EMBEDDING: "embedding", HEAD: "LM head"}
    return {
        "kind": "drafter",
        "name": folder.name,
        "folder": str(folder),
        "drafter": c.kind,
        "layout": _layout(document),
        "block_size": c.block_size,
        "hidden_size": c.hidden_size,
        "vocab_size": c.vocab_size,
        "draft_vocab_size": c.draft_vocab_size,
        "layers": c.num_hidden_layers,
        "target_layers": c.num_target_layers or None,
        "features": None if implied else list(c.target_layer_ids),
        "confidence_head": c.enable_confidence_head,
        "markov_head": c.markov_head_type,
        "norms": _norms(c),
        "rope_scaled": c.rope_scaling is not None,
        "holds": [word for name, word in held.items() if name in shapes],
        "parameters": sum(math.prod(shape) for shape in shapes.values()),
        "dtypes": list(checkpoint.dtypes),
        "file_bytes": sum(file.stat().st_size for file in checkpoint.places),
        "warnings": [],
        "lint": _lint(c, implied),
    }


def _layout(document: dict[str, Any]) -> str:
    if is_eagle3(document):
        return "speculators" if "speculators_model_type" in document else "EAGLE, SpecForge"
    return "z-lab, SpecForge" if document["architectures"][0] == DFLASH else "DeepSpec"


def _norms(c: DrafterConfig) -> list[str]:
    """What an EAGLE-3 drafter norms otherwise than DeepSpec's, in words."""
    said = {
        "queries and keys are not": not c.qk_norm,
        "the residual is": c.norm_before_residual,
        "the features are, as one": c.feature_norm == "whole",
        "the features are, each layer's by itself": c.feature_norm == "each",
        "what feeds the next step is": c.norm_feedback,
    }
    return [words for words, so in said.items() if so]


def _lint(c: DrafterConfig, implied: bool) -> list[str]:
    found = []
    if implied:
        found.append(
            "the config names no layers of the target: it reads those before layers 2, n/2 and n - 3 of its n"
        )
    if not c.enable_confidence_head:
        found.append("no confidence head: confidences are the log-odds of the largest draft probability")
    return found
