"""docs/extending.md cannot rot: its examples are run as they stand."""

from __future__ import annotations

import re
import types
from pathlib import Path
from typing import Any

import pytest

import specsched
from specsched.formats import registry
from specsched.profile import load_profile
from specsched.schedule import POLICIES
from specsched.simulator import simulate
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
    run("policy-test")["test_taper"](trace, profile)
    assert simulate(trace, profile, "taper:4", concurrency=2, requests=30).lossless


def test_files_that_the_page_names_are_there() -> None:
    root = Path(specsched.__file__).parent.parent
    named = set(re.findall(r"`((?:specsched|tests|scripts|docs|profiles)/[\w/]+\.(?:py|md))`", PAGE))
    assert len(named) >= 16
    made_up = {"specsched/formats/acme.py", "tests/formats/test_acme.py"}
    assert {path for path in named - made_up if not (root / path).is_file()} == set()
