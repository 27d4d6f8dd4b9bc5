"""A profile and a trace from benchmark runs; the runs come from an engine of their own, written in plain
Python."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from benchmark_cases import host, profile_of, run

from specsched.errors import SpecschedError
from specsched.fitting import Benchmark, Setting, Undetermined, fit
from specsched.fitting.cases import lay_out
from specsched.fitting.document import fit_document
from specsched.fitting.judge import judge, signs
from specsched.fitting.steps import steps_of, unit_profile
from specsched.fitting.together import together
from specsched.formats.runs import Measured
from specsched.profile import StepProfile
from specsched.profile.lint import drafting_inside
from specsched.profile.overhead import fit_overhead
from specsched.report.fit import fit_text
from specsched.simulator import Serving, simulate
from specsched.simulator.undrafted import speed_without_drafts
from specsched.trace import synthesise
from specsched.workload import Workload

LAW = host([0.5, 1.0, 2.0, 2.8])


def determined(found):
    return {u["name"]: u["determined"] for u in fit_document(found)["unknowns"]}


@pytest.fixture(scope="module")
def swept():
    """Without drafts at four loads: the table is right, the host's work is missing from it, clients pause."""
    true = profile_of(overhead=LAW)
    return [run(true, "off", users, pause=0.02) for users in (1, 4, 16, 32)]


@pytest.mark.parametrize("policy", ["off", "fixed:3", "threshold:0.5", "lagged:2"])
def test_priced_steps_are_those_of_the_simulator(policy):
    trace = synthesise([0.8, 0.7, 0.6], requests=8, output_tokens=30.0, length_spread=0.0, seed=3)
    profile = profile_of(
        overhead=LAW,
        attention={"kv_tokens": [0, 1000], "seconds": [0.0, 0.002]},
        draft={"requests": [1, 32], "seconds": [0.001, 0.002], "block_size": 3},
        scheduler={"enabling_fraction": 0.02},
    )
    setting = Setting(users=5, prompt_tokens=700, output_tokens=31, prompts=23, batch_tokens=512)
    load = Workload("b", np.zeros(23), np.full(23, 700), np.full(23, 31))
    serving = Serving(prefill="chunked", max_running=5, warmup=0.0, batch_tokens=512)
    arrays = simulate(trace, profile, policy, workload=load, serving=serving).arrays
    per_token = (arrays["finish_seconds"] - arrays["ready_seconds"]) / arrays["tokens"]
    steps = steps_of(trace, profile if policy == "lagged:2" else unit_profile(), policy, setting)
    user, total = steps.speeds(profile.tables(steps.most_tokens, 5), pause=0.1)
    assert user == pytest.approx(1.0 / np.median(per_token), rel=1e-9)
    assert total == pytest.approx(23 * 31 / (arrays["finish_seconds"].max() + 0.1 * 23 / 5), rel=1e-9)


def test_host_work_and_pauses_are_found_from_a_sweep_without_drafts(swept):
    found = fit(swept, profile_of(), Benchmark(noise=0.002))
    profile = found.profile()
    for users, seconds in zip((1, 4, 16, 32), LAW["seconds"], strict=True):
        # Prefill joins these steps; counted twice it would hide a fifth of the overhead.
        assert profile.overhead(users) == pytest.approx(seconds, abs=1.5e-4)
    assert found.solution.values["pause"] == pytest.approx(0.02, rel=0.15)
    assert profile.provenance["method"] == "fitted"
    assert found.trace() is None
    kinds = determined(found)
    assert kinds["overhead 32"] == kinds["pause"] == "yes"
    assert kinds["verify growth"] == "no"  # hidden behind the overhead: what the prior says stands


def test_without_a_prior_a_sweep_without_drafts_is_refused(swept):
    with pytest.raises(Undetermined, match=r"not told apart by these runs.*--profile"):
        fit(swept, None)


def test_a_load_that_was_left_out_is_predicted_and_its_speed_lies_within_the_interval():
    true = profile_of(overhead=LAW, draft={"requests": [1, 32], "seconds": [0.0012, 0.002], "block_size": 3})
    seen = [run(true, p, users) for p in ("off", "fixed:3") for users in (1, 4, 32)]
    found = fit(seen, None, Benchmark(noise=0.01))
    hidden = [run(true, p, 16) for p in ("off", "fixed:3", "fixed:1")]
    for real in hidden:
        told = found.predict(str(real.policy), Setting(16, 40, 33, 64))
        assert told["user"] == pytest.approx(real.user, rel=0.08)
        assert told["total"] == pytest.approx(real.total, rel=0.08)
    rows = [r for r in fit_document(found, ["fixed:3"])["predictions"] if r["users"] == 32]
    low, high = rows[0]["user_interval"]
    assert low < next(r.user for r in seen if r.policy == "fixed:3" and r.users == 32) < high
    # No run says what part of a drafting step is the draft: most of that stays as assumed, and is told.
    assert determined(found)["draft 1"] != "yes"


