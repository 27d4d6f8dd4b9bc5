"""Calibration files of SGLang and TensorRT-LLM: c = σ(logit / T)."""

from __future__ import annotations

import json
from pathlib import Path

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
