"""Steps outside what a profile was measured at are told: below as above, each term, whoever asks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specsched.profile import StepProfile
from specsched.simulator import simulate
from specsched.sweep.points import load_inputs, run_point
from specsched.sweep.spec import expand
from specsched.trace import synthesise

TRACE = synthesise([0.5, 0.5], requests=30, output_tokens=[60] * 30, prompt_tokens=[50] * 30)
ENDS = {  # each measured from 8 to 16 requests, or what 8 to 16 requests mean
    "verify": {"tokens": [8, 48], "seconds": [0.01, 0.02]},
    "overhead": {"requests": [8, 16], "seconds": [0.004, 0.008]},
    "draft": {"requests": [8, 16], "seconds": [0.004, 0.008]},
    "attention": {"kv_tokens": [450, 1800], "seconds": [0.004, 0.016]},
}


def profile(**terms: Any) -> StepProfile:
    wide = {"verify": {"tokens": [1, 4096], "seconds": [0.01, 1.0]}}
    return StepProfile.from_dict({"schema": "specsched/profile/1", "name": "p", **(wide | terms)})


def run(policy: str, users: int, **terms: Any) -> Any:
    return simulate(TRACE, profile(**terms), policy, users, requests=60)


def told(result: Any) -> list[str]:
    return [said for said in result.warnings if "carried on, not measured" in said]


@pytest.mark.parametrize("term", ENDS)
@pytest.mark.parametrize(("users", "side"), [(2, "below"), (12, None), (40, "above")])
def test_a_term_outside_its_points_is_told(term: str, users: int, side: str | None) -> None:
    result = run("fixed:2", users, **{term: ENDS[term]})
    shares = result.summary["outside_steps"]
    if side is None:
        assert not shares
        assert not told(result)
    elif (term, side) == ("verify", "above"):
        assert result.summary["extrapolated_steps"] > 0  # counted exactly, by the loop
    else:
        assert shares[f"{term}_{side}"] > 0.9
        (said,) = told(result)
        assert f"{'fewer' if side == 'below' else 'more'} " in said
        assert f"than {term} was measured at" in said


def test_the_share_is_that_of_the_steps() -> None:
    """Exact where the whole log is kept: contexts grow past the last point during every request."""
    edge = {"kv_tokens": [0, 700], "seconds": [0.0, 0.001]}
    result = simulate(TRACE, profile(attention=edge), "off", 8, requests=60, log_steps=1 << 14)
    steps = result.steps[result.steps["begun_seconds"] >= 0]
    window = steps.tail(result.summary["steps"])
    assert result.summary["outside_steps"]["attention_above"] == pytest.approx(
        (window["context_tokens"] > 700).mean(), abs=0.02
    )
    sampled = simulate(TRACE, profile(attention=edge), "off", 8, requests=60)
    assert sampled.summary["outside_steps"] == pytest.approx(result.summary["outside_steps"], abs=0.1)


def test_drafting_nothing_is_outside_no_draft_cost() -> None:
    assert not run("off", 2, draft=ENDS["draft"]).summary["outside_steps"]


def test_captured_sizes_pad_up_to_the_first_point_and_a_gap_above_the_limit_is_below() -> None:
    captured = profile(
        verify={"tokens": [8, 16], "seconds": [0.01, 0.01]},
        capture={"sizes": [8, 16], "limit": 16},
        eager={"tokens": [32, 64], "seconds": [0.02, 0.03]},
    )
    assert captured.below(np.array([1, 8, 16, 17, 31, 32])).tolist() == [
        False,
        False,
        False,
        True,
        True,
        False,
    ]


def test_a_sweep_tells_it_too_and_its_idle_settings() -> None:
    spec: dict[str, Any] = {"traces": ["t"], "profiles": ["p"], "policies": ["off"], "concurrencies": [2]}
    spec["run"] = {"requests": 30, "batch_tokens": 300, "calibration": "none"}
    sweep = _sweep(spec, profile(overhead=ENDS["overhead"]))
    assert any("overhead was measured at" in said for said in sweep["warnings"])
    assert any(said.startswith("run.batch_tokens does nothing") for said in sweep["warnings"])


def _sweep(spec: dict[str, Any], step: StepProfile) -> Any:
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        TRACE.save(folder / "t.parquet")
        step.save(folder / "p.json")
        spec |= {"traces": ["t.parquet"], "profiles": ["p.json"]}
        sweep = expand(spec, folder)
        return run_point(sweep.points[0], load_inputs(sweep, sweep.points))


def test_passes_between_the_limit_and_the_first_eager_point_are_said_of_eager() -> None:
    gap = profile(
        verify={"tokens": [1, 16], "seconds": [0.01, 0.01]},
        capture={"sizes": [1, 16], "limit": 16},
        eager={"tokens": [64, 128], "seconds": [0.02, 0.03]},
    )
    result = simulate(TRACE, gap, "off", 20, requests=60)
    assert "verify_below" not in result.summary["outside_steps"]
    assert result.summary["outside_steps"]["eager_below"] > 0.5
    assert any("fewer tokens than eager was measured at (64)" in text for text in result.warnings)
