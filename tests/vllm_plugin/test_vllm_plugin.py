"""The plugin against a stand-in with vLLM's signatures: what is read back is what the stand-in did."""

from __future__ import annotations

import importlib.metadata
import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import vllm_stand_in

from specsched import formats, vllm_plugin
from specsched.errors import FormatError
from specsched.vllm_plugin import recorder


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """vLLM 0.33.0 "installed", recording asked for; the folder."""
    monkeypatch.setattr(vllm_plugin, "_registered", False)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.33.0+cu129")
    folder = tmp_path / "recorded"
    monkeypatch.setenv("SPECSCHED_RECORD", str(folder))
    with vllm_stand_in.installed():
        yield folder


def finish() -> None:
    """What the end of the process does: every recorder writes what waits."""
    for thread in [t for t in __import__("threading").enumerate() if t.name == "specsched-recorder"]:
        thread._target.__self__.close()  # type: ignore[attr-defined]


def found(folder: Path, end: str) -> Path:
    (path,) = folder.glob(f"vllm-*-{end}")
    return path


def test_steps_become_the_trace_of_what_the_engine_did(vllm: Path) -> None:
    vllm_plugin.register()
    vllm_plugin.register()  # vLLM calls it in every process, some twice
    truth = vllm_stand_in.run(40)
    finish()
    read = formats.read(found(vllm, "steps.jsonl"))
    assert (read.kind, read.format) == ("trace", "vllm-steps")
    trace = read.object
    names = list(dict.fromkeys(row["id"] for row in truth))
    expected = [row for name in names for row in truth if row["id"] == name]
    assert len(truth) > 60
    assert trace.accepted.tolist() == [row["accepted"] for row in expected]
    assert trace.request.tolist() == [names.index(row["id"]) for row in expected]
    assert trace.prompt_tokens.tolist() == [row["prompt"] for row in expected]
    for logit, row in zip(trace.confidence_logit, expected, strict=True):
        kept = row["drafted"]
        assert 1 / (1 + np.exp(-logit[:kept])) == pytest.approx(row["confidence"][:kept], abs=2e-6)
        assert np.all(logit[kept:] == -30)
    cut = sum(row["accepted"] == row["verified"] < row["drafted"] for row in truth)
    assert trace.metadata["censored_rows"] == cut > 0
    assert f"in {cut} of {len(truth)} rows" in read.notes[0]
    assert (trace.metadata["target"], trace.metadata["drafter"]) == ("org/target", "org/drafter")


def test_curves_read_back_as_the_engines_own(vllm: Path) -> None:
    vllm_plugin.register()
    vllm_stand_in.run(1)
    finish()
    profile = formats.read(found(vllm, "verify.csv"), draft=found(vllm, "draft.csv")).object
    assert (profile.graph_limit, profile.draft_block_size) == (8, vllm_stand_in.GAMMA)
    # The rule of its owner: the next captured size, and straight above the limit.
    for tokens, ms in ((1, 5.0), (3, 5.2), (8, 6.5), (16, 31.25)):
        assert profile.verify_seconds(tokens) == pytest.approx(ms / 1e3)
    assert [profile.draft_seconds(r) * 1e3 for r in (1, 2, 4)] == pytest.approx([0.9, 1.3, 1.3])


