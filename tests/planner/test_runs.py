"""Runs at given loads are those of `simulate`, in the order asked; doubts about arrivals are said."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from planner_oracle import BLOCK, line, promises, varied

from specsched.calibration import fit_sts
from specsched.planner import runs
from specsched.simulator import simulate
from specsched.workload import parse_arrivals

TRACE = varied([24] * 40)


def ask(policies: list[str] | None, **more: Any) -> Any:
    options: dict[str, Any] = {"requests": 60, "calibration": None, "workers": 2, "prefill": "disaggregated"}
    trace, profile = more.pop("trace", TRACE), more.pop("profile", line())
    return runs(trace, profile, policies, **(options | more))


def test_a_row_is_a_run_of_its_policy_and_load() -> None:
    document = ask(["fixed:2", "global"], concurrency=[3, 1], sla_tps=75.0, replicas=2, seed=4)
    rows = document["runs"]
    assert [(row["policy"], row["concurrency"]) for row in rows] == [
        ("fixed:2", 3),
        ("fixed:2", 1),
        ("global", 3),
        ("global", 1),
    ]
    for row in rows:
        told = simulate(TRACE, line(), row["policy"], row["concurrency"], 60, seed=4, replicas=2)
        assert {key: row[key] for key in told.summary} == told.summary
        assert row["share_at_sla"] == np.mean([fast for _, fast, _ in promises(told, 75.0)])
        assert row["lossless"] is (row["policy"] != "global")
        assert set(told.warnings) <= set(document["warnings"])
    assert len(document["warnings"]) == len(set(document["warnings"]))
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert "share_at_sla" not in ask(["off"], concurrency=[1])["runs"][0]
    assert document["rate"] is None
    assert document["arrivals"] == "closed"


def test_arrivals_are_one_load() -> None:
    document = ask(["off"], arrivals="poisson:20", requests=400, seed=2, prefill="chunked", max_running=8)
    row = document["runs"][0]
    load = parse_arrivals("poisson:20", requests=document["arrivals_requests"], seed=2)
    assert load is not None
    assert len(load) >= 400
    assert load.rate == pytest.approx(20.0), "it runs at the rate it names"
    told = simulate(TRACE, line(), "off", workload=load, seed=2, prefill="chunked", max_running=8)
    assert {key: row[key] for key in told.summary} == told.summary
    assert row["concurrency"] is None
    assert document["rate"] == pytest.approx(load.rate)
    assert document["prefill"] == "chunked"
    assert not any("prefill" in left for left in document["not_modelled"])
    assert any("prefill" in left for left in ask(["off"], concurrency=[1])["not_modelled"])


def test_confidences_are_calibrated_on_half_and_replayed_on_the_other() -> None:
    document = ask(["threshold:0.5"], concurrency=[2], calibration="sts", seed=3)
    fitted = fit_sts(TRACE, holdout=0.5, seed=3)
    part = TRACE.select(fitted.held_out_requests)
    told = simulate(part, line(), "threshold:0.5", 2, 60, seed=3, calibration=fitted)
    assert document["runs"][0]["throughput"] == told.summary["throughput"]
    assert document["calibration"]["method"] == "sts"


def test_the_policies_of_a_run_are_those_of_an_answer_and_fit_its_block() -> None:
    names = ["off", "fixed:1", f"fixed:{BLOCK}", "threshold:0.3", "early-stop", "lagged:2"]
    assert [row["policy"] for row in ask(None, concurrency=[1])["runs"]] == names
    short = ask(None, concurrency=[1], block_size=2)["runs"]
    assert [row["policy"] for row in short][2] == "fixed:2"


def test_progress_counts_runs() -> None:
    seen: list[tuple[int, int]] = []
    ask(["off", "fixed:1"], concurrency=[1, 2], progress=lambda done, total, _: seen.append((done, total)))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
