"""Acceptance as benchmarks and logs hold it: marginal rates, histograms, a mean length."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specsched import formats
from specsched.errors import FormatError
from specsched.formats.acceptance import doubtful, from_mean_length
from specsched.formats.vllm.benchmark import RATES

SPECULATIVE = {
    "acceptance_histogram": [3, 2, 2, 3],
    "num_spec_steps": 10,
    "num_accepted_draft_tokens": 15,
    "num_draft_tokens": 30,
    "num_spec_tokens": 3,
}
RESPONSE = {"id": "1", "metrics": {"speculative_decoding": SPECULATIVE}}
SERVE = {
    "tokenizer_id": "org/m",
    "request_throughput": 2.6,
    "mean_tpot_ms": 20.0,
    "spec_decode_acceptance_length": 2.5,
    "spec_decode_num_drafts": 1000,
    "spec_decode_draft_tokens": 3000,
    RATES: [0.7, 0.5, 0.3],
}
LINE = (
    "INFO 09-01 [metrics.py:101] SpecDecoding metrics: Mean acceptance length: {length}, "
    "Accepted throughput: 150.00 tokens/s, Drafted throughput: 300.00 tokens/s, "
    "Accepted: {accepted} tokens, Drafted: {drafted} tokens, "
    "Per-position acceptance rate: {rates}, Avg Draft acceptance rate: 50.0%"
)
META = {"spec_accept_histogram": [24, 16, 16, 24], "spec_verify_ct": 80, "spec_accept_token_num": 120}


def read(path: Path, text: str, **hints: Any) -> Any:
    path.write_text(text, encoding="utf-8")
    return formats.read(path, **hints)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("vllm-requests", json.dumps(RESPONSE)),
        ("vllm-requests", json.dumps({"data": RESPONSE})),
        ("vllm-requests", json.dumps({"response": {"body": RESPONSE}})),
        ("vllm-requests", f'data: {{"choices": []}}\n\ndata: {json.dumps(RESPONSE)}\n\ndata: [DONE]\n'),
        ("vllm-bench-serve", json.dumps(SERVE)),
        ("vllm-log", LINE.format(length="2.50", accepted=1500, drafted=3000, rates="0.700, 0.500, 0.300")),
        ("sglang-meta", json.dumps({"text": "x", "meta_info": {**META, "spec_accept_histogram": [3, 2, 2, 3],
                                    "spec_verify_ct": 10, "spec_accept_token_num": 15}})),
        ("specdec-bench", json.dumps({"Acceptance_Length_Histogram": {"1": 3, "2": 2, "3": 2, "4": 3}})),
    ],
)  # fmt: skip
def test_the_same_rates_from_every_owner(tmp_path: Path, name: str, text: str) -> None:
    """Of ten blocks of three drafts 7, 5 and 3 got past positions 1, 2, 3: marginal .7 .5 .3."""
    found = read(tmp_path / "x", text)
    assert (found.kind, found.format) == ("acceptance", name)
    assert found.object.survival == pytest.approx([0.7, 0.5, 0.3], abs=1e-12)
    assert found.object.mean_length == pytest.approx(2.5)
    assert not found.object.censored


def test_log_lines_are_weighted_by_their_drafts(tmp_path: Path) -> None:
    # 1,000 drafts at (.7, .5), then 3,000 at (.5, .1): together (.55, .2).
    lines = [
        LINE.format(length="2.20", accepted=1200, drafted=2000, rates="0.700, 0.500"),
        "INFO something else",
        LINE.format(length="1.60", accepted=1800, drafted=6000, rates="0.500, 0.100"),
    ]
    found = read(tmp_path / "x.log", "\n".join(lines)).object
    assert found.survival == pytest.approx([0.55, 0.2])
    assert found.steps == 4000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (json.dumps({**SERVE, "spec_decode_acceptance_length": 2.1}), "contradicts itself"),
        (json.dumps({k: v for k, v in SERVE.items() if "spec" not in k}), "without drafting"),
        (json.dumps({**SERVE, RATES: [0.5, 0.7, 0.3]}), "survival rises"),
        (json.dumps({**SERVE, RATES: [70, 50, 30]}), "not percent"),
        (LINE.format(length="2.90", accepted=15, drafted=30, rates="0.7, 0.5"), "contradicts itself"),
        ("SpecDecoding metrics: Mean acceptance length: 2.5", "was it cut"),
        (json.dumps({"meta_info": {**META, "spec_verify_ct": 81}}), "contradicts itself"),
        (json.dumps({"meta_info": {"spec_accept_length": 2.5}}), "length:MEAN:BLOCK"),
        (json.dumps({"backend": "sglang", "accept_length": 2.73}), "length:2.73:K"),
        (json.dumps({"backend": "sglang", "accept_length": None}), "drafted nothing"),
        (json.dumps({"Acceptance_Length_Histogram": {"0": 4, "1": 2}}), "out of range"),
        (
            '{"Acceptance_Length_Histogram": {"1": 5, "2": 5}, "Conditional_Acceptance_Rate": {"1": 0.7}}',
            "contradicts itself",
        ),
    ],
)  # fmt: skip
def test_contradictions_and_gaps_are_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(FormatError, match=said):
        read(tmp_path / "x", text)


def test_trimmed_runs_are_refused_and_the_ends_of_requests_are_not_trimming(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"33.3% .* trimming was on"):
        read(tmp_path / "x", json.dumps({**SERVE, "spec_decode_draft_tokens": 2000}))
    found = read(tmp_path / "x", json.dumps({**SERVE, "spec_decode_draft_tokens": 2998}))
    assert not found.object.censored
    assert "0.07%" in " ".join(found.notes)


def test_a_mean_length_gives_the_stated_shape(tmp_path: Path) -> None:
    for p in (0.0, 0.35, 0.8, 1.0):
        length = sum(p**k for k in range(5))
        assert from_mean_length(length, 4, "x", "x").conditional == pytest.approx(np.full(4, p), abs=1e-9)
    for length, block in ((0.9, 4), (5.1, 4), (2.0, 0)):
        with pytest.raises(FormatError):
            from_mean_length(length, block, "x", "x")
    row = {"backend": "sglang", "accept_length": 2.0, "total_output_tokens": 100}
    text = json.dumps(row) + "\n" + json.dumps({**row, "accept_length": 4.0, "total_output_tokens": 400})
    found = read(tmp_path / "x", text, block_size=5).object
    assert found.mean_length == pytest.approx(500 / (100 / 2 + 400 / 4)), (
        "tokens over steps, not a mean of means"
    )
    assert "Assumed" in found.notes[0]


def test_rates_that_fall_like_marginal_ones_are_asked_about() -> None:
    assert doubtful([0.579, 0.447, 0.316, 0.237, 0.158])
    assert "2.74" in doubtful([0.579, 0.447, 0.316, 0.237, 0.158])
    for plain in ([0.8], [0.82, 0.78, 0.75, 0.72], [0.7, 0.72, 0.3], [0.72, 0.65, 0.61]):
        assert doubtful(plain) is None


def test_deepspec_records_become_rows(tmp_path: Path) -> None:
    rows = [([1.2, 0.4, -0.3], [1, 1, 0]), ([0.2, -9.0, 0.1], [0, 0, 0])]
    text = "\n".join(json.dumps({"logits": logits, "labels": labels}) for logits, labels in rows)
    trace = read(tmp_path / "x", text).object
    assert trace.mode == "sequential"
    assert trace.accepted.tolist() == [2, 0]
    assert trace.confidence_logit == pytest.approx(np.array([[1.2, 0.4, -0.3], [0.2, -9.0, 0.1]]), abs=1e-5)
    for bad in ('{"logits": [1.0], "labels": [2]}', '{"logits": [1, 1], "labels": [0, 1]}',
                '{"logits": [1, 1], "labels": [0]}', '{"logits": ["x"], "labels": [0]}'):  # fmt: skip
        with pytest.raises(FormatError):
            read(tmp_path / "x", bad)


def test_sglangs_own_additive_table_is_read(tmp_path: Path) -> None:
    """First probe 0 tokens, values slightly below 0, as its fitter writes them: T stays what it was."""
    table = {
        "bias_seconds": 0.008,
        "bs_probes": [1, 8],
        "alpha_seconds": [0.0, 0.004],
        "m_probes": [0, 6, 12],
        "theta_seconds": [0.0, -0.0003, 0.0009],
    }
    profile = read(tmp_path / "x", json.dumps(table)).object
    for requests, tokens in ((1, 1), (1, 6), (8, 9), (4, 12)):
        alpha = np.interp(requests, [1, 8], [0.0, 0.004])
        theta = np.interp(tokens, [0, 6, 12], [0.0, -0.0003, 0.0009])
        assert profile.seconds(tokens, requests, 0) == pytest.approx(0.008 + alpha + theta, rel=1e-12)
    with pytest.raises(FormatError, match="must be 0 or more"):
        read(tmp_path / "x", json.dumps({**table, "bias_seconds": 0.0002, "alpha_seconds": [0.004, 0.004]}))
