"""The page's own reading of a capacity is the planner's: both rules on the same loads, held to each other."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import specsched
from specsched.planner import capacity as planner
from specsched.planner.capacity import TO_SPARE, Load, Question, Search, reached_by
from specsched.profile import StepProfile
from specsched.schedule import make
from specsched.simulator import Limits, Serving, SimResult
from specsched.simulator.replay import Replay
from specsched.trace import synthesise

RULE = Path(specsched.__file__).parent / "report" / "assets" / "capacity.js"
NODE = shutil.which("node")
LOADS = 60
RUNGS = [
    1,
    2,
    3,
    4,
    5,
    6,
    7,
    8,
    9,
    10,
    11,
    12,
    13,
    14,
    15,
    16,
    17,
    18,
    19,
    20,
    22,
    24,
    26,
    28,
    30,
    33,
    36,
    39,
]
RUNGS += [42, 46, 50, 55, LOADS]
# Reads [[policy, ladder, sla], ...] and writes what the rule makes of each.
PROGRAM = """
const { capacityAt } = require(process.argv[1]);
const cases = JSON.parse(require("fs").readFileSync(0, "utf8"));
process.stdout.write(JSON.stringify(cases.map(([policy, ladder, sla]) => capacityAt(policy, ladder, sla))));
"""
REPLAY = Replay.of(synthesise([0.5, 0.4], requests=8, seed=1))


def in_node(cases: list[Any]) -> list[dict[str, int | None]]:
    if NODE is None:
        pytest.skip("the rule of the page is JavaScript, and there is no node here to run it")
    done = subprocess.run(
        [NODE, "-e", PROGRAM, str(RULE)], input=json.dumps(cases), capture_output=True, text=True, check=True
    )
    return cast(list[dict[str, int | None]], json.loads(done.stdout))


def searched(rng: np.random.Generator, sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> Search:
    """A search over invented loads: speeds that fall with noise, memory that ends, refusals, flat tables."""
    falling = 200.0 * np.exp(-np.arange(LOADS + 1) / rng.uniform(15, 60))
    keeps = np.round(falling * np.exp(rng.normal(0.0, rng.choice([0.0, 0.03, 0.2]), LOADS + 1)), 1)
    held = np.arange(LOADS + 1) < rng.integers(10, 3 * LOADS)
    priced, refused = rng.random(LOADS + 1) > 0.05, rng.random(LOADS + 1) < 0.03
    apart = np.arange(LOADS + 1) < rng.integers(5, 4 * LOADS)  # limits with shares of their own are kept
    refused[1] = False
    ran = cast(SimResult, object())

    def run(self: Search, load: int) -> Load:
        if refused[load]:
            return Load(load, None, 0.0, 0.0, 0.0, True)
        found = Load(load, ran, 0, 0, 0, bool(held[load]), float(keeps[load]), bool(priced[load]))
        return replace(found, apart=frozenset(("share",) if apart[load] else ()))

    monkeypatch.setattr(Search, "_run", run)
    monkeypatch.setattr(planner, "captured_loads", lambda question, policy: sizes)
    question = Question(REPLAY, cast(StepProfile, None), Serving(), 100.0, 0.95, 100, 0)
    return Search(question, make("fixed:1", block_size=2))


def as_document(search: Search, sizes: list[int], known: list[int]) -> dict[str, Any]:
    rows = [search.at(load) for load in known]
    return {
        "curve": [
            {
                "concurrency": row.concurrency,
                "keeps_tps": row.keeps,
                "limits_kept": row.limits_kept,
                "memory_held": row.held,
                "priced": row.priced,
            }
            for row in rows
            if row.result is not None
        ],
        "refused_loads": [row.concurrency for row in rows if row.result is None],
        "captured_loads": sizes,
    }


def test_the_rule_of_the_page_is_that_of_the_planner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every load known: the same capacity to one user. Some known: bounds that hold it."""
    rng = np.random.default_rng(7)
    ladder = {"rungs": RUNGS, "refined": True, "to_spare": TO_SPARE}
    cases, wanted, whole = [], [], []
    for _ in range(150):
        sizes = sorted(set(rng.integers(1, LOADS + 1, rng.integers(0, 8)).tolist()))
        search = searched(rng, sizes, monkeypatch)
        sla = float(
            rng.choice([search.at(int(rng.integers(1, LOADS + 1))).keeps or 50.0, rng.uniform(20, 220)])
        )
        right = search.at_sla(RUNGS, sla)
        searched_for_it = sorted(search.loads)
        some = sorted(rng.choice(np.arange(1, LOADS + 1), rng.integers(1, LOADS), replace=False).tolist())
        for known, is_whole in ((list(range(1, LOADS + 1)), True), (searched_for_it, True), (some, False)):
            cases.append([as_document(search, sizes, known), ladder, sla])
            wanted.append(right)
            whole.append(is_whole)
    exact = 0
    for found, right, is_whole in zip(in_node(cases), wanted, whole, strict=True):
        low, high = found["low"], found["high"]
        assert low is not None
        assert low <= right
        assert high is None or right <= high
        assert not is_whole or low == high == right
        exact += not is_whole and low == high
    assert exact > 10, "loads that happen to settle it are not read as bounds"


