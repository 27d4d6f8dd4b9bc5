"""Step tables of other engines: every answer is computed again here by the owner's own rule, in plain
Python.
"""

from __future__ import annotations

import bisect
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from specsched import formats
from specsched.errors import FormatError
from specsched.profile import load_profile

DATA = Path(__file__).parent / "data"


def table(name):
    return json.loads((DATA / name).read_text())


def linear(x, y, at):
    """Linear between points, clamped at both ends."""
    if at <= x[0]:
        return y[0]
    if at >= x[-1]:
        return y[-1]
    i = bisect.bisect_right(x, at)
    return y[i - 1] + (y[i] - y[i - 1]) * (at - x[i - 1]) / (x[i] - x[i - 1])


def probes(x):
    """At, between and beyond the points."""
    return sorted({1, *x, *(v + 1 for v in x), *(max(1, v - 1) for v in x), x[-1] * 3})


def test_sglang_one_dimensional_table_is_read_by_floor_and_clamped():
    raw = table("sglang_1d.json")
    sizes, speed = raw["sample_batch_tokens"], raw["sample_steps_per_sec"]
    found = formats.read(DATA / "sglang_1d.json")
    assert (found.kind, found.format) == ("profile", "sglang-1d")
    decides = found.object.decision_sps(4, 3 * sizes[-1])
    for b in probes(sizes):
        owner = speed[max(bisect.bisect_right(sizes, b) - 1, 0)]
        assert decides[b] == pytest.approx(owner, rel=1e-12)
        if b <= sizes[-1]:  # what a step costs has no stairs between the probes
            cost = linear(sizes, [1 / s for s in speed], b)
            assert found.object.seconds(b, 4, 0) == pytest.approx(cost, rel=1e-12)
    # The real inversion at 96 tokens is kept.
    assert found.object.seconds(96, 1, 0) < found.object.seconds(64, 1, 0)


def test_sglang_additive_table_is_linear_and_clamped_in_both_axes():
    raw = table("sglang_additive.json")
    profile = formats.read(DATA / "sglang_additive.json").object
    for r in probes(raw["bs_probes"]):
        for b in probes(raw["m_probes"]):
            owner = (
                raw["bias_seconds"]
                + linear(raw["bs_probes"], raw["alpha_seconds"], r)
                + linear(raw["m_probes"], raw["theta_seconds"], b)
            )
            assert profile.seconds(b, r, 12345) == pytest.approx(owner, rel=1e-12)


def test_trtllm_step_table_adds_fixed_and_batch_overhead():
    raw = table("trtllm_step_table.json")
    profile = formats.read(DATA / "trtllm_step_table.json").object
    for r in probes(raw["batch_sizes"]):
        for b in probes(raw["token_counts"]):
            owner_ms = (
                raw["fixed_overhead_ms"]
                + linear(raw["batch_sizes"], raw["batch_overhead_ms"], r)
                + linear(raw["token_counts"], raw["step_time_ms"], b)
            )
            assert profile.seconds(b, r, 0) * 1e3 == pytest.approx(owner_ms, rel=1e-12)
    assert profile.minimum_gain == 0.02


def test_trtllm_tables_may_begin_at_0_tokens(tmp_path):
    """Its owner reads between the points: 3 ms at 50 tokens for (0, 1 ms), (100, 5 ms)."""
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"token_counts": [0, 100], "step_time_ms": [1.0, 5.0]}))
    profile = formats.read(path).object
    assert [profile.seconds(b, 1, 0) for b in (1, 50, 100, 300)] == pytest.approx(
        [1.04e-3, 3e-3, 5e-3, 5e-3], rel=1e-12
    )
    path.write_text(
        json.dumps({"token_counts": [0, 1, 8], "step_time_ms": [0.0, 0.5, 2.0], "fixed_overhead_ms": 18.0})
    )
    assert formats.read(path).object.seconds(1, 1, 0) == pytest.approx(18.5e-3)


def test_0_tokens_of_an_exact_table_are_not_taken_for_a_small_pass(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"token_counts": [0, 320, 352], "step_time_ms": [6.0, 5.0, 5.2]}))
    with pytest.raises(FormatError, match="untrimmed pass"):
        formats.read(path)


