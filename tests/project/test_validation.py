"""The validation modules run on inputs with known answers; docs/validation.md is what its JSON gives."""

from __future__ import annotations

import copy
import csv
import itertools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_models import make_draft, make_target

import specsched as ss
from specsched.profile import StepProfile

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from validation import document, engine, engine_loop, paper, published, sensitivity, traces
from validation.common import ROOT, Absent, Settings


def test_the_document_is_what_its_numbers_give() -> None:
    assert document.stale() is None


def test_every_stored_number_can_make_the_document_stale() -> None:
    numbers = document.load()
    assert numbers, "docs/validation.json is empty; run python scripts/validate.py"
    changed = copy.deepcopy(numbers)
    changed["published"]["errors"]["user"][2] += 0.05
    assert document.as_text(changed) != document.as_text(numbers)


def test_figures_of_the_document_are_there_and_small() -> None:
    import re

    shown = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", document.TEXT.read_text(encoding="utf-8"))
    assert len(shown) >= 4
    for name in shown:
        assert 5_000 < (ROOT / "docs" / name).stat().st_size < 200_000, name


def test_absent_data_is_said_to_be_absent(tmp_path: Path) -> None:
    for section in (published, paper):
        with pytest.raises(Absent, match="not here; give the folder"):
            section.run(Settings(tmp_path, None, quick=True))


# -- a published engine whose truth is known -------------------------------------------------------------


