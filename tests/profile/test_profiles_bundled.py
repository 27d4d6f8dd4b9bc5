"""Every bundled step profile: loads, lints, says where it comes from, and is tabled as it is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from specsched.files.disk import bundled_names
from specsched.profile import load_profile
from specsched.profile.lint import lint
from specsched.profile.roofline import OPTIMISM, roofline_profile
from specsched.profile.tables import NO_LIMIT

FOLDER = Path(__file__).resolve().parents[2] / "profiles"
NAMES = bundled_names("profiles", ".json")
EXPECTED = {
    "h100-sxm_qwen3-4b_bf16_tp1",
    "h100-sxm_qwen3-8b_bf16_tp1",
    "h200-sxm_qwen3-14b_bf16_tp1",
    "h200-sxm_llama-3-70b_fp8_tp4",
    "h100-sxm_qwen3-30b-a3b_bf16_tp1",
    "a100-sxm_llama-3-8b_fp16_tp1_jagged",
    "h100-sxm_llama-3-70b_fp16_tp4_jagged",
}
# What a linter may say of a composed profile: raw curves have inversions, and it is known what they leave
# out.
REMARKS = ("falls", "hardly priced", "sync_seconds is 0", "leaving the graph", "is composed")


def test_those_of_the_readme_are_there():
    assert set(NAMES) >= EXPECTED


@pytest.mark.parametrize("name", NAMES)
def test_it_lints_without_surprises(name):
    findings = lint(load_profile(name))
    surprises = [f for f in findings if not any(remark in f for remark in REMARKS)]
    assert surprises == []


@pytest.mark.parametrize("name", NAMES)
def test_it_says_where_it_comes_from(name):
    profile = load_profile(name)
    assert profile.name == name
    about = profile.provenance
    for key in ("method", "source", "licence", "date", "tool", "notes"):
        assert about.get(key), key
    if about["method"] == "composed":
        assert about["changes"]
        assert {part["label"] for part in about["parts"]} <= {"silicon", "interpolated", "estimated"}
        assert "Not in it: host scheduling" in about["notes"]
        weights = f"this drafter takes {profile.draft_weight_bytes / 1e9:.1f} GB of weights"
        assert weights in about["notes"]
        assert profile.provenance_warning
    assert profile.drafter
    assert profile.fit["samples"] > 50
    assert profile.fit["median_relative_error"] < 0.02
    assert profile.fit["p90_relative_error"] < 0.06


@pytest.mark.parametrize("name", NAMES)
def test_its_licences_are_here(name):
    licence = load_profile(name).provenance["licence"]
    texts = {"Apache-2.0": "aiconfigurator-Apache-2.0.txt", "MIT": "vidur-MIT.txt"}
    named = [file for word, file in texts.items() if word in licence]
    assert named, licence
    for file in named:
        assert len((FOLDER / "licences" / file).read_text()) > 1000


@pytest.mark.parametrize("name", NAMES)
def test_its_numbers_are_those_of_a_real_engine_in_order_of_magnitude(name):
    profile = load_profile(name)
    limit = profile.graph_limit
    assert limit >= 256
    # A decode step of these models takes 3 to 20 ms; drafting one block 5 to 50 % of it.
    step = profile.seconds(1, 1, 1024, draft=False)
    assert 0.003 < step < 0.02
    assert 0.05 < profile.draft_seconds(1) / step < 0.5
    # The weights alone, read once at full bandwidth, bound it from below (a mixture reads a part).
    assert profile.kv_capacity_tokens() > 100_000
    assert profile.gpus == profile.parallel["tensor"]
    tables = profile.tables(2048, 256)
    assert tables.refused_above == NO_LIMIT
    assert (tables.verify > 0).all()
    assert not tables.extrapolated.any()
    assert (np.diff(tables.attention_y) >= 0).all()
    # More than eight times the tokens never cost less, whatever the dips between neighbours.
    for b in range(1, 257):
        assert tables.verify[8 * b] >= 0.999 * tables.verify[b], b


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_no_step_beats_the_roofline_and_none_is_five_times_slower(name):
    profile = load_profile(name)
    bound = roofline_profile(
        name.split("_")[0], profile.model["name"], tensor=profile.gpus, dtype=profile.model["dtype"]
    )
    low, high = OPTIMISM
    ratios = []
    for requests, width, context in ((1, 1, 512), (8, 8, 1024), (32, 8, 2048), (64, 1, 1024), (128, 8, 1024)):
        at = (requests * width, requests, requests * context)
        ratios.append(profile.seconds(*at, draft=False) / bound.seconds(*at, draft=False))
    assert min(ratios) > 1.15
    assert low < np.median(ratios) + 0.1
    assert max(ratios) < high


def test_the_mixture_rises_early_and_the_dense_model_is_flat():
    moe, dense = load_profile("h100-sxm_qwen3-30b-a3b_bf16_tp1"), load_profile("h100-sxm_qwen3-8b_bf16_tp1")
    assert moe.verify(64) > 4 * moe.verify(1)
    assert dense.verify(64) < 1.1 * dense.verify(1)


@pytest.mark.parametrize("name", [n for n in sorted(EXPECTED) if n.endswith("jagged")])
def test_the_jagged_ones_have_real_inversions_and_tile_edges(name):
    profile = load_profile(name)
    step = profile.tables(2048, 1).verify[np.arange(8, 2049, 8)]
    rise = step[1:] / step[:-1]
    assert (rise < 0.995).sum() > 10
    assert rise.max() > 1.08


@pytest.mark.parametrize("name", NAMES)
def test_the_readme_tables_what_the_file_says(name):
    rows = [
        line for line in (FOLDER / "README.md").read_text().splitlines() if line.startswith(f"| `{name}`")
    ]
    assert len(rows) == 1
    profile = load_profile(name)
    cells = [cell.strip() for cell in rows[0].strip("|").split("|")]
    numbers = [[float(v.replace(",", "")) for v in re.findall(r"[\d.,]+", cell)] for cell in cells[3:]]
    verify = [float(profile.verify_seconds(b)) * 1e3 for b in (1, 64, 512)]
    assert numbers[0] == pytest.approx(verify, abs=0.051)
    assert numbers[1] == pytest.approx([profile.draft_seconds(r) * 1e3 for r in (1, 64)], abs=0.051)
    assert numbers[2] == [profile.kv_capacity_tokens(), profile.kv_capacity_tokens(drafting=True)]
    assert 0.8 < numbers[2][1] / numbers[2][0] < 0.9, "the text says 11 to 17 % less"
    errors = [profile.fit[key] * 100 for key in ("median_relative_error", "p90_relative_error")]
    assert numbers[3] == pytest.approx(errors, abs=0.051)


@pytest.mark.parametrize("name", NAMES)
def test_saving_it_again_gives_the_same_bytes(name, tmp_path):
    load_profile(name).save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (FOLDER / f"{name}.json").read_bytes()
    assert json.loads((tmp_path / "again.json").read_text())["schema"] == "specsched/profile/1"
