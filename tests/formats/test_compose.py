"""Composing a profile from measured kernels: the additive form, the labels, the refusals, and the check end
to end.
"""

from __future__ import annotations

import csv
import dataclasses
import importlib.metadata
import statistics
from pathlib import Path

import numpy as np
import pytest

from specsched.errors import FormatError, ProfileError
from specsched.formats.kernels import aiconfigurator, vidur
from specsched.formats.kernels import composition as composed
from specsched.formats.kernels import tables as aic_kernels
from specsched.formats.kernels.aiconfigurator import compose_profile, draft_seconds, parts_of
from specsched.formats.kernels.tables import Kernels, refuse_known_bad, require_package
from specsched.profile.shapes import GPUS, MODELS

VALIDATION = (
    Path(__file__).resolve().parents[3] / "shared" / "profiles_composed" / "validation_composed_vs_e2e.csv"
)
SAME_ENGINE = "H100 Llama-3.1-8B bf16, TRT-LLM 1.0.0rc3 vs trtllm GEMM"


def installed() -> bool:
    try:
        require_package()
    except ProfileError:
        return False
    return True


needs_tables = pytest.mark.skipif(
    not installed(), reason="optional dependency aiconfigurator-core is not installed"
)


# -- the additive form, on kernels made up here
# ----------------------------------------------------------------


def subject():
    return composed.Subject(MODELS["qwen3-8b"], GPUS["h100-sxm"], 1, "bfloat16", "bfloat16")


def assemble(attention):
    pieces = composed.Pieces(
        verify=lambda b: 0.006 + 1e-5 * b + (0.002 if b > 256 else 0.0),
        attention=attention,
        draft=lambda r: 0.001 + 2e-5 * r,
        eager_sizes=[256, 512, 513, 1024, 2048],
    )
    return pieces, composed.assemble("made-up", pieces, subject(), {"method": "composed"}, 7, 512)


def test_kernels_that_are_additive_are_recovered_exactly():
    pieces, profile = assemble(lambda r, s: 2e-4 + 4e-8 * r * s + 1e-6 * r)
    assert profile.fit["max_relative_error"] < 0.01
    for r, s, b in ((1, 128, 8), (32, 1024, 256), (128, 2048, 512)):
        want = pieces.verify(b) + pieces.attention(r, s)
        assert profile.seconds(b, r, r * s, draft=False) == pytest.approx(want, rel=1e-3)
    # Padding: 257 tokens run at the captured 272; 513 are off the graph and unpadded.
    assert profile.seconds(257, 1, 128, draft=False) == pytest.approx(
        pieces.verify(272) + pieces.attention(1, 128), rel=1e-3
    )
    assert profile.seconds(513, 1, 128, draft=False) == pytest.approx(
        pieces.verify(513) + pieces.attention(1, 128), rel=1e-3
    )
    assert profile.draft_seconds(64) == pytest.approx(0.001 + 2e-5 * 64)


def test_attention_that_is_not_additive_shows_in_the_fit_error_and_overhead_never_falls():
    _, profile = assemble(
        lambda r, s: 1e-4 + 4e-8 * r * s * (1.5 if r == 1 else 1.0) + (2e-3 if s > 4000 else 0)
    )
    assert profile.fit["max_relative_error"] > 0.03
    assert (np.diff(profile.overhead.y) >= 0).all()
    assert profile.overhead.y[0] == 0.0


def test_a_composed_profile_says_so_and_holds_the_memory_numbers():
    _, profile = assemble(lambda r, s: 4e-8 * r * s)
    assert "composed" in profile.provenance_warning
    assert profile.kv_capacity_tokens() == pytest.approx(
        (0.9 * 81559 * 2**20 - 8.19e9 * 2) / 147456, rel=0.01
    )
    assert "2.3 GB" in composed.drafter_note(MODELS["qwen3-8b"], 2048)


# -- refusals
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("system", "backend", "dtype", "match"),
    [
        ("h100_sxm", "vllm", "fp8_block", "fp8_block GEMM table is refused"),
        ("b200_sxm", "vllm", "fp8", "bimodal"),
        ("gb200", "trtllm", "fp8", "bimodal"),
    ],
)
def test_tables_known_to_be_wrong_are_refused_by_name(system, backend, dtype, match):
    with pytest.raises(ProfileError, match=match):
        refuse_known_bad(system, backend, dtype)


def test_good_tables_are_not_refused():
    refuse_known_bad("h200_sxm", "vllm", "fp8")
    refuse_known_bad("b200_sxm", "vllm", "bfloat16")