def test_trtllm_exact_tables_come_one_per_graph_batch_with_the_untrimmed_pass_last():
    raw = table("trtllm_exact.json")
    found = formats.read(DATA / "trtllm_exact.json")
    assert [p.name for p in found.objects] == ["trtllm_exact-g64", "trtllm_exact-g128"]
    with pytest.raises(FormatError, match="holds 2 tables"):
        _ = found.object
    one = formats.read(DATA / "trtllm_exact.json", graph_batch=64).object
    for count, ms in zip(*raw["cost_tables"]["64"].values(), strict=True):
        tokens = count or 64 * (1 + raw["engine_fingerprint"]["max_draft_len"])
        assert one.seconds(tokens, 64, 0) * 1e3 == pytest.approx(ms, rel=1e-12)
    # Between measured budgets: never cheaper than what really runs, the next measured one.
    assert one.seconds(321, 64, 0) == one.seconds(352, 64, 0)
    assert one.gpu["name"] == "B300"
    with pytest.raises(FormatError, match="no table for graph batch 96"):
        formats.read(DATA / "trtllm_exact.json", graph_batch=96)


def vllm_owner(at, limit, sizes, ms):
    """Ceil to a captured size up to the limit, linear between the sizes above it."""
    captured = [s for s in sizes if s <= limit]
    if at <= limit:
        return ms[bisect.bisect_left(captured, at)]
    above = [(s, v) for s, v in zip(sizes, ms, strict=True) if s > limit]
    if len(above) > 1 and at > above[-1][0]:
        (x0, y0), (x1, y1) = above[-2:]
        return y1 + (y1 - y0) / (x1 - x0) * (at - x1)
    return linear([s for s, _ in above], [v for _, v in above], at)


@pytest.mark.parametrize("hint", [None, 16])
def test_vllm_cost_table_is_read_by_ceil_below_the_limit_and_never_blended_across_it(hint):
    sizes, ms = [1, 8, 16, 32, 64, 128], [5.0, 5.2, 5.6, 6.4, 30.0, 36.0]
    draft_sizes, draft_ms = [1, 4, 16], [0.9, 1.0, 1.3]
    profile = formats.read(DATA / "vllm_verify.csv", draft=DATA / "vllm_draft.csv", capture_limit=hint).object
    limit = hint or 32
    assert profile.graph_limit == limit
    for r in range(1, 17):
        draft = draft_ms[bisect.bisect_left(draft_sizes, r)]
        for b in probes(sizes):
            owner = draft + vllm_owner(b, limit, sizes, ms)
            assert profile.seconds(b, r, 0) * 1e3 == pytest.approx(owner, rel=1e-9), (r, b)
        assert profile.seconds(8, r, 0, draft=False) * 1e3 == pytest.approx(5.2)


def test_vllm_capture_limit_is_taken_at_the_jump_when_nothing_names_it(tmp_path):
    text = (DATA / "vllm_verify.csv").read_text().split("\n", 1)[1]
    path = tmp_path / "copied.csv"
    path.write_text(text)
    found = formats.read(path)
    assert found.object.graph_limit == 32
    assert any("taken as 32" in note for note in found.notes)
    path.write_text(text.replace("64,30.0", "64,7.0").replace("128,36.0", "128,9.0"))
    assert formats.read(path).object.graph_limit == 128


def test_vllm_draft_table_alone_asks_for_the_verify_table():
    with pytest.raises(FormatError, match="half a profile"):
        formats.read(DATA / "vllm_draft.csv")
    with pytest.raises(FormatError, match="no draft table"):
        formats.read(DATA / "vllm_verify.csv", draft=DATA / "vllm_verify.csv")


def test_vllm_latency_pair_gives_the_slope_between_output_lengths():
    short, long = DATA / "vllm_latency_short.json", DATA / "vllm_latency_long.json"
    profile = formats.read(
        short, batch_size=8, input_len=1024, output_len=64, runs=[(long, 8, 1024, 264)]
    ).object
    assert profile.seconds(8, 8, 0) == pytest.approx((2.120 - 0.520) / 200, rel=1e-9)
    with pytest.raises(FormatError, match="missing: batch_size, output_len, runs"):
        formats.read(short)
    with pytest.raises(FormatError, match="a slope needs two runs"):
        formats.read(short, batch_size=8, output_len=64, runs=[(long, 8, 1024, 64)])
    with pytest.raises(FormatError, match="swapped"):
        formats.read(short, batch_size=8, output_len=264, runs=[(long, 8, 1024, 64)])


