"""Losslessness by exact enumeration (docs/losslessness.md): the served law is the target's, to 1e-12.

`enumeration.served` runs the product's own policies through every draft, acceptance and residual outcome of
small random worlds: several requests that come and go, several steps. The planted leaks at the end show that
the same code catches a policy, or a confidence, that is not lossless.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
from enumeration import IDLE_GAIN, World, deviation, promised, served
from hypothesis import given, settings
from hypothesis import strategies as st

from specsched import schedule

EXACT = 1e-12
LEAK = 1e-6  # what counts as caught; rounding stays below 1e-14

# (vocabulary, γ, step at which each request arrives, output tokens): several requests, several steps.
SIZES = [
    (2, 1, (0, 0, 1), 3),
    (2, 2, (0,), 4),
    (2, 2, (0, 0), 3),
    (2, 2, (0, 1, 1), 2),
    (2, 2, (0, 0, 2), 2),
    (2, 3, (0, 0), 2),
    (2, 3, (0, 1), 3),
    (3, 2, (0, 0), 2),
    (3, 2, (0,), 3),
]


# For policies that learn what was accepted: hardly two ways to a state leave the same memory.
FEW = [(2, 1, (0, 0), 3), (2, 1, (0, 0, 1), 2), (2, 2, (0,), 4), (2, 2, (0, 1), 2), (3, 1, (0, 0), 2)]


@st.composite
def scenes(draw, sizes=tuple(SIZES), **world):
    """(world, sps, output tokens, arrivals)."""
    vocabulary, block, arrivals, length = draw(st.sampled_from(sizes))
    made = World(
        draw(st.integers(0, 2**31)),
        vocabulary,
        block,
        ends=draw(st.booleans()),
        zeros=draw(st.booleans()),
        **world,
    )
    size = len(arrivals) * (1 + block) + 1
    increments = draw(st.lists(st.sampled_from([0.0, 0.0, 0.1, 0.5, 2.0]), min_size=size, max_size=size))
    base = draw(st.sampled_from([0.1, 1.0, 5.0]))
    return made, 1.0 / (base + np.cumsum(increments)), length, arrivals


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    file = tmp_path_factory.mktemp("tables") / "table.json"
    file.write_text("[[1, 1, 1], [2, null, 0]]")
    return f"batch-table:{file}"


LOSSLESS = ["off", "fixed:1", "fixed", "threshold:0.3", "early-stop", "lagged:1", "lagged:2"]


@pytest.mark.parametrize("name", LOSSLESS)
@given(scenes())
def test_every_lossless_policy_serves_the_targets_law(name, scene):
    policy = schedule.make(name)
    assert policy.lossless()
    assert deviation(policy, *scene) < EXACT


@given(scenes())
def test_batch_table_serves_the_targets_law(table, scene):
    assert deviation(schedule.make(table), *scene) < EXACT


# Within a few steps it has seen enough to stop, probes every few steps and comes back.
QUICK = {"window": 4, "least": 1, "share": 0.6, "rows": 1}
SELDOM = QUICK | {"share": 0.2}  # so that not every stopped step probes


@settings(max_examples=settings.default.max_examples // 2)
@given(scenes(FEW), st.sampled_from([0.0, 0.2]), st.integers(1, 2), st.sampled_from([QUICK, SELDOM]))
def test_bypass_serves_the_targets_law(scene, gain, lag, quick):
    """Whether it drafts follows from what earlier drafts were and became: all of that is enumerated."""
    assert schedule.make("bypass:2").lossless()
    assert deviation(schedule.Bypass(lag, gain=gain, **quick), *scene) < EXACT


@settings(max_examples=settings.default.max_examples // 2)
@given(scenes(FEW), st.sampled_from([0.7, 1.2, 1.8]), st.integers(1, 2))
def test_sla_serves_the_targets_law(scene, sla, lag):
    """Weights follow from how much each request has emitted: they differ from branch to branch."""
    assert schedule.make("sla:80").lossless()
    assert deviation(schedule.Paced(sla, lag, margin=0.5), *scene) < EXACT


@settings(max_examples=settings.default.max_examples // 2)
@given(scenes(FEW, sees_token=True), st.integers(1, 8))
def test_history_serves_the_targets_law_whatever_confidences_see(scene, steps):
    """What it expects follows from all that was accepted before, of this request and of others."""
    assert schedule.make("history").lossless(confidence_sees_token=True)
    assert deviation(schedule.History(steps), *scene) < EXACT


@given(scenes(), st.sampled_from([0.0, 0.05, 0.5]), st.integers(1, 3))
def test_lagged_with_a_minimum_gain_serves_the_targets_law(scene, gain, lag):
    assert deviation(schedule.Lagged(lag, minimum_gain=gain), *scene) < EXACT


@pytest.mark.parametrize("name", ["early-stop", "lagged:1"])
@settings(max_examples=settings.default.max_examples // 2)
@given(scenes())
def test_the_outputs_of_requests_served_together_are_independent(name, scene):
    """Not only each output's own law: their joint law is the product, though one plan couples them."""
    world, sps, length, arrivals = scene
    if world.ends or len(arrivals) > 2:
        return  # keys of the joint law are outputs of full length, one after the other
    (together,) = served(schedule.make(name), world, sps, length, arrivals, joint=True)
    laws = [promised(world, i, length) for i in range(len(arrivals))]
    for output, p in together.items():
        wanted = np.prod([law[output[i * length : (i + 1) * length]] for i, law in enumerate(laws)])
        assert abs(p - wanted) < EXACT
    assert sum(together.values()) == pytest.approx(1.0, abs=EXACT)


