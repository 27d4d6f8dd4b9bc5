"""Profile files: what is refused, what is remarked on, what is bundled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from profile_cases import SMALL, profiles, small

from specsched.errors import ProfileError
from specsched.profile import StepProfile, load_profile
from specsched.profile.lint import cliffs, knee, lint
from specsched.profile.tables import NO_LIMIT

# -- reading and writing ---------------------------------------------------------------------------------


@given(profiles())
def test_a_saved_profile_is_the_same_profile(d: dict[str, Any]) -> None:
    profile = StepProfile.from_dict(d)
    again = StepProfile.from_dict(json.loads(json.dumps(profile.to_dict())))
    assert again.to_dict() == profile.to_dict()
    tables, others = profile.tables(500, 30), again.tables(500, 30)
    for a, b in zip(tables, others, strict=True):
        assert np.array_equal(np.asarray(a, float), np.asarray(b, float), equal_nan=True)


def test_save_and_load(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    StepProfile.from_dict(small()).save(path)
    assert load_profile(path).to_dict() == StepProfile.from_dict(small()).to_dict()
    assert [p.name for p in tmp_path.iterdir()] == ["p.json"]
    assert '"tokens": [1, 8, 64]' in path.read_text()


V = SMALL["verify"]
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("no schema", small(schema=None), "schema is None"),
    ("another schema", small(schema="specsched.profile.draft0"), "specsched/profile/1"),
    ("no name", small(name=None), "name is missing"),
    ("empty name", small(name=" "), "name is"),
    ("name is a number", small(name=7), "name is a number"),
    ("no verify", small(verify=None), "verify is missing"),
    ("verify is a list", small(verify=[1, 2]), "verify is a list"),
    ("no tokens", small(verify={"seconds": [0.1]}), "verify.tokens is missing"),
    ("empty tokens", small(verify={"tokens": [], "seconds": []}), "verify.tokens is empty"),
    ("tokens is a number", small(verify=V | {"tokens": 3}), "verify.tokens is a number"),
    ("unsorted", small(verify=V | {"tokens": [1, 64, 8]}), r"verify.tokens\[2\] is 8, below"),
    ("duplicate", small(verify=V | {"tokens": [1, 8, 8]}), r"verify.tokens\[2\] is 8, a duplicate"),
    ("zero tokens", small(verify=V | {"tokens": [0, 8, 64]}), r"verify.tokens\[0\] is 0"),
    ("half a token", small(verify=V | {"tokens": [1, 8.5, 64]}), "whole number"),
    ("lengths differ", small(verify=V | {"seconds": [0.1, 0.2]}), "2 entries and tokens has 3"),
    ("NaN", small(verify=V | {"seconds": [0.1, float("nan"), 0.2]}), r"verify.seconds\[1\] is nan"),
    ("infinite", small(verify=V | {"seconds": [0.1, float("inf"), 0.2]}), r"seconds\[1\] is inf"),
    ("huge integer", small(verify=V | {"seconds": [0.1, 10**400, 0.2]}), "finite"),
    ("negative", small(verify=V | {"seconds": [0.1, -0.2, 0.2]}), r"seconds\[1\] is -0.2"),
    ("a text among numbers", small(verify=V | {"seconds": [0.1, "0.2", 0.2]}), r"seconds\[1\] is a text"),
    ("true among numbers", small(verify=V | {"seconds": [0.1, True, 0.2]}), "true/false"),
    ("null among numbers", small(verify=V | {"seconds": [0.1, None, 0.2]}), "is null"),
    ("unknown lookup", small(verify=V | {"lookup": "nearest"}), "linear, floor, ceil"),
    ("unknown beyond", small(verify=V | {"beyond": "wrap"}), "slope, clamp"),
    ("misspelt block", small(captures={"sizes": [1]}), "did you mean 'capture'"),
    ("misspelt key", small(verify=V | {"look_up": "floor"}), "did you mean 'lookup'"),
    ("capture unsorted", small(capture={"sizes": [4, 2]}), r"capture.sizes\[1\]"),
    ("limit below all", small(capture={"sizes": [4, 8], "limit": 2}), "below the smallest captured size"),
    ("limit is a text", small(capture={"sizes": [4, 8], "limit": "8"}), "capture.limit is a text"),
    ("negative bias", small(bias_seconds=-0.1), "bias_seconds is -0.1"),
    ("bias is a text", small(bias_seconds="1 ms"), "bias_seconds is a text"),
    ("draft lengths", small(draft={"requests": [1, 2], "seconds": [0.1]}), "draft.seconds has 1"),
    ("draft block size", small(draft=SMALL["draft"] | {"block_size": 0}), "draft.block_size is 0"),
    ("enabling all", small(scheduler={"enabling_fraction": 1.0}), "below 1"),
    ("scheduler key", small(scheduler={"min_gain": 0.1}), "did you mean 'minimum_gain'"),
    ("memory is a text", small(gpu={"memory_bytes": "80 GB"}), "gpu.memory_bytes is a text"),
    ("no GPUs", small(gpu={"count": 0}), "gpu.count is 0"),
    ("unknown method", small(provenance={"method": "guessed"}), "measured, composed"),
    ("samples is an object", small(samples={"a": 1}), "samples"),
    ("free steps", small(verify=V | {"seconds": [0.0, 1, 2]}, bias_seconds=0.0, overhead=None), "no time"),
]  # fmt: skip


@pytest.mark.parametrize(("document", "message"), [pytest.param(d, m, id=i) for i, d, m in REFUSED])
def test_refused_with_the_key_and_the_file(document: dict[str, Any], message: str) -> None:
    with pytest.raises(ProfileError, match=message) as caught:
        StepProfile.from_dict(document, "some/file.json")
    assert str(caught.value).startswith("some/file.json: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("document", [None, 3, "text", [1, 2]])
def test_a_document_that_is_no_object_is_refused(document: Any) -> None:
    with pytest.raises(ProfileError, match="expected a JSON object"):
        StepProfile.from_dict(document)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (json.dumps(SMALL)[:200], "truncated"),
        ("", "is empty"),
        ("B,ms\n1,2\n", "not JSON"),
        (json.dumps(SMALL).replace("0.006", "NaN"), r"verify.seconds\[1\] is nan"),
    ],
)
def test_broken_files_are_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(content)
    with pytest.raises(ProfileError, match=message) as caught:
        load_profile(path)
    assert str(path) in str(caught.value)


def test_unknown_names_suggest_bundled_ones() -> None:
    with pytest.raises(ProfileError, match="did you mean 'h100-sxm_qwen3-8b_bf16_tp1'"):
        load_profile("h100-sxm_qwen3-8b_bf16")


@pytest.mark.parametrize("kind", ["tokens", "requests", "context_tokens"])
def test_questions_out_of_range_are_refused(kind: str) -> None:
    asked = {"tokens": 1, "requests": 1, "context_tokens": 0} | {kind: -1}
    with pytest.raises(ProfileError, match=f"{kind} is -1"):
        StepProfile.from_dict(small()).seconds(**asked)


# -- lint ------------------------------------------------------------------------------------------------


NO_GRAPHS: dict[str, Any] = {"capture": None, "eager": None}


def findings(**changes: Any) -> str:
    return "\n".join(lint(StepProfile.from_dict(small(**changes))))


def test_a_complete_measured_profile_has_no_findings() -> None:
    tokens = [1, 2, 4, 8, 16]
    verify = {"tokens": tokens, "seconds": [0.005, 0.0051, 0.0053, 0.006, 0.008]}
    assert findings(verify=verify) == ""


def test_a_drafter_of_unknown_memory_is_called_out() -> None:
    curve = {k: v for k, v in SMALL["draft"].items() if k not in ("weight_bytes", "kv_bytes_per_token")}
    said = "the memory of the drafter is unknown and not counted"
    assert said in findings(draft=curve)
    assert said in findings(draft=curve | {"weight_bytes": 5})
    assert said not in findings(draft=curve, gpu=None), "memory bounds nothing then"
    assert said not in findings(draft=None)


def test_milliseconds_given_as_seconds_are_called_out() -> None:
    ms = {
        key: SMALL[key] | {"seconds": [1e3 * s for s in SMALL[key]["seconds"]]} for key in ("verify", "eager")
    }
    assert "1000 times too slow" in findings(**ms)
    mixed = findings(verify=V | {"seconds": [0.005, 6.0, 0.02]})
    assert "verify.seconds[1]: 6 s at 8 tokens after 0.005 s" in mixed
    assert "1200 times" in mixed
    assert "draft.seconds starts at" in findings(draft=SMALL["draft"] | {"seconds": [3.0, 4.0]})
    assert "bias_seconds is 8 s" in findings(bias_seconds=8.0)


@pytest.mark.parametrize(
    ("changes", "finding"),
    [
        (NO_GRAPHS | {"verify": {"tokens": [1, 300], "seconds": [0.01, 0.01]}}, "verify is flat"),
        (NO_GRAPHS | {"verify": {"tokens": [4], "seconds": [0.01]}}, "verify has 1 point"),
        (NO_GRAPHS, "verify is short: it ends at 64 tokens and 32 requests"),
        ({"verify": V | {"seconds": [0.02, 0.006, 0.02]}}, "falls 1 of 2 times, most from 1 to 8"),
        ({"capture": None}, "eager is never read"),
        ({"eager": None}, "passes above 16 tokens have no cost"),
        ({"eager": {"tokens": [17, 256], "seconds": [0.001, 0.1]}}, "leaving the graph at 16 tokens costs"),
        ({"capture": {"sizes": [1, 8, 16], "limit": 12}}, "capture.limit is 12, no captured size"),
        ({"capture": {"sizes": [1, 7, 8], "limit": 8}}, "1 of 3 sizes are not points of verify (first 7)"),
        ({"draft": None}, "draft is absent"),
        ({"overhead": None}, "overhead is absent"),
        ({"sync_seconds": 0.0}, "sync_seconds is 0"),
        ({"attention": None}, "attention is absent"),
        ({"gpu": {"count": 1}}, "gpu.memory_bytes absent"),
        ({"gpu": {"count": 1, "memory_bytes": 100}}, "no KV fits"),
        ({"provenance": {"method": "roofline", "licence": "x"}}, "roofline"),
        ({"provenance": None}, "states no provenance"),
        ({"fit": {"p90_relative_error": 0.4, "samples": 3}}, "off by more than 40%"),
    ],
)  # fmt: skip
def test_findings(changes: dict[str, Any], finding: str) -> None:
    assert finding in findings(**changes)


def test_knee_and_cliffs_by_hand() -> None:
    verify = {"tokens": [1, 64, 128, 136, 256], "seconds": [0.010, 0.0101, 0.0105, 0.0140, 0.0150]}
    profile = StepProfile.from_dict(small(verify=verify, bias_seconds=0.0, capture=None, eager=None))
    assert knee(profile) == 128
    assert [(c.before, c.after, round(c.ratio, 3), c.kind) for c in cliffs(profile)] == [
        (128, 136, 1.333, "kernel")
    ]
    graphs = StepProfile.from_dict(small())
    assert [(c.before, c.after, c.kind) for c in cliffs(graphs) if c.kind == "capture limit"] == [
        (16, 17, "capture limit")
    ]


# -- what is bundled -------------------------------------------------------------------------------------


def test_the_bundled_h100_profile_says_what_it_is() -> None:
    profile = load_profile("h100-sxm_qwen3-8b_bf16_tp1")
    assert profile.name == "h100-sxm_qwen3-8b_bf16_tp1"
    assert profile.provenance["method"] == "composed"
    assert "composed" in (profile.provenance_warning or "")
    assert "Apache-2.0" in profile.provenance["licence"]
    assert profile.fit is not None
    assert profile.fit["samples"] > 100
    assert profile.fit["p90_relative_error"] < 0.06
    assert profile.graph_limit == 512
    assert profile.draft_block_size == 7
    # 81,559 MiB less a tenth less 16.38 GB of weights, at 2 x 36 x 8 x 128 x 2 bytes a token.
    assert profile.kv_capacity_tokens() == int((81559 * 2**20 * 0.9 - 16380854272) // 147456)
    # Composed independently elsewhere: 1 request at 512 context 6.86 ms; 64 of 8 tokens at 1,024: 16.20 ms.
    assert profile.seconds(1, 1, 512, draft=False) == pytest.approx(6.8623e-3, rel=0.03)
    assert profile.seconds(512, 64, 64 * 1024, draft=False) == pytest.approx(16.2006e-3, rel=0.05)
    assert profile.tables(2048, 256).refused_above == NO_LIMIT


@given(st.integers(1, 256), st.integers(1, 8192))
def test_bundled_steps_are_positive_and_rise_with_context(requests: int, context: int) -> None:
    profile = load_profile("h100-sxm_qwen3-8b_bf16_tp1")
    near = profile.sps(requests, requests * context, 8 * requests)
    far = profile.sps(requests, 2 * requests * context, 8 * requests)
    assert (near >= far).all()
    assert (near > far).all() or 2 * requests * context < 4096
    assert (far > 0).all()
