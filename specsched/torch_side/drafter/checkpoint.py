"""Drafter folders on disk: DeepSpec's layout (`config.json` + `model.safetensors`; `adapters.py` brings
others to it), with two optional extensions.

1. `embed_tokens` and `lm_head` may be absent (`specsched.shared_embeddings`): they are the target's own,
frozen.
2. `draft_vocab_ids` int32[Vd]: the vocabulary rows the drafter may propose (`specsched.draft_vocab_size`).

A folder is opened by its headers, and its weights are read one at a time into the dtype asked for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...errors import FormatError, nearest
from ...files.archive import files_of
from ...files.disk import bundled_dir, read_json
from ...files.guard import reading
from ...files.output import atomic_write, write_json
from ..target.filling import finite
from .adapters import as_deepspec
from .config import DrafterConfig
from .eagle_adapter import is_eagle3, tensor_name

IDS, OFFSETS, MASK = "draft_vocab_ids", "d2t", "t2d"  # ours, EAGLE-3's, and its mask that says the same
EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"
FLOATS = ("F64", "F32", "F16", "BF16")


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


class Checkpoint(NamedTuple):
    """A drafter's folder, opened: its config and what tensors it holds. None of its weights is read yet."""

    config: DrafterConfig
    draft_ids: Tensor | None
    """int64[Vd]: the token of the target that each token of the draft vocabulary stands for"""
    shapes: dict[str, tuple[int, ...]]
    """Shapes of the weights under our names, embedding and LM head among them where the file holds them."""
    places: dict[Path, dict[str, str]]
    """The names of the weights in each file, by ours"""
    dtypes: tuple[str, ...]
    """What the weights are in the files: F32, BF16, ..."""
    where: str

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Our names and weights in the dtype of the file, one at a time, as views of the files.

        Raises FormatError naming the tensor that holds NaN or infinity.
        """
        from safetensors import safe_open

        for file, names in self.places.items():
            with reading(file, FormatError, "safetensors file"), safe_open(file, "pt") as held:
                for ours, theirs in names.items():
                    tensor = held.get_tensor(theirs)
                    if not finite(tensor):
                        raise FormatError(f"{file}: tensor {theirs!r} holds NaN or infinity; fetch it again")
                    yield ours, tensor
                    del tensor  # before the next is read


def open_checkpoint(name_or_path: str | os.PathLike[str], layers: int | None = None) -> Checkpoint:
    """Open a folder or a bundled model; `layers`: how many the target has (EAGLE-3's features depend on it).

    Raises FormatError for a config that is not read, and for draft tokens that are not the vocabulary's.
    """
    folder = find_model(name_or_path)
    config_file = folder / "config.json"
    document = read_json(config_file, FormatError)
    rename = tensor_name if is_eagle3(document) else str
    shapes: dict[str, tuple[int, ...]] = {}
    places: dict[Path, dict[str, str]] = {}
    ids: list[tuple[str, Path, Tensor]] = []
    kinds = set()
    for file, theirs, shape, kind, tensor in _headers(folder):
        ours = rename(theirs)
        if tensor is not None:
            ids.append((theirs, file, tensor))
        elif ours is not None:
            if ours in shapes:
                raise FormatError(f"{file}: tensor {theirs!r} is held twice; remove one of its files")
            shapes[ours] = shape
            kinds.add(kind)
            places.setdefault(file, {})[ours] = theirs
    document = as_deepspec(document, str(config_file), shapes, layers)
    config = DrafterConfig.from_dict(document, str(config_file))
    config, draft_ids = _draft_ids(config, ids, folder)
    return Checkpoint(config, draft_ids, shapes, places, tuple(sorted(kinds)), str(folder))


def _headers(folder: Path) -> Iterator[tuple[Path, str, tuple[int, ...], str, Tensor | None]]:
    """File, name, shape and dtype of every tensor of a folder; draft ids come with their values."""
    from safetensors import safe_open

    files = files_of(folder, "*.safetensors", FormatError)
    if not files:
        pickled = next(folder.glob("*.bin"), None)
        raise FormatError(
            f"{folder}: no *.safetensors beside config.json; fetch the weights too"
            if pickled is None
            else f"{pickled}: weights in this form are not read, as they can run code; save them as "
            "model.safetensors (safetensors.torch.save_file)"
        )
    for file in files:
        with reading(file, FormatError, "safetensors file"), safe_open(file, "pt") as held:
            for name in held.keys():  # noqa: SIM118 (no mapping)
                sliced = held.get_slice(name)
                shape, kind = tuple(sliced.get_shape()), str(sliced.get_dtype())
                values = held.get_tensor(name).clone() if name in (IDS, OFFSETS) else None
                if values is None and name != MASK and kind not in FLOATS:
                    raise FormatError(f"{file}: tensor {name!r} holds {kind}, no floating-point numbers")
                yield file, name, shape, kind, values


def _draft_ids(
    config: DrafterConfig, held: list[tuple[str, Path, Tensor]], folder: Path
) -> tuple[DrafterConfig, Tensor | None]:
    """The config, and the tokens the drafter may draft, int64[Vd], None for all of them in order."""
    if not held:
        if config.draft_vocab_size is not None:
            raise FormatError(
                f"{folder}: draft_vocab_size is {config.draft_vocab_size} of {config.vocab_size} tokens, and "
                f"no tensor {OFFSETS} or {IDS} says which; fetch the whole checkpoint"
            )
        return config, None
    if len(held) > 1:
        raise FormatError(f"{held[1][1]}: {held[1][0]} says again what {held[0][0]} said; remove one")
    name, file, values = held[0]
    size = config.draft_vocab_size or config.vocab_size
    if values.is_floating_point() or values.dtype == torch.bool or tuple(values.shape) != (size,):
        raise FormatError(
            f"{file}: {name} is {str(values.dtype).removeprefix('torch.')}{list(values.shape)}, the config's "
            f"draft vocabulary has {size} tokens; config.json and weights do not belong together"
        )
    ids = values.long() + (torch.arange(size) if name == OFFSETS else 0)
    if not 0 <= int(ids.min()) <= int(ids.max()) < config.vocab_size or len(ids.unique()) < size:
        raise FormatError(
            f"{file}: {name} does not give each draft token a token of its own of the vocabulary of "
            f"{config.vocab_size}; fetch it again"
        )
    if size == config.vocab_size and torch.equal(ids, torch.arange(size)):
        return config.replace(draft_vocab_size=None), None
    return config.replace(draft_vocab_size=size), ids


def fill(
    drafter: nn.Module, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Give the parameters of a drafter made without memory (on the "meta" device) the checkpoint's weights,
    one at a time, on `device` in `dtype`: the peak is one copy of the drafter and one tensor of the file.

    Returns the embedding and the LM head, where the file holds them, by name.
    """
    shared = {}
    for name, tensor in checkpoint.tensors():
        # A copy always: what is read is a view of the file, which others may write over.
        own = torch.empty(tensor.shape, device=device, dtype=dtype).copy_(tensor)
        del tensor
        if name in (EMBEDDING, HEAD):
            shared[name] = own
            continue
        module, _, leaf = name.rpartition(".")
        setattr(drafter.get_submodule(module), leaf, nn.Parameter(own, requires_grad=False))
    return shared


def check_tensors(checkpoint: Checkpoint, expected: dict[str, torch.Size]) -> None:
    """Refuse a file that does not hold exactly the tensors its config promises, before any is read.

    `expected`: those of the drafter; embedding and LM head are added as the config says.
    """
    c, where = checkpoint.config, checkpoint.where
    rows = (c.draft_vocab_size or c.vocab_size) if c.own_head else c.vocab_size
    parts = {EMBEDDING: torch.Size((c.vocab_size, c.hidden_size)), HEAD: torch.Size((rows, c.hidden_size))}
    needed = {EMBEDDING: c.own_embedding, HEAD: c.own_head}
    for name, shape in parts.items():
        if needed[name] or not c.shared_embeddings or name in checkpoint.shapes:
            expected = {**expected, name: shape}
    for key in sorted(expected.keys() ^ checkpoint.shapes.keys()):
        problem = "is missing" if key in expected else "is not one this drafter has"
        raise FormatError(
            f"{where}: tensor {key!r} {problem}; config.json and weights do not belong together"
        )
    for key, shape in expected.items():
        if checkpoint.shapes[key] != tuple(shape):
            raise FormatError(
                f"{where}: tensor {key!r} is {list(checkpoint.shapes[key])}, config says {list(shape)}"
            )


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
