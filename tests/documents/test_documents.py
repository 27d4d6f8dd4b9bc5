"""Documents as they are made hold to their JSON Schemas, and the schemas' files to the types."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from scripts import schemas
from specsched import documents, sweep
from specsched.calibration import fit_sts
from specsched.formats.acceptance import Acceptance
from specsched.inspection import inspect_acceptance, inspect_object
from specsched.planner import advise, answer, explain, plan, runs
from specsched.planner.about import about
from specsched.profile import StepProfile
from specsched.simulator import Limits
from specsched.trace import Trace

COST = {"tokens": [1, 8, 64], "seconds": [0.01, 0.011, 0.03]}
PROFILE = StepProfile.from_dict(
    {
        "schema": "specsched/profile/1",
        "name": "p",
        "verify": COST,
        "draft": {"requests": [1, 8], "seconds": [0.001, 0.002], "block_size": 2},
        "capture": {"sizes": [1, 2, 4, 8, 16, 32, 64], "limit": 64},
        "eager": {"tokens": [65, 128], "seconds": [0.05, 0.07]},
        "gpu": {"count": 1, "memory_bytes": 10_000},
        "model": {"weight_bytes": 100, "kv_bytes_per_token": 1},
    }
)
N, LENGTH = 40, 6
TRACE = Trace.from_arrays(
    request=np.repeat(np.arange(N), LENGTH),
    position=np.tile(np.arange(LENGTH), N),
    confidence_logit=np.random.default_rng(0).normal(1.0, 1.0, (N * LENGTH, 2)),
    accepted=np.random.default_rng(1).integers(0, 3, N * LENGTH),
    prompt_tokens=20,
)
FEW: dict[str, Any] = {"requests": 20, "policies": ["off", "fixed:2", "lagged:1"]}


def hold(name: str, document: Mapping[str, Any]) -> None:
    """The document, as JSON text holds it, validates."""
    validator = jsonschema.Draft202012Validator(documents.shipped(name))
    validator.validate(json.loads(json.dumps(document, allow_nan=False)))


@pytest.mark.parametrize("more", [{}, {"calibration": None, "policy": "off"}])
def test_explanations(more: dict[str, Any]) -> None:
    hold("explain", explain(TRACE, PROFILE, concurrency=4, requests=20, **more))


@pytest.mark.parametrize(
    "traffic", [{"users": 4}, {"sla_tps": 60.0}, {"sla_tps": 1e6}, {"rate": 2.0}, {"rate": 900.0}]
)
def test_advice(traffic: dict[str, Any]) -> None:
    hold("advice", advise(TRACE, PROFILE, requests=20, **traffic))


@pytest.mark.parametrize("sla", [60.0, 1e6], ids=["reached", "reached by nobody"])
@pytest.mark.parametrize("more", [{}, {"prefill": "chunked", "concurrency": [1, 4]}, {"calibration": None}])
def test_answers(sla: float, more: dict[str, Any]) -> None:
    hold("answer", answer(TRACE, PROFILE, sla, **FEW, **more))


@pytest.mark.parametrize(
    ("sla", "more"),
    [
        (40.0, {"gpu_cost": 2.0, "prefill": "chunked", "limits": Limits(5.0)}),
        (40.0, {"ranks_per_group": 2}),
        (1e6, {"gpu_cost": 2.0}),
    ],
)
def test_plans(sla: float, more: dict[str, Any]) -> None:
    hold("plan", plan(TRACE, PROFILE, sla, rate=20.0, **FEW, **more))


@pytest.mark.parametrize("more", [{"concurrency": [1, 3]}, {"arrivals": "poisson:5", "prefill": "chunked"}])
@pytest.mark.parametrize("sla", [None, 60.0])
def test_runs(sla: float | None, more: dict[str, Any]) -> None:
    hold("runs", runs(TRACE, PROFILE, sla_tps=sla, **FEW, **more))


def test_runs_in_which_nobody_decodes_have_no_share(tmp_path: Path) -> None:
    """Outputs of one token come with the prefill: no speed, so null, never NaN."""
    arrivals = tmp_path / "one.csv"
    rows = [f"2023-11-16 18:17:{i:02d},5,1" for i in range(20)]
    arrivals.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n")
    document = runs(TRACE, PROFILE, ["off"], arrivals=str(arrivals), sla_tps=60.0)
    assert document["runs"][0]["share_at_sla"] is None
    hold("runs", document)


def test_every_answer_says_where_its_whole_inputs_come_from() -> None:
    """Of the trace that was given, not of the half that a calibration leaves to replay."""
    told = [
        answer(TRACE, PROFILE, 60.0, **FEW)["about"],
        plan(TRACE, PROFILE, 40.0, rate=20.0, **FEW)["about"],
        runs(TRACE, PROFILE, concurrency=[1], **FEW)["about"],
    ]
    assert told == [about(TRACE, PROFILE)] * 3
    assert f"{N} requests, {N * LENGTH} anchors, block 2" in told[0]["trace"]


def test_sweeps_with_a_failed_point_too(tmp_path: Path) -> None:
    TRACE.save(tmp_path / "t.parquet")
    PROFILE.save(tmp_path / "p.json")
    short = PROFILE.to_dict() | {"name": "short", "eager": None, "capture": {"sizes": [1, 2], "limit": 2}}
    (tmp_path / "short.json").write_text(json.dumps(short))
    (tmp_path / "grid.toml").write_text(
        'traces = ["t.parquet"]\nprofiles = ["p.json", "short.json"]\npolicies = ["fixed:2"]\n'
        "concurrencies = [4]\n[run]\nrequests = 20\n"
    )
    summary = sweep.run(tmp_path / "grid.toml", tmp_path / "out", workers=1)
    assert summary["failed"] == 1
    hold("sweep", summary)


def test_inspections() -> None:
    hold("inspection", inspect_object(PROFILE))
    hold("inspection", inspect_object(TRACE))
    hold("inspection", inspect_object(fit_sts(TRACE)))
    for rates in (
        Acceptance(np.array([0.7, 0.5]), 100, False, "counters"),
        Acceptance(np.array([0.7]), 0, True, "counters", ("a note",), np.array([90.0])),
    ):
        hold("inspection", inspect_acceptance(rates, Path("rates.json"), "vllm-prometheus"))


def test_a_schema_refuses_what_the_types_do_not_say() -> None:
    right = runs(TRACE, PROFILE, ["off"], concurrency=[1], requests=20)
    row = right["runs"][0]
    for wrong in (
        {**right, "extra": 1},
        {key: value for key, value in right.items() if key != "trace"},
        {**right, "schema": "specsched/runs/2"},
        {**right, "runs": [{**row, "throughput": "fast"}]},
        {**right, "runs": [{key: value for key, value in row.items() if key != "steps"}]},
        {**right, "runs": [{**row, "tps_user": {"p98": 1.0}}]},
    ):
        with pytest.raises(jsonschema.ValidationError):
            hold("runs", wrong)


@pytest.mark.parametrize("name", documents.DOCUMENTS)
def test_schemas_are_schemas(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(documents.shipped(name))


def test_the_files_are_what_the_types_say() -> None:
    assert schemas.stale() == [], "run scripts/schemas.py"
