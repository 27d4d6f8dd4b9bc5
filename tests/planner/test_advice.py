"""Settings to type into an engine: schedules by brute force, none worse than the default, parsed lines."""

from __future__ import annotations

import itertools
import json
import math
import shlex
from typing import Any

import engine_options
import numpy as np
import pytest
from engine_options import Refused
from hypothesis import given, settings
from hypothesis import strategies as st
from planner_oracle import BLOCK, line, varied
from profile_cases import profiles

from specsched.documents.advice import Advice, EngineAdvice
from specsched.errors import WorkloadError
from specsched.planner import advise
from specsched.planner.advice import bench, engines, lengths, lines
from specsched.planner.advice.tables import write_tables
from specsched.profile import StepProfile
from specsched.report.advice import over_lines
from specsched.simulator import simulate
from specsched.simulator.replay import Replay

TRACE = varied([18, 25, 31, 12, 40, 22, 28, 35, 15, 20, 24, 33])
SIZES = [1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64, 80, 96, 128]
CAPTURED = {
    "capture": {"sizes": SIZES, "limit": SIZES[-1]},
    "eager": {"tokens": [129, 1024], "seconds": [0.08, 0.3]},
}
MEMORY = {
    "gpu": {"name": "NVIDIA H100", "count": 1, "memory_bytes": 80 * 2**30},
    "model": {"weight_bytes": 16 * 2**30, "kv_bytes_per_token": 2**20},
}


def asked(profile: StepProfile | None = None, **more: Any) -> Advice:
    keywords: dict[str, Any] = {"requests": 60, "calibration": None, "prefill": "disaggregated"}
    return advise(TRACE, profile or line(**CAPTURED), **(keywords | more))


def engine(document: Advice, name: str) -> EngineAdvice:
    return next(e for e in document["engines"] if e["engine"] == name)


# -- the schedule ------------------------------------------------------------------------------------------


def brute_force(profile: StepProfile, shares: list[float], requests: int, context: float) -> list[float]:
    """Predicted tokens/s for every k, each step priced by itself."""
    found = []
    for k in range(len(shares) + 1):
        try:
            seconds = profile.seconds(requests * (1 + k), requests, requests * context, draft=k > 0)
        except Exception:
            found.append(0.0)
            continue
        found.append(requests * (1 + math.fsum(shares[:k])) / seconds)
    return found


@given(profiles(), st.lists(st.floats(0.05, 0.99), min_size=1, max_size=5), st.integers(0, 900))
def test_the_schedule_is_the_best_of_all_k_at_every_batch_size(
    document: dict[str, Any], conditional: list[float], context: int
) -> None:
    profile = StepProfile.from_dict(document)
    shares = np.cumprod(conditional)
    speed = lengths.table(profile, shares, 24, context)
    exact, short = lengths.schedule(speed, 0.0), lengths.schedule(speed, 0.05)
    assert len(short) <= len(exact)
    for rows, tolerance in ((exact, 0.0), (short, 0.05)):
        assert rows[0].first == 1
        assert rows[-1].last == 24
        assert all(a.last + 1 == b.first and a.k != b.k for a, b in itertools.pairwise(rows))
        for requests in range(1, 25):
            oracle = brute_force(profile, shares.tolist(), requests, context)
            k = lengths.length_at(rows, requests)
            assert oracle[k] >= max(oracle) * (1 - tolerance) * (1 - 1e-9)


def test_prompts_that_join_make_passes_longer_by_hand() -> None:
    """One step of 4 requests without drafts: 4 tokens of outputs of 8, so half a request ends a step."""
    profile = line(verify={"tokens": [1, 1001], "seconds": [0.01, 1.01]})
    plain, joined = (lengths.speeds(profile, np.array([0.5]), 4, 0.0, p) for p in (None, (100.0, 8.0)))
    share = 1 - math.exp(-0.5)
    chunk = round(0.5 * 100 / share)
    seconds = (1 - share) * 0.013 + share * (0.013 + 0.001 * chunk)
    assert plain[0] == pytest.approx(4 / 0.013)
    assert joined[0] == pytest.approx(4 / seconds)
    assert lengths.speeds(profile, np.array([0.5]), 4, 0.0, (0.0, 8.0)).tolist() == plain.tolist()