@pytest.mark.parametrize("version", ["0.31.0", "0.33.1", "0.34.0.dev12"])
def test_another_version_is_said_once_and_left_alone(
    vllm: Path, version: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    finders = list(sys.meta_path)
    vllm_plugin.register()
    assert sys.meta_path == finders
    assert vllm_stand_in.run(3)
    assert [record.getMessage() for record in caplog.records] == [
        f"specsched: nothing is recorded: vLLM is {version}, its private names were read in 0.32.0 and 0.33.0"
    ]
    assert not vllm.exists()


def test_installed_alone_does_nothing(vllm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPECSCHED_RECORD")
    finders = list(sys.meta_path)
    vllm_plugin.register()
    assert sys.meta_path == finders
    assert vllm_stand_in.run(3)


def test_a_missing_name_leaves_every_method_alone(vllm: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = vllm_stand_in.SOURCE_RUNNER.replace("set_cost_curves", "set_curves")
    with vllm_stand_in.installed(source=source):
        vllm_plugin.register()
        import importlib

        runner = importlib.import_module(vllm_stand_in.RUNNER)
        assert not hasattr(runner.GPUModelRunner.sample_tokens, "__wrapped__")
    assert "has no AdaptiveVerificationManager.set_cost_curves" in caplog.text


def test_other_ranks_write_nothing(vllm: Path) -> None:
    with vllm_stand_in.installed(rank=1):
        vllm_plugin.register()
        assert vllm_stand_in.run(5)
    assert not vllm.exists()


def test_without_adaptive_verification_it_says_so(vllm: Path, caplog: pytest.LogCaptureFixture) -> None:
    vllm_plugin.register()
    import importlib

    module = importlib.import_module(vllm_stand_in.RUNNER)
    assert module.GPUModelRunner(None, None).capture_model() == 17
    assert "adaptive verification is off" in caplog.text


def test_a_folder_that_cannot_be_written_leaves_the_engine_alone(
    vllm: Path, caplog: pytest.LogCaptureFixture
) -> None:
    vllm.write_text("a file, no folder")
    vllm_plugin.register()
    assert vllm_stand_in.run(5)
    lines = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(lines) == 1
    assert "recording stopped" in lines[0]


@pytest.mark.parametrize("where", ["_write", "put", "line"])
def test_an_error_anywhere_ends_the_recording_and_nothing_else(
    vllm: Path, where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls = 0

    def fail(*_: Any) -> Any:
        nonlocal calls
        calls += 1
        if where == "_write" and calls == 1:
            return  # the line of the engine
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(recorder.Step if where == "line" else recorder.Recorder, where, fail)
    vllm_plugin.register()
    assert vllm_stand_in.run(20)
    finish()
    lines = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert lines == ["specsched: recording stopped: OSError(28, 'No space left on device')"]


def test_an_error_of_the_engine_stays_its_own(vllm: Path) -> None:
    vllm_plugin.register()
    import importlib

    module = importlib.import_module(vllm_stand_in.RUNNER)
    runner = module.GPUModelRunner(module.AdaptiveVerificationManager(8, 3), ([(1, 1.0)], [(1, 5.0)]))
    runner.capture_model()
    with pytest.raises(AttributeError, match="input_batch"):
        runner.sample_tokens(None)
    finish()


def test_the_file_of_steps_is_bounded(vllm: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setattr(vllm_plugin, "_limit", lambda: 4000)
    vllm_plugin.register()
    vllm_stand_in.run(300)
    finish()
    path = found(vllm, "steps.jsonl")
    assert 4000 <= path.stat().st_size < 4000 + 64 * 400  # whole writes of 64 steps
    assert formats.read(path).object.accepted.size
    assert len(re.findall("recording ends there", caplog.text)) == 1


def test_a_disk_that_does_not_keep_up_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "_MOST_WAITING", 2)
    about = {"block_size": 2}
    made = recorder.Recorder(str(tmp_path), "x", 10**6, about, lambda why: pytest.fail(why))
    one = np.ones(1, np.int32)
    for _ in range(5):
        made.put(recorder.Step(["r"], 3, one, 2 * one, np.full((1, 2), 0.5, np.float32), 2 * one, 0 * one))
    made.close()
    read = formats.read(made.path)
    assert read.object.accepted.tolist() == [1, 1]
    assert "3 steps were not recorded: the disk did not keep up." in read.notes


def test_loading_it_imports_nothing_heavy() -> None:
    code = "import sys, specsched.vllm_plugin as p; p.register(); print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"torch", "vllm", "numba", "numpy", "pandas"} & {name.split(".")[0] for name in out.split()}


def test_the_entry_point_is_named_in_pyproject() -> None:
    import tomllib

    root = Path(__file__).parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    (value,) = project["entry-points"]["vllm.general_plugins"].values()
    module, _, name = value.partition(":")
    assert getattr(sys.modules[module], name) is vllm_plugin.register


GOOD = {
    "ids": ["a"],
    "prompt": [5],
    "drafted": [2],
    "verified": [2],
    "accepted": [1],
    "confidence_millionths": [[900000, 500000]],
}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"accepted": [3]}, "row 2: request 'a': accepted: 3 is out of range"),
        ({"verified": [3]}, "verified: 3 is out of range"),
        ({"confidence_millionths": [[900000]]}, "confidence_millionths must be a list of 2 numbers"),
        ({"confidence_millionths": [[900000, 1500000]]}, "out of range"),
        ({"prompt": []}, "lists of one length"),
        ({"ids": [7]}, "id must be a text"),
        ({"specsched_vllm": "engine"}, "two files in one"),
    ],
)
def test_lines_that_cannot_be_are_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    path = tmp_path / "steps.jsonl"
    lines = [{"specsched_vllm": "engine", "block_size": 2}, {"specsched_vllm": "step", **GOOD, **change}]
    path.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(FormatError, match=re.escape(said)):
        formats.read(path)
