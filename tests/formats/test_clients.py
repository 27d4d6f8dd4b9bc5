"""Reports of benchmark clients: the same run from each, and what is refused or said of damaged ones."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import client_cases as cases
import pytest
import yaml

from specsched import formats
from specsched.errors import FormatError, SpecschedError
from specsched.fitting import Benchmark
from specsched.fitting.cases import lay_out
from specsched.formats.benchmarks import look, read_runs

Made = Callable[[], dict[str, Any]]


def lines(rows: list[dict[str, Any]]) -> str:
    return "\n".join(map(json.dumps, rows))


SAME: list[tuple[str, str]] = [
    ("AIPerf", json.dumps(cases.aiperf())),
    (
        "AIPerf",
        json.dumps(
            cases.aiperf(
                {
                    "phases": [
                        {"name": "warmup", "concurrency": 2},
                        {"name": "profiling", "type": "concurrency", "concurrency": 16},
                    ]
                }
            )
        ),
    ),
    ("AIPerf", json.dumps(cases.aiperf({"phases": {"profiling": {"concurrency": 16}}}))),
    ("AIPerf records", lines(cases.records())),
    ("GuideLLM", json.dumps(cases.guidellm())),
    ("GuideLLM", json.dumps(cases.guidellm(old=True))),
    ("GuideLLM", yaml.safe_dump(cases.guidellm())),
    ("GuideLLM", json.dumps(cases.guidellm({"type_": "throughput", "max_concurrency": 16}))),
    ("inference-perf", json.dumps(cases.inference_perf())),
    ("llm-d report of vllm-benchmark", yaml.safe_dump(cases.llmd_old())),
    ("llm-d report of guidellm", yaml.safe_dump(cases.llmd_new())),
    ("llm-d report of guidellm", json.dumps(cases.llmd_new())),
]


@pytest.mark.parametrize(("tool", "text"), SAME)
def test_every_client_tells_of_the_same_run(tmp_path: Path, tool: str, text: str) -> None:
    path = tmp_path / "anything"
    path.write_text(text)
    found = read_runs(path)
    assert found.tool == tool
    (run,) = found.runs
    for key, value in cases.EXPECTED.items():
        assert getattr(run, key) == pytest.approx(value), key
    assert run.silent
    with pytest.raises(FormatError, match="benchmark result without counters"):
        formats.read(path)
    shown = look(path)
    assert shown is not None
    assert shown.runs == found.runs


def test_nobody_guesses_whether_a_silent_client_saw_drafts(tmp_path: Path) -> None:
    path = tmp_path / "two.json"
    twice = cases.guidellm()
    twice["benchmarks"] += cases.guidellm({"type_": "synchronous"})["benchmarks"]
    twice["benchmarks"][1]["metrics"]["output_tokens_per_second"]["total"]["mean"] = 90.0
    path.write_text(json.dumps(twice))
    with pytest.raises(SpecschedError, match=r"--arm two.json=off"):
        lay_out(read_runs(path).runs, Benchmark())
    laid = lay_out(read_runs(path, {"two.json": "fixed:3"}).runs, Benchmark(block_size=3))
    assert [(case.policy, case.setting.users) for case in laid.cases] == [("fixed:3", 16), ("fixed:3", 1)]


def changed(make: Made, *keys: Any, to: Any) -> str:
    """The report with one entry set, or without it (`to` Ellipsis)."""
    document = make()
    held: Any = document
    for key in keys[:-1]:
        held = held[key]
    if to is ...:
        del held[keys[-1]]
    else:
        held[keys[-1]] = to
    return json.dumps(document)


SUCCESS = ("successes", "latency", "time_per_output_token")
AGGREGATE = ("results", "request_performance", "aggregate")
REFUSED: list[tuple[str, str]] = [
    # a unit that is not what it says, or none
    (changed(cases.aiperf, "inter_token_latency", "unit", to="sec"), "another unit"),
    (changed(cases.aiperf, "inter_token_latency", "unit", to="furlongs"), "no time that is known"),
    (changed(cases.aiperf, "output_token_throughput", "unit", to="tokens/min"), "expected tokens/s"),
    (
        changed(
            cases.guidellm,
            "benchmarks",
            0,
            "metrics",
            "inter_token_latency_ms",
            "successful",
            to={"mean": 0.01, "median": 0.01},
        ),
        "another unit",
    ),
    (changed(cases.inference_perf, *SUCCESS, to={"mean": 10.0, "median": 10.0}), "another unit"),
    (
        changed(cases.llmd_new, *AGGREGATE, "latency", "inter_token_latency", "units", to="ms/token"),
        "another unit",
    ),
    (changed(cases.llmd_new, *AGGREGATE, "throughput", "output_token_rate", "units", to="count"), "tokens/s"),
    # runs that broke, or are a part
    (changed(cases.aiperf, "was_cancelled", to=True), "cancelled"),
    (changed(cases.aiperf, "error_request_count", to={"unit": "requests", "avg": 12}), "12 requests failed"),
    (
        changed(
            cases.guidellm,
            "benchmarks",
            0,
            "metrics",
            "request_totals",
            to={"successful": 100, "errored": 60, "incomplete": 0},
        ),
        "60 requests failed",
    ),
    (
        changed(cases.guidellm, "benchmarks", 0, "config", "strategy", to={"type_": "constant", "rate": 3.0}),
        "no benchmark at a fixed number of users",
    ),
    (changed(cases.inference_perf, "failures", "count", to=9), "contradicts itself"),
    (
        changed(cases.inference_perf, "load_summary", to={"count": 160, "requested_rate": 4.0}),
        "4.0 requests a second",
    ),
    (changed(cases.inference_perf, "load_summary", to={"count": 160}), "a summary over stages"),
    (changed(cases.inference_perf, "load_summary", to={}), "counters of the server"),
    (changed(cases.llmd_new, *AGGREGATE, "requests", "failures", to=80), "80 requests failed"),
    (changed(cases.llmd_new, "scenario", "load", "standardized", "parallelism", to=4), "one of 4 clients"),
    (
        changed(cases.llmd_new, "scenario", "stack", 0, "standardized", "replicas", to=2),
        "spread over 2 engines",
    ),
    (changed(cases.llmd_new, "version", to="0.7"), "known: 0.1, 0.2"),
    # cut files
    (changed(cases.aiperf, "request_count", to=...), "no request_count"),
    (changed(cases.guidellm, "benchmarks", 0, "metrics", "request_totals", to=...), "no request_totals"),
    (changed(cases.llmd_old, "metrics", "requests", to=...), "no counts of requests"),
    (changed(cases.llmd_new, "results", to={}), "left no results"),
    (json.dumps(cases.aiperf())[:700], "ends too early"),
    (yaml.safe_dump(cases.llmd_old())[:300] + "\n  x: [1, 2", "is not YAML"),
    (lines(cases.records())[:2000], "is not JSON"),
    # what clients write beside their results
    (json.dumps({"metadata": {"aggregation_type": "confidence"}, "metrics": {}}), "each run"),
    (
        json.dumps(
            [{"start_time": 1, "end_time": 2, "request": "", "response": "", "info": {}, "error": None}]
        ),
        "requests one by one",
    ),
]


@pytest.mark.parametrize(("text", "said"), REFUSED)
def test_broken_reports_are_refused_by_what_is_wrong(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "report"
    path.write_text(text)
    with pytest.raises(FormatError, match=said):
        read_runs(path)


def test_few_failures_and_unfinished_requests_are_said(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    totals = {"successful": 160, "errored": 2, "incomplete": 16}
    path.write_text(changed(cases.guidellm, "benchmarks", 0, "metrics", "request_totals", to=totals))
    notes = " ".join(read_runs(path).notes)
    assert "2 of 162 requests failed" in notes
    assert "16 requests were still running" in notes


def test_records_of_warm_up_and_of_failures_do_not_count(tmp_path: Path) -> None:
    rows = cases.records()
    slow = {
        **rows[0],
        "metrics": {**rows[0]["metrics"], "inter_token_latency": {"value": 900.0, "unit": "ms"}},
    }
    warm = {**slow, "metadata": {**rows[0]["metadata"], "benchmark_phase": "warmup"}}
    broken = {**slow, "metrics": {"error_isl": {"value": 5, "unit": "tokens"}}, "error": {"code": 499}}
    path = tmp_path / "profile_export.jsonl"
    path.write_text(lines([warm, warm, broken, *rows]))
    found = read_runs(path)
    assert found.runs[0].user == pytest.approx(100.0)
    assert found.runs[0].prompts == 160
    assert "1 of 161 requests failed" in " ".join(found.notes)


def test_users_of_records_are_the_most_at_once(tmp_path: Path) -> None:
    # Two users: a request that begins as another ends takes its place.
    rows = cases.records()[:4]
    for row, (begun, ended) in zip(rows, [(0, 10), (10, 20), (5, 15), (15, 16)], strict=True):
        row["metadata"] |= {"request_start_ns": begun * 10**9, "request_end_ns": ended * 10**9}
    path = tmp_path / "r.jsonl"
    path.write_text(lines(rows))
    found = look(path)
    assert found is not None
    assert found.runs[0].users == 2


def test_accepted_drafts_in_aiperf(tmp_path: Path) -> None:
    """7, 5 and 3 of ten blocks of three got past positions 1, 2 and 3."""
    stats = {
        "engine": "vllm", "acceptance_histogram": {"0": 3, "1": 2, "2": 2, "3": 3}, "num_spec_steps": 10,
        "num_accepted_draft_tokens": 15, "num_draft_tokens": 30, "num_spec_tokens": 3,
    }  # fmt: skip
    summary = tmp_path / "summary.json"
    summary.write_text(
        json.dumps(
            {**cases.aiperf(), "pooled_spec_decode_acceptance_histogram": {"0": 3, "1": 2, "3": 3, "2": 2}}
        )
    )
    rows = cases.records()
    rows[3]["spec_decode_acceptance"] = stats
    records = tmp_path / "records.jsonl"
    records.write_text(lines(rows))
    for path in (summary, records):
        found = formats.read(path)
        assert (found.format, found.kind) == ("aiperf", "acceptance")
        assert found.object.survival == pytest.approx([0.7, 0.5, 0.3])
        (run,) = read_runs(path).runs
        assert not run.silent
        assert run.conditional == pytest.approx((0.7, 5 / 7, 0.6))
    rows[3]["spec_decode_acceptance"] = {**stats, "num_draft_tokens": 20}
    records.write_text(lines(rows))
    with pytest.raises(FormatError, match="trimming was on"):
        formats.read(records)
    rows[3]["spec_decode_acceptance"] = {**stats, "num_spec_steps": 11}
    records.write_text(lines(rows))
    with pytest.raises(FormatError, match="contradicts itself"):
        formats.read(records)


def test_yaml_that_blows_up_or_holds_objects_is_refused(tmp_path: Path) -> None:
    bomb = "version:\n  - 1\na: &a\n  - 1\n" + "".join(
        f"{n}: &{n}\n" + f"  - *{p}\n" * 9 for p, n in zip("abcdefg", "bcdefgh", strict=True)
    )
    deep = "a:\n" + "".join(" " * i + "- \n" for i in range(1, 150))
    loop = "version:\n  - 1\na: &a\n  - *a\n"
    objects = "a:\n  - !!python/object/apply:os.system ['true']\n"
    for text, said in (
        (bomb, "millions|more than"),
        (deep, "deep"),
        (loop, "deep"),
        (objects, "is not YAML"),
    ):
        path = tmp_path / "x.yaml"
        path.write_text(text)
        with pytest.raises(FormatError, match=said):
            read_runs(path)


def test_a_profile_in_a_runs_place_and_a_run_in_a_profiles(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps({"sample_batch_tokens": [8, 64], "sample_steps_per_sec": [100.0, 50.0]}))
    with pytest.raises(FormatError, match="not a benchmark result"):
        read_runs(path)


JUNK = [
    None,
    True,
    -1,
    0,
    1e308,
    0.5,
    "x",
    "7",
    [],
    {},
    [1, None],
    {"a": 1},
    float("nan"),
    float("inf"),
    10**30,
]


@pytest.mark.parametrize("seed", range(4))
def test_damaged_reports_end_in_one_sentence_or_in_runs(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    makers: list[Made] = [
        cases.aiperf,
        cases.guidellm,
        cases.inference_perf,
        cases.llmd_old,
        cases.llmd_new,
        lambda: cases.records()[0],
    ]
    path = tmp_path / "report"
    for _ in range(120):
        document: Any = rng.choice(makers)()
        held: Any = document
        while True:
            key = rng.choice(list(held) if isinstance(held, dict) else range(len(held)))
            if isinstance(held[key], dict | list) and held[key] and rng.random() < 0.75:
                held = held[key]
                continue
            held[key] = rng.choice(JUNK)
            break
        path.write_text(json.dumps(document) if rng.random() < 0.7 else yaml.safe_dump(document))
        with contextlib.suppress(SpecschedError):  # anything else is a bug
            assert all(run.user or run.total for run in read_runs(path).runs)


@pytest.mark.parametrize(
    ("user", "said"), [(100_000.0, "decode 0.09% of the time"), (0.1, "in another unit")]
)
def test_speeds_of_a_table_that_cannot_be_of_one_run(tmp_path: Path, user: float, said: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"arm,concurrency,tok_s_user,tok_s_total\noff,16,{user},1365.3\n")
    with pytest.raises(FormatError, match=said):
        read_runs(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a:\n" + "  - {b: 1, c: [1, 2, 3]}\n" * 100_000, "holds more than"),
        ("a:\n" + "".join(f"  k{i}: {i}\n" for i in range(250_000)), "holds more than"),
        ("a:\n  b: " + "[" * 900 + "]" * 900, "nested more than"),
        ("a:\n  b: " + "9" * 5000, "a number of thousands of digits"),
    ],
)
def test_yaml_without_end_is_refused_before_it_is_kept(tmp_path: Path, text: str, said: str) -> None:
    """Bounded by what is read, not by what its size allows: a few MB of YAML took minutes."""
    path = tmp_path / "report.yaml"
    path.write_text(text)
    with pytest.raises(FormatError, match=said) as refused:
        look(path)
    assert "report.yaml" in str(refused.value)


@pytest.mark.parametrize("key", ["9" * 5000, "\u0663", "03", "129", "-1", "1.0"])
def test_histograms_have_plain_counts_of_drafts_for_keys(tmp_path: Path, key: str) -> None:
    """ "03" beside "3" would take its place in silence."""
    path = tmp_path / "aiperf.json"
    path.write_text(
        json.dumps(cases.aiperf() | {"pooled_spec_decode_acceptance_histogram": {"3": 1, key: 2}})
    )
    with pytest.raises(FormatError, match="its keys must be numbers of accepted drafts, 0 to 128"):
        read_runs(path)


def test_no_figure_of_a_benchmark_is_beyond_all_measure(tmp_path: Path) -> None:
    path, report = tmp_path / "aiperf.json", cases.aiperf()
    report["output_sequence_length"]["avg"] = 1e299
    path.write_text(json.dumps(report))
    with pytest.raises(FormatError, match=r"output_sequence_length\.avg: 1e\+299 is out of range"):
        read_runs(path)