def test_no_other_rows_within_the_tolerance_are_fewer() -> None:
    """By all partitions of six batch sizes: the greedy rows are as few as any."""
    rng = np.random.default_rng(5)
    for _ in range(40):
        speed = rng.uniform(0.9, 1.0, (6, 4))
        good = speed >= speed.max(axis=1, keepdims=True) * 0.97
        fewest = 6
        for cuts in range(32):
            ends = [i + 1 for i in range(5) if cuts >> i & 1] + [6]
            parts = zip([0, *ends[:-1]], ends, strict=True)
            if all(good[a:b].all(axis=0).any() for a, b in parts):
                fewest = min(fewest, len(ends))
        rows = lengths.schedule(speed, 0.03)
        assert len(rows) <= fewest
        assert all(good[row.first - 1 : row.last, row.k].all() for row in rows)


def test_shares_and_context_are_those_of_the_trace() -> None:
    replay = Replay.of(TRACE, None, None)
    shares = lengths.accepted_shares(replay)
    assert shares.tolist() == [np.mean([a >= j for a in TRACE.accepted]) for j in range(1, BLOCK + 1)]
    tokens, read = 0, 0.0
    for length in TRACE.lengths:
        tokens += int(length)
        read += length * (20 + length / 2)
    assert lengths.context_of(replay) == pytest.approx(read / tokens)
    assert lengths.context_of(replay, 7) == 7.0


# -- what is advised ---------------------------------------------------------------------------------------

