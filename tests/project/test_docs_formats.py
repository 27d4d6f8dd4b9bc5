"""docs/formats.md cannot rot: every sample in it is read, and every format that can be read is in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import specsched
from specsched import formats
from specsched.formats.benchmarks import read_runs
from specsched.formats.registry import FORMATS
from specsched.profile.speeds import read_sweep
from specsched.workload import load_workload

ROOT = Path(specsched.__file__).parent.parent
TEXT = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
# Halves of a pair: read with the other file, refused alone.
HALVES = {"vllm-draft.csv": "vllm", "speculator.parquet": "inference-lab"}
# A generation of another length is no profile without the first.
LENGTHS = {"vllm-latency-long.json", "one.json", "one-long.json"}


class Sample(NamedTuple):
    """A fenced block: the `format` named in the heading above it, its file name, hints and text."""

    format: str
    name: str
    hints: dict[str, Any]
    text: str


def samples() -> Iterator[Sample]:
    for section in re.split(r"^### ", TEXT, flags=re.MULTILINE)[1:]:
        form = re.match(r"`([\w-]+)`", section)
        for name, hints, text in re.findall(r"^```\w+ (\S+)(.*)\n([^`]*)^```$", section, flags=re.MULTILINE):
            pairs = dict(word.split("=", 1) for word in hints.split())
            values = {key: int(value) if value.isdigit() else value for key, value in pairs.items()}
            yield Sample(form[1] if form else "", name, values, text)


SAMPLES = list(samples())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All samples as files, in the working folder; rows shown for Parquet are written as Parquet."""
    monkeypatch.chdir(tmp_path)
    for sample in SAMPLES:
        if sample.name.endswith(".parquet"):
            rows = [json.loads(line) for line in sample.text.splitlines()]
            pq.write_table(pa.Table.from_pylist(rows), tmp_path / sample.name)
        else:
            (tmp_path / sample.name).write_text(sample.text, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("sample", [s for s in SAMPLES if s.format], ids=lambda sample: sample.name)
def test_samples_are_read_as_the_format_above_them(folder: Path, sample: Sample) -> None:
    if sample.name in HALVES or sample.name in LENGTHS:
        with pytest.raises(specsched.errors.FormatError):
            formats.read(folder / sample.name)
        return
    assert formats.read(folder / sample.name, **sample.hints).format == sample.format


def test_other_samples_are_read(folder: Path) -> None:
    assert {s.name for s in SAMPLES if not s.format} == {"sweep.csv", "runs.csv", "arrivals.csv"}
    assert read_sweep(folder / "sweep.csv").requests.tolist() == [1, 32, 256]
    assert [r.policy for r in read_runs(folder / "runs.csv").runs] == ["off", "fixed:7"]
    assert len(load_workload(folder / "arrivals.csv").arrival_seconds) == 2


def test_the_pairs_are_read_together(folder: Path) -> None:
    assert formats.read("vllm.csv", draft="vllm-draft.csv").object.draft is not None
    assert formats.read("acceptance.parquet").kind == "trace"


def test_every_format_and_every_fence_is_there() -> None:
    assert len(SAMPLES) == TEXT.count("```") // 2, "a fence that no test reads"
    alone = {"vllm-draft", "inference-lab-scores", "specspecs-sequences"}
    assert {s.format for s in SAMPLES if s.format} == {f.name for f in FORMATS} - {"specsched"} - alone
