"""Drafter folders on disk: DeepSpec's layout (`config.json` + `model.safetensors`; `adapters.py` brings
others to it), with two optional extensions.

1. `embed_tokens` and `lm_head` may be absent (`specsched.shared_embeddings`): they are the target's own,
frozen.
2. `draft_vocab_ids` int32[Vd]: the vocabulary rows the drafter may propose (`specsched.draft_vocab_size`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import FormatError, nearest
from ...files.archive import files_of
from ...files.disk import bundled_dir, read_json
from ...files.guard import reading
from ...files.output import atomic_write, write_json
from .adapters import as_deepspec
from .config import DrafterConfig

IDS = "draft_vocab_ids"


def find_model(name_or_path: str | os.PathLike[str]) -> Path:
    """Folder of a drafter: a path, else a bundled model's name. Raises FormatError naming the bundled
    ones.
    """
    path = Path(name_or_path)
    if path.is_dir():
        return path
    bundled = bundled_dir("models")
    if path.parent == Path() and (bundled / path / "config.json").is_file():
        return bundled / path
    names = sorted(p.parent.name for p in bundled.glob("*/config.json"))
    raise FormatError(
        f"no folder {str(name_or_path)!r} and no bundled model of that name;{nearest(path.name, names)} "
        f"bundled models: {', '.join(names) or 'none'}"
    )


def read_checkpoint(
    name_or_path: str | os.PathLike[str],
) -> tuple[DrafterConfig, Tensor | None, dict[str, Tensor], str]:
    """Read a folder: (config, draft ids int64[Vd] or None, tensors in float32 by name, the file's name)."""
    from safetensors.torch import load_file

    folder = find_model(name_or_path)
    config_file = folder / "config.json"
    document = as_deepspec(read_json(config_file, FormatError), str(config_file))
    config = DrafterConfig.from_dict(document, str(config_file))
    state: dict[str, Tensor] = {}
    files = files_of(folder, "*.safetensors", FormatError)
    if not files:
        raise FormatError(f"{folder}: no *.safetensors beside config.json; fetch the weights too")
    for file in files:
        with reading(file, FormatError, "safetensors file"):
            state |= load_file(file)
    ids = state.pop(IDS, None)
    if (ids is None) != (config.draft_vocab_size is None) or (
        ids is not None and len(ids) != config.draft_vocab_size
    ):
        raise FormatError(
            f"{folder}: {IDS} and the config's draft_vocab_size {config.draft_vocab_size} do not agree"
        )
    draft_ids = None if ids is None else ids.long()
    if draft_ids is not None and (
        draft_ids.ndim != 1
        or (len(draft_ids) and not 0 <= int(draft_ids.min()) <= int(draft_ids.max()) < config.vocab_size)
    ):
        raise FormatError(f"{folder}: {IDS} must be rows of the vocabulary of {config.vocab_size}")
    for name, value in state.items():
        if not value.is_floating_point() or not bool(torch.isfinite(value.float()).all()):
            raise FormatError(
                f"{folder}: tensor {name!r} holds NaN, infinity or no floating-point numbers; fetch it again"
            )
    return config, draft_ids, {k: v.float() for k, v in state.items()}, str(folder)


def write_checkpoint(
    folder: str | os.PathLike[str],
    config: DrafterConfig,
    draft_ids: Tensor | None,
    state: dict[str, Tensor],
    dtype: torch.dtype,
    notes: dict[str, Any] | None,
) -> None:
    """Write a folder atomically, file by file: weights first, so that a config never promises absent ones."""
    from safetensors.torch import save

    tensors = {k: v.detach().to("cpu", dtype).contiguous().clone() for k, v in state.items()}
    if draft_ids is not None:
        tensors[IDS] = draft_ids.to("cpu", torch.int32)
    folder = Path(folder)
    with atomic_write(folder / "model.safetensors", "wb") as stream:
        stream.write(save(tensors, metadata={"format": "pt"}))
    document = config.to_dict() | {"dtype": str(dtype).removeprefix("torch.")}
    if notes:
        document["specsched"] = document.get("specsched", {}) | {"notes": notes}
    write_json(folder / "config.json", document)
