"""`specsched profile --engine` from the command line to its files."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from step_server import Clock, StepServer

import specsched.engine_client
from specsched.cli.app import main
from specsched.engine_client import Setting
from specsched.engine_client.measure import measure
from specsched.profile import load_profile


def test_the_command_writes_profile_acceptance_and_raw_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def engines(urls: tuple[str, ...], runs: Path, setting: Setting, progress: Any) -> Any:
        assert urls == ("http://a", "http://b")
        assert (setting.clients, setting.seed) == (2, 5)
        small = Setting(clients=2, prompts=(8, 50), output_tokens=40, waves=1)

        async def whole() -> Any:
            clock = Clock()
            plain = StepServer(clock, lambda r, n, b: 5e-3 + 1e-4 * b)
            drafting = StepServer(clock, lambda r, n, b: 6e-3 + 1e-4 * b, block=3, accept=0.5)
            async with plain, drafting:
                return await measure([plain.url, drafting.url], runs, small, progress, clock)

        return asyncio.run(whole())

    monkeypatch.setattr(specsched.engine_client, "measure_engine", engines)
    arguments = ["--engine", "http://a", "--engine", "http://b", "--clients", "2", "--seed", "5"]
    with pytest.raises(SystemExit) as exit_:
        main(["profile", *arguments, "-o", str(tmp_path / "mine.json")])
    assert exit_.value.code == 0
    made = load_profile(tmp_path / "mine.json")
    assert made.verify.x.tolist() == [1, 2]
    assert made.draft_block_size == 3
    assert (tmp_path / "mine.runs" / "acceptance.json").exists()
    assert len(list((tmp_path / "mine.runs").glob("engine?_prompt*.json"))) == 8
    assert made.name in capsys.readouterr().out


def test_an_engine_and_a_card_are_not_measured_together(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["profile", "--engine", "http://a", "--gpu", "h100"])
    assert exit_.value.code == 2
    assert "give one of them" in capsys.readouterr().err
