"""`explain`: the parts sum to the gap, and each is nothing where its cause is absent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from planner_oracle import BLOCK, line

from specsched.documents.explain import Explanation
from specsched.planner import explain
from specsched.planner.explain import exactly_calibrated
from specsched.simulator.replay import Replay
from specsched.trace import Trace

N, LENGTH = 60, 30
STEEP = line(verify={"tokens": [1, 512], "seconds": [0.01, 0.3]})


def trace(kind: str, distortion: float = 1.0, seed: int = 5) -> Trace:
    """`honest`: accepted as often as promised; `certain`: confidences know; `even`: all drafts are alike."""
    rng = np.random.default_rng(seed)
    p = np.clip(rng.beta(4, 1.5, (N * LENGTH, BLOCK)), 0.02, 0.98)
    if kind == "even":
        p = np.full_like(p, 0.7)
    accepted = np.cumprod(rng.random(p.shape) < p, axis=1).sum(axis=1)
    logit = np.log(p / (1 - p)) * distortion
    if kind == "certain":
        logit = np.where(np.arange(BLOCK) < accepted[:, None], 1000.0, -1000.0)
    return Trace.from_arrays(
        request=np.repeat(np.arange(N), LENGTH),
        position=np.tile(np.arange(LENGTH), N),
        confidence_logit=logit,
        accepted=accepted,
        metadata={"licence": "CC0"},
    )


def explained(t: Trace, policy: str = "lagged:2", **more: Any) -> Explanation:
    return explain(t, STEEP, policy, 16, **{"requests": 150, "calibration": None, "workers": 1} | more)


def part(document: Explanation, cause: str) -> float:
    """Of the throughput, so that noise can be judged."""
    (found,) = [p for p in document["parts"] if p["cause"] == cause]
    return found["tokens_per_second"] / document["throughput"]


@pytest.mark.parametrize("policy", ["lagged:2", "threshold:0.5", "off", "fixed:2", "bypass:1"])
def test_parts_sum_to_the_gap(policy: str) -> None:
    found = explained(trace("honest", 3.0), policy)
    assert sum(p["tokens_per_second"] for p in found["parts"]) == pytest.approx(found["gap"], rel=1e-9)
    assert found["throughput"] + found["gap"] == pytest.approx(found["reference"], rel=1e-12)
    assert sum(p["share"] or 0.0 for p in found["parts"]) == pytest.approx(1.0, rel=1e-9)
    assert found["parts"][-1]["throughput"] == found["reference"]


def test_each_part_is_nothing_where_its_cause_is_absent() -> None:
    honest, liar = explained(trace("honest")), explained(trace("honest", 4.0))
    assert abs(part(honest, "calibration")) < 0.02 < part(liar, "calibration")
    # Without a lag: the policy is the best budget of the present already.
    assert part(explained(trace("honest"), "global"), "rule") == pytest.approx(0.0, abs=0.01), (
        "but for what calibration changes"
    )
    certain = explained(trace("certain"), "global")
    assert {p["cause"]: p["tokens_per_second"] for p in certain["parts"]} == {
        "calibration": 0.0,
        "rule": 0.0,
        "ranking": 0.0,
        "unwanted drafts": 0.0,
        "budget": 0.0,
    }
    assert part(explained(trace("even")), "ranking") > 0.02 > part(certain, "ranking")
    assert abs(part(explained(trace("certain"), "lagged:2"), "unwanted drafts")) < 1e-12


def test_off_has_nothing_to_calibrate() -> None:
    found = explained(trace("honest", 4.0), "off")
    assert part(found, "calibration") == 0.0
    assert {row["throughput"] for row in found["confidences"]} == {found["throughput"]}


def test_other_confidences_are_run_and_judged() -> None:
    """Exact ones are best calibrated; the temperature that undoes the distortion comes next."""
    found = explained(trace("honest", 2.0))
    rows = {row["confidences"]: row for row in found["confidences"]}
    assert set(rows) == {"exact", "given", "T x 0.5", "T x 2"}
    assert rows["exact"]["loss"] == 0.0
    assert max(rows["exact"]["error"], rows["T x 2"]["error"]) < rows["given"]["error"]
    assert rows["given"]["error"] < rows["T x 0.5"]["error"]
    assert rows["given"]["throughput"] == found["throughput"]


def test_exact_confidences_are_the_shares_accepted_and_keep_the_order() -> None:
    replay = Replay.of(trace("honest", 3.0))
    exact = exactly_calibrated(replay)
    assert (np.diff(exact.survival, axis=1) <= 0).all()
    for k in range(BLOCK):
        assert exact.survival[:, k].mean() == pytest.approx((replay.accepted > k).mean(), abs=0.02)
    first = np.argsort(replay.survival[:, 0], kind="stable")
    assert (np.diff(exact.survival[first, 0]) >= 0).all()
