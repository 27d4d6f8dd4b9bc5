"""What `inspect` says about files, by hand and for what is bundled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trace_cases import made

import specsched
from specsched.calibration import fit_sts
from specsched.calibration.metrics import sigmoid
from specsched.errors import FormatError, TraceError
from specsched.inspection import inspect_file, inspect_object
from specsched.sweep.store import write_rows
from specsched.trace import Trace


def test_inspection_of_a_trace_by_hand() -> None:
    trace = Trace.from_arrays([0, 0, 0, 0], [0, 1, 2, 3], np.linspace(-1, 1, 8).reshape(4, 2), [2, 0, 0, 1])
    held = inspect_object(trace)
    assert held["emitted_per_anchor"] == 1.75
    assert held["emitted_per_step"] == 2.5  # anchors 0 and 3
    assert held["conditional_acceptance"] == [1.0, 0.5]
    assert held["output_tokens"]["max"] == 4
    assert json.dumps(held, allow_nan=False)


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (lambda t: sigmoid(t.confidence_logit), "look like probabilities"),
        (lambda t: -t.confidence_logit, "worse than chance"),
        (lambda t: t.confidence_logit * [1.0, 0.0, 1.0], "constant at position 2"),
        (lambda t: t.confidence_logit + 1.5, "miscalibrated"),
    ],
)
def test_findings_about_confidences(change: Any, finding: str) -> None:
    trace = made(rows=40)
    odd = Trace.from_arrays(trace.request, trace.position, change(trace), trace.accepted)
    assert finding in "\n".join(inspect_object(odd)["lint"])
    assert inspect_object(trace)["lint"] == []


@pytest.mark.parametrize("name", ["h100-sxm_qwen3-8b_bf16_tp1", "chat", "qwen3-4b-math.parquet"])
def test_bundled_files_can_be_inspected(name: str) -> None:
    held = inspect_file(name)
    assert held["name"] == name.removesuffix(".parquet")
    assert bool(held["warnings"]) == (name != "chat")  # nothing to warn of in the recorded one
    assert json.dumps(held, allow_nan=False)


def test_inspection_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("[1, 2]")
    with pytest.raises(FormatError, match="specsched convert"):
        inspect_file(path)
    path.write_text('{"schema": "specsched/acceptance/1", "conditional": [0.5]}')
    with pytest.raises(FormatError, match="trace synth --acceptance"):
        inspect_file(path)
    with pytest.raises(FormatError, match="nothing bundled"):
        inspect_file("nowhere")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("x.txt", "some words of a log\n", "not known to inspect. Seen: text"),
        ("x.yaml", "a: 1\nb:\n  c: 2\n", "not known to inspect. Seen: yaml"),
        ("x", "a,b\n1,2\n", "not known to inspect. Seen: csv"),
        ("x.json", '{"a": 1}\n{"a": 2}\n', "not known to inspect. Seen: jsonl"),
        ("x.json", '{"a": ', "is not JSON: it ends too early"),
        ("x.json", '{"schema": "specsched/profile/1", "bias_seconds": NaN}', "bias_seconds"),
        ("x.json", "", "is empty"),
    ],
)
def test_what_is_no_json_is_named_by_what_it_is(tmp_path: Path, name: str, text: str, said: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(FormatError) as refused:
        inspect_file(path)
    assert said in str(refused.value)
    assert str(path) in str(refused.value)


def test_the_result_of_a_sweep_is_no_trace_of_another_tool(tmp_path: Path) -> None:
    path = tmp_path / "results.parquet"
    write_rows(path, [{"key": "a", "policy": "off", "status": "done", "error": None}])
    with pytest.raises(TraceError, match="is the result of a sweep") as refused:
        inspect_file(path)
    assert "convert" not in str(refused.value)


def test_inspection_of_calibrations(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    fit_sts(made(temperature=2.0)).save(path)
    held = inspect_file(path)
    assert held["kind"] == "calibration"
    assert held["fit_requests"] == held["held_out_requests"] == 50
    assert held["lint"] == []
    shifted = inspect_object(fit_sts(made(shift=1.0)))
    assert any("--method affine" in finding for finding in shifted["lint"])
    assert "no held-out report" in inspect_object(fit_sts(made(rows=20), holdout=0.0))["lint"][0]


def test_what_is_printed_of_an_object_is_a_line() -> None:
    trace = specsched.synthesise([0.8, 0.7], requests=40, seed=1)
    profile = specsched.load_profile("h100-sxm_qwen3-8b_bf16_tp1")
    result = specsched.simulate(trace, profile, "fixed:2", concurrency=4, requests=40)
    for held in (trace, profile, specsched.fit_sts(trace), result):
        assert len(repr(held)) < 120
        assert "\n" not in repr(held)
    frame = result.to_frame()
    assert len(frame) == 1
    assert frame["throughput [tokens/s]"][0] == result.summary["throughput"]
    assert frame["TPOT p95 [ms]"][0] == pytest.approx(1000.0 / frame["speed of a user p05 [tokens/s]"][0])
    assert "<table" in result._repr_html_()
