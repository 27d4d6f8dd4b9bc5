"""Tables written for other engines: what the engine would read from them is what our profile says."""

from __future__ import annotations

import bisect
import csv
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_profile_formats import linear, vllm_owner

from specsched import formats
from specsched.errors import FormatError
from specsched.formats.vllm.costs import write_cost
from specsched.profile import StepProfile

DATA = Path(__file__).parent / "data"


def a_profile(capture=True, **changes):
    document = {
        "schema": "specsched/profile/1",
        "name": "p",
        "bias_seconds": 0.0005,
        "verify": {
            "tokens": [1, 8, 16, 32, 64],
            "seconds": [0.005, 0.0052, 0.0051, 0.006, 0.009],
            "lookup": "linear",
            "beyond": "slope",
        },
        "attention": {"kv_tokens": [0, 65536], "seconds": [0.0, 0.004]},
        "overhead": {"requests": [1, 16], "seconds": [0.0001, 0.001]},
        "draft": {"requests": [1, 16], "seconds": [0.0009, 0.002], "block_size": 3, "drafter": "d"},
        "scheduler": {"minimum_gain": 0.02, "enabling_fraction": 0.0},
    }
    if capture:
        document["capture"] = {"sizes": [1, 8, 16, 32], "limit": 32}
        document["eager"] = {"tokens": [33, 64], "seconds": [0.02, 0.026]}
    return StepProfile.from_dict({**document, **changes})


def sglang_owner(raw, r, b):
    return (
        raw["bias_seconds"]
        + linear(raw["bs_probes"], raw["alpha_seconds"], r)
        + linear(raw["m_probes"], raw["theta_seconds"], b)
    )


@pytest.mark.parametrize("capture", [False, True])
def test_sglang_reads_back_every_step_of_the_additive_table(tmp_path, capture):
    profile = a_profile(capture)
    path = tmp_path / "out.json"
    notes = formats.write(profile, path, "sglang", context=512, max_requests=16)
    raw = json.loads(path.read_text())
    assert raw["bias_seconds"] > 0
    for r in range(1, 17):
        for b in range(r, 65):
            want = profile.seconds(b, r, r * 512)
            assert sglang_owner(raw, r, b) == pytest.approx(want, rel=1e-9), (r, b)
    assert any("512 tokens of context" in note for note in notes)
    assert any("drafting" in note for note in notes)


def test_a_bias_of_zero_is_lent_because_sglang_refuses_it(tmp_path):
    profile = a_profile(bias_seconds=0.0)
    formats.write(profile, tmp_path / "o.json", "sglang", context=512, max_requests=16)
    raw = json.loads((tmp_path / "o.json").read_text())
    assert raw["bias_seconds"] > 0
    assert min(raw["theta_seconds"]) > 0
    assert sglang_owner(raw, 4, 16) == pytest.approx(profile.seconds(16, 4, 4 * 512), rel=1e-9)


def test_sglang_one_dimensional_table_is_exact_by_floor_at_its_requests(tmp_path):
    profile = a_profile()
    path = tmp_path / "one.json"
    with pytest.raises(FormatError, match="give requests"):
        formats.write(profile, path, "sglang-1d")
    formats.write(profile, path, "sglang-1d", requests=8, context=100)
    raw = json.loads(path.read_text())
    assert raw["max_batch_tokens"] == 8 * 4
    assert raw["max_batch_tokens"] >= raw["sample_batch_tokens"][-1]
    for b in range(8, 33):
        speed = raw["sample_steps_per_sec"][bisect.bisect_right(raw["sample_batch_tokens"], b) - 1]
        assert 1 / speed == pytest.approx(profile.seconds(b, 8, 800), rel=1e-12)


def test_sglangs_own_table_is_written_back_as_it_was_read(tmp_path):
    profile = formats.read(DATA / "sglang_1d.json").object
    formats.write(profile, tmp_path / "back.json", "sglang-1d")
    raw, back = (json.loads(p.read_text()) for p in (DATA / "sglang_1d.json", tmp_path / "back.json"))
    assert back["sample_batch_tokens"] == raw["sample_batch_tokens"]
    assert back["sample_steps_per_sec"] == pytest.approx(raw["sample_steps_per_sec"], rel=1e-12)


def test_trtllm_reads_back_every_step_and_the_minimum_gain(tmp_path):
    profile = a_profile()
    path = tmp_path / "trt.json"
    formats.write(profile, path, "trtllm", context=512, max_requests=16)
    raw = json.loads(path.read_text())
    assert raw["minimum_predicted_gain"] == 0.02
    for r in (1, 5, 16):
        for b in range(r, 65):
            owner = (
                raw["fixed_overhead_ms"]
                + linear(raw["batch_sizes"], raw["batch_overhead_ms"], r)
                + linear(raw["token_counts"], raw["step_time_ms"], b)
            )
            assert owner / 1e3 == pytest.approx(profile.seconds(b, r, r * 512), rel=1e-9)
    again = formats.read(path).object
    assert again.minimum_gain == 0.02
    assert again.seconds(40, 5, 0) == pytest.approx(profile.seconds(40, 5, 5 * 512), rel=1e-9)


