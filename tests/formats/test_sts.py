"""Calibration files of SGLang and TensorRT-LLM: c = σ(logit / T)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specsched import formats
from specsched.calibration import Calibration, load_calibration
from specsched.errors import FormatError

DATA = Path(__file__).parent / "data"


@pytest.mark.parametrize(
    ("name", "key"), [("sglang_sts.json", "temperatures"), ("trtllm_sts.json", "sts_temperatures")]
)
def test_temperatures_divide_the_logit(name, key):
    found = formats.read(DATA / name)
    assert found.kind == "calibration"
    temperatures = np.array(json.loads((DATA / name).read_text())[key])
    logits = np.array([[2.0, -1.0, 0.5], [-3.0, 0.0, 8.0]])
    np.testing.assert_allclose(found.object.apply(logits), 1 / (1 + np.exp(-logits / temperatures)))


@pytest.mark.parametrize("to", ["sglang", "trtllm"])
def test_written_files_hold_what_their_loaders_ask_for(tmp_path, to):
    calibration = formats.read(DATA / "sglang_sts.json").object
    formats.write(calibration, tmp_path / "c.json", to)
    raw = json.loads((tmp_path / "c.json").read_text())
    assert raw["temperatures"] == [1.3, 1.1, 0.9]
    assert raw.get("sts_temperatures", raw["temperatures"]) == raw["temperatures"]
    assert ("sts_temperatures" in raw) == (to == "trtllm")
    assert raw["dataset"] == "alpaca"
    assert raw["ece_after"] == [0.02, 0.017, 0.01]
    again = formats.read(tmp_path / "c.json").object
    assert again.temperatures.tolist() == [1.3, 1.1, 0.9]


def test_our_own_calibration_is_not_taken_for_theirs(tmp_path):
    calibration = Calibration(np.array([1.5, 0.5]), np.array([0.1, 0.0]), "affine")
    calibration.save(tmp_path / "ours.json")
    found = formats.read(tmp_path / "ours.json")
    assert found.format == "specsched"
    assert found.object.shifts.tolist() == load_calibration(tmp_path / "ours.json").shifts.tolist()


def test_shifts_have_no_place_in_their_files(tmp_path):
    calibration = Calibration(np.array([1.5, 0.5]), np.array([0.1, 0.0]), "affine")
    with pytest.raises(FormatError, match="fit with method sts"):
        formats.write(calibration, tmp_path / "c.json", "sglang")


@pytest.mark.parametrize(
    ("document", "match"),
    [
        ({"temperatures": []}, "at least 1 needed"),
        ({"temperatures": [1.0, 0.0]}, "row 2: 0.0 is not a finite number above 0"),
        ({"temperatures": [1.0], "sts_temperatures": [1.2]}, "differ"),
        ({"temperatures": [1.0], "num_samples": 0, "dataset": "x"}, "fitted on 0 samples"),
    ],
)
def test_bad_temperatures_are_refused(tmp_path, document, match):
    path = tmp_path / "c.json"
    path.write_text(json.dumps(document))
    with pytest.raises(FormatError, match=match):
        formats.read(path)


ATOM: dict[str, Any] = {
    "version": 1,
    "identity": {"gpu_name": "AMD Instinct MI355X", "tensor_parallel_size": 8},
    "draft_width": 3,
    "max_num_seqs": 4,
    "sts_temperatures": [1.5, 1.2, 1.1],
    "sps_table": [200.0, 200.0, 190.0, *(200.0 - 5.0 * b for b in range(3, 17))],
}


def test_atoms_profile_gives_its_steps_and_its_temperatures(tmp_path):
    path = tmp_path / "atom.json"
    path.write_text(json.dumps(ATOM))
    steps = formats.read(path)
    assert (steps.kind, steps.format) == ("profile", "atom")
    assert [steps.object.seconds(b, 1, 0) for b in (1, 2, 16, 99)] == pytest.approx(
        [1 / 200, 1 / 190, 1 / 120, 1 / 120]
    )
    assert steps.object.gpus == 8
    assert "temperatures" in " ".join(steps.notes)
    scaled = formats.read(path, take="temperatures")
    assert (scaled.kind, scaled.object.temperatures.tolist()) == ("calibration", [1.5, 1.2, 1.1])


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"sps_table": ATOM["sps_table"][:-1]}, "16 entries, .* need 17; truncated"),
        ({"sps_table": [200.0] * 200_000}, "200,000 entries; no pass has more than 131,072 tokens"),
        ({"sps_table": [0.2, *ATOM["sps_table"]]}, "rises from 0.2"),
        ({"sps_table": [x * 1000 for x in ATOM["sps_table"]]}, "no decode step is that short"),
        ({"sts_temperatures": [1.0]}, "1 temperatures for a draft_width of 3"),
        ({"version": 2}, "knows 1"),
    ],
)
def test_damaged_profiles_of_atom_are_refused(tmp_path, change, match):
    path = tmp_path / "atom.json"
    path.write_text(json.dumps({**ATOM, **change}))
    with pytest.raises(FormatError, match=match):
        formats.read(path)


def test_tables_beside_temperatures_are_not_dropped_in_silence(tmp_path):
    path = tmp_path / "profile.json"
    path.write_text(json.dumps({"temperatures": [1.0, 1.1], "steps_by_tokens": [9.0, 8.0], "dataset": "x"}))
    found = formats.read(path)
    assert found.kind == "calibration"
    assert "steps_by_tokens" in " ".join(found.notes)