def test_one_load_widens_what_it_cannot_see():
    true = profile_of(overhead=LAW)
    prior = StepProfile.from_dict(
        {**profile_of().to_dict(), "provenance": {"method": "roofline", "source": "t"}}
    )
    found = fit([run(true, "off", 16)], prior)
    by = {u["name"]: u for u in fit_document(found)["unknowns"]}
    low, high = by["overhead 16"]["interval"]
    assert low < 2.0 < high
    assert high - low > 2.0  # ms: a roofline does not say what of a step is the pass
    assert by["verify growth"]["determined"] == "no"
    tight = fit([run(true, "off", 16)], profile_of())
    narrow = {u["name"]: u for u in fit_document(tight)["unknowns"]}["overhead 16"]["interval"]
    assert narrow[1] - narrow[0] < 0.5 * (high - low)


def test_acceptance_is_found_from_speed_where_nobody_counted():
    true = profile_of(draft={"requests": [1, 32], "seconds": [0.001, 0.002], "block_size": 3}, overhead=LAW)
    off = [run(true, "off", users) for users in (1, 4, 16)]
    drafted = [run(true, "fixed:3", users, rate=0.6) for users in (1, 4, 16)]
    uncounted = [Measured(**{**vars(r), "conditional": None}) for r in drafted]
    prior = profile_of(draft={"requests": [1, 32], "seconds": [0.001, 0.002], "block_size": 3})
    found = fit([*off, *uncounted], prior)
    level = next(u for u in fit_document(found)["unknowns"] if u["name"].startswith("level"))
    assert level["value"] == pytest.approx(1 + 0.6 + 0.36 + 0.216, rel=0.06)
    assert level["determined"] == "yes"
    trace = found.trace()
    assert trace is not None
    assert trace.block_size == 3
    assert set(trace.prompt_tokens.tolist()) == {drafted[0].prompt_tokens}  # or a replay has other contexts


def test_a_run_left_out_is_predicted_as_a_fit_without_it_does():
    true = profile_of(overhead=LAW)
    runs = [run(true, "off", users) for users in (1, 4, 8, 16, 32)]
    benchmark = Benchmark(noise=0.01)
    found, without = fit(runs, profile_of(), benchmark), fit(runs[:2] + runs[3:], profile_of(), benchmark)
    told = without.predict("off", Setting(8, 40, 33, 64))["user"]
    at = next(i for i, o in enumerate(found.laid.observed) if o.case == 2 and o.what == "user")
    assert np.exp(found.solution.left_out[at]) * runs[2].user == pytest.approx(told, rel=0.01)


def test_what_a_run_lacks_is_asked_for():
    bare = Measured("x.json", users=4, user=100.0)
    with pytest.raises(SpecschedError, match=r"x\.json.*prompt tokens are not said; give --prompt-tokens"):
        fit([bare], profile_of())
    drafted = Measured("y", users=4, user=100.0, prompt_tokens=1, output_tokens=9, accept_length=2.0)
    with pytest.raises(SpecschedError, match="--block-size"):
        fit([drafted], profile_of())
    trimmed = Measured(
        "z", users=4, user=100.0, prompt_tokens=1, output_tokens=9, conditional=(0.5,), trimmed=True
    )
    with pytest.raises(SpecschedError, match=r"trimmed; say which with --arm z=lagged:2"):
        fit([trimmed], profile_of())
    none = fit([run(profile_of(), "off", 4)], profile_of())
    with pytest.raises(SpecschedError, match="no run drafted"):
        none.predict("fixed:3", Setting(4, 40, 33, 64))


def test_no_noise_is_scatter_of_another_setting():
    true = profile_of(overhead=LAW)
    runs = [run(true, "off", users) for users in (1, 4, 16, 32)]
    runs[2] = Measured(**{**vars(runs[2]), "user": 2.5 * runs[2].user, "total": 2.5 * runs[2].total})
    said = fit_document(fit(runs, profile_of()))["warnings"]
    assert any("was it run in another setting" in text for text in said)


def test_what_off_costs_is_found_where_whole_steps_were_timed():
    """A table with 3 ms of drafting inside says 8 ms of one token; runs without drafts tell the two apart."""
    draft = {"requests": [1, 32], "seconds": [0.003, 0.003], "block_size": 3}
    true = profile_of(overhead=host([0.2, 0.4, 0.8, 1.2]), draft=draft)
    whole = profile_of(
        verify={"tokens": [1, 64, 256, 1024], "seconds": [0.008, 0.009, 0.012, 0.024], "lookup": "linear"},
        overhead=host([0.2, 0.4, 0.8, 1.2]),
        provenance={"method": "imported", "notes": "Whole steps were timed: the cost of drafting is inside."},
    )
    runs = [run(true, policy, users) for policy in ("off", "fixed:3") for users in (1, 16)]
    found = fit(runs, whole)
    profile = found.profile()
    assert not drafting_inside(profile)
    at = found.predict("off", Setting(8, 40, 33, 64))
    assert at["user"] == pytest.approx(run(true, "off", 8).user, rel=0.04)
    step = profile.seconds(32, 8, 0)
    assert step == pytest.approx(true.seconds(32, 8, 0), rel=0.04)