def write(path: Path, head: list[str], body: list[list[Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as stream:
        csv.writer(stream).writerows([head, *body])


def test_overhead_and_acceptance_of_a_made_up_engine_are_found(tmp_path: Path) -> None:
    """A sweep simulated with hidden overhead and acceptance; fitted without drafts, fixed-7 is predicted."""
    folder = tmp_path / "validation"
    sizes = [1, 8, 16, 64, 128, 256, 512, 1024]
    ms = [[b, 5.0 + 0.015 * b] for b in sizes] + [[1536, 100.0], [4096, 130.0]]
    write(folder / f"{published.PREFIX}verify_cost_ms.csv", ["batch_tokens", "median_ms"], ms)
    write(
        folder / f"{published.PREFIX}draft_cost_ms.csv",
        ["num_reqs", "median_ms"],
        [[1, 0.9], [128, 3.0], [256, 5.0]],
    )
    write(folder / f"{published.PREFIX}sweep.csv", ["arm"], [])
    settings = Settings(tmp_path, None, quick=True)
    hidden = {1: 0.7e-3, 128: 9e-3}
    truth = published.with_overhead(published.base_profile(settings), hidden)
    text = published.text_of(-0.2, 40, 0.4)
    rows = []
    for arm, policy in (("nospec", "off"), ("k7", "fixed:7")):
        for users in hidden:
            found = published.benchmark(text, truth, policy, users, published.PROMPT_TOKENS, 300, 0.04)
            rows.append([arm, users, found["user"], found["total"], 0])
    head = ["arm", "concurrency", "tok_s_user", "tok_s_total", "clipped"]
    write(folder / f"{published.PREFIX}sweep.csv", head, rows)

    numbers = published.run(settings)
    fitted = numbers["fitted"]
    assert [fitted["overhead_ms"][str(c)] for c in hidden] == pytest.approx([0.7, 9.0], abs=0.1)
    assert fitted["tokens_per_step"] == pytest.approx(published.tokens_per_step(text), abs=0.1)
    assert fitted["pause_ms"] == pytest.approx(40.0, abs=1.0)
    assert numbers["errors"]["total"] == pytest.approx([0.0, 0.0], abs=0.03)
    assert numbers["off_error"] == pytest.approx([0.0, 0.0], abs=0.01)
    assert numbers["errors"]["user"][1] == pytest.approx(0.0, abs=0.05)
    # Full blocks of 128 users sit on the capture limit: prefill is what pushes them off the graph.
    assert numbers["predicted"]["fixed:7"]["off_graph"][1] > 0.05
    assert numbers["predicted"]["fixed:7"]["off_graph"][0] == 0.0
    assert "The collapse at 128 users" in published.text(numbers)


# -- the paper -------------------------------------------------------------------------------------------


def test_the_baseline_fitted_from_its_own_curve_comes_back(tmp_path: Path) -> None:
    head = ["model", "system", "panel", "form", "a", "b", "p", "d", "max_residual", "valid_concurrency"]
    row = ["V4-Flash", "MTP-1", "throughput", "", 9000.0, 100.0, 1.0, 10.0, 0.0, "0-200.0"]
    write(tmp_path / "paper" / "fig8_mtp1_closed_forms.csv", head, [row])
    curve = paper.curves(Settings(tmp_path))["V4-Flash"]
    found = paper.predict(curve, paper.Assumed(traffic="chat"), [8, 64], 60, ("fixed:1", "lagged:2"))
    assert found["fixed:1"]["throughput"] == pytest.approx(list(curve.throughput([8, 64])), rel=0.03)
    assert found["lagged:2"]["verified"][0] > found["lagged:2"]["verified"][1] > 2.0
    # Charging half of the growth to requests must leave the baseline's own steps as they are.
    half = paper.step_profile(curve, 0.8, paper.Assumed(by_request=0.5))
    whole = paper.step_profile(curve, 0.8, paper.Assumed())
    assert half.seconds(100, 50, 0) == pytest.approx(whole.seconds(100, 50, 0), rel=0.01)
    assert half.seconds(300, 50, 0) < whole.seconds(300, 50, 0)


def test_load_at_a_speed_inverts_the_curve() -> None:
    curve = paper.Mtp1(9000.0, 100.0, 1.0, 10.0, 200.0)
    load = curve.load_at(70.0)
    assert curve.throughput(load) / load == pytest.approx(70.0)
    assert curve.load_at(1000.0) == 0.0


# -- traces ----------------------------------------------------------------------------------------------


def test_walk_by_hand() -> None:
    """Two requests of 4 and 2 tokens; the anchors visited depend on what is verified."""
    trace = ss.synthesise([0.5, 0.5], requests=2, output_tokens=[4, 2], seed=0)
    object.__setattr__(trace, "accepted", np.array([2, 0, 0, 1, 1, 0]))
    # Whole blocks: anchors 0, 3 of the first (3 tokens, then 2), anchor 0 of the second.
    assert traces.walk(trace, np.full(6, 2)) == (pytest.approx(7 / 3), pytest.approx((0 + 1 + 1) / 3))
    # Nothing verified: every anchor, one token each.
    assert traces.walk(trace, np.zeros(6, int)) == (1.0, 0.0)


def test_prefix_stops_at_the_first_failure() -> None:
    assert traces.prefix(
        np.array([[True, False, True], [True, True, True], [False, True, True]])
    ).tolist() == [1, 3, 0]


def test_figures_5_and_6_on_the_bundled_traces(tmp_path: Path) -> None:
    numbers = traces.run(Settings(tmp_path, None, quick=True))
    for entry in numbers["figure_5"]["synthetic"].values():
        assert "published" not in entry, "the paper's tables are not in the repository"
        rejected = entry["confidence"]["rejected"]
        assert all(a >= b for a, b in itertools.pairwise(rejected)), "a higher threshold rejects no more"


# -- sensitivity -----------------------------------------------------------------------------------------


def test_sensitivity_starts_from_the_bundled_trace() -> None:
    assert np.array_equal(sensitivity.chat(1.0, 400).accepted, ss.load_trace(sensitivity.TRACE).accepted)


def test_scaled_profiles_scale_what_they_say() -> None:
    profile = ss.load_profile(sensitivity.PROFILE)
    slower = sensitivity.scaled(profile, {"verify": 1.1, "eager": 1.1, "attention": 1.1})
    gap = slower.seconds(64, 64, 30_000, draft=False) - profile.seconds(64, 64, 30_000, draft=False)
    own = float(profile.verify_seconds(64)) + float(profile.attention(30_000))  # type: ignore[misc]
    assert gap == pytest.approx(0.1 * own)
    longer = sensitivity.longer(profile, 1.1)
    assert longer.seconds(64, 64, 30_000) == pytest.approx(profile.seconds(64, 64, 33_000), rel=1e-4)
    hosted = sensitivity.host_time(profile, 1.0)
    assert hosted.seconds(64, 64, 0) - profile.seconds(64, 64, 0) == pytest.approx(8e-3, rel=0.02)


# -- the own engine --------------------------------------------------------------------------------------


def test_engine_and_simulator_agree_on_tokens_per_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real drafting and verification of small random models against a replay of their own trace.

    The costs are given, in one profile a token costs more than in the other: what early-stop and lagged
    verify must not depend on how fast this machine happens to be.
    """
    costs = [
        StepProfile.from_dict(
            {
                "schema": "specsched/profile/1",
                "name": "given",
                "verify": {"tokens": [1, 40], "seconds": [1e-3, last], "beyond": "slope"},
                "draft": {"requests": [1, 4], "seconds": [2e-4, 3e-4]},
            }
        )
        for last in (2e-3, 4e-3, 2e-3)
    ]
    given = iter(costs)
    monkeypatch.setattr(engine, "measured", lambda *asked: next(given))
    target = make_target()
    models = target, make_draft(target, block_size=3)
    numbers = engine.run(Settings(ROOT, None, quick=True, cpu_time=True), models)
    assert numbers["loads"] == [1, 3]
    assert numbers["differ"] == 0, numbers["by_policy"]
    off = numbers["by_policy"]["off"]
    assert off["tokens_per_step"] == [1.0, 1.0]
    assert numbers["by_policy"]["fixed:3"]["verified"] == pytest.approx([4.0, 4.0])


def test_a_busy_machine_is_refused_and_its_numbers_are_not_published(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "busy", lambda: 9.0)
    monkeypatch.setattr(engine, "load_models", lambda: (None, None))
    with pytest.raises(Absent, match="busy"):
        engine.run(Settings(ROOT, None))
    with pytest.raises(ValueError, match="busy"):
        engine.text({"machine": {"quiet": False, "clock": "wall"}})


def test_ratio_and_its_error_by_request() -> None:
    window = engine_loop.Window(tokens={1: 10, 2: 30}, rounds={1: 10, 2: 10})
    ratio, error = engine_loop.tokens_per_step([window])
    assert ratio == 2.0
    assert error == pytest.approx(np.sqrt(10.0**2 + 10.0**2) / 20)


def test_agreement_counts_pairs_and_crossovers() -> None:
    def rows(engine_: list[float], said: list[float]) -> dict[str, list[float]]:
        error = [s / e - 1 for s, e in zip(said, engine_, strict=True)]
        return {
            "engine": engine_,
            "simulated": said,
            "error": error,
            "user_error": error,
            "z": [0.0, 4.0],
            "noise": [0.01] * 2,
        }

    found = engine.agreement(
        {"a": rows([10.0, 20.0], [10.0, 30.0]), "b": rows([20.0, 25.0], [21.0, 24.0])}, [1, 2]
    )
    assert (found["pairs"], found["same_order"], found["differ"]) == (2, 1, 2)
    assert found["best"] == {"engine": ["b", "b"], "simulated": ["b", "a"]}


def test_profiles_of_the_checks_are_valid() -> None:
    curve = paper.Mtp1(9000.0, 100.0, 1.0, 10.0, 200.0)
    assert isinstance(paper.step_profile(curve, 0.8, paper.Assumed(extra=0.05)), StepProfile)