def test_absent_or_other_versions_end_with_the_command_that_helps(monkeypatch):
    def absent(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(aic_kernels.importlib.metadata, "version", absent)
    with pytest.raises(ProfileError, match=r"pip install 'specsched\[compose\]'"):
        compose_profile("h100", "qwen3-8b")
    monkeypatch.setattr(aic_kernels.importlib.metadata, "version", lambda name: "0.13.1")
    with pytest.raises(ProfileError, match=r"0\.13\.1 is installed; this reader knows 0\.12"):
        compose_profile("h100", "qwen3-8b")


@needs_tables
@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"gpu": "h100", "model": "gpt-9"}, "unknown model"),
        ({"gpu": "tpu", "model": "qwen3-8b"}, "unknown GPU"),
        ({"gpu": "h100", "model": "qwen3-8b", "tensor": 3}, "must divide"),
        ({"gpu": "h100", "model": "qwen3-8b", "backend": "ollama"}, "unknown backend"),
        ({"gpu": "h100", "model": "qwen3-8b", "dtype": "int2"}, "unknown dtype"),
        ({"gpu": "b200", "model": "qwen3-8b", "dtype": "fp8"}, "bimodal"),
        ({"gpu": "a100", "model": "qwen3-8b", "dtype": "fp8"}, "no fp8 units"),
        ({"gpu": "h100", "model": "llama3-70b"}, "no room for a KV cache"),
    ],
)
def test_wrong_arguments_are_one_clear_error(arguments, match):
    with pytest.raises(ProfileError, match=match):
        compose_profile(**arguments)


# -- the real tables
# -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kernels():
    return Kernels("h100_sxm", "trtllm", MODELS["llama3-8b"], 1, "bfloat16", "bfloat16")


@needs_tables
def test_every_part_says_what_it_rests_on(kernels):
    parts = {part["part"]: part for part in parts_of(kernels)}
    assert {p["label"] for p in parts.values()} == {"silicon", "interpolated", "estimated"}
    # [4096, 4096] and [6144, 4096] are in the table; the gate-up GEMM of 28,672 columns lies between two
    # rows.
    assert parts["qkv_gemm"]["label"] == parts["attention"]["label"] == "silicon"
    assert parts["gate_ffn1_gemm"]["label"] == "interpolated"
    assert parts["add_norm_1"]["label"] == "estimated"
    assert sum(p["share"] for p in parts.values()) == pytest.approx(1.0, abs=1e-3)
    estimated = sum(p["share"] for p in parts.values() if p["label"] == "estimated")
    assert 0.02 < estimated < 0.12


@needs_tables
def test_attention_depends_on_the_context_and_not_on_the_tokens_verified(kernels):
    assert kernels.attention(16, 4096) > 1.5 * kernels.attention(16, 1024)
    assert set(kernels.parts(8)) == set(kernels.parts(512))
    assert "attention" not in kernels.parts(8)


@needs_tables
def test_unaligned_fp8_sizes_are_drawn_between_aligned_ones():
    fp8 = Kernels("h200_sxm", "vllm", MODELS["llama3-70b"], 4, "fp8", "fp8")
    assert 257 not in fp8.measured_tokens
    low, high = fp8.parts(256), fp8.parts(512)
    middle = fp8.parts(384)
    for name, value in middle.items():
        assert value == pytest.approx((low[name] + high[name]) / 2), name


@needs_tables
def test_a_part_without_tables_is_refused_not_left_out():
    with pytest.raises(ProfileError, match="cannot price part 3 of a step: missing system flops"):
        Kernels("a100_sxm", "vllm", MODELS["qwen3-8b"], 1, "fp8", "fp8")


@needs_tables
def test_guesses_and_steps_faster_than_memory_are_refused(kernels, monkeypatch):
    aiconfigurator._refuse_guesses(kernels, GPUS["h100-sxm"])
    with pytest.raises(ProfileError, match="faster than the 4"):
        aiconfigurator._refuse_guesses(kernels, dataclasses.replace(GPUS["h100-sxm"], bandwidth=0.3e12))
    monkeypatch.setitem(kernels._labels, "attention", "estimated")
    with pytest.raises(ProfileError, match="no measured attention table"):
        aiconfigurator._refuse_guesses(kernels, GPUS["h100-sxm"])


