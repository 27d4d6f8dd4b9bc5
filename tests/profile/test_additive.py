"""The additive fit: planted costs, cliffs, passes off the graph, and times that are none."""

from __future__ import annotations

import math

import numpy as np
import pytest
from planted_costs import planted, theta

from specsched.errors import SpecschedError
from specsched.profile.additive import fit_steps


def grid(seed: int, noise: float) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    rows = [
        (tokens, -(-tokens // width), -(-tokens // width) * context)
        for tokens in (1, 2, 4, *range(8, 257, 8))
        for width in (1, 2, 4, 8)
        for context in (512, 2048, 8192)
        if tokens >= width
    ]
    tokens, requests, kv = (np.array(column) for column in zip(*rows, strict=True))
    seconds = np.array([planted(*row) for row in rows])
    return tokens, requests, kv, seconds * np.exp(noise * rng.standard_normal(len(rows)))


@pytest.mark.parametrize(("noise", "allowed"), [(0.0, 0.01), (0.02, 0.025)])
def test_the_fit_recovers_a_planted_additive_cost(noise: float, allowed: float) -> None:
    tokens, requests, kv, seconds = grid(0, noise)
    fit = fit_steps(tokens, requests, kv, seconds)
    assert np.median(np.abs(fit.relative_error)) < max(noise, 0.003)
    attention = np.interp(kv, fit.kv_tokens, fit.attention)
    alpha = np.interp(requests, fit.requests, fit.overhead)
    predicted = np.array([fit.verify[b] for b in tokens.tolist()]) + attention + alpha
    truth = np.array([planted(*row) for row in zip(tokens.tolist(), requests, kv, strict=True)])
    assert np.abs(predicted / truth - 1).max() < 2 * allowed
    # Steps the fit never saw: this size, load and context, but not together.
    for b, r, n in [(96, 24, 24 * 8192), (256, 64, 64 * 512), (40, 5, 40960), (128, 32, 65536)]:
        guess = fit.verify[b] + np.interp(n, fit.kv_tokens, fit.attention)
        guess += np.interp(r, fit.requests, fit.overhead)
        assert guess == pytest.approx(planted(b, r, n), rel=2 * allowed)
    slope = (fit.attention[-1] - fit.attention[-2]) / (fit.kv_tokens[-1] - fit.kv_tokens[-2])
    assert slope == pytest.approx(2.5e-8, rel=0.05 if noise == 0 else 0.2)
    assert (fit.overhead >= 0).all()
    assert (fit.attention >= 0).all()


def test_the_fit_keeps_cliffs_and_inversions() -> None:
    fit = fit_steps(*grid(1, 0.005))
    assert fit.verify[136] / fit.verify[128] == pytest.approx(theta(136) / theta(128), rel=0.02)
    assert fit.verify[200] < fit.verify[192] < fit.verify[208]


def test_passes_off_the_graph_are_a_curve_of_their_own() -> None:
    tokens, requests, kv, seconds = grid(2, 0.0)
    eager = np.zeros(len(tokens), dtype=bool)
    again = tokens == 256
    columns = [np.concatenate([c, c[again]]) for c in (tokens, requests, kv)]
    both = np.concatenate([seconds, seconds[again] + 0.02])
    fit = fit_steps(*columns, both, np.concatenate([eager, np.ones(again.sum(), dtype=bool)]))  # type: ignore[call-arg]
    assert set(fit.eager) == {256}
    assert fit.eager[256] - fit.verify[256] == pytest.approx(0.02, rel=0.01)


def test_what_drafting_adds_to_a_pass_is_no_cost_of_its_tokens() -> None:
    """Every size also without drafts, at one token a request, as the engine's grid has them."""
    tokens, requests, kv, seconds = grid(3, 0.01)
    plain = tokens == requests
    extra = 4e-4 + 1e-5 * requests
    columns = [np.concatenate([c, c[plain]]) for c in (tokens, requests, kv)]
    both = np.concatenate([seconds + extra, seconds[plain]])
    drafting = np.arange(len(both)) < len(seconds)
    fit = fit_steps(*columns, both, drafting=drafting)  # type: ignore[call-arg]
    assert np.abs(fit.relative_error).max() < 0.05
    at = np.interp([8, 32, 128], fit.requests, fit.keeping)
    assert at == pytest.approx([4.8e-4, 7.2e-4, 16.8e-4], rel=0.15)
    bare = fit_steps(*columns, both)  # type: ignore[call-arg]
    assert not bare.keeping.any()
    assert bare.relative_error[~drafting].mean() > 0.03 > abs(fit.relative_error[~drafting].mean())


def test_wild_noise_leaves_no_pass_without_a_cost() -> None:
    for seed in range(5):
        tokens, requests, kv, seconds = (column[::9] for column in grid(seed, 1.0))
        fit = fit_steps(tokens, requests, kv, seconds)
        assert all(cost > 0.049 * seconds[tokens == b].min() for b, cost in fit.verify.items())
        assert fit.overhead.min() == 0.0


@pytest.mark.parametrize("bad", [[], [0.0], [math.nan], [-1.0]])
def test_nothing_is_fitted_to_times_that_are_none(bad: list[float]) -> None:
    ones = np.ones(len(bad), dtype=np.int64)
    with pytest.raises(SpecschedError, match="measure again"):
        fit_steps(ones, ones, ones, np.array(bad))