def test_sglang_rounds_are_fitted_without_binning_so_that_the_cliff_survives():
    found = formats.read(DATA / "sglang_rounds.jsonl")
    profile = found.object
    assert any("1 of 61 rounds" in note for note in found.notes)
    rows = [json.loads(line) for line in (DATA / "sglang_rounds.jsonl").read_text().splitlines()]
    for row in rows:
        if row["match_fraction"] == 1.0:
            got = profile.seconds(row["batch_tokens"], row["batch_size_per_rank"], 0)
            assert got == pytest.approx(1 / row["steps_per_sec"], rel=0.01)
    # The law behind the fixture jumps by 1 ms above 128 tokens; 32 requests were measured at 88 and 144.
    assert profile.seconds(144, 32, 0) - profile.seconds(88, 32, 0) == pytest.approx(
        0.001 + 56 * 2e-6, rel=0.1
    )
    # Neighbours measured on either side of it stay on their own side.
    assert 128 in profile.verify.x
    assert profile.fit["samples"] == 20
    assert profile.fit["median_relative_error"] < 0.005


def test_sglang_one_batch_separates_the_context_read():
    profile = formats.read(DATA / "sglang_one_batch.jsonl").object
    for r in (1, 8, 32):
        for prompt in (256, 1024):
            kv = r * (prompt + 8)
            assert profile.seconds(r, r, kv) == pytest.approx(0.006 + 1e-5 * r + 2e-8 * kv, rel=1e-6)
    assert profile.prefill_seconds(8 * 256) == pytest.approx(8 * 256 * 2e-5)


def test_inference_lab_widths_count_the_anchor():
    profile = formats.read(DATA / "inference_lab_steps.csv").object
    for r in (1, 4, 16):
        for width in (1, 2, 4, 8):
            b = r * width
            law = 0.005 + 1e-5 * r + 3e-6 * b + (0.002 if b > 64 else 0.0)
            assert profile.seconds(b, r, 0) == pytest.approx(law, rel=2e-3)


def test_provenance_says_imported_and_keeps_the_owners_rule():
    for name, rule in (
        ("sglang_1d.json", "floor"),
        ("vllm_verify.csv", "ceil"),
        ("trtllm_step_table.json", "linear"),
    ):
        profile = formats.read(DATA / name, licence="CC0", gpu="h100", model="m").object
        assert profile.provenance["method"] == "imported"
        assert rule in profile.provenance["notes"]
        assert profile.provenance["licence"] == "CC0"
        assert (profile.gpu["name"], profile.model["name"]) == ("h100", "m")
        assert "imported" in profile.provenance_warning


def test_fit_keeps_inversions_and_shares_out_what_two_batches_have_in_common():
    from specsched.formats.fit import additive

    rng = np.random.default_rng(3)
    theta = {b: 0.004 + 1e-6 * b + (0.0007 if b in (48, 96) else 0.0) for b in range(16, 257, 16)}
    alpha = {r: 1e-4 * np.sqrt(r) for r in (4, 8, 16, 32)}
    cells = [(r, b) for r in alpha for b in theta if r <= b <= 8 * r]
    r, b = np.array(cells).T
    t = np.array([alpha[i] + theta[j] for i, j in cells]) * (1 + 1e-5 * rng.standard_normal(len(cells)))
    fit = additive(r, b, t)
    assert np.abs(fit.relative_error).max() < 1e-3
    got = dict(zip(fit.tokens, fit.theta, strict=True))
    assert got[48] > got[64]
    assert got[96] > got[112]
    assert (fit.overhead >= 0).all()
    assert fit.overhead[-1] - fit.overhead[0] == pytest.approx(alpha[32] - alpha[4], rel=0.05)


