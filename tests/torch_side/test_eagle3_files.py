"""EAGLE-3 drafters of other toolkits draft what their definition says, token by token, or are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

torch = pytest.importorskip("torch")

from eagle3_files import (  # noqa: E402
    DRAFTED,
    HIDDEN,
    LLAMA3,
    TARGET,
    VOCAB,
    eagle,
    spec_forge,
    speculators,
    tensors_of,
    written,
)
from eagle3_reference import Reference  # noqa: E402
from small_models import make_target  # noqa: E402

from specsched.documents import shipped  # noqa: E402
from specsched.errors import FormatError  # noqa: E402
from specsched.inspection import inspect_file  # noqa: E402
from specsched.report import inspection_text  # noqa: E402
from specsched.torch_side.drafter.config import DrafterConfig  # noqa: E402
from specsched.torch_side.drafter.dspark import load_drafter, save_drafter  # noqa: E402
from specsched.torch_side.engine.answers import drafter_digest  # noqa: E402

TEXT = [3, 17, 8, 20, 5, 11, 0, 23, 9, 14]
DEFAULT = (2, 4, 5)  # of the target's 8 layers, those whose inputs are the features
# What each is, and the layers of the target whose inputs its features are.
LAYOUTS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "SpecForge": (spec_forge(), DEFAULT),
    "SpecForge, layers named": (
        spec_forge(eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 3, 6]}),
        (1, 4, 7),
    ),
    "SpecForge, EAGLE 3.1": (spec_forge(fc_norm=True, norm_output=True), DEFAULT),
    "SpecForge, all tokens": (spec_forge(draft_vocab_size=VOCAB), DEFAULT),
    "scaled rotary frequencies": (spec_forge(rope_theta=50.0, rope_scaling=LLAMA3), DEFAULT),
    "EAGLE": (eagle(), DEFAULT),
    "ModelOpt": (
        spec_forge(
            eagle_config={
                "eagle_aux_hidden_state_layer_ids": [],
                "use_aux_hidden_state": True,
                "use_input_layernorm_in_first_layer": True,
                "use_last_layernorm": True,
                "use_mtp_layernorm": False,
                "parallel_draft_step": 1,
                "norm_before_fc": True,
            }
        ),
        DEFAULT,
    ),
    "vLLM": (
        spec_forge(architectures=["Eagle3LlamaForCausalLM"], eagle_aux_hidden_state_layer_ids=[1, 2, 5, 7]),
        (1, 2, 5, 7),
    ),
    "both ways": (
        spec_forge(
            eagle_config={"eagle_aux_hidden_state_layer_ids": [6, 0]}, eagle_aux_hidden_state_layer_ids=[1, 7]
        ),
        (1, 7),
    ),
    "speculators": (speculators(), DEFAULT),
    "speculators, residual normed": (
        speculators(norm_before_residual=True, eagle_aux_hidden_state_layer_ids=[0, 4, 8]),
        (0, 4, 8),
    ),
    "speculators, 3.1": (
        speculators(norm_before_residual=True, norm_before_fc=True, norm_output=True),
        DEFAULT,
    ),
    "speculators, Qwen3": (speculators({"model_type": "qwen3", "rope_theta": 30.0}), DEFAULT),
    "speculators, rope parameters": (
        speculators({"rope_theta": None, "rope_parameters": {**LLAMA3, "rope_theta": 20.0}}),
        DEFAULT,
    ),
}


@pytest.fixture(scope="module")
def target() -> Any:
    return make_target(num_attention_heads=4, num_key_value_heads=2, head_dim=4, **TARGET)


def inputs_of(target: Any, layers: tuple[int, ...]) -> Any:
    """What these layers of the target read of `TEXT`, side by side (8: what would follow the last)."""
    seen: dict[int, Any] = {}
    hooks = [
        layer.register_forward_hook(lambda _, given, out, i=i: seen.update({i: given[0], i + 1: out}))
        for i, layer in enumerate(target.layers)
    ]
    target.parallel(torch.tensor([TEXT]))
    for hook in hooks:
        hook.remove()
    return torch.cat([seen[i][0] for i in layers], dim=1)


def drafted(drafter: Any, target: Any, anchor: int, temperature: float, sampler: Any = None) -> Any:
    """What the drafter drafts after the anchor, from a context that was observed in two pieces."""
    tokens = torch.tensor(TEXT)
    _, features = target.parallel(tokens[None], drafter.config.target_layer_ids)
    context = drafter.new_context(2, capacity=4)
    for piece in (slice(0, 3), slice(3, anchor)):
        at = torch.arange(len(TEXT))[piece]
        context.observe(torch.ones_like(at), at, features[0, piece], tokens[piece])
    where = {"slots": torch.tensor([1]), "sampler": sampler}
    return drafter.draft(tokens[anchor : anchor + 1], torch.tensor([anchor]), context, temperature, **where)


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("embedding", [False, True])
def test_drafts_are_those_of_the_definition(tmp_path: Path, target: Any, name: str, embedding: bool) -> None:
    config, layers = LAYOUTS[name]
    tensors = tensors_of(config, embedding)
    drafter = load_drafter(written(tmp_path, config, tensors), target)
    reference = Reference(config, tensors, target.embed_tokens.weight)
    hidden = inputs_of(target, layers)
    generator = torch.Generator().manual_seed(5)
    for anchor in (4, len(TEXT) - 1):
        text, before = TEXT[: anchor + 1], hidden[:anchor]
        greedy = drafted(drafter, target, anchor, 0)
        laws = reference.draft(text, before, drafter.block_size, lambda law: int(law.argmax()))
        assert greedy.tokens[0].tolist() == [int(law.argmax()) for law in laws]
        # Drawn: the definition is asked for the laws after the very tokens that were drawn.
        block = drafted(
            drafter, target, anchor, 1.0, lambda _, law: torch.multinomial(law, 1, generator=generator)[:, 0]
        )
        drawn = iter(block.tokens[0].tolist())
        laws = reference.draft(text, before, drafter.block_size, lambda _, drawn=drawn: next(drawn))
        torch.testing.assert_close(block.probabilities[0].double(), torch.stack(laws), atol=2e-6, rtol=2e-5)


def test_the_definition_tells_the_switches_apart(target: Any) -> None:
    """Else the comparison above would show nothing: each switch moves the laws by far more than rounding."""
    hidden = inputs_of(target, DEFAULT)[:6]
    plain = spec_forge()
    tensors = tensors_of(plain)

    def laws(**changes: Any) -> Any:
        made = Reference({**plain, **changes}, tensors, target.embed_tokens.weight)
        return torch.stack(made.draft(TEXT[:7], hidden, 4, lambda law: int(law.argmax())))

    for changes in (
        {"norm_before_residual": True},
        {"norm_output": True},
        {"rope_theta": 50.0},
        {"rope_scaling": LLAMA3},
    ):
        assert float((laws(**changes) - laws()).abs().max()) > 1e-3, changes


@pytest.mark.parametrize("name", LAYOUTS)
def test_written_again_it_is_the_same_drafter(tmp_path: Path, target: Any, name: str) -> None:
    config, _ = LAYOUTS[name]
    first = load_drafter(written(tmp_path / "theirs", config), target)
    save_drafter(first, tmp_path / "ours", dtype=torch.float32)
    again = load_drafter(tmp_path / "ours", target)
    assert again.config == first.config
    a, b = (drafted(d, target, 6, 1.0, lambda _, law: law.argmax(-1)) for d in (first, again))
    assert torch.equal(a.probabilities, b.probabilities)


def test_a_head_and_an_embedding_that_are_absent_are_the_targets(tmp_path: Path, target: Any) -> None:
    config = spec_forge(draft_vocab_size=None)
    tensors = {k: v for k, v in tensors_of(config).items() if k != "lm_head.weight"}
    drafter = load_drafter(written(tmp_path / "none", config, tensors), target)
    assert drafter.head_weight is target.lm_head.weight or torch.equal(
        drafter.head_weight, target.lm_head.weight
    )
    assert drafter.embed_tokens.weight.data_ptr() == target.embed_tokens.weight.data_ptr()
    tensors = tensors_of(spec_forge())
    del tensors["lm_head.weight"]
    few = load_drafter(written(tmp_path / "few", spec_forge(), tensors), target)
    rows = tensors["d2t"] + torch.arange(DRAFTED)
    assert torch.equal(few.head_weight, target.lm_head.weight[rows])


def test_an_embedding_that_is_the_targets_takes_no_memory(tmp_path: Path, target: Any) -> None:
    tensors = tensors_of(spec_forge()) | {"embed_tokens.weight": target.embed_tokens.weight.clone()}
    drafter = load_drafter(written(tmp_path, spec_forge(), tensors), target)
    assert drafter.embed_tokens.weight.data_ptr() == target.embed_tokens.weight.data_ptr()
    assert "embed_tokens.weight" not in drafter.held_state()


def test_what_is_its_own_is_counted_and_told_apart(tmp_path: Path, target: Any) -> None:
    tensors = tensors_of(spec_forge(), embedding=True)
    drafter = load_drafter(written(tmp_path / "a", spec_forge(), tensors), target)
    floats = [t for t in tensors.values() if t.is_floating_point()]
    assert drafter.memory()["weight_bytes"] == sum(4 * t.numel() for t in floats)
    tensors["lm_head.weight"] = tensors["lm_head.weight"].flip(0)
    other = load_drafter(written(tmp_path / "b", spec_forge(), tensors), target)
    later = load_drafter(written(tmp_path / "c", spec_forge(norm_output=True), tensors), target)
    assert len({drafter_digest(d) for d in (drafter, other, later)}) == 3


@pytest.mark.parametrize("name", LAYOUTS)
def test_inspect_says_what_the_folder_holds(tmp_path: Path, target: Any, name: str) -> None:
    config, layers = LAYOUTS[name]
    tensors = tensors_of(config, embedding=True)
    found: Any = inspect_file(written(tmp_path, config, tensors))
    jsonschema.Draft202012Validator(shipped("inspection")).validate(json.loads(json.dumps(found)))
    drafter = load_drafter(tmp_path, target)
    assert found["parameters"] == sum(t.numel() for t in tensors.values() if t.is_floating_point())
    assert (found["drafter"], found["block_size"]) == ("eagle3", drafter.block_size)
    assert found["draft_vocab_size"] == drafter.config.draft_vocab_size
    assert found["holds"] == ["embedding", "LM head"]
    if layers == DEFAULT:
        assert found["features"] is None
        assert "names no layers of the target" in found["lint"][0]
    else:
        assert found["features"] == [layer - 1 for layer in layers] == list(drafter.config.target_layer_ids)
    text = " ".join(inspection_text(found).split())  # without line breaks
    assert ("speculators" if "speculators_model_type" in config else "EAGLE, SpecForge") in text
    assert ("queries and keys are not" in text) == (not drafter.config.qk_norm)
    assert ("what feeds the next step is" in text) == drafter.config.norm_feedback
    assert ("Llama 3.1" in text) == (drafter.config.rope_scaling is not None)


def test_inspect_refuses_what_loading_refuses(tmp_path: Path) -> None:
    written(tmp_path / "a", spec_forge(intermediate_size=21), tensors_of(spec_forge()))
    with pytest.raises(FormatError, match=r"config says \[21, 16\]"):
        inspect_file(tmp_path / "a")
    made: Any = inspect_file("tiny-eagle3")
    assert (made["layout"], made["holds"], made["features"]) == ("DeepSpec", [], [0, 1, 2])
    with pytest.raises(FormatError, match="is it a target model's folder"):
        inspect_file("tiny-target")


def test_the_number_of_drafts_is_the_toolkits(tmp_path: Path, target: Any) -> None:
    assert load_drafter(written(tmp_path / "a", speculators()), target).block_size == 3
    assert load_drafter(written(tmp_path / "b", spec_forge()), target).block_size == 7
    assert load_drafter(written(tmp_path / "b", spec_forge()), target, block_size=5).block_size == 5


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (spec_forge(num_hidden_layers=2), r"num_hidden_layers is 2; only 1 is computed"),
        (spec_forge(attention_bias=True), r"attention_bias is true"),
        (speculators({"mlp_bias": True}), r"transformer_layer_config\.mlp_bias is true"),
        (spec_forge(hidden_act="gelu"), r"hidden_act is 'gelu'; only 'silu'"),
        (spec_forge(target_hidden_size=32), r"target_hidden_size is not the drafter's hidden_size 16"),
        (speculators(target_hidden_size=32), r"target_hidden_size"),
        (spec_forge(num_experts=8), r"num_experts is set: experts \(MoE\)"),
        (speculators({"kv_lora_rank": 4}), r"kv_lora_rank is set: latent attention"),
        (spec_forge(quantization_config={"bits": 4}), r"quantised"),
        (spec_forge(rope_scaling={"rope_type": "yarn", "factor": 4}), r"rope_type 'yarn' is not supported"),
        (spec_forge(rope_scaling={"type": "linear", "factor": 4}), r"rope_type 'linear' is not supported"),
        (speculators({"layer_types": ["sliding_attention"]}), r"sliding attention"),
        (speculators({"use_sliding_window": True}), r"use_sliding_window"),
        (speculators({"model_type": "deepseek_v3"}), r"model_type is 'deepseek_v3'"),
        (speculators(speculators_model_type="peagle"), r"speculators_model_type is 'peagle'"),
        (speculators(speculators_model_type=None), r"speculators_model_type is missing"),
        (speculators(transformer_layer_config=None) | {}, r"transformer_layer_config is missing"),
        (speculators(norm_before_residual=None), r"norm_before_residual is missing"),
        (speculators(norm_before_fc=True, fc_norm=True), r"fc_norm and norm_before_fc are both true"),
        (speculators(norm_output=1), r"norm_output is a number"),
        (
            spec_forge(eagle_config={"use_aux_hidden_state": False}),
            r"eagle_config\.use_aux_hidden_state is false",
        ),
        (spec_forge(eagle_config={"parallel_draft_step": 2}), r"parallel_draft_step is 2"),
        (spec_forge(eagle_config={"eagle_aux_hidden_state_layer_ids": "1,2"}), r"layer_ids is '1,2'"),
        (spec_forge(eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 1, 3]}), r"strictly increase"),
        (spec_forge(eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 3, 8]}), r"names layer 8"),
        (
            spec_forge(
                eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 3]},
                eagle_aux_hidden_state_layer_ids=[1, 3],
            ),
            r"\(inputs of layers \[1, 3\]\) and eagle_config's \(outputs of \[1, 3\]\) are not the same",
        ),
        (spec_forge(architectures=["PEagleDraftModel"]), r"'PEagleDraftModel' is not a drafter we read"),
        (spec_forge(vocab_size=48), r"vocabulary 48"),
        (spec_forge(tie_word_embeddings="yes"), None),
    ],
)
def test_what_is_not_computed_is_refused(tmp_path: Path, target: Any, config: dict, said: str | None) -> None:
    full = spec_forge() if "speculators_model_type" not in config else speculators()
    folder = written(tmp_path / "drafter", config, tensors_of(full))
    if said is None:
        load_drafter(folder, target)
        return
    with pytest.raises(FormatError, match=said) as refused:
        load_drafter(folder, target)
    assert str(tmp_path / "drafter") in str(refused.value)


def without(name: str) -> Any:
    return lambda tensors: tensors.pop(name)


def put(name: str, value: Any) -> Any:
    return lambda tensors: tensors.update({name: value})


def beyond(tensors: dict) -> None:
    tensors["d2t"][-1] = VOCAB - (DRAFTED - 1)


def below(tensors: dict) -> None:
    tensors["d2t"][0] = -1


def twice(tensors: dict) -> None:
    tensors["d2t"][1] = tensors["d2t"][0] - 1


def damaged(tensors: dict) -> None:
    tensors["midlayer.mlp.up_proj.weight"][3, 5] = float("nan")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (without("d2t"), r"draft_vocab_size is 9 of 24 tokens, and no tensor d2t"),
        (without("norm.weight"), r"'norm.weight' is missing"),
        (without("midlayer.hidden_norm.weight"), r"'layers.0.hidden_norm.weight' is missing"),
        (put("fc.weight", torch.zeros(HIDDEN, HIDDEN)), r"'fc.weight' is \[16, 16\], config says \[16, 48\]"),
        (put("lm_head.weight", torch.zeros(VOCAB, HIDDEN)), r"'lm_head.weight' is \[24, 16\], .* \[9, 16\]"),
        (put("embed_tokens.weight", torch.zeros(9, HIDDEN)), r"'embed_tokens.weight' is \[9, 16\]"),
        (put("d2t", torch.zeros(8, dtype=torch.int64)), r"d2t is int64\[8\].* has 9 tokens"),
        (put("d2t", torch.zeros(9)), r"d2t is float32\[9\]"),
        (put("mask_hidden", torch.zeros(1, 48)), r"'mask_hidden' is not one this drafter has"),
        (put("midlayer.self_attn.q_proj.bias", torch.zeros(24)), r"q_proj.bias' is not one"),
        (put("model.norm.weight", torch.ones(HIDDEN)), r"is held twice"),
        (put("fc.weight", torch.zeros(HIDDEN, 48, dtype=torch.int8)), r"'fc.weight' holds I8, no floating"),
        (beyond, r"d2t does not give each draft token"),
        (below, r"d2t does not give each draft token"),
        (twice, r"d2t does not give each draft token"),
        (damaged, r"'midlayer.mlp.up_proj.weight' holds NaN"),
    ],
)
def test_weights_that_are_not_the_configs_are_refused(
    tmp_path: Path, target: Any, change: Any, said: str
) -> None:
    tensors = tensors_of(spec_forge())
    change(tensors)
    folder = written(tmp_path / "drafter", spec_forge(), tensors)
    with pytest.raises(FormatError, match=said) as refused:
        load_drafter(folder, target)
    assert str(folder) in str(refused.value)


def test_a_target_of_few_layers_has_no_default_features(tmp_path: Path) -> None:
    small = make_target(
        num_attention_heads=4, num_key_value_heads=2, head_dim=4, **TARGET | {"num_hidden_layers": 6}
    )
    with pytest.raises(FormatError, match=r"a target of 6 layers has no default ones"):
        load_drafter(written(tmp_path, spec_forge()), small)


def test_pickled_weights_are_not_opened(tmp_path: Path, target: Any) -> None:
    folder = written(tmp_path, eagle())
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(FormatError, match=r"pytorch_model\.bin: .* can run code; save them as"):
        load_drafter(folder, target)


def test_switches_of_eagle3_are_no_switches_of_others() -> None:
    config = {
        "kind": "dflash",
        "vocab_size": 8,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
    }
    sizes = {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 8, "block_size": 2}
    with pytest.raises(FormatError, match="a dflash drafter has none of qk_norm"):
        DrafterConfig(**config, **sizes, target_layer_ids=(0,), qk_norm=False)