@settings(max_examples=settings.default.max_examples // 2)
@given(scenes(sees_token=True))
def test_policies_that_do_not_read_confidences_stay_lossless_whatever_these_see(scene):
    for name in ("off", "fixed:1", "fixed"):
        policy = schedule.make(name)
        assert policy.lossless(confidence_sees_token=True)
        assert deviation(policy, *scene) < EXACT


# -- Appendix A of the paper -------------------------------------------------------------------------------

A, B = 0, 1


class AppendixA(World):
    """Token A tells that the block will be accepted; behind a cliff, only that makes drafting pay."""

    def target(self, request, context):
        return [0.7, 0.3]

    def drafter(self, request, context):
        return [0.5, 0.5]

    def confidence(self, request, context, token):
        return 0.8 if not context else 0.9 if context[-1] == A else 0.0


@pytest.mark.parametrize(
    ("name", "probability_of_a"), [("global", 0.85), ("early-stop", 0.7), ("lagged:1", 0.7)]
)
def test_appendix_a(name, probability_of_a):
    sps = np.array([1.0, 1.0, 0.5, 0.45])
    (law,) = served(schedule.make(name), AppendixA(0), sps, 1)
    assert law[(A,)] == pytest.approx(probability_of_a, abs=EXACT)
    assert law[(B,)] == pytest.approx(1 - probability_of_a, abs=EXACT)


# -- planted leaks: each must be caught --------------------------------------------------------------------


class Peeking(schedule.EarlyStop):
    """Drops a request's last admitted draft when the confidence behind it is low."""

    def _plan(self, c, lengths, sps, ids, accepted):
        super()._plan(c, lengths, sps, ids, accepted)
        for r, length in enumerate(lengths):
            if 0 < length < c.shape[1] and c[r, length] < 0.5:
                lengths[r] -= 1


class TieBreakingAhead(schedule.Policy):
    """Top 1 of the survivals in which requests that tie are ordered by what lies behind the tie."""

    name, code = "tie-breaking-ahead", -1

    def _plan(self, c, lengths, sps, ids, accepted):
        lengths[:] = 0
        if len(c):
            lengths[max(range(len(c)), key=lambda r: (c[r, 0], c[r, -1]))] = 1


class LagOfNothing(schedule.Policy):
    """The budget of the present survivals, called lagged."""

    name, code = "lag-of-nothing", -1

    def _plan(self, c, lengths, sps, ids, accepted):
        lengths[:] = schedule.top_k(c, schedule.best_budget(c, sps)) if len(c) else 0


class StoppingNow(schedule.Lagged):
    """Stops on the present confidences: nothing is verified when a plain step is expected to serve more."""

    def _plan(self, c, lengths, sps, ids, accepted):
        super()._plan(c, lengths, sps, ids, accepted)
        here = schedule.survival(c).sum() + len(c)
        if here * sps[len(c) + int(lengths.sum())] < len(c) * sps[len(c)] * IDLE_GAIN:
            lengths[:] = 0


class WeightByToken(schedule.Paced):
    """A weight that follows from the present draft: who looks likely to succeed counts more."""

    def _plan(self, c, lengths, sps, ids, accepted):
        self.pace(np.where(c[:, -1] > 0.5, 0.0, 1e9))
        super()._plan(c, lengths, sps, ids, accepted)


class Tied(World):
    """Every first position is equally confident; what follows tells about the token drafted there."""

    def confidence(self, request, context, token):
        return 0.5 if len(context) % 2 == 0 else super().confidence(request, context, token)


TOKENS = np.arange(20)
CURVES = [1 / (1 + 0.3 * TOKENS), 1 / (1 + 0.5 * np.ceil(TOKENS / 3))]


def caught(make, worlds):
    """In how many of the worlds the served law is not the target's, under at least one of the curves."""
    found = [max(deviation(make(), world, sps, 2, (0, 0)) for sps in CURVES) for world in worlds]
    return sum(worst > LEAK for worst in found)


# name: (policy, kind of world, whether confidences see their own token)
LEAKS = {
    "global": (schedule.Global, World, False),
    "hindsight": (schedule.Hindsight, World, False),
    "a lag of nothing": (LagOfNothing, World, False),
    "peeking behind the last admission": (Peeking, World, False),
    "stopping on the present confidences": (lambda: StoppingNow(1), World, False),
    "a weight by the present draft": (lambda: WeightByToken(1.0, 1), World, False),
    "ties broken by what lies behind": (TieBreakingAhead, Tied, False),
    "early-stop on scores of the token itself": (schedule.EarlyStop, World, True),
    "threshold on scores of the token itself": (lambda: schedule.Threshold(0.4), World, True),
    "lagged on scores of the token itself": (lambda: schedule.Lagged(1), World, True),
}


@pytest.mark.parametrize("leak", LEAKS)
def test_planted_leaks_are_caught(leak):
    make, kind, sees_token = LEAKS[leak]
    worlds = [kind(seed, sees_token=sees_token) for seed in range(40)]
    assert caught(make, worlds) >= 4, "of 40 random worlds"
    if sees_token:  # the score is the leak, not the policy
        assert not make().lossless(confidence_sees_token=True)
        assert caught(make, [kind(seed) for seed in range(40)]) == 0


class Counting(schedule.Lagged):
    """Counts plans that verify some drafts but not all."""

    partial = total = 0

    def _plan(self, c, lengths, sps, ids, accepted):
        super()._plan(c, lengths, sps, ids, accepted)
        Counting.total += 1
        Counting.partial += 0 < lengths.sum() < c.size


def test_the_worlds_make_policies_choose():
    """Enumeration would prove nothing if plans verified all or nothing."""
    for seed in range(40):
        served(Counting(1), World(seed), CURVES[1], 3, (0, 0))
    assert Counting.partial > 0.2 * Counting.total > 100


class Deciding(schedule.Bypass):
    """Counts steps, by whether they draft for all, for some or for nobody, and steps that draft again."""

    seen: ClassVar[dict[str, int]] = {"all": 0, "some": 0, "none": 0, "again": 0}
    idle = False

    def drafting(self, requests, block_size, sps=None, idle_sps=None):
        drafted = super().drafting(requests, block_size, sps, idle_sps)
        kind = "all" if drafted.all() else "some" if drafted.any() else "none"
        Deciding.seen[kind] += 1
        Deciding.seen["again"] += self.idle and kind == "all"
        self.idle = kind != "all"
        return drafted


def test_the_worlds_make_bypass_stop_probe_and_come_back():
    for seed in range(12):
        for quick in (QUICK, SELDOM):
            served(Deciding(1, gain=0.0, **quick), World(seed, block=1), CURVES[0], 4, (0, 0))
    assert min(Deciding.seen.values()) > 5, Deciding.seen


def test_what_the_bias_of_global_amounts_to(record_property):
    """Total variation between the served and the promised law of two tokens, over random small worlds."""
    distances = []
    for seed in range(200):
        world = World(seed)
        laws = served(schedule.Global(), world, CURVES[1], 2, (0, 0))
        for i, law in enumerate(laws):
            wanted = promised(world, i, 2)
            distances.append(sum(abs(p - law[output]) for output, p in wanted.items()) / 2)
    biased = float(np.mean(np.array(distances) > LEAK))
    record_property("biased_share", biased)
    record_property("mean_distance", float(np.mean(distances)))
    record_property("greatest_distance", max(distances))
    print(f"biased {biased:.2f}, mean {np.mean(distances):.4f}, greatest {max(distances):.3f}")
    assert biased > 0.1
    assert max(distances) > 0.05
