"""SLAs around the one asked for, and acceptance a tenth higher or lower."""

from __future__ import annotations

import numpy as np
import pytest

from specsched.planner.explore import other_slas, with_acceptance
from specsched.simulator.replay import Replay
from specsched.trace import synthesise

RATES = [0.8, 0.7, 0.6, 0.5]


@pytest.fixture(scope="module")
def replay() -> Replay:
    return Replay.of(synthesise(RATES, requests=400, seed=5))


def conditional(replay: Replay) -> np.ndarray:
    """P(k accepted | all before it accepted)."""
    reached = np.array([(replay.accepted >= k).sum() for k in range(replay.block_size + 1)])
    return np.asarray(reached[1:] / reached[:-1])


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_every_position_is_accepted_so_much_as_often(replay: Replay, factor: float) -> None:
    changed = with_acceptance(replay, factor, seed=0)
    assert conditional(changed) / conditional(replay) == pytest.approx(np.full(len(RATES), factor), rel=0.02)
    assert (changed.survival == replay.survival).all()


def test_acceptance_only_falls_below_one_and_only_rises_above(replay: Replay) -> None:
    assert (with_acceptance(replay, 0.9, 0).accepted <= replay.accepted).all()
    assert (with_acceptance(replay, 1.1, 0).accepted >= replay.accepted).all()
    assert (with_acceptance(replay, 1.0, 0).accepted == replay.accepted).all()
    assert with_acceptance(replay, 1.1, 0).accepted.max() <= replay.block_size


def test_confidences_that_are_certain_stay_within_the_block() -> None:
    certain = Replay.of(synthesise([0.999, 0.999], requests=40, seed=1))
    assert with_acceptance(certain, 1.1, 0).accepted.max() == 2


@pytest.mark.parametrize("sla", [0.3, 7.0, 42.0, 80.0, 120.0, 133.7, 2500.0])
def test_other_slas_are_round_and_around_it(sla: float) -> None:
    found = other_slas(sla)
    assert 3 <= len(found) <= 10
    assert sla not in found
    assert all(0.7 * sla <= at <= 1.6 * sla for at in found)
    assert min(found) < sla < max(found)
    steps = np.diff(found) / min(np.diff(found))
    assert np.round(steps) == pytest.approx(steps), "one step apart, or two where the asked one is left out"
    assert all(len(f"{at:g}") <= 5 for at in found)
