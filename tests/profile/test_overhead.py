"""overhead(R): a sweep without speculation fixes what a start-up cost table misses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from specsched.errors import ProfileError
from specsched.profile import StepProfile
from specsched.profile.overhead import fit_overhead, slower_loads
from specsched.profile.speeds import Sweep, read_sweep

VALIDATION = Path(__file__).resolve().parents[3] / "shared" / "validation"
PUBLISHED = "vllm_b300_dsv4flash0731_tp4_"


def table(**parts):
    verify = {"tokens": [1, 64, 256], "seconds": [0.005, 0.006, 0.010], "lookup": "linear", "beyond": "slope"}
    return StepProfile.from_dict({"schema": "specsched/profile/1", "name": "t", "verify": verify, **parts})


def law(requests):
    """The host work hidden from the table in these tests: √R milliseconds."""
    return 1e-3 * np.sqrt(requests)


def sweep_of(profile, loads, context=0.0):
    return [1.0 / (profile.seconds(r, r, r * context, draft=False) + law(r)) for r in loads]


def write_sweep(tmp_path, lines):
    path = tmp_path / "sweep.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_hidden_square_root_is_found_at_every_load_and_between_them(tmp_path):
    profile = table(attention={"kv_tokens": [0, 100000], "seconds": [0.0, 0.01]})
    loads = [1, 4, 16, 64, 256]
    speeds = sweep_of(profile, loads, context=100)
    path = write_sweep(
        tmp_path,
        ["# a comment", "arm,concurrency,tok_s_user,clipped"]
        + [f"k7,{r},{9 * float(v)},0" for r, v in zip(loads, speeds, strict=True)]
        + [f"nospec,{r},{float(v)!r},0" for r, v in zip(loads, speeds, strict=True)]
        + ["nospec,512,1.0,1"],
    )
    fitted = fit_overhead(profile, path, context=100)
    for r, speed in zip(loads, speeds, strict=True):
        assert 1 / fitted.seconds(r, r, r * 100, draft=False) == pytest.approx(speed, rel=1e-9)
    # Between the loads, and twice past the last, it is the law within a few percent of a step.
    for r in (2, 8, 32, 128, 512):
        truth = profile.seconds(r, r, r * 100, draft=False) + law(r)
        assert fitted.seconds(r, r, r * 100, draft=False) == pytest.approx(truth, rel=0.01)
    assert fitted.fit["overhead"]["samples"] == 5
    assert 0 < fitted.fit["overhead"]["left_out_max_relative_error"] < 0.02
    assert "sweep.csv" in fitted.provenance["notes"]


def test_fitting_again_replaces_the_old_curve():
    profile = table()
    loads = [1, 16, 64]
    once = fit_overhead(profile, (loads, sweep_of(profile, loads)))
    twice = fit_overhead(once, (loads, sweep_of(profile, loads)))
    assert twice.overhead.y.tolist() == once.overhead.y.tolist()


def test_a_table_slower_than_the_measurement_gets_no_negative_overhead():
    profile = table()
    fitted = fit_overhead(profile, ([1, 16], [1 / 0.004, 1 / 0.02]))
    assert fitted.overhead(1) == 0.0
    assert fitted.fit["overhead"]["max_relative_error"] == pytest.approx(0.2)
    assert "slower than the sweep at 1 of 2 loads, most at 1 users (25%)" in slower_loads(fitted)[0]
    assert not slower_loads(fit_overhead(profile, ([1, 16], [100.0, 50.0])))


def test_a_table_slower_than_every_load_is_refused():
    with pytest.raises(ProfileError, match="at least as slow as the sweep at every load"):
        fit_overhead(table(), ([1, 64], [1 / 0.0048, 1 / 0.0055]))


def test_the_total_of_all_users_is_not_the_speed_of_one():
    # 1,000 tokens/s of 16 users together are 62.5 each: steps of 16 ms, not of 1 ms.
    with pytest.raises(ProfileError, match="total of all users: divide it by the load"):
        fit_overhead(table(), ([16], [1000.0]))
    with pytest.raises(ProfileError, match="total of all users"):
        fit_overhead(table(), ([1, 16], [100.0, 150.0]))
    with pytest.raises(ProfileError, match="another machine"):
        fit_overhead(table(), ([1], [1000.0]))


def test_a_profile_that_prices_attention_must_know_the_sweeps_context():
    profile = table(attention={"kv_tokens": [0, 100000], "seconds": [0.0, 0.1]})
    loads = [1, 4, 16, 64]
    speeds = sweep_of(profile, loads, context=1000)
    with pytest.raises(ProfileError, match="attention is counted twice"):
        fit_overhead(profile, (loads, speeds))
    fitted = fit_overhead(profile, (loads, speeds), context=1000)
    assert fitted.overhead(64) == pytest.approx(law(64), rel=1e-6)


def test_noise_is_smoothed_and_another_shape_is_kept():
    profile, loads = table(), [1, 2, 4, 8, 16, 32, 64, 128, 256]
    truth = np.array([profile.seconds(r, r, 0, draft=False) + law(r) for r in loads])
    random, through, smoothed = np.random.default_rng(5), [], []
    for _ in range(30):
        noisy = truth * (1.0 + 0.03 * random.standard_normal(len(loads)))
        fitted = fit_overhead(profile, (loads, 1.0 / noisy))
        steps = np.array([fitted.seconds(r, r, 0, draft=False) for r in loads])
        through.append(np.sqrt(np.mean((noisy / truth - 1.0) ** 2)))
        smoothed.append(np.sqrt(np.mean((steps / truth - 1.0) ** 2)))
    # Three terms of nine points: about sqrt(3 / 9) of the noise is left, not all of it.
    assert np.mean(smoothed) < 0.65 * np.mean(through)
    # A jump to three times the host work is no noise: every load is met.
    jump = truth + np.where(np.array(loads) >= 64, 0.02, 0.0)
    fitted = fit_overhead(profile, (loads, 1.0 / jump))
    assert fitted.fit["overhead"]["law"] is None
    assert fitted.fit["overhead"]["max_relative_error"] < 1e-9


def test_repeats_show_the_noise(tmp_path):
    profile = table()
    rows = ["concurrency,tok_s_user"]
    for r in (1, 4, 16, 64, 256):
        step = profile.seconds(r, r, 0, draft=False) + law(r) * (1.1 if r == 16 else 1.0)
        rows += [f"{r},{1 / float(step * f)!r}" for f in (0.9999, 1.0001)]
    sweep = read_sweep(write_sweep(tmp_path, rows))
    assert sweep.noise == pytest.approx(1e-4, rel=0.01)
    # Repeats agree within 0.01 %, so the bump of 4 % at 16 is no noise.
    assert fit_overhead(profile, sweep).fit["overhead"]["law"] is None


def test_a_sweep_says_its_own_lengths_and_limits(tmp_path):
    lines = ["users,tok_s_user_p50,input_tokens,output_tokens,capacity_limited", "1,90,8192,1024,False"]
    sweep = read_sweep(write_sweep(tmp_path, [*lines, "8,70,8192,1024,False", "64,10,8192,1024,True"]))
    assert (sweep.prompt_tokens, sweep.output_tokens, sweep.requests.tolist()) == (8192, 1024, [1, 8])
    with pytest.raises(ProfileError, match="input_tokens differs by row"):
        read_sweep(write_sweep(tmp_path, [*lines, "8,70,4096,1024,False"]))
    with pytest.raises(ProfileError, match="no column arm"):
        read_sweep(write_sweep(tmp_path, lines), arm="nope")
    assert Sweep.given([1], [2.0]).noise is None


@pytest.mark.parametrize(
    ("lines", "match"),
    [
        (["users,speed", "1,2"], "no column tok_s_user"),
        (["concurrency,tok_s_user"], "holds no rows"),
        (["concurrency,tok_s_user", "1,fast"], "row 1: tok_s_user is 'fast'"),
        (["concurrency,tok_s_user", "1,0"], "finite number above 0"),
        (["concurrency,tok_s_user", "1.5,10"], "must be a whole number"),
        (["concurrency,tok_s_user", "1,nan"], "finite number above 0"),
        (["concurrency,tok_s_user", "1"], "1 field where the header has 2"),
        (["arm,concurrency,tok_s_user", "k7,1,10", "k3,1,10"], "arms: k3, k7"),
        (["concurrency,tok_s_user,clipped", "1,10,1"], "every one is clipped"),
    ],
)
def test_bad_sweeps_name_the_row(tmp_path, lines, match):
    with pytest.raises(ProfileError, match=match):
        read_sweep(write_sweep(tmp_path, lines))


def test_loads_the_profile_has_no_cost_for_are_refused():
    capture = {"sizes": [1, 64], "limit": 64}
    with pytest.raises(ProfileError, match="capture limit"):
        fit_overhead(table(capture=capture), ([1, 128], [100.0, 10.0]))


@pytest.mark.skipif(not VALIDATION.is_dir(), reason="the published table and sweep are not in this checkout")
def test_published_vllm_sweep_is_met_within_five_percent_at_every_concurrency():
    from specsched import formats

    cost = VALIDATION / f"{PUBLISHED}verify_cost_ms.csv"
    profile = formats.read(cost, draft=VALIDATION / f"{PUBLISHED}draft_cost_ms.csv").object
    sweep = VALIDATION / f"{PUBLISHED}sweep.csv"
    held = read_sweep(sweep)
    requests, speed = held.requests, held.speeds
    alone = np.array([1 / profile.seconds(int(r), int(r), 0, draft=False) for r in requests])
    assert (alone / speed).max() > 2.3
    fitted = fit_overhead(profile, sweep)
    after = np.array([1 / fitted.seconds(int(r), int(r), 0, draft=False) for r in requests])
    assert np.abs(after / speed - 1).max() < 0.05
    assert fitted.fit["overhead"]["left_out_max_relative_error"] < 0.07