def test_given_loads_are_read_as_the_answer_reads_them() -> None:
    curve = [
        {"concurrency": load, "keeps_tps": keeps, "memory_held": True, "limits_kept": True, "priced": True}
        for load, keeps in ((4, 90.0), (8, 80.0), (16, 70.0), (32, 75.0))
    ]
    policy = {"curve": curve, "refused_loads": [], "captured_loads": []}
    ladder = {"rungs": [4, 8, 16, 32], "refined": False, "to_spare": TO_SPARE}
    found = in_node([[policy, ladder, sla] for sla in (95.0, 80.0, 72.0, 60.0)])
    assert [(row["low"], row["high"]) for row in found] == [(0, 0), (8, 8), (8, 8), (32, 32)]


@pytest.mark.parametrize("limits", [{}, {"e2e_seconds": 0.6}, {"itl_seconds": 0.012, "shares": {"itl": 0.9}}])
def test_an_answer_at_another_sla_is_what_exploring_finds(limits: dict[str, Any]) -> None:
    """`at_sla` runs what an answer for that SLA runs, so the page's marks are that answer's."""
    trace = synthesise([0.8, 0.7, 0.6], requests=40, seed=2, output_tokens=60.0)
    options: dict[str, Any] = {"requests": 40, "workers": 1, "policies": ["off", "fixed:3"]}
    options["limits"] = Limits(**limits)
    options["prefill"] = "disaggregated"  # what prompts are worth hangs on the SLA
    explored = specsched.answer(trace, "h100-sxm_qwen3-8b_bf16_tp1", 120.0, explore=True, **options)
    stops = [at["sla_tps"] for at in explored["policies"][0]["capacity_at"]]
    assert len(stops) >= 3
    for sla in (stops[0], stops[-1]):
        again = specsched.answer(trace, "h100-sxm_qwen3-8b_bf16_tp1", sla, **options)
        for was, now in zip(explored["policies"], again["policies"], strict=True):
            at = next(at for at in was["capacity_at"] if at["sla_tps"] == sla)
            assert at["capacity"] == now["capacity"]
    cases = [
        [policy, explored["ladder"], at["sla_tps"]]
        for policy in explored["policies"]
        for at in [*policy["capacity_at"], {"sla_tps": 120.0, "capacity": policy["capacity"]}]
    ]
    found = in_node(cases)
    right = [
        at
        for policy in explored["policies"]
        for at in [*(at["capacity"] for at in policy["capacity_at"]), policy["capacity"]]
    ]
    assert [(row["low"], row["high"]) for row in found] == [(at, at) for at in right]


@pytest.mark.parametrize("share", [0.05, 0.5, 0.95, 0.99, 1.0])
def test_the_speed_that_a_share_reaches(share: float) -> None:
    """By definition: the greatest speed that at least that share of the requests has."""
    rng = np.random.default_rng(3)
    for n in (1, 7, 20, 100, 333):
        speed = rng.integers(1, 50, n).astype(float)
        right = max(s for s in speed if (speed >= s).mean() >= share)
        assert reached_by(speed, share) == right
    assert reached_by(np.array([np.nan, 5.0]), 1.0) == 0.0


def test_passing_at_the_asked_sla_is_passing() -> None:
    load = Load(3, cast(SimResult, object()), 0.0, 0.0, 0.0, True, keeps=100.0)
    assert load.passes_at(100.0)
    assert load.passes_at(100.0 * (1 + 1e-12)), "rounding"
    assert not load.passes_at(100.001)
    assert not replace(load, held=False).passes_at(50.0)
