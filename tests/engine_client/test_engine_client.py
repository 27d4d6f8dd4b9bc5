"""A running engine measured from outside: a server of known step cost, its cost recovered."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from step_server import Clock, StepServer

from specsched.engine_client import Setting
from specsched.engine_client.measure import measure
from specsched.errors import SpecschedError
from specsched.formats.acceptance import Acceptance
from specsched.profile import StepProfile
from specsched.profile.speeds import read_sweep

SETTING = Setting(clients=8, prompts=(16, 400), output_tokens=40, waves=2)
LOADS = [1, 2, 4, 8]


def cost(requests: int, context: float, tokens: int) -> float:
    return 5e-3 + 1e-4 * tokens + 2e-4 * requests + 1e-6 * context


def measured(
    tmp_path: Path, *servers: dict[str, Any], setting: Setting = SETTING
) -> tuple[StepProfile, Acceptance | None, list[StepServer]]:
    async def whole() -> tuple[StepProfile, Acceptance | None, list[StepServer]]:
        clock = Clock()
        made = [StepServer(clock, cost, **options) for options in servers]
        for server in made:
            await server.__aenter__()
        try:
            urls = [server.url for server in made]
            return *await measure(urls, tmp_path / "runs", setting, None, clock), made
        finally:
            for server in made:
                await server.__aexit__()

    return asyncio.run(whole())


@pytest.mark.parametrize(
    "variant",
    [{}, {"prefill": 2e-5}, {"noise": 0.05}, {"prefill": 5e-5, "noise": 0.05}],
    ids=["bare", "prefill", "noise", "both"],
)
def test_a_known_step_cost_is_recovered(tmp_path: Path, variant: dict[str, Any]) -> None:
    made, acceptance, _ = measured(tmp_path, variant)
    assert acceptance is None
    assert made.verify.x.tolist() == LOADS
    for r in LOADS:
        for context in (36, 200, 420):
            truth = cost(r, r * context, r)
            assert made.seconds(r, r, r * context, draft=False) == pytest.approx(truth, rel=0.03)


def test_a_server_that_queues_ends_the_loads_and_says_so(tmp_path: Path) -> None:
    made, _, _ = measured(tmp_path, {"most": 4, "prefill": 2e-5})
    assert made.verify.x.tolist() == [1, 2, 4]
    assert made.seconds(4, 4, 4 * 200, draft=False) == pytest.approx(cost(4, 800, 4), rel=0.03)
    assert any("did not decode 8 requests" in said for said in made.provenance["warnings"])


def test_a_drafting_server_gives_acceptance_and_what_drafting_costs(tmp_path: Path) -> None:
    setting = Setting(clients=16, prompts=(16, 400), output_tokens=60, waves=3)
    made, acceptance, servers = measured(tmp_path, {}, {"block": 3, "accept": 0.6}, setting=setting)
    assert acceptance is not None
    assert acceptance.block_size == 3
    assert acceptance.steps == servers[1].drafts
    assert acceptance.survival.tolist() == [n / servers[1].drafts for n in servers[1].accepted]
    assert made.draft_block_size == 3
    # A drafting step costs what the server charged for R (1 + 3) tokens.
    for r in (1, 2, 4):
        seconds = made.seconds(4 * r, r, 100 * r)
        assert seconds == pytest.approx(cost(r, 100 * r, 4 * r), rel=0.1)


def test_a_server_that_dies_in_the_middle_loses_nothing(tmp_path: Path) -> None:
    made, _, _ = measured(tmp_path, {"dies_after": 2 * (1 + 2 + 4) + 3})
    assert made.verify.x.tolist() == [1, 2, 4]
    assert any("stopped answering at 8 clients" in said for said in made.provenance["warnings"])
    kept = sorted(p.name for p in (tmp_path / "runs").glob("*clients*.json"))
    assert kept == [f"engine0_prompt16_clients{r}.json" for r in (1, 2, 4)]


def test_a_second_run_goes_on_where_the_first_ended(tmp_path: Path) -> None:
    async def twice() -> tuple[int, int, StepProfile]:
        clock = Clock()
        async with StepServer(clock, cost) as server:
            await measure([server.url], tmp_path / "runs", SETTING, None, clock)
            first = server.served
            (tmp_path / "runs" / "engine0_prompt400_clients2.json").unlink()
            made, _ = await measure([server.url], tmp_path / "runs", SETTING, None, clock)
            return first, server.served, made

    first, both, made = asyncio.run(twice())
    assert first == 2 * 2 * sum(LOADS)
    assert both == first + 2 * 2
    assert made.verify.x.tolist() == LOADS


def test_the_raw_runs_and_the_sweep_lie_beside_the_profile(tmp_path: Path) -> None:
    made, _, _ = measured(tmp_path, {"prefill": 2e-5})
    kept = json.loads((tmp_path / "runs" / "engine0_prompt16_clients4.json").read_text())
    assert [len(wave) for wave in kept["waves"]] == [4, 4]
    assert all(len(s["chunks"]) == 40 for wave in kept["waves"] for s in wave)
    sweep = read_sweep(tmp_path / "runs" / "sweep.csv")
    assert sweep.requests.tolist() == LOADS
    assert (sweep.prompt_tokens, sweep.output_tokens) == (16, 40)
    assert made.provenance["method"] == "measured"
    assert made.name == "engine_org-known-step"


def test_lengths_the_server_refuses_are_left_out(tmp_path: Path) -> None:
    made, _, _ = measured(tmp_path, {"longest": 100})
    assert made.verify.x.tolist() == LOADS
    assert any("refused a request (status 400)" in said for said in made.provenance["warnings"])


def test_no_server_and_only_a_drafting_one_are_errors(tmp_path: Path) -> None:
    with pytest.raises(SpecschedError, match="does not answer"):
        asyncio.run(measure(["http://127.0.0.1:9"], tmp_path / "none", SETTING, None, Clock()))
    with pytest.raises(SpecschedError, match="without speculation as well"):
        measured(tmp_path, {"block": 3, "accept": 0.6})
