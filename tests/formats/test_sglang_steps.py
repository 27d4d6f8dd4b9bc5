"""The times in SGLang's debug dump become a profile: a planted cost comes back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specsched import formats
from specsched.errors import FormatError
from specsched.profile import StepProfile


def record(requests: int, tokens: int, number: int = 0) -> dict[str, Any]:
    verify, draft, rest = 5.0 + 0.01 * tokens, 0.5 + 0.02 * requests, 0.1 * requests
    return {
        "forward_ct": number,
        "bs": requests,
        "num_verify_tokens": tokens,
        "step_gpu_ms": verify + draft + rest,
        "draft_gpu_ms": draft,
        "target_verify_gpu_ms": verify,
        "reqs": [{"rid": str(r), "prefix_len": 100} for r in range(requests)],
    }


def written(folder: Path, steps: list[dict[str, Any]]) -> Path:
    path = folder / "dump.json"
    dump = {"mode": "compact", "gamma": 7, "records": steps}
    path.write_text(json.dumps({"internal_states": [{"dspark_info_record": dump}]}))
    return path


def test_a_planted_cost_is_read_from_a_dump(tmp_path: Path) -> None:
    steps = [record(r, r * w, 8 * r + w) for r in (1, 2, 4, 8, 16) for w in (1, 2, 4, 8)]
    found = formats.read(written(tmp_path, [*steps, {"forward_ct": 999, "bs": 1}]), take="steps")
    assert (found.kind, found.format) == ("profile", "sglang-dump")
    made = found.object
    assert isinstance(made, StepProfile)
    assert made.draft_block_size == 7
    for r, w in ((1, 8), (4, 2), (16, 8)):
        expected = record(r, r * w)["step_gpu_ms"] / 1e3
        assert made.seconds(r * w, r, 0) == pytest.approx(expected, rel=0.01)
        assert made.draft_seconds(r) == pytest.approx(5e-4 + 2e-5 * r)
    assert "20 steps with times, 1 without; the mean context was 100 tokens" in found.notes[0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"draft_gpu_ms": 99.0}, "contradicts itself"),
        ({"bs": 0}, "bs"),
        ({"step_gpu_ms": "fast"}, "step_gpu_ms"),
        ({"num_verify_tokens": None}, "num_verify_tokens"),
    ],
)
def test_steps_that_cannot_be_are_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(FormatError, match=said):
        formats.read(written(tmp_path, [record(2, 4), record(2, 8) | change]), take="steps")


def test_a_dump_without_times_and_another_wish_say_what_to_do(tmp_path: Path) -> None:
    path = written(tmp_path, [{"forward_ct": 1, "bs": 1}])
    with pytest.raises(FormatError, match="SGLANG_DSPARK_DEBUG_DUMP=all"):
        formats.read(path, take="steps")
    with pytest.raises(FormatError, match="take=trace and take=steps"):
        formats.read(path, take="all")
