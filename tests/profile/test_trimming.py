"""Tables by which nothing is trimmed, or by artefact: what is said of them, and that it is so."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import assume, given
from hypothesis import strategies as st
from profile_cases import curves, small

from specsched.cli.app import main
from specsched.profile import StepProfile, load_profile
from specsched.profile.isotonic import rising
from specsched.profile.lint import lint
from specsched.profile.trimming import best_cut, trimming
from specsched.simulator.warnings import trace_and_profile_warnings
from specsched.trace import load_trace

BLOCK = 5
SIZES = [6 * 2**k for k in range(7)]


def profile(verify: dict[str, Any], **more: Any) -> StepProfile:
    keep = {"capture": None, "eager": None, "attention": None, "overhead": None, "draft": None}
    return StepProfile.from_dict(small(**(keep | {"bias_seconds": 0.0, "verify": verify} | more)))


@given(verify=curves("tokens", 1, 60), requests=st.integers(1, 6), share=st.floats(0.01, 2.0))
def test_the_threshold_is_where_a_cut_begins_to_pay(
    verify: dict[str, Any], requests: int, share: float
) -> None:
    """Of drafts that are accepted with so much on average, those cut: more tokens a second below it alone."""
    p = profile(verify)
    cut = best_cut(p, requests, BLOCK)
    assert cut is not None
    assume(abs(share - 1.0) > 1e-6 and cut.threshold > 1e-9)
    emitted = requests * (1 + 0.5 * BLOCK)
    lost = share * cut.threshold * (cut.before - cut.after)
    whole, fewer = (p.seconds(b, requests, 0) for b in (cut.before, cut.after))
    assert ((emitted - lost) / fewer > emitted / whole) == (share < 1.0)
    for after in range(requests, cut.before):  # and no other cut pays for likelier drafts
        at = emitted / whole * (whole - p.seconds(after, requests, 0)) / (cut.before - after)
        assert at <= cut.threshold + 1e-9


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=30))
def test_isotonic_values_never_fall_and_keep_their_sum(values: list[float]) -> None:
    found = rising(values)
    assert np.all(np.diff(found) >= -1e-9)
    assert found.sum() == pytest.approx(sum(values), abs=1e-6)
    assert np.allclose(rising(sorted(values)), sorted(values))


def test_a_sound_table_is_not_spoken_of() -> None:
    verify = {"tokens": [1, 64, 512], "seconds": [0.006, 0.007, 0.02]}
    assert trimming(profile(verify), BLOCK) is None


def test_flat() -> None:
    assert "flat" in str(trimming(profile({"tokens": [1, 600], "seconds": [0.01, 0.0101]}), BLOCK))


def test_inert_where_the_cost_goes_with_requests() -> None:
    """Not flat: 3 % over the range. But 64 requests cost 20 ms more than one, whatever they verify."""
    verify = {"tokens": [1, 384], "seconds": [0.009, 0.0094]}
    told = str(trimming(profile(verify, overhead={"requests": [1, 64], "seconds": [0.0, 0.02]}), BLOCK))
    assert told.startswith("inert")
    assert "goes with requests" in told
    draft = {"requests": [1, 64], "seconds": [1e-4, 1e-4], "block_size": BLOCK}
    found = lint(profile(verify, overhead={"requests": [1, 64], "seconds": [0.0, 0.02]}, draft=draft))
    assert found[0].startswith("inert")


def test_a_dip_is_an_artefact_and_a_cliff_is_none() -> None:
    dip = [0.010] * 40
    dip[30] = 0.0095  # noise: a pass of 31 tokens looks cheaper than those around it
    tokens = list(range(1, 41))
    told = str(trimming(profile({"tokens": tokens, "seconds": [*dip[:-1], 0.0103]}), 7))
    assert told.startswith("trims by artefact")
    cliff = [0.010] * 30 + [0.014] * 10
    assert trimming(profile({"tokens": tokens, "seconds": cliff}), 7) is None


def test_a_floor_lookup_at_whole_blocks_cuts_what_is_worth_it() -> None:
    seconds = [0.0049 * b**0.33 for b in SIZES]
    table = {"tokens": SIZES, "seconds": seconds, "lookup": "floor"}
    told = str(trimming(profile({"tokens": SIZES, "seconds": seconds}, scheduler={"table": table})))
    assert told.startswith("trims by artefact")
    assert "every draft may be cut at 64 requests (from 384 tokens to 383)" in told
    assert trimming(profile({"tokens": SIZES, "seconds": seconds}), BLOCK) is None


def test_blocks_are_read_off_the_probes() -> None:
    """6, 12, 24, ... tokens are whole blocks of 5; with a block of 7 none of them is a whole pass."""
    seconds = [0.0049 * b**0.33 for b in SIZES]
    table = {"tokens": SIZES, "seconds": seconds, "lookup": "floor"}
    p = profile({"tokens": SIZES, "seconds": seconds}, scheduler={"table": table})
    assert trimming(p) == trimming(p, 5)
    assert trimming(p) != trimming(p, 7)


def test_passes_without_a_cost_are_no_cut() -> None:
    p = profile({"tokens": [1, 16], "seconds": [0.01, 0.02]}, capture={"sizes": [1, 8, 16], "limit": 16})
    assert best_cut(p, 8, 7) is None
    assert best_cut(p, 2, 7) is not None


def test_one_sentence_wherever_the_profile_is_used(tmp_path) -> None:
    """inspect, convert and simulate say the same."""
    path, out = tmp_path / "t.json", tmp_path / "p.json"
    speed = [1000.0 / (4.9 * b**0.33) for b in SIZES]
    path.write_text(json.dumps({"sample_batch_tokens": SIZES, "sample_steps_per_sec": speed}))
    converted = CliRunner().invoke(main, ["convert", str(path), str(out)])
    assert converted.exit_code == 0, converted.output
    told = trimming(load_profile(out))
    assert told is not None
    assert f"note: {told}." in converted.output
    seen = CliRunner().invoke(main, ["inspect", str(out), "--json"])
    assert told in json.loads(seen.stdout)["lint"]
    assert json.loads(seen.stdout)["decides_by"] == "floor lookup in 7 sizes"
    trace = load_trace("qwen3-4b-chat")
    assert told in trace_and_profile_warnings(trace, load_profile(out), 5)
