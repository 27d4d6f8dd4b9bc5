"""The roofline and the shapes it is drawn from."""

from __future__ import annotations

import json

import pytest

from specsched.errors import ProfileError
from specsched.profile.architecture import find_model, shape_of
from specsched.profile.roofline import roofline_profile
from specsched.profile.shapes import GPUS, MODELS, find_gpu, vllm_capture_sizes


def test_known_parameter_counts():
    billions = {
        "qwen3-4b": 4.02,
        "qwen3-8b": 8.19,
        "qwen3-14b": 14.77,
        "qwen3-32b": 32.76,
        "qwen3-30b-a3b": 30.53,
    }
    billions |= {"llama3-8b": 8.03, "llama3-70b": 70.55, "llama2-70b": 68.98}
    for name, expected in billions.items():
        assert MODELS[name].parameters / 1e9 == pytest.approx(expected, abs=0.01), name


def test_kv_of_llama3_8b_is_128_kib_per_token():
    assert MODELS["llama3-8b"].kv_bytes_per_token("bfloat16") == 2 * 32 * 8 * 128 * 2 == 128 * 1024


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_shape_survives_its_own_config(tmp_path, name):
    shape = MODELS[name]
    (tmp_path / "config.json").write_text(json.dumps(shape.config()))
    again = find_model(tmp_path)
    assert again.parameters == shape.parameters
    assert again.kv_bytes_per_token("fp8") == shape.kv_bytes_per_token("fp8")


def test_names_people_use_are_found_and_unknown_ones_get_the_choices():
    assert find_gpu("h100")[0] == find_gpu("H100_SXM")[0] == "h100-sxm"
    assert find_model("Qwen/Qwen3-8B") is MODELS["qwen3-8b"]
    assert find_model("meta-llama/Meta-Llama-3.1-70B") is MODELS["llama3-70b"]
    with pytest.raises(ProfileError, match="did you mean 'h100"):
        find_gpu("h10")
    with pytest.raises(ProfileError, match=r"known: qwen3-4b.*config\.json"):
        find_model("gpt5")
    with pytest.raises(ProfileError, match="'mamba' is not modelled"):
        shape_of({"model_type": "mamba"}, "c")
    with pytest.raises(ProfileError, match="hidden_size"):
        shape_of({"model_type": "llama"}, "c")


def test_a_decode_step_at_batch_one_reads_the_weights_once():
    profile = roofline_profile("h100", "qwen3-8b")
    shape, gpu = MODELS["qwen3-8b"], GPUS["h100-sxm"]
    # All weights but the embedding table are read.
    read = shape.weight_bytes("bfloat16") - 2 * shape.vocab * shape.hidden
    assert profile.seconds(1, 1, 0, draft=False) == pytest.approx(read / gpu.bandwidth, rel=1e-6)
    kv = 8192 * shape.kv_bytes_per_token("bfloat16") / gpu.bandwidth
    assert profile.seconds(1, 1, 8192, draft=False) - profile.seconds(1, 1, 0, draft=False) == pytest.approx(
        kv
    )


def test_a_large_pass_is_bound_by_flops():
    profile = roofline_profile("h100", "qwen3-8b")
    shape, gpu = MODELS["qwen3-8b"], GPUS["h100-sxm"]
    flops = 2 * 4096 * (shape.parameters - shape.vocab * shape.hidden)
    assert profile.seconds(4096, 1, 0, draft=False) == pytest.approx(flops / gpu.bf16_flops, rel=1e-3)


def test_mixture_rises_early_and_is_flat_after():
    step = roofline_profile("h100", "qwen3-30b-a3b").verify
    assert step(64) > 4 * step(1)
    assert step(256) < 1.2 * step(64)


def test_two_gpus_halve_the_reading_and_pay_for_the_exchange():
    one, two = roofline_profile("h100", "qwen3-32b"), roofline_profile("h100", "qwen3-32b", tensor=2)
    assert 0.5 < two.verify(1) / one.verify(1) < 0.55
    assert two.verify(4096) / one.verify(4096) > 0.5


def test_it_is_labelled_wherever_it_goes():
    profile = roofline_profile("a100", "llama3-8b")
    assert profile.provenance["method"] == "roofline"
    assert "1.3 to 5 times optimistic" in profile.provenance["notes"]
    assert "roofline" in (profile.provenance_warning or "")
    assert profile.name.endswith("_roofline")


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (("a100", "llama3-8b", 1, "fp8"), "no fp8 units"),
        (("a100", "llama3-8b", 3), "must divide the 32"),
        (("h100", "llama3-70b", 1), "no room for a KV cache; use more GPUs"),
        (("h100", "llama3-8b", 1, "int3"), "unknown dtype"),
    ],
)
def test_what_cannot_run_is_refused(arguments, match):
    with pytest.raises(ProfileError, match=match):
        roofline_profile(*arguments)


def test_vllm_captures_one_two_four_then_every_eight_then_every_sixteen():
    sizes = vllm_capture_sizes(512)
    assert sizes[:5] == [1, 2, 4, 8, 16]
    assert sizes[-2:] == [496, 512]
    assert 264 not in sizes
    assert vllm_capture_sizes(100)[-1] == 96