def test_trtllm_refuses_a_flat_table_before_the_engine_does(tmp_path):
    flat = a_profile(False, verify={"tokens": [1, 64], "seconds": [0.005, 0.005]})
    with pytest.raises(FormatError, match="flat"):
        formats.write(flat, tmp_path / "flat.json", "trtllm", max_requests=8)


def test_vllm_csv_pair_reads_back_at_the_stated_requests(tmp_path):
    profile = a_profile()
    path = tmp_path / "cost.csv"
    notes = formats.write(profile, path, "vllm", requests=4, context=100)
    assert any("cost_draft.csv" in note for note in notes)
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    rows = [(int(r["batch_tokens"]), float(r["median_ms"])) for r in csv.DictReader(lines)]
    sizes, ms = [list(column) for column in zip(*rows, strict=True)]
    for b in range(4, 65):
        want = profile.seconds(b, 4, 400, draft=False) * 1e3
        assert vllm_owner(b, 32, sizes, ms) == pytest.approx(want, rel=1e-9), b
    again = formats.read(path, draft=tmp_path / "cost_draft.csv").object
    assert again.graph_limit == 32
    assert again.seconds(16, 16, 0) == pytest.approx(
        profile.seconds(16, 4, 400, draft=False) + 0.002, rel=1e-9
    )


@pytest.mark.parametrize("name", ["sglang_additive.json", "trtllm_step_table.json"])
def test_a_foreign_table_survives_the_round_trip_unchanged(tmp_path, name):
    raw = json.loads((DATA / name).read_text())
    to = name.split("_")[0]
    axis = "m_probes" if to == "sglang" else "token_counts"
    requests = "bs_probes" if to == "sglang" else "batch_sizes"
    profile = formats.read(DATA / name).object
    formats.write(profile, tmp_path / name, to, max_requests=raw[requests][-1], max_tokens=raw[axis][-1])
    again = json.loads((tmp_path / name).read_text())
    assert again.keys() == raw.keys()
    for key, value in raw.items():
        assert again[key] == pytest.approx(value, rel=1e-9), key


sizes_and_costs = st.lists(
    st.tuples(st.integers(1, 96), st.floats(1e-3, 5e-2)), min_size=2, max_size=8, unique_by=lambda p: p[0]
).map(sorted)


@given(
    points=sizes_and_costs,
    lookup=st.sampled_from(["linear", "floor", "ceil"]),
    beyond=st.sampled_from(["slope", "clamp"]),
)
def test_any_curve_is_written_exactly_for_a_linear_reader(tmp_path_factory, points, lookup, beyond):
    tokens, seconds = [list(c) for c in zip(*points, strict=True)]
    verify = {"tokens": tokens, "seconds": seconds, "lookup": lookup, "beyond": beyond}
    profile = StepProfile.from_dict(
        {"schema": "specsched/profile/1", "name": "x", "bias_seconds": 0.001, "verify": verify}
    )
    path = tmp_path_factory.mktemp("w") / "t.json"
    formats.write(profile, path, "sglang", max_requests=4, max_tokens=120)
    raw = json.loads(path.read_text())
    got = [sglang_owner(raw, 1, b) for b in range(1, 121)]
    want = [profile.seconds(b, 1, 0) for b in range(1, 121)]
    np.testing.assert_allclose(got, want, rtol=1e-9)


def test_a_profile_without_eager_curve_ends_at_its_limit_and_says_so(tmp_path):
    profile = a_profile(eager=None)
    notes = formats.write(profile, tmp_path / "o.json", "sglang", context=0, max_requests=16)
    assert any("capture limit 32" in note for note in notes)
    assert json.loads((tmp_path / "o.json").read_text())["m_probes"][-1] <= 32


def test_writing_what_cannot_be_written_names_what_can(tmp_path):
    with pytest.raises(FormatError, match="sglang-1d, trtllm, vllm"):
        formats.write(a_profile(), tmp_path / "x", "onnx")
    acceptance = formats.read(DATA / "modelopt_profile.json").object
    with pytest.raises(FormatError, match="can be written as specsched"):
        formats.write(acceptance, tmp_path / "x", "sglang")
    formats.write(acceptance, tmp_path / "a.json", "specsched")
    assert formats.read(tmp_path / "a.json").object.survival.tolist() == acceptance.survival.tolist()


@pytest.mark.parametrize("name", ["a\nbatch_tokens,median_ms\n1,0", "=1+1", "@x\r\n-2", "+\x1b[31m"])
def test_a_name_adds_no_line_and_no_cell_to_a_csv(tmp_path: Path, name: str) -> None:
    path = tmp_path / "cost.csv"
    write_cost(path, "batch_tokens", np.array([1, 2]), np.array([0.001, 0.002]), [f"{name}: verify cost"])
    lines = path.read_text().split("\n")
    assert lines[0].startswith("# ")
    assert lines[0].isprintable()
    assert lines[1:] == ["batch_tokens,median_ms", "1,1.0", "2,2.0", ""]
