"""docs/extending.md cannot rot: its examples are run as they stand."""

from __future__ import annotations

import json
import re
import types
from pathlib import Path
from typing import Any

import pytest

import specsched
from specsched.cli.app import main
from specsched.formats import registry
from specsched.planner.deployment import runs_in
from specsched.profile import load_profile
from specsched.schedule import POLICIES, make
from specsched.simulator import simulate
from specsched.simulator.idle import idle_settings
from specsched.trace import load_trace

PAGE = (Path(specsched.__file__).parent.parent / "docs" / "extending.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"^```python (\S+)\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL))


def run(name: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(BLOCKS[name], f"docs/extending.md: {name}", "exec"), names)
    return names


def test_the_format_of_the_page_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    acme = types.SimpleNamespace(**run("reader"))
    entry = eval(BLOCKS["entry"], {"Format": registry.Format, "_keyed": registry._keyed, "acme": acme})
    with pytest.raises(specsched.errors.FormatError):
        run("test")["test_acme"](tmp_path)
    monkeypatch.setattr(registry, "FORMATS", (*registry.FORMATS, entry))
    run("test")["test_acme"](tmp_path)
    broken = tmp_path / "broken.json"
    broken.write_text('{"acme_version": 1, "tokens": [1, 8, 8], "ms": [5.0, 5.2, 7.9]}')
    with pytest.raises(specsched.errors.FormatError, match="sizes must rise strictly"):
        registry.read(broken)


def test_the_policy_of_the_page_plans_and_simulates(monkeypatch: pytest.MonkeyPatch) -> None:
    taper = run("policy")["Taper"]
    monkeypatch.setitem(POLICIES, taper.family, taper)
    trace, profile = load_trace("qwen3-4b-chat"), load_profile("h100-sxm_qwen3-8b_bf16_tp1")
    run("policy-test")["test_taper"]()
    assert simulate(trace, profile, "taper:4", concurrency=2, requests=30).lossless
    with pytest.raises(specsched.errors.PolicyError, match="as in taper:4"):
        simulate(trace, profile, "taper", concurrency=2, requests=30)


def test_the_policy_of_the_page_neither_drafts_nor_pays_where_it_verifies_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taper = run("policy")["Taper"]
    monkeypatch.setitem(POLICIES, taper.family, taper)
    trace, profile = load_trace("qwen3-4b-chat"), load_profile("h100-sxm_qwen3-8b_bf16_tp1")
    assert not make("taper:1", 7).drafting(100, 7).any()
    users = {"concurrency": 100, "requests": 100, "log_steps": 10**6}
    ours, off = (simulate(trace, profile, policy, **users).steps for policy in ("taper:1", "off"))
    assert (ours["requests"][:50] == 100).all()
    assert ours["seconds"][:50].tolist() == off["seconds"][:50].tolist()


def test_answers_take_the_policy_of_the_page_for_one_that_reads_no_confidences(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taper = run("policy")["Taper"]
    monkeypatch.setitem(POLICIES, taper.family, taper)
    trace, profile = load_trace("qwen3-4b-chat"), load_profile("h100-sxm_qwen3-8b_bf16_tp1")
    assert runs_in("taper:1", trace)["confidences"] == "not needed"
    assert runs_in("hindsight", trace)["confidences"] == "not needed"
    assert runs_in("threshold:0.3", trace)["confidences"] == "invented"
    asked = {"prefill": None, "sla": None}
    assert "idle_draft" in idle_settings(profile, ["idle_draft"], policies=["fixed:2"], **asked)
    assert not idle_settings(profile, ["idle_draft"], policies=["taper:1"], **asked)


def test_files_that_the_page_names_are_there() -> None:
    root = Path(specsched.__file__).parent.parent
    named = set(re.findall(r"`((?:specsched|tests|scripts|docs|profiles)/[\w/]+\.(?:py|md))`", PAGE))
    assert len(named) >= 16
    made_up = {"specsched/formats/acme.py", "tests/formats/test_acme.py", "tests/schedule/test_taper.py"}
    assert {path for path in named - made_up if not (root / path).is_file()} == set()


def test_a_policy_of_ones_own_of_the_page_is_audited_and_simulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands that the page shows, as they stand, with fewer requests."""
    (tmp_path / "mine.py").write_text(BLOCKS["own-policy"])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    shown = re.findall(r"^specsched ((?:audit|simulate) .*mine:.*)$", PAGE, flags=re.MULTILINE)
    assert len(shown) == 2
    less = {"audit": ["--systems", "20"], "simulate": ["--requests", "30", "--concurrency", "4", "--json"]}
    for command in shown:
        words = command.split()
        assert main([*words, *less[words[0]]], standalone_mode=False) in (None, 0)
    answer = json.loads("{" + capsys.readouterr().out.partition("\n{")[2])
    rows = {row["policy"]: row for row in answer["policies"]}
    assert {name: row["lossless"] for name, row in rows.items()} == {
        "off": True,
        "mine:Policy": None,
        "mine:eager": None,
    }
    assert answer["recommended"] == "off"
    both = [rows[name]["curve"][0]["verify_tokens_per_request"] for name in ("mine:Policy", "mine:eager")]
    assert 1.0 < both[0] < both[1], "a lower bar verifies more"