JAGGED = {"tokens": [1, 16, 17, 48, 49, 128], "seconds": [0.01, 0.011, 0.02, 0.021, 0.04, 0.06]}
CASES = [
    {"users": 1},
    {"users": 40},
    {"sla_tps": 60.0},
    {"sla_tps": 25.0, "method": "eagle3"},
    {"rate": 4.0},
    {"users": 70, "method": "dflash", "verify": JAGGED},
    {"users": 30, "draft": {"requests": [1], "seconds": [0.2], "block_size": BLOCK}},
    {"sla_tps": 1e6},
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_is_advised_is_never_worse_than_the_default(case: dict[str, Any]) -> None:
    """By its own simulation: all of it, and every policy that the engine could be told instead."""
    changes = {key: case[key] for key in ("verify", "draft") if key in case}
    document = asked(line(**CAPTURED, **changes), **{k: v for k, v in case.items() if k not in changes})
    for advice in document["engines"]:
        total = advice["total"]
        assert total["recommended"] >= total["default"], advice["engine"]
        captured = [s for s in advice["settings"] if s["name"] == "capture_sizes"]
        for setting in captured:
            worth = setting["worth"]
            assert worth is not None
            assert worth["recommended"] >= worth["default"]
        if advice["policy"] == "off":
            assert advice["num_speculative_tokens"] == 0
            assert "speculative" not in advice["paste"]["command"]


def test_figures_are_those_of_the_simulator() -> None:
    document = asked(users=24)
    for row in document["candidates"]:
        if row["policy"] == "schedule":
            continue
        again = simulate(
            TRACE, line(**CAPTURED), row["policy"], concurrency=24, requests=60, prefill="disaggregated"
        )
        assert again.summary["throughput"] == pytest.approx(row["throughput"], rel=1e-12)
        assert again.summary["intervals"]["throughput"] == row["throughput_interval"]


def test_dear_drafts_are_advised_against_and_free_ones_for() -> None:
    dear = asked(line(draft={"requests": [1], "seconds": [0.5], "block_size": BLOCK}), users=8)
    assert {e["policy"] for e in dear["engines"]} == {"off"}
    assert all(row[2] == 0 for row in dear["schedule"]["rows"])
    flat = line(verify={"tokens": [1, 4096], "seconds": [0.01, 0.0101]})
    free = asked(flat, users=8)
    assert all(e["num_speculative_tokens"] == BLOCK for e in free["engines"])


def test_engines_are_told_only_what_they_have() -> None:
    rising = line(**CAPTURED, verify={"tokens": [1, 8, 512], "seconds": [0.01, 0.0102, 0.3]})
    for method in engines.METHODS:
        document = asked(rising, users=20, method=method)
        for advice, kind in zip(document["engines"], engines.ENGINES, strict=True):
            if advice["policy"] == "schedule":
                assert method in kind.schedules
            if advice["policy"].startswith("lagged"):
                assert method in kind.adapts


# -- captured sizes and memory -----------------------------------------------------------------------------


@pytest.mark.parametrize("graph_bytes", [0, 2**20, 2**30, 3 * 2**30])
def test_captured_sizes_never_take_more_than_memory_leaves(graph_bytes: int) -> None:
    """Weights, graphs and the KV of every request that may run fit into what is not kept free."""
    profile = line(**CAPTURED, **MEMORY)
    document = asked(profile, users=24, graph_bytes=graph_bytes)
    free = 0.9 * 80 * 2**30 - 16 * 2**30
    for advice in document["engines"]:
        sizes = advice["capture_sizes"]
        assert sizes
        assert len(sizes) * graph_bytes <= free
        assert advice["capture_bytes"] == (len(sizes) * graph_bytes if graph_bytes else None)
        assert sizes == sorted(set(sizes))
        width = 1 + advice["num_speculative_tokens"] if advice["capture_unit"] == "requests" else 1
        assert sizes[-1] * width <= SIZES[-1], "no captured pass without a price"


def test_graphs_that_cost_kv_are_fewer() -> None:
    """Where captured sizes take KV that users need, no more are advised than where they are nearly free."""
    memory = {"gpu": MEMORY["gpu"] | {"memory_bytes": 20 * 2**30}, "model": MEMORY["model"]}
    profile = line(**CAPTURED, **memory)
    few, many = (asked(profile, users=24, graph_bytes=b) for b in (2**27, 1))
    for name in ("vllm", "sglang"):
        assert len(engine(few, name)["capture_sizes"] or []) <= len(engine(many, name)["capture_sizes"] or [])


def test_the_drafter_is_in_the_memory_or_said_to_be_unknown() -> None:
    unknown = asked(line(**CAPTURED, **MEMORY), users=8)
    assert unknown["memory"]["drafter_weights"] is None
    assert any("does not say the memory of its drafter" in w for w in unknown["warnings"])
    draft = {"requests": [1], "seconds": [0.001], "block_size": BLOCK}
    known = line(**CAPTURED, **MEMORY, draft=draft | {"weight_bytes": 2**30, "kv_bytes_per_token": 2**20})
    document = asked(known, users=8)
    memory = document["memory"]
    assert memory["kv_tokens"] == (0.9 * 80 - 16) * 1024 // 1
    assert memory["kv_tokens_drafting"] == (0.9 * 80 - 17) * 1024 // 2
    assert not any("memory of its drafter" in w for w in document["warnings"])


def test_passes_that_are_no_longer_captured_cost_the_jump_of_the_limit() -> None:
    profile = line(**CAPTURED)
    shorter = bench.profile_with(profile, (1, 8, 64))
    jump = float(profile.verify_seconds(129)) - float(profile.verify_seconds(128))
    assert jump > 0
    assert float(shorter.verify_seconds(64)) == float(profile.verify_seconds(64))
    for tokens in (65, 100, 128):
        assert float(shorter.verify_seconds(tokens)) == pytest.approx(float(profile.verify(tokens)) + jump)
    assert float(shorter.verify_seconds(500)) == float(profile.verify_seconds(500))
    assert bench.profile_with(profile, None) is profile


def test_engines_own_sizes_are_theirs() -> None:
    assert engines.vllm_grid(32) == [1, 2, 4, 8, 16, 24, 32]
    assert engines.vllm_grid(288)[-4:] == [248, 256, 272, 288]
    assert engines.sglang_grid(48) == [*range(1, 9), *range(10, 33, 2), 40, 44, 48]
    assert engines.trtllm_grid(100) == [1, 2, 4, *range(8, 97, 8), 100]
    profile = line(**CAPTURED, **MEMORY)
    assert engines.default_seqs(engines.VLLM, profile, True) == 1024
    assert engines.default_seqs(engines.SGLANG, profile, True) == 48
    assert engines.default_seqs(engines.SGLANG, profile, False) is None
    small = line(gpu={"name": "NVIDIA A100", "count": 1, "memory_bytes": 80 * 2**30})
    assert engines.default_seqs(engines.VLLM, small, True) == 256


# -- differences -------------------------------------------------------------------------------------------


def test_a_difference_of_equals_has_no_noise_and_one_of_unequals_holds_it() -> None:
    document = asked(users=24)
    advice = engine(document, "vllm")
    drafting = next(s for s in advice["settings"] if s["name"] == "drafting")["worth"]
    assert drafting is not None
    assert drafting["relative"] is not None
    assert drafting["interval"] is not None
    low, high = drafting["interval"]
    assert low <= drafting["relative"] <= high
    assert low < high
    a, b = (simulate(TRACE, line(), p, concurrency=8, requests=60) for p in ("fixed:2", "off"))
    assert np.ptp(bench.speed_ratios(a, a, 0, 0.95)) == 0
    assert np.ptp(bench.slow_ratios(b, b, 0, 0.95)) == 0
    ratios = bench.speed_ratios(a, b, 0, 0.95)
    assert ratios is not None
    assert np.median(ratios) == pytest.approx(bench.user_speed(a) / bench.user_speed(b), rel=0.1)


def test_with_more_users_than_fit_the_limit_keeps_the_promise() -> None:
    document = asked(sla_tps=30.0)
    for advice in document["engines"]:
        places = next(s for s in advice["settings"] if s["name"] == "max_num_seqs")
        assert int(places["value"]) == advice["max_num_seqs"] == advice["users"]
        if places["worth"] is not None and places["worth"]["measure"] == bench.SHARE:
            assert places["worth"]["recommended"] >= places["worth"]["default"]


# -- the lines ---------------------------------------------------------------------------------------------


def accepted(document: Advice) -> None:
    """Every line and file of an advice, by the engines' own rules."""
    advice = engine(document, "vllm")
    found = engine_options.vllm(advice["paste"]["command"])
    assert found.max_num_seqs == advice["max_num_seqs"]
    assert found.cudagraph_capture_sizes == advice["capture_sizes"]
    told = (found.speculative_config or {}).get("num_speculative_tokens", 0)
    assert told == advice["num_speculative_tokens"]
    advice = engine(document, "sglang")
    _, served = engine_options.sglang(advice["paste"]["command"])
    assert served.max_running_requests == advice["max_num_seqs"]
    assert served.cuda_graph_bs_decode == advice["capture_sizes"]
    advice = engine(document, "trtllm")
    path = engine_options.trtllm(advice["paste"]["command"])
    content = read_yaml(advice["paste"]["files"]["trtllm.yaml"])
    engine_options.trtllm_config(content)
    assert path.endswith("trtllm.yaml")
    assert content["max_batch_size"] == advice["max_num_seqs"]


def read_yaml(text: str) -> dict[Any, Any]:
    """The subset that is written: mappings by indentation, values as JSON."""
    root: dict[Any, Any] = {}
    open_ones = [(-1, root)]
    for row in text.splitlines():
        indent = len(row) - len(row.lstrip())
        key, _, value = row.strip().partition(":")
        while open_ones[-1][0] >= indent:
            open_ones.pop()
        name = int(key) if key.isdigit() else key
        inner: dict[Any, Any] = {}
        open_ones[-1][1][name] = json.loads(value) if value.strip() else inner
        if not value.strip():
            open_ones.append((indent, inner))
    return root


def test_our_yaml_is_what_yaml_reads() -> None:
    yaml = pytest.importorskip("yaml")
    content = {"a": 1, "b": {"c": [1, 2], "d": True, "e": {4: 2, 9: 0}}, "f": "x: 'y' \"z\" # no", "g": 0.05}
    text = lines.yaml(content)
    assert yaml.safe_load(text) == content
    assert read_yaml(text) == content


@pytest.mark.parametrize("method", engines.METHODS)
@pytest.mark.parametrize("users", [1, 30])
def test_the_lines_are_what_the_parsers_take(method: str, users: int) -> None:
    rising = line(**CAPTURED, verify={"tokens": [1, 8, 512], "seconds": [0.01, 0.0102, 0.3]})
    accepted(asked(rising, users=users, method=method))


AWKWARD = st.text(st.sampled_from("ab '\"\\$`!*?;&|<>()[]{}#~=%\tü-"), min_size=1, max_size=12).filter(
    lambda t: not t.startswith("-")
)


@settings(max_examples=60)
@given(
    st.sampled_from(["dspark", "eagle3", "mtp", "dflash"]),
    st.integers(0, 7),
    st.booleans(),
    st.booleans(),
    AWKWARD,
    AWKWARD,
    AWKWARD,
)
def test_any_names_survive_the_shell_and_the_files(
    method: str, k: int, adapts: bool, rows: bool, model: str, drafter: str, folder: str
) -> None:
    """Names with spaces, quotes and dollars come out of the shell, JSON and YAML as they went in."""
    adapts = adapts and method == "dspark" and k > 0
    rows = rows and not adapts and k > 0
    names = lines.Names(model, drafter, method, folder, sampled=True, calibrated=True)
    base: Any = {
        "num_speculative_tokens": k,
        "schedule": [[1, 4, k], [5, 9, k - 1], [10, 64, 0]] if rows and k else None,
        "max_num_seqs": 64,
        "capture_sizes": [1, 2, 64],
        "lag": 2 if adapts else None,
    }
    profile = line(parallel={"tensor": 2, "data": 1}, scheduler={"minimum_gain": 0.02})
    vllm = lines.paste(base | {"engine": "vllm"}, profile, names)
    assert "\n" not in vllm["command"], "one line, whoever reads it"
    assert shlex.split(over_lines(vllm["command"]).replace(" \\\n  ", " ")) == shlex.split(vllm["command"])
    found = engine_options.vllm(vllm["command"])
    assert found.model == model
    assert found.tensor_parallel_size == 2
    if k and method != "mtp":
        assert found.speculative_config["model"] == drafter
    sglang = lines.paste(base | {"engine": "sglang", "schedule": None}, profile, names)
    environment, served = engine_options.sglang(sglang["command"])
    assert served.model_path == model
    assert environment == ({"SGLANG_RAGGED_VERIFY_MODE": "compact"} if adapts else {})
    own = None if method == "dspark" else base["schedule"]
    trtllm = lines.paste(base | {"engine": "trtllm", "schedule": own}, profile, names)
    engine_options.trtllm(trtllm["command"])
    content = read_yaml(trtllm["files"]["trtllm.yaml"])
    engine_options.trtllm_config(content)
    if k and method != "mtp":
        assert content["speculative_config"]["speculative_model"] == drafter
    if own:
        assert content["speculative_config"]["draft_len_schedule"] == ({4: k, 9: k - 1})


def test_wrong_lines_are_refused_by_the_description_too() -> None:
    """The parsers of the tests do refuse: unknown options, keys, types and orders."""
    for command in (
        "vllm serve M --max-num-sequences 4",
        "vllm serve M --max-num-seqs 0",
        'vllm serve M --speculative-config \'{"method":"dspark","num_speculative_tokens":"7"}\'',
        'vllm serve M --speculative-config \'{"method":"dspark","num_speculative_tokens":2,'
        '"num_speculative_tokens_per_batch_size":[[1,4,3]]}\'',
    ):
        with pytest.raises(Refused):
            engine_options.vllm(command)
    with pytest.raises(Refused):
        engine_options.sglang("python -m sglang.launch_server --model-path M --cuda-graph-bs 1 2")
    with pytest.raises(Refused):
        engine_options.trtllm_config(
            {
                "speculative_config": {
                    "decoding_type": "Eagle3",
                    "max_draft_len": 4,
                    "draft_len_schedule": {4: 2},
                }
            }
        )


def test_the_tables_are_written_where_the_lines_look(tmp_path: Any) -> None:
    """A prefix of requests of a rising profile: adaptive everywhere, so that every table is named."""
    folder = tmp_path / "out of 'order'"
    folder.mkdir()
    document = asked(line(**CAPTURED), users=30, folder=str(folder), calibration="sts")
    for advice in document["engines"]:
        if advice["engine"] != "vllm":
            advice["lag"], advice["num_speculative_tokens"], advice["schedule"] = 2, BLOCK, None
            names = lines.Names("M", "D", "dspark", str(folder), sampled=True, calibrated=True)
            advice["paste"] = lines.paste(advice, line(**CAPTURED), names)
    from specsched.calibration import split_and_calibrate

    _, calibration, _ = split_and_calibrate(TRACE, "sts", 0)
    written = {
        path.name: notes for path, notes in write_tables(document, folder, line(**CAPTURED), calibration)
    }
    assert set(written) == {path.name for path in folder.iterdir()}
    _, served = engine_options.sglang(engine(document, "sglang")["paste"]["command"])
    from pathlib import Path

    engine_options.sglang_table(Path(served.speculative_dspark_sps_table_path))
    assert (
        len(engine_options.temperatures(Path(served.speculative_dspark_confidence_sts_path), "temperatures"))
        == BLOCK
    )
    content = read_yaml((folder / "trtllm.yaml").read_text())["speculative_config"]
    assert Path(content["confidence_cost_table_path"]).is_file()
    assert Path(content["confidence_calibration_path"]).is_file()
    assert shlex.split((folder / "vllm.sh").read_text())[:2] == ["vllm", "serve"]


# -- what cannot be asked ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({}, "give the traffic in one way"),
        ({"users": 4, "rate": 2.0}, "give the traffic in one way"),
        ({"users": 0}, "concurrency 0 cannot be run"),
        ({"rate": -1.0}, "it must be a positive number of requests/s"),
        ({"sla_tps": math.nan}, "it must be a positive number"),
        ({"users": 4, "method": "dsprak"}, "no drafter of the kind 'dsprak'"),
        ({"users": 4, "requests": 5}, "too few to compare settings"),
    ],
)
def test_questions_that_are_none_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(WorkloadError, match=said):
        asked(**wrong)


def test_a_rate_that_nobody_serves_is_said_first() -> None:
    document = asked(rate=5000.0)
    assert "one engine does not serve 5000 requests/s" in document["warnings"][0]
