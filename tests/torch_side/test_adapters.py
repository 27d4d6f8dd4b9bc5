"""Drafters of other toolkits: a small one in z-lab's layout is the same drafter as in DeepSpec's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import save_file  # noqa: E402
from small_models import make_draft, make_target  # noqa: E402

from specsched.errors import FormatError  # noqa: E402
from specsched.torch_side.drafter.dspark import load_drafter  # noqa: E402

BLOCK = 4  # z-lab's count: the anchor and three drafts


def z_lab(changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """The entries of z-lab's and SpecForge's published configs (Qwen3-32B's, scaled down)."""
    return {
        "architectures": ["DFlashDraftModel"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
        "block_size": BLOCK,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "dflash_config": {"mask_token_id": 5, "target_layer_ids": [0, 1]},
        "dtype": "bfloat16",
        "head_dim": 8,
        "hidden_act": "silu",
        "hidden_size": 16,
        "intermediate_size": 24,
        "initializer_range": 0.02,
        "layer_types": ["full_attention"],
        "max_position_embeddings": 40960,
        "max_window_layers": 1,
        "model_type": "qwen3",
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "num_hidden_layers": 1,
        "num_target_layers": 2,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000,
        "rope_scaling": None,
        "sliding_window": None,
        "use_sliding_window": False,
        "tie_word_embeddings": False,
        "use_cache": True,
        "vocab_size": 6,
    } | (changes or {})


NAMES = {
    "fc.weight": (16, 32),
    "hidden_norm.weight": (16,),
    "norm.weight": (16,),
    "layers.0.input_layernorm.weight": (16,),
    "layers.0.post_attention_layernorm.weight": (16,),
    "layers.0.self_attn.q_proj.weight": (16, 16),
    "layers.0.self_attn.k_proj.weight": (8, 16),
    "layers.0.self_attn.v_proj.weight": (8, 16),
    "layers.0.self_attn.o_proj.weight": (16, 16),
    "layers.0.self_attn.q_norm.weight": (8,),
    "layers.0.self_attn.k_norm.weight": (8,),
    "layers.0.mlp.gate_proj.weight": (24, 16),
    "layers.0.mlp.up_proj.weight": (24, 16),
    "layers.0.mlp.down_proj.weight": (16, 24),
}


def written(folder: Path, config: dict[str, Any]) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(1)
    weights = {
        name: torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=generator) * 0.35
        for name, shape in NAMES.items()
    }
    save_file(weights, folder / "model.safetensors")
    return folder


def test_a_drafter_of_z_lab_is_the_one_of_deepspec(tmp_path: Path) -> None:
    target = make_target()
    theirs = load_drafter(written(tmp_path / "theirs", z_lab()), target)
    assert (theirs.config.kind, theirs.block_size) == ("dflash", BLOCK - 1)
    assert (theirs.config.mask_token_id, theirs.config.target_layer_ids) == (5, (0, 1))
    ours = make_draft(target, kind="dflash", block_size=BLOCK - 1)
    document = ours.config.replace(mask_token_id=5, rope_theta=1e6, shared_embeddings=True).to_dict()
    again = load_drafter(written(tmp_path / "ours", document), target)
    tokens = torch.tensor([[1, 2, 3, 4]])
    _, features = target.parallel(tokens, (0, 1))
    laws = []
    for drafter in (theirs, again):
        context = drafter.new_context(1)
        slots, at = torch.zeros(4, dtype=torch.int64), torch.arange(4)
        context.observe(slots, at, features[0], tokens[0])
        block = drafter.draft(torch.tensor([3]), torch.tensor([4]), context, temperature=1.0, sampler=first)
        laws.append(block.probabilities)
    assert laws[0].shape == (1, BLOCK - 1, 6)
    assert torch.equal(laws[0], laws[1])


def first(_: int, law: Any) -> Any:
    return law.argmax(-1)


def test_layers_may_stand_at_the_top(tmp_path: Path) -> None:
    config = z_lab({"dflash_config": None, "mask_token_id": 4, "target_layer_ids": [0, 1]})
    assert load_drafter(written(tmp_path / "d", config), make_target()).config.mask_token_id == 4


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dflash_config": {"causal": True, "target_layer_ids": [0, 1]}}, "dflash_config.causal"),
        ({"dflash_config": {"use_swa": True, "target_layer_ids": [0, 1]}}, "dflash_config.use_swa"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"layer_types": ["sliding_attention"]}, "sliding attention"),
        ({"block_size": 1}, "block_size"),
        ({"block_size": "16"}, "block_size"),
        ({"dflash_config": [1]}, "dflash_config"),
        ({"dflash_config": {"mask_token_id": 5}}, "target_layer_ids"),
        ({"speculators_model_type": "dflash"}, "speculators"),
        ({"num_target_layers": 36}, "36 layers"),
        ({"hidden_size": 32}, "hidden size 32"),
        ({"intermediate_size": 25}, "mlp"),
    ],
)
def test_what_is_not_computed_is_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(FormatError, match=said):
        load_drafter(written(tmp_path / "d", z_lab(changes)), make_target())
