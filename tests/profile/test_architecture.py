"""What a config.json describes is known exactly, or refused by name."""

from __future__ import annotations

import json

import pytest

from specsched.errors import ProfileError
from specsched.profile.architecture import shape_of
from specsched.profile.roofline import roofline_profile
from specsched.profile.shapes import MODELS, require_plain

DENSE = {**MODELS["qwen3-32b"].config(), "architectures": ["Qwen3ForCausalLM"]}
LLAMA = MODELS["llama3-8b"].config()
MOE = MODELS["qwen3-30b-a3b"].config()
HYBRID = ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 16


@pytest.mark.parametrize(
    ("config", "match"),
    [
        # Architectures whose names begin like a known one.
        ({**DENSE, "model_type": "qwen3_next", "full_attention_interval": 4}, "KV in 16 of 64 layers"),
        ({**DENSE, "model_type": "qwen3_5_text", "layer_types": HYBRID}, "'qwen3_5_text' is not modelled"),
        ({**LLAMA, "model_type": "llama4_text", "num_local_experts": 16}, "has 16 experts"),
        ({**LLAMA, "model_type": "llama4"}, "'llama4' is not modelled"),
        ({**DENSE, "model_type": "qwen3_vl"}, "'qwen3_vl' is not modelled"),
        ({**DENSE, "model_type": ""}, "model_type is absent"),
        ({**DENSE, "architectures": ["Qwen3ForSequenceClassification"]}, "Qwen3ForCausalLM alone"),
        # Drafters given as targets.
        ({**DENSE, "architectures": ["Qwen3DSparkModel"]}, r"of a drafter \(Qwen3DSparkModel\)"),
        ({**LLAMA, "architectures": ["LlamaForCausalLMEagle3"]}, "of a drafter"),
        ({**LLAMA, "draft_vocab_size": 32000}, "of a drafter .draft_vocab_size"),
        ({**DENSE, "markov_rank": 256}, "of a drafter"),
        # Keys that change the bytes of the cache, the weights, or the work.
        ({**DENSE, "layer_types": HYBRID}, "layer_types holds linear_attention"),
        ({**DENSE, "layer_types": ["sliding_attention"] * 64}, "sliding_attention"),
        ({**DENSE, "layer_types": ["full_attention"] * 3}, "another number of layers"),
        ({**DENSE, "sliding_window": 4096, "use_sliding_window": True}, "sliding_window is 4096"),
        ({**LLAMA, "model_type": "mistral", "architectures": None, "sliding_window": 4096}, "windowed"),
        ({**DENSE, "kv_lora_rank": 512}, "MLA"),
        ({**LLAMA, "num_local_experts": 16}, "num_local_experts is 16"),
        ({**DENSE, "num_experts": 128}, "without experts"),
        ({**MOE, "shared_expert_intermediate_size": 512}, "shared experts"),
        ({**MOE, "mlp_only_layers": [0]}, "experts in some layers"),
        ({**MOE, "decoder_sparse_step": 2}, "decoder_sparse_step"),
        ({**MOE, "num_experts_per_tok": None}, "num_experts_per_tok"),
        ({**DENSE, "num_nextn_predict_layers": 1}, "predict further tokens"),
        ({**DENSE, "head_dim": "wide"}, "head_dim is 'wide'"),
        ({**DENSE, "quantization_config": {"quant_method": "mxfp4"}}, "mxfp4 is not modelled"),
        ({**DENSE, "quantization_config": {"quant_method": "gptq", "bits": 3}}, "gptq is not modelled"),
        (
            {
                **DENSE,
                "quantization_config": {"quant_method": "fp8", "modules_to_not_convert": ["model.layers.0"]},
            },
            "quantized in part",
        ),
    ],
)
def test_what_is_not_known_exactly_is_refused_by_name(config, match):
    with pytest.raises(ProfileError, match=match):
        shape_of(config, "config.json")


def test_keys_that_change_nothing_are_read_over():
    plain = {"layer_types": ["full_attention"] * 64, "sliding_window": 4096, "use_sliding_window": False}
    more = {"attention_bias": True, "rope_scaling": {"type": "yarn"}, "num_experts": 0, "text_config": None}
    assert shape_of({**DENSE, **plain, **more}, "c").parameters == MODELS["qwen3-32b"].parameters


def test_a_qwen3_config_without_head_dim_has_heads_of_128():
    # 5120 / 64 heads would be 80; the architecture's own default is 128.
    assert shape_of({**DENSE, "head_dim": None}, "c").head_dim == 128
    assert shape_of({**LLAMA, "head_dim": None}, "c").head_dim == 4096 // 32


INT4 = {"quant_method": "gptq", "bits": 4, "group_size": 128}
COMPRESSED = {
    "quant_method": "compressed-tensors",
    "ignore": ["lm_head"],
    "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 128}}},
}


@pytest.mark.parametrize("block", [INT4, COMPRESSED])
def test_an_int4_checkpoint_weighs_and_reads_a_quarter(tmp_path, block):
    (tmp_path / "config.json").write_text(json.dumps({**DENSE, "quantization_config": block}))
    profile = roofline_profile("h200", str(tmp_path))
    # 31.2 G weights of layers in 4 bits and 20 bits a group of 128, 2 x 0.78 G of embeddings in 16 bits.
    layers = 64 * (5120 * 128 * (2 * 64 + 2 * 8) + 3 * 5120 * 25600)
    assert profile.model["weight_bytes"] == pytest.approx(
        layers * (4 + 20 / 128) / 8 + 2 * 151936 * 5120 * 2, rel=1e-6
    )
    assert 17e9 < profile.model["weight_bytes"] < 20e9
    assert profile.model["kv_bytes_per_token"] == 2 * 64 * 8 * 128 * 2
    wide = roofline_profile("h200", "qwen3-32b")
    assert profile.seconds(1, 1, 0, draft=False) < 0.32 * wide.seconds(1, 1, 0, draft=False)
    # Large passes are computed in bfloat16: no faster than the plain checkpoint.
    assert profile.verify(4096) == pytest.approx(float(wide.verify(4096)), rel=1e-6)


def test_an_fp8_checkpoint_is_fp8_whatever_dtype_is_asked(tmp_path):
    block = {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head"]}
    (tmp_path / "config.json").write_text(json.dumps({**DENSE, "quantization_config": block}))
    profile, named = (
        roofline_profile("h200", str(tmp_path)),
        roofline_profile("h200", "qwen3-32b", dtype="fp8"),
    )
    assert profile.model["weight_bytes"] == named.model["weight_bytes"]
    assert profile.verify.y.tolist() == named.verify.y.tolist()
    with pytest.raises(ProfileError, match="no fp8 units"):
        roofline_profile("a100", str(tmp_path))


def test_a_quantized_checkpoint_is_not_measured_in_another_dtype(tmp_path):
    with pytest.raises(ProfileError, match="quantized by gptq to int4"):
        require_plain(shape_of({**DENSE, "quantization_config": INT4}, "c"), "measuring")
    require_plain(MODELS["qwen3-8b"], "measuring")
