"""Loading a target or a drafter: memory of one copy, in the dtype asked for; stop tokens of both files."""

from __future__ import annotations

import json
import weakref
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from eagle3_files import speculators, tensors_of, written  # noqa: E402
from small_models import make_draft, make_target  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from specsched.errors import SpecschedError  # noqa: E402
from specsched.torch_side.drafter.dspark import load_drafter, save_drafter  # noqa: E402
from specsched.torch_side.target import weights  # noqa: E402
from specsched.torch_side.target.config import TargetConfig  # noqa: E402
from specsched.torch_side.target.decoder import Target  # noqa: E402


class Allocated(TorchDispatchMode):
    """Bytes of the storages that operators made, now and at most; views and mapped files cost nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu":
                self._count(tensor.untyped_storage())
        return out

    def _count(self, storage: Any) -> None:
        if storage._cdata in self._known or storage.filename is not None:
            return
        self._known.add(storage._cdata)
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._freed, storage._cdata, storage.nbytes())

    def _freed(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    config = TargetConfig(512, 64, 6, 4, 2, 16, 96, qk_norm=True, eos_token_ids=(2,))
    weights.save_folder(Target(config), tmp_path, torch.bfloat16)
    return tmp_path


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_loading_takes_one_copy_and_one_tensor(folder: Path, dtype: Any) -> None:
    with Allocated() as allocated:
        target = weights.load_target(folder, dtype=dtype)
    sizes = [p.numel() * p.element_size() for p in target.parameters()]
    assert {p.dtype for p in target.parameters()} == {dtype}
    assert sum(sizes) <= allocated.peak <= sum(sizes) + max(sizes) + 4096
    assert not any(p.requires_grad for p in target.parameters())
    assert not target.training


@pytest.mark.parametrize("layout", ["eagle3", "dspark"])
@pytest.mark.parametrize("held", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_drafter_takes_one_copy_and_one_tensor(tmp_path: Path, layout: str, held: Any, dtype: Any) -> None:
    sizes = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 8}
    target = make_target(vocab_size=24, **sizes).to(dtype)
    if layout == "eagle3":
        tensors = tensors_of(speculators({"intermediate_size": 512}), embedding=True)
        tensors = {k: v.to(held) if v.is_floating_point() else v for k, v in tensors.items()}
        config = speculators({"intermediate_size": 512}, norm_before_residual=True)
        written(tmp_path, config, tensors)
    else:
        save_drafter(make_draft(target), tmp_path, dtype=held)
    with Allocated() as allocated:
        drafter = load_drafter(tmp_path, target)
    parts = [*drafter.own_state().values()]
    if layout == "eagle3":
        parts += [drafter.embed_tokens.weight, drafter.head_weight]
    own = [part.numel() * part.element_size() for part in parts]
    assert {part.dtype for part in parts} == {dtype}
    read = max(part.numel() for part in parts) * held.itemsize
    assert sum(own) <= allocated.peak <= sum(own) + read + 2048
    assert not any(p.requires_grad for p in drafter.parameters())
    assert not drafter.training


def test_the_count_sees_a_second_copy(folder: Path) -> None:
    with Allocated() as allocated:
        target = weights.load_target(folder).to(torch.bfloat16)
    whole = sum(4 * p.numel() for p in target.parameters())
    assert allocated.peak > whole * 1.05


def test_weights_do_not_hang_on_the_file(folder: Path) -> None:
    target = weights.load_target(folder, dtype=torch.bfloat16)
    before = target.norm.weight.clone()
    other = Target(target.config)
    torch.nn.init.constant_(other.norm.weight, 7.0)
    weights.save_folder(other, folder, torch.bfloat16)
    with (folder / "model.safetensors").open("r+b") as stream:
        stream.truncate(100)
    assert torch.equal(target.norm.weight, before)


def test_shards_are_read_as_one(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    whole = weights.load_target(folder)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    for part in range(3):
        save_file(
            {k: v for i, (k, v) in enumerate(tensors.items()) if i % 3 == part},
            folder / f"model-0000{part}-of-00003.safetensors",
        )
    again = weights.load_target(folder)
    for (name, a), (_, b) in zip(again.named_parameters(), whole.named_parameters(), strict=True):
        assert torch.equal(a, b), name
    assert torch.equal(again._frequency, whole._frequency)


def test_not_a_number_is_refused(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    for bad in (float("nan"), float("inf"), float("-inf")):
        tensors = load_file(folder / "model.safetensors")
        tensors["model.layers.2.mlp.up_proj.weight"][3, 5] = bad
        save_file(tensors, folder / "model.safetensors")
        with pytest.raises(SpecschedError, match=r"'layers.2.mlp.up_proj.weight' holds NaN"):
            weights.load_target(folder)
        tensors["model.layers.2.mlp.up_proj.weight"][3, 5] = 0.0
        save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize(("given", "stops"), [(7, (2, 7)), ([2, 9, 7], (2, 9, 7)), (None, (2,)), ([], (2,))])
def test_stop_tokens_are_those_of_both_files(folder: Path, given: Any, stops: tuple[int, ...]) -> None:
    assert weights.load_target(folder).config.eos_token_ids == (2,)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": given, "top_k": 20}))
    assert weights.load_target(folder).config.eos_token_ids == stops


def test_a_stop_token_beyond_the_vocabulary_is_refused(folder: Path) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 512]}))
    with pytest.raises(SpecschedError, match=r"generation_config.json: eos_token_id.*0..511"):
        weights.load_target(folder)