def test_borrowed_attention_is_what_the_lender_adds_and_is_marked_as_assumed(tmp_path):
    lender = load_profile("h100-sxm_qwen3-8b_bf16_tp1")
    plain = formats.read(DATA / "vllm_verify.csv").object
    found = formats.read(DATA / "vllm_verify.csv", attention_from=lender.name)
    own, first = found.object, lender.attention.y[0]
    for context in (0, 128, 5000, 400_000):
        added = float(lender.attention(context)) - first
        assert own.seconds(8, 4, context) == pytest.approx(plain.seconds(8, 4, context) + added)
    assert any("assumed" in note for note in found.notes)
    assert "borrowed from" in own.provenance["attention"]
    half = lender.model["kv_bytes_per_token"] // 2
    scaled = formats.read(
        DATA / "vllm_verify.csv", attention_from=lender.name, kv_bytes_per_token=half
    ).object
    assert float(scaled.attention(5000)) == pytest.approx(float(own.attention(5000)) / 2)
    own.save(tmp_path / "own.json")
    with pytest.raises(FormatError, match="prices attention itself"):
        formats.read(tmp_path / "own.json", attention_from=lender.name)
    plain.save(tmp_path / "plain.json")
    with pytest.raises(FormatError, match="no attention cost to lend"):
        formats.read(DATA / "vllm_verify.csv", attention_from=str(tmp_path / "plain.json"))


def vllm_cache(change=None, **entries):
    """A cache file as vLLM's pull request writes it: the checksum is of the rest, keys sorted, no spaces."""
    document = {
        "schema": 1,
        "fingerprint": "ab",
        "factors": {
            "model": {"kind": "remote", "model": "org/m"},
            "hardware": {"device_name": "NVIDIA B300"},
            "parallel": {"tp": 4},
            "profile": {"k": 5, "capture_sizes": [1, 8, 32], "context_len": 4096, "max_model_len": 9000},
        },
        "draft_curve": [[1, 0.9], [16, 1.3]],
        "verify_curve": [[1, 5.0], [8, 5.2], [32, 6.4], [64, 30.0]],
        **entries,
    }
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    document["checksum"] = hashlib.sha256(text.encode()).hexdigest()
    return document | (change or {})


def test_vllms_disk_cache_is_the_profile_of_its_two_tables(tmp_path):
    (tmp_path / "cache.json").write_text(json.dumps(vllm_cache()))
    (tmp_path / "v.csv").write_text(
        "# capture limit 32\nbatch_tokens,median_ms\n1,5.0\n8,5.2\n32,6.4\n64,30.0\n"
    )
    (tmp_path / "d.csv").write_text("# block size 5\nnum_reqs,median_ms\n1,0.9\n16,1.3\n")
    found = formats.read(tmp_path / "cache.json")
    tables = formats.read(tmp_path / "v.csv", draft=tmp_path / "d.csv").object
    assert (found.kind, found.format) == ("profile", "vllm-cache")
    profile = found.object
    for b in (1, 5, 8, 9, 32, 33, 48, 64, 100):
        for r in (1, 2, 16):
            assert profile.seconds(b, r, 0) == tables.seconds(b, r, 0)
    assert profile.draft_block_size == tables.draft_block_size == 5
    document = profile.to_dict()
    assert (document["gpu"]["name"], document["gpu"]["count"]) == ("NVIDIA B300", 4)
    assert document["model"]["name"] == "org/m"
    assert "4096 tokens of context" in found.notes[0]
    named = formats.read(tmp_path / "cache.json", gpu="B300 of mine").object.to_dict()
    assert named["gpu"]["name"] == "B300 of mine"


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (vllm_cache({"draft_curve": [[1, 0.8], [16, 1.3]]}), "checksum does not fit"),
        (vllm_cache(schema=2), "schema 2"),
        (vllm_cache(verify_curve=[[1, 5.0], [1, 5.2]]), "rise strictly"),
        (vllm_cache(verify_curve=[1, 2]), "list of"),
        (vllm_cache(factors={}), "no capture_sizes"),
        (vllm_cache(factors=[1]), "expected an object"),
    ],
)
def test_a_cache_that_vllm_would_not_take_is_refused(tmp_path, document, said):
    (tmp_path / "cache.json").write_text(json.dumps(document))
    with pytest.raises(FormatError, match=said):
        formats.read(tmp_path / "cache.json")
