"""Traffic whole, steady runs, prompts of the context, hours: what a plan and a run say of their arrivals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from planner_oracle import line, varied

from specsched.planner import plan
from specsched.report.plan import plan_text
from specsched.simulator import simulate
from specsched.simulator.backlog import backlog
from specsched.workload import Workload, poisson

EVEN = varied([24] * 60)
PLACES = {"max_running": 4}


def test_the_backlog_of_a_queue_that_is_never_served_grows_as_arrivals_do() -> None:
    at = np.linspace(0.0, 100.0, 1001)
    found = backlog(at, np.full(1001, 1000.0))
    assert found.grows
    assert found.per_second == pytest.approx(10.0, rel=0.02)
    served = backlog(at, at + 2.0)
    assert not served.grows
    assert abs(served.rise) < 1.0
    assert served.early == pytest.approx(20.0, rel=0.01)
    assert not served.short
    assert backlog(at, at + 6.0).short, "a hundred seconds are less than twenty stays of six"


def test_a_rate_that_rises_is_no_backlog() -> None:
    """Ten then forty requests/s, each served in two seconds: more in the system because more come."""
    at = np.concatenate([np.linspace(0, 50, 500, endpoint=False), np.linspace(50, 100, 2000)])
    assert not backlog(at, at + 2.0).grows


@pytest.mark.parametrize("requests", [1000, 3000])
def test_overload_is_told_by_its_backlog_at_any_length(requests: int) -> None:
    """Four places of 24 steps of about 11 ms carry 15 requests/s; 30 come."""
    result = simulate(EVEN, line(), "off", workload=poisson(30.0, requests=requests), **PLACES)
    assert result.backlog is not None
    assert result.backlog.grows
    assert any("more arrives than is served" in said for said in result.warnings)
    calm = simulate(EVEN, line(), "off", workload=poisson(8.0, requests=requests), **PLACES)
    assert not any("more arrives" in said for said in calm.warnings)


def test_short_and_long_files_of_one_traffic_need_the_same_fleet() -> None:
    """At 75 requests/s three seconds of arrivals need what a minute needs: the file is repeated, and said."""
    short = Workload("file", poisson(75.0, requests=120, seed=2).scaled(75.0).arrival_seconds)
    long = Workload("file", poisson(75.0, requests=2400, seed=2).scaled(75.0).arrival_seconds)
    asked = {"policies": ["off"], "calibration": None, "workers": 1, "prefill": "free", **PLACES}
    few, many = (plan(EVEN, line(), 60.0, workload=w, **asked) for w in (short, long))
    assert many["policies"][0]["engines"] - few["policies"][0]["engines"] in (-1, 0, 1)
    assert few["policies"][0]["engines"] >= 5
    assert any("repeated" in said for said in few["warnings"])
    assert not any("repeated" in said for said in many["warnings"])


def test_a_context_that_is_read_was_prefilled() -> None:
    load = poisson(2.0, requests=60)
    serving = {"prefill": "chunked", "batch_tokens": 256, "workload": load}
    own = simulate(EVEN, line(), "off", **serving).summary["prefill_tokens"]
    asked = simulate(EVEN, line(), "off", context=800, **serving).summary["prefill_tokens"]
    assert asked == pytest.approx(own * 800 / 20, rel=0.05)


def test_no_hour_needs_more_than_the_fleet_that_served_it() -> None:
    """A burst in the last minute: what served it is enough for its hour, however high the rate of it."""
    at = np.concatenate([np.arange(0, 2400, 4.0), 2400 + np.arange(0, 60, 0.05)])
    slow = line(verify={"tokens": [1, 512], "seconds": [0.1, 1.122]})
    asked: dict[str, Any] = {"policies": ["off"], "calibration": None, "workers": 1, "prefill": "free"}
    document = plan(EVEN, slow, 4.0, workload=Workload("burst", at), **asked)
    row = document["policies"][0]
    assert row["engines"]
    assert max(hour["gpus"] for hour in document["hours"]["table"]) <= row["engines"]
    assert document["hours"]["gpus_peak"] == row["engines"]


def test_hours_of_a_recorded_day_and_what_following_saves() -> None:
    """Two quiet hours, one of six times the traffic, a quiet one."""
    quiet, busy = 0.6, 3.6
    at = np.concatenate(
        [h * 3600 + np.arange(0, 3600, 1 / rate) for h, rate in enumerate((quiet, quiet, busy, quiet))]
    )
    slow = line(verify={"tokens": [1, 512], "seconds": [0.1, 1.122]})
    asked: dict[str, Any] = {"policies": ["off"], "calibration": None, "workers": 1, "gpu_cost": 2.0}
    asked["max_running"] = 4
    asked |= {"prefill": "free"}
    document = plan(EVEN, slow, 8.0, workload=Workload("day", at), **asked)
    found = document["hours"]
    needs = [row["gpus"] for row in found["table"]]
    assert len(needs) == 4
    assert needs[2] == max(needs) > needs[0] == needs[1] == needs[3]
    assert found["gpu_hours_peak"] == pytest.approx(4 * found["gpus_peak"], rel=0.01)
    assert found["gpus_mean"] == pytest.approx(sum(needs) / 4, rel=0.02)
    assert found["gpu_hours_following"] == pytest.approx(sum(needs), rel=0.01)
    assert found["saving"] == pytest.approx(1 - sum(needs) / (4 * found["gpus_peak"]), rel=0.02)
    assert document["portion"] is None or document["portion"]["window_start_seconds"] >= 7000
    text = plan_text(document)
    assert f"hours: {found['gpus_peak']} GPUs at the peak" in text
    assert "recorded arrivals" in text
    assert "Poisson gaps" not in text


def test_off_alone_is_not_compared_with_itself() -> None:
    document = plan(EVEN, line(), 30.0, rate=5.0, policies=["off"], calibration=None, workers=1)
    assert "without drafting" not in document["headline"]
    assert document["recommended_runs_in"]["confidences"] == "not needed"
    drafting = plan(EVEN, line(), 30.0, rate=5.0, policies=["lagged:2"], calibration=None, workers=1)
    assert drafting["recommended_runs_in"]["confidences"] == "recorded"