def test_the_total_of_all_users_is_not_taken_for_one(swept):
    one, *_, many = swept
    wrong = [one, replace(many, user=many.total, total=None)]
    with pytest.raises(SpecschedError, match="no faster among more"):
        fit(wrong, profile_of())
    with pytest.raises(SpecschedError, match="no faster among more"):
        lay_out([one, replace(many, user=1.3 * one.user, total=None)], Benchmark())
    lay_out([one, replace(many, user=1.1 * one.user, total=None)], Benchmark())  # scatter


def test_a_fit_is_judged_by_runs_that_it_did_not_see():
    true = profile_of(overhead=LAW, draft={"requests": [1, 32], "seconds": [0.0015, 0.002], "block_size": 3})
    known = [run(true, policy, users) for policy in ("off", "fixed:3") for users in (1, 16)]
    unseen = [run(true, policy, 8) for policy in ("off", "fixed:3", "fixed:1")]
    found = fit(known, replace(true, overhead=None))
    document = fit_document(found, unseen=[replace(r, conditional=None, accept_length=None) for r in unseen])
    judged = document["judged"]
    assert {r["source"] for r in judged["runs"]} == {r.source for r in unseen}
    assert judged["user"]["p90"] < 0.06
    assert judged["total"]["p90"] < 0.06
    errors = [r["predicted"] / r["measured"] - 1.0 for r in judged["runs"] if r["what"] == "total"]
    assert judged["total"]["bias"] == pytest.approx(np.mean(errors))
    assert judged["total"]["median"] == pytest.approx(np.median(np.abs(errors)))
    # Three arms at 8 users: three pairs, all of them further apart than the noise.
    assert (judged["signs_right"], judged["signs_compared"]) == (3, 3)
    # Nothing of a judged run is used but what it was: other speeds, the same predictions.
    slower = [replace(r, user=0.5 * r.user, total=0.5 * r.total) for r in unseen]
    again = judge(found, slower)["runs"]
    assert [r["predicted"] for r in again] == [r["predicted"] for r in judged["runs"]]
    assert "comparisons" in fit_text(document)


def test_signs_count_the_pairs_that_noise_does_not_decide():
    def at(policy, total, users=8):
        return Measured(policy, users, policy=policy, total=total)

    known, unseen = [at("off", 100.0), at("off", 90.0, 4)], [at("fixed:3", 120.0), at("fixed:1", 103.0)]
    right = {("fixed:3", "total"): 130.0, ("fixed:1", "total"): 101.0}
    # off against fixed:1 is noise; off and fixed:1 against fixed:3 are not.
    assert signs(known, unseen, right) == (2, 2)
    assert signs(known, unseen, right | {("fixed:3", "total"): 99.0}) == (0, 2)
    assert signs(known, [], {}) == (0, 0)


def test_a_text_nobody_fitted_is_asked_for():
    found = fit([run(profile_of(), "off", 4)], profile_of())
    with pytest.raises(SpecschedError, match="no fitted run drafted on text 'code'"):
        judge(found, [replace(run(profile_of(), "fixed:3", 4), text="code")])


@pytest.mark.parametrize("prompt", [40, 600])
def test_overhead_of_a_sweep_that_began_all_at_once(prompt):
    """The host work is found as `fit` finds it. Taken for staggered, long prompts would count as less of it:
    in step with one another, requests of equal lengths meet few prompts of others."""
    true, loads = profile_of(overhead=LAW), (1, 4, 8, 16, 32)
    runs = [run(true, "off", users, prompt=prompt) for users in loads]
    sweep = (list(loads), [r.user for r in runs])
    found = fit_overhead(profile_of(), sweep, replay=together(prompt, 33, "chunked", 8192))
    assert found.fit["overhead"]["max_relative_error"] < 0.02
    for users in loads:
        step = true.seconds(users, users, 0)
        assert abs(found.overhead(users) - true.overhead(users)) < 0.03 * step  # a smooth law of it
    staggered = fit_overhead(
        profile_of(), sweep,
        replay=lambda p, users: speed_without_drafts(p, users, prompt, 33, Serving(prefill="chunked")),
    )  # fmt: skip
    off = abs(staggered.overhead(32) - true.overhead(32)) / true.seconds(32, 32, 0)
    assert off > (0.03 if prompt == 40 else 0.2)


def test_an_unknown_can_be_held_at_what_is_assumed_of_it(swept):
    held = ("verify level", "verify growth", "verify tilt")
    found = fit(swept, profile_of(), Benchmark(noise=0.002), known=held)
    assert not {u.name for u in found.solution.unknowns} & set(held)
    profile = found.profile()
    assert profile.verify(64) == pytest.approx(profile_of().verify(64), rel=1e-12)
    assert all(found.profile(values=draw).verify(64) == profile.verify(64) for draw in found.draws(2))
    with pytest.raises(SpecschedError, match="'verify colour' is no unknown"):
        fit(swept, profile_of(), known=("verify colour",))