@needs_tables
def test_a_mixture_rises_early_and_is_flat_after():
    moe = Kernels("h100_sxm", "vllm", MODELS["qwen3-30b-a3b"], 1, "bfloat16", "bfloat16")
    step = {b: sum(moe.parts(b).values()) for b in (1, 64, 256)}
    assert step[64] > 4 * step[1]
    assert step[256] < 1.2 * step[64]


@needs_tables
def test_drafting_costs_a_share_of_a_step_and_grows_with_the_requests(kernels):
    one, many = (draft_seconds(kernels, r, 7, 2048) for r in (1, 256))
    step = sum(kernels.parts(8).values()) + kernels.attention(1, 2048)
    assert 0.1 < one / step < 0.4
    assert many > 4 * one


@needs_tables
@pytest.mark.skipif(not VALIDATION.is_file(), reason="the end-to-end rows are not in this checkout")
def test_composed_steps_match_end_to_end_rows_of_the_same_engine_within_five_percent(kernels):
    with VALIDATION.open() as stream:
        rows = [r for r in csv.DictReader(stream) if r["set"] == SAME_ENGINE and r["tp"] == "1"]
    errors = []
    for row in rows:
        requests = int(row["bs"])
        step = sum(kernels.parts(requests).values()) + kernels.attention(requests, int(row["ctx"]))
        errors.append(abs(step * 1e3 / float(row["meas_ms"]) - 1))
    print(
        f"\ncomposed against end to end, {len(rows)} rows: median error {statistics.median(errors):.1%}, "
        f"worst {max(errors):.1%}"
    )
    assert len(rows) >= 10
    assert statistics.median(errors) <= 0.05
    assert max(errors) <= 0.12


@needs_tables
@pytest.mark.skipif(not VALIDATION.is_file(), reason="the end-to-end rows are not in this checkout")
def test_the_additive_profile_matches_the_same_rows_as_well_as_the_kernels_do():
    profile = compose_profile("h100", "llama3-8b", backend="trtllm")
    with VALIDATION.open() as stream:
        rows = [r for r in csv.DictReader(stream) if r["set"] == SAME_ENGINE and r["tp"] == "1"]
    errors = [
        abs(profile.seconds(b, b, b * int(r["ctx"]), draft=False) * 1e3 / float(r["meas_ms"]) - 1)
        for r in rows
        for b in [int(r["bs"])]
    ]
    assert statistics.median(errors) <= 0.05


# -- vidur
# -----------------------------------------------------------------------------------------------------


def kernel_csv(tmp_path, sizes, tp=1):
    names = ["emb", *vidur.PER_LAYER]
    lines = ["tp,m," + ",".join(names)]
    lines += [
        f"{tp},{m}," + ",".join(str(10.0 + (5.0 if m > 128 else 0.0) + m / 100) for _ in names) for m in sizes
    ]
    path = tmp_path / "kernels_us.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_vidur_medians_are_read_in_microseconds_for_one_tensor_size(tmp_path):
    tokens, kernels = vidur.read_kernels(kernel_csv(tmp_path, [1, 8, 136]), 1)
    assert tokens.tolist() == [1, 8, 136]
    assert kernels["mlp_up_proj"].tolist() == pytest.approx([10.01e-6, 10.08e-6, 16.36e-6])
    with pytest.raises(FormatError, match=r"no rows of tp 4; there are 1"):
        vidur.read_kernels(tmp_path / "kernels_us.csv", 4)
    (tmp_path / "bad.csv").write_text("tp,m,emb\n1,1,2\n")
    with pytest.raises(FormatError, match="no columns add, attn_post_proj"):
        vidur.read_kernels(tmp_path / "bad.csv", 1)


@needs_tables
def test_a_jagged_profile_keeps_the_cliff_where_it_was_measured(tmp_path):
    path = kernel_csv(tmp_path, [1, 2, 4, *range(8, 2049, 8)])
    profile = vidur.compose_jagged(path, "a100", "llama3-8b", 1, "a made-up model")
    per_layer = sum(vidur.PER_LAYER.values())
    step = profile.verify(136) - profile.verify(128)
    # Only the head adds to the cliff that was put in: 5 µs for each kernel of each layer, and for the
    # embedding.
    assert step == pytest.approx((32 * per_layer + 1) * (5e-6 + 0.08e-6), rel=0.15)
    assert profile.name == "a100-sxm_llama-3-8b_fp16_tp1_jagged"
    assert "MIT" in profile.provenance["licence"]
    with pytest.raises(ProfileError, match="16 tokens were not measured"):
        vidur.compose_jagged(kernel_csv(tmp_path, [1, 2, 4, 8, 24]), "a100", "llama3-8b", 1, "x")
