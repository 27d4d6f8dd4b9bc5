"""Only what is done is charged, and only what has a price is tried."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from planner_oracle import BLOCK, line, varied

from specsched import schedule
from specsched.planner import answer
from specsched.simulator import simulate

TRACE = varied([24] * 40)


def test_no_drafts_by_table_costs_what_off_costs(tmp_path: Path) -> None:
    """k = 0 is known before the step: nothing is drafted, and no share of the step is lost to it."""
    slowed = line(scheduler={"minimum_gain": 0.0, "enabling_fraction": 0.2}, sync_seconds=0.002)
    table = tmp_path / "zero.json"
    table.write_text(json.dumps([[1, None, 0]]))
    off = simulate(TRACE, slowed, "off", 9, requests=60).summary
    none = simulate(TRACE, slowed, f"batch-table:{table}", 9, requests=60).summary
    assert none["throughput"] == off["throughput"]
    assert none["step_seconds"] == off["step_seconds"]
    table.write_text(json.dumps([[1, 8, 2], [9, None, 0]]))
    some = simulate(TRACE, slowed, f"batch-table:{table}", 8, requests=60).summary
    two = simulate(TRACE, slowed, "fixed:2", 8, requests=60).summary
    assert some["throughput"] == two["throughput"] != off["throughput"]


def test_first_steps_of_a_lagged_policy_keep_to_what_has_a_price() -> None:
    """Graphs up to 32 tokens and no eager curve: 20 users verify 12 drafts at most, at first too."""
    limited = line(capture={"sizes": [*range(1, 33)], "limit": 32})
    result = simulate(TRACE, limited, "lagged:2", 20, requests=60)
    assert 20 < result.steps["tokens"].max() <= 32
    wide = simulate(TRACE, line(), "lagged:2", 20, requests=60)
    assert wide.steps["tokens"].iloc[0] == 20 * (1 + BLOCK), "with a price for all the whole block"


def test_a_lagged_policy_without_history_admits_the_best_that_have_a_price() -> None:
    confidence = np.array([[0.9, 0.8, 0.5], [0.6, 0.5, 0.4]])
    sps = np.array([1.0] * 6 + [0.0] * 3)  # up to 5 tokens: 2 anchors and 3 drafts
    assert schedule.Lagged(2).plan(confidence, sps).tolist() == [2, 1]
    assert schedule.Lagged(2).plan(confidence, np.ones(9)).tolist() == [3, 3]


@pytest.mark.parametrize("policy", ["off", "fixed:4", "lagged:2"])
def test_steps_ten_percent_off_are_those_of_another_profile(policy: str) -> None:
    """Capacity with every step 10 % longer or shorter, against profiles that are so, within 2 %."""
    asked = {"requests": 80, "calibration": None, "workers": 1, "policies": [policy]}
    told = answer(TRACE, line(), 75.0, **asked)["policies"][0]["capacity_if_steps"]
    for name, factor in (("costlier", 1.1), ("cheaper", 0.9)):
        other = line(
            verify={"tokens": [1, 512], "seconds": [0.01 * factor, 0.1122 * factor]},
            draft={"requests": [1], "seconds": [0.001 * factor], "block_size": BLOCK},
        )
        assert told[name] == pytest.approx(
            answer(TRACE, other, 75.0, **asked)["policies"][0]["capacity"], abs=1
        )


def test_pockets_do_not_depend_on_what_a_policy_is_compared_with() -> None:
    stairs = line(verify={"tokens": [1, 20, 21, 40, 512], "seconds": [0.01, 0.012, 0.016, 0.0121, 0.1122]})
    asked: dict[str, Any] = {"requests": 80, "calibration": None, "workers": 1, "prefill": "free"}
    alone = answer(TRACE, stairs, 80.0, policies=["off"], **asked)["policies"][0]
    beside = answer(TRACE, stairs, 80.0, policies=["off", "fixed:1", "fixed:4"], **asked)["policies"][0]
    assert alone["pockets"] == beside["pockets"] != []
    assert alone["capacity_interval"] == beside["capacity_interval"]
