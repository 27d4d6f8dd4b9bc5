"""Plans against brute force over all fleets, and the laws that every plan keeps, whatever its numbers."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fake_answers import plan as fake_plan
from hypothesis import given
from hypothesis import strategies as st
from planner_oracle import (
    BLOCK,
    fewest_engines,
    fleet_of,
    line,
    promises,
    share_of_fleet,
    varied,
)

from specsched.errors import WorkloadError
from specsched.planner import plan
from specsched.planner.fleet import Fleet, Trial, share_interval, trial, under
from specsched.planner.margin import _wider_capture, highest_rate
from specsched.planner.plan import headline
from specsched.planner.stable import Service, service
from specsched.planner.traffic import Traffic
from specsched.profile import StepProfile
from specsched.schedule import make
from specsched.simulator import Limits, Serving, simulate
from specsched.simulator.noise import Heavier, fleet_noise, student
from specsched.simulator.replay import Replay
from specsched.trace import Trace
from specsched.workload import Workload, poisson

EVEN = varied([24] * 60)
PLACES = {"max_running": 4, "batch_tokens": 64}  # four users an engine: queues form


def arrivals(rate: float, requests: int | None = None, seed: int = 4, **lengths: Any) -> Workload:
    """Long enough for a steady state at the speeds asked here: a plan lengthens what is not."""
    requests = max(300, round(10.0 * rate)) if requests is None else requests
    drawn = poisson(rate, requests=requests, seed=seed).scaled(rate)
    return replace(drawn, **lengths) if lengths else drawn


def ask(sla: float, workload: Workload | None = None, **more: Any) -> Any:
    """A small plan, nothing fitted."""
    options: dict[str, Any] = {"calibration": None, "workers": 1, "workload": workload}
    options["prefill"] = "disaggregated"
    trace, profile = more.pop("trace", EVEN), more.pop("profile", line())
    return plan(trace, profile, sla, **(options | more))


def only(sla: float, workload: Workload | None, policy: str, **more: Any) -> dict[str, Any]:
    return ask(sla, workload, policies=[policy], **more)["policies"][0]


def traffic(workload: Workload, sla: float = 50.0, trace: Trace = EVEN, **more: Any) -> Traffic:
    profile, ttft, share = more.pop("profile", line()), more.pop("ttft", None), more.pop("share", 0.95)
    serving = Serving(**(PLACES | more))
    return Traffic(trace, Replay.of(trace), profile, serving, workload, sla, Limits(ttft), share, 0)


# -- the fewest engines ------------------------------------------------------------------------------------


class Told(Fleet):
    """A fleet that is told from which size on it keeps the promise, instead of being run."""

    def told(self, kept_from: int, most: int, served: Service) -> Told:
        self.kept_from, self.most, self.service = kept_from, most, served
        return self

    def at(self, engines: int) -> Trial:
        share = 0.95 if engines >= self.kept_from else 0.949
        self.trials[engines] = Trial(engines, None, share, 1.0 - share, 0.0)
        return self.trials[engines]

    def alone(self) -> int:
        return self.most


@given(st.integers(1, 200), st.sampled_from([8, 64]), st.floats(0.0, 9.0), st.none() | st.integers(1, 99))
def test_fewest_is_the_first_size_that_keeps_the_promise(
    wanted: int, most: int, promised: float, start: int | None
) -> None:
    """Wherever the search begins; None only beyond `alone`."""
    fleet = Told(traffic(arrivals(10.0)), make("off")).told(wanted, most, Service(np.inf, promised))
    found = fleet.fewest(start)
    if wanted <= most:
        assert found == wanted
    else:
        assert found in (None, wanted)
    assert len(fleet.trials) <= 16, "no size twice, and no walk"


def test_no_fleet_is_smaller_than_what_its_engines_serve() -> None:
    """However well it looks: engines that serve 3 requests/s at most are 4 for ten."""
    fleet = Told(traffic(arrivals(10.0)), make("off")).told(1, 64, Service(3.0, 9.0))
    assert fleet.fewest() == 4
    assert min(fleet.trials) >= 4, "none that cannot last is tried"


def saturated(policy: str, load: Workload, **serving: Any) -> float:
    """Requests per second that one engine serves of as many as may be, all there from the start."""
    queue = replace(load, arrival_seconds=np.zeros(len(load)))
    result = simulate(EVEN, line(), policy, workload=queue, warmup=0.0, **serving)
    ends = np.sort(result.arrays["finish_seconds"])
    first, last = len(ends) // 10, len(ends) * 8 // 10
    return float((last - first) / (ends[last] - ends[first]))


@pytest.mark.parametrize("policy", ["off", "fixed:4", "lagged:2"])
@pytest.mark.parametrize("places", [4, 32])
def test_what_one_engine_serves_is_what_it_serves_of_a_queue(policy: str, places: int) -> None:
    serving = {"max_running": places, "batch_tokens": 64}
    load = arrivals(10.0, 900)
    found = service(traffic(load, 5.0, **serving), make(policy, block_size=BLOCK))
    assert found.most == pytest.approx(saturated(policy, load, **serving), rel=0.03)
    assert found.promised == pytest.approx(found.most, rel=0.02), "5 tokens/s is no promise at all"
    assert service(traffic(load, 1e4, **serving), make(policy, block_size=BLOCK)).promised == 0.0


@pytest.mark.parametrize("rate", [120.0, 500.0])
def test_a_fleet_serves_what_comes_for_good(rate: float) -> None:
    """A slow promise, which a short run of too small a fleet keeps while its queue grows."""
    load, serving = arrivals(rate, 300), {"max_running": 8, "batch_tokens": 64}
    one = saturated("off", arrivals(10.0, 900), **serving)
    row = only(20.0, load, "off", **serving)
    assert row["engines_fewest"] >= rate / one * 0.985
    assert row["engines_fewest"] <= 1.3 * rate / one + 1
    document = ask(20.0, load, policies=["off"], **serving)
    assert document["marginal"]["one_more_engine"] == pytest.approx(one, rel=0.25)
    assert document["marginal"]["rate"] >= rate


@pytest.mark.parametrize("policy", ["off", "fixed:2", "threshold:0.3", "early-stop", "lagged:2"])
@pytest.mark.parametrize(("rate", "sla"), [(45.0, 50.0), (75.0, 60.0), (110.0, 45.0)])
def test_plan_equals_brute_force(policy: str, rate: float, sla: float) -> None:
    load = arrivals(rate, round(12.0 * rate))
    wanted, shares = fewest_engines(9, EVEN, line(), policy, load, sla, **PLACES)
    row = only(sla, load, policy, **PLACES)
    assert wanted is not None
    assert row["engines_fewest"] == wanted
    assert wanted <= row["engines"] == row["gpus"] <= wanted + 1, "it leans to the safe side"
    wanted = row["engines"]
    for point in row["curve"]:
        if point["engines"] <= len(shares):
            assert point["share_at_sla"] == pytest.approx(shares[point["engines"] - 1], abs=1e-12)
    assert row["share_at_sla"] == pytest.approx(shares[wanted - 1], abs=1e-12)
    held = fleet_of(wanted, EVEN, line(), policy, load, **PLACES).summary
    same = ("throughput", "tps_user", "emitted_per_step", "verify_tokens_per_request", "rejected_share")
    assert {key: row[key] for key in same} == {key: held[key] for key in same}
    assert row["requests_per_engine"] == pytest.approx(held["concurrency_mean"] / wanted, rel=1e-12)
    assert row["binds"] == ("queueing" if wanted > 1 else "traffic"), "four places an engine: a queue forms"


def test_a_burst_needs_as_many_engines_as_come_at_once() -> None:
    """Twelve at a time, an engine each, every five seconds: two requests/s on average, and twelve engines."""
    load = Workload("bursts", np.repeat(np.arange(25) * 5.0, 12))
    serving = {"max_running": 1, "batch_tokens": 64}
    wanted, _ = fewest_engines(13, EVEN, line(), "off", load, 70.0, **serving)
    assert wanted == 12
    assert only(70.0, load, "off", **serving)["engines"] == 12


def test_a_policy_is_planned_once() -> None:
    rows = ask(30.0, arrivals(5.0, 40), policies=["off", "off", "fixed:1"], **PLACES)["policies"]
    assert [row["policy"] for row in rows] == ["off", "fixed:1"]


def test_another_share_asks_another_fleet() -> None:
    """`fraction` of the requests, not 95 %: brute force at 0.5 and at 1."""
    load, sizes = arrivals(75.0), []
    for share in (0.3, 1.0):
        wanted, _ = fewest_engines(9, EVEN, line(), "off", load, 60.0, share, **PLACES)
        assert only(60.0, load, "off", fraction=share, **PLACES)["engines_fewest"] == wanted
        sizes.append(wanted)
    assert sizes[0] < sizes[1]


def test_late_first_tokens_count() -> None:
    """Prompts of 300 tokens in passes of 64: one size keeps the speed, a larger one the first token."""
    serving = {"prefill": "chunked", "batch_tokens": 64, "max_running": 16}
    trace, load = varied([24] * 60, prompt=300), arrivals(20.0, 600)
    speed, _ = fewest_engines(9, trace, line(), "off", load, 20.0, **serving)
    both, _ = fewest_engines(9, trace, line(), "off", load, 20.0, ttft=0.15, **serving)
    assert speed is not None
    assert both is not None
    assert speed < both
    row = only(20.0, load, "off", trace=trace, limits=Limits(0.15), **serving)
    assert row["engines_fewest"] == both
    assert row["binds"] == "queueing", "what a fleet one smaller misses is the first token, not the speed"
    without = only(20.0, load, "off", trace=trace, **serving)
    assert speed <= without["engines_fewest"] <= both
    if without["engines_fewest"] > speed:
        served = service(traffic(load, 20.0, trace, **serving), make("off")).most
        grows = [point["backlog_grows"] for point in without["curve"] if point["engines"] == speed]
        assert any(grows) or speed * served < load.rate, "kept only as long as prompts may queue without end"
    assert row["ttft_seconds"]["p95"] <= 0.15


def test_requests_of_one_token_have_no_speed_to_miss() -> None:
    """Half the requests decode nothing. They wait for their turn like all others, and miss no speed by it."""
    output = np.where(np.arange(300) % 2, 25, 1)
    load = arrivals(14.0, output_tokens=output)
    serving = {"max_running": 1, "batch_tokens": 64}
    wanted, shares = fewest_engines(6, EVEN, line(), "off", load, 20.0, **serving)
    row = only(20.0, load, "off", **serving)
    assert row["engines_fewest"] == wanted
    told = fleet_of(wanted or 1, EVEN, line(), "off", load, **serving)
    waited = told.arrays["finish_seconds"] > told.arrays["ready_seconds"]
    idle = (told.arrays["tokens"] == 0) & waited
    assert shares[(wanted or 1) - 1] - idle.mean() < 0.95, "counted as slow they would need another engine"
    fleet = trial(traffic(load, 20.0, **serving), make("off"), wanted or 1)
    assert fleet.missed["speed"] == pytest.approx(np.mean([not fast for _, fast, _ in promises(told, 20.0)]))


def test_a_trial_says_who_was_slow_and_who_was_late() -> None:
    serving = {"prefill": "chunked", "batch_tokens": 64, "max_running": 8}
    trace, load = varied([24] * 30, prompt=100), arrivals(30.0, 200)
    for engines, sla, ttft in ((1, 30.0, 0.1), (2, 60.0, 0.05), (3, 75.0, 0.02)):
        made = trial(traffic(load, sla, trace, ttft=ttft, **serving), make("fixed:2"), engines)
        told = promises(fleet_of(engines, trace, line(), "fixed:2", load, **serving), sla, ttft)
        assert made.engines == engines
        assert made.missed["speed"] == pytest.approx(np.mean([not fast for _, fast, _ in told]))
        assert made.missed["ttft"] == pytest.approx(np.mean([not timely for _, _, timely in told]))
        assert made.share == pytest.approx(np.mean([fast and timely for _, fast, timely in told]))
        low, high = share_interval(traffic(load, sla, trace, ttft=ttft, **serving), made)
        assert 0.0 <= low <= made.share <= high <= 1.0


def test_a_speed_nobody_reaches_is_an_answer() -> None:
    """A step of 10 ms gives 100 tokens/s at most without drafts."""
    document = ask(150.0, arrivals(30.0), policies=["off", "fixed:4"], gpu_cost=2.0, **PLACES)
    off, drafts = document["policies"]
    assert off["engines"] is None
    assert off["gpus"] is off["gpus_interval"] is None
    assert off["binds"] == "speed", "not the queue: a request alone on an engine is too slow"
    assert drafts["engines"] is not None
    assert document["recommended"] == "fixed:4"
    nobody = ask(1000.0, arrivals(30.0), policies=["off", "fixed:4"], **PLACES)
    assert nobody["recommended"] is None
    assert nobody["marginal"] is None
    assert "No lossless policy" in nobody["headline"]


# -- the traffic of a plan ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("rate", "sla"), [(10.0, 50.0), (20.0, 30.0)])
def test_a_trial_lasts_many_stays(rate: float, sla: float) -> None:
    """However few requests are asked for: twenty times as long as a request stays at the promised speed."""
    trace = varied(np.resize([10, 40, 70], 60))
    document = ask(sla, rate=rate, requests=20, trace=trace, policies=["off"], **PLACES)
    stay = np.mean([10, 40, 70]) / sla
    assert document["requests"] / document["rate_simulated"] >= 20 * stay * (1 - 1e-9)
    assert document["rate_simulated"] == pytest.approx(rate, rel=1e-9)
    assert document["rate"] == rate
    more = ask(sla, rate=rate, requests=700, trace=trace, policies=["off"], **PLACES)
    assert more["requests"] >= 700


def test_a_plan_of_a_rate_is_that_of_poisson_arrivals_at_it() -> None:
    document = ask(50.0, rate=45.0, requests=400, policies=["fixed:2"], **PLACES)
    load = poisson(45.0, requests=document["requests"], seed=0).scaled(45.0)
    assert (
        document["policies"][0]["engines_fewest"]
        == fewest_engines(6, EVEN, line(), "fixed:2", load, 50.0, **PLACES)[0]
    )
    assert document["burstiness"] == pytest.approx(1.0, abs=0.15)
    for seed in (1, 2):
        other = ask(50.0, rate=45.0, requests=400, policies=["fixed:2"], seed=seed, **PLACES)
        drawn = poisson(45.0, requests=other["requests"], seed=seed)
        assert other["burstiness"] == pytest.approx(drawn.burstiness) != document["burstiness"]


def test_every_trial_replays_the_same_arrivals() -> None:
    made = traffic(arrivals(30.0))
    for engines in (1, 2, 3):
        for policy in ("off", "lagged:2"):
            result = trial(made, make(policy, block_size=BLOCK), engines).result
            assert result is not None
            n = len(result.arrays["traced"])
            assert result.arrays["arrival_seconds"].tolist() == made.workload.arrival_seconds[-n:].tolist()
            assert result.arrays["traced"].tolist() == made.coming.requests[-n:, 0].tolist()


# -- the interval of GPUs ----------------------------------------------------------------------------------


def noise_of(found: Traffic, policy: str, engines: int, level: float = 0.95) -> tuple[Heavier, Heavier]:
    held = trial(found, make(policy, block_size=BLOCK), engines)
    assert held.result is not None
    return fleet_noise(
        held.result,
        found.profile,
        found.serving,
        held.users(found.serving.ranks_per_group),
        found.share,
        0,
        own_lengths=found.workload.output_tokens is not None,
        level=level,
    )


@pytest.mark.parametrize("lengths", [[24] * 40, [5, 10, 40, 80] * 3, [30, 30, 90] * 10])
def test_the_noise_of_the_work_is_that_of_the_mean_length(lengths: list[int]) -> None:
    """Without drafts a token is a step: standard deviations of the means of as many requests drawn again."""
    trace = varied(lengths)
    load = arrivals(10.0, 20 * len(lengths))
    rng = np.random.default_rng(0)
    means = [rng.choice(lengths, len(lengths)).mean() for _ in range(20_000)]
    sd = float(np.std(means)) / float(np.mean(lengths))
    heavier, lighter = noise_of(traffic(load, 10.0, trace=trace, max_running=64), "off", 4)
    assert lighter.work == pytest.approx(sd * student(len(lengths)), rel=0.12, abs=1e-9)
    assert heavier.work >= lighter.work
    assert lighter.step == pytest.approx(0.0, abs=1e-9), "every step holds its users, whoever they are"
    given_lengths = replace(load, output_tokens=np.full(len(load), 31))
    assert noise_of(traffic(given_lengths, 10.0, trace=trace), "off", 4)[0].work < 0.1 * sd + 1e-9


def test_a_fleet_under_a_heavier_trace_is_the_same_fleet() -> None:
    fleet = Fleet(traffic(arrivals(40.0), ttft=0.5, prefill="chunked"), make("off"))
    heavier = under(fleet, Heavier(work=0.1, step=0.2, slow=0.3), 1.0)
    lighter = under(fleet, Heavier(work=0.1, step=0.2, slow=0.3), -1.0)
    assert heavier.traffic.workload.rate == pytest.approx(40.0 * math.exp(0.3))
    assert lighter.traffic.workload.rate == pytest.approx(40.0 * math.exp(-0.3))
    assert heavier.traffic.sla_tps == pytest.approx(50.0 * math.exp(0.5))
    assert heavier.traffic.limits.ttft_seconds == pytest.approx(0.5 * math.exp(-0.2))
    assert lighter.traffic.limits.ttft_seconds == pytest.approx(0.5 * math.exp(0.2))
    assert len(heavier.traffic.workload) == len(fleet.traffic.workload)
    assert heavier.traffic.workload.burstiness == pytest.approx(fleet.traffic.workload.burstiness)
    assert (heavier.policy, heavier.traffic.serving) == (fleet.policy, fleet.traffic.serving)
    assert heavier.service is fleet.service
    assert heavier.trials == {}
    assert fleet.traffic.workload.rate == pytest.approx(40.0)


def test_a_longer_step_is_a_stricter_promise_at_a_higher_rate() -> None:
    """Steps 25 % longer, by the profile or by `under`: the same shares and the same fleet."""
    slower = line(
        verify={"tokens": [1, 512], "seconds": [0.0125, 0.14025]},
        draft={"requests": [1], "seconds": [0.00125], "block_size": BLOCK},
    )
    change = Heavier(work=0.0, step=math.log(1.25), slow=0.0)
    for policy in ("off", "fixed:2"):
        plain = Fleet(traffic(arrivals(50.0), 40.0), make(policy, block_size=BLOCK))
        longer = Fleet(traffic(arrivals(50.0), 40.0, profile=slower), make(policy, block_size=BLOCK))
        changed = under(plain, change, 1.0)
        for engines in (2, 3, 4, 6):
            assert changed.at(engines).share == pytest.approx(longer.at(engines).share, abs=0.01)
        assert changed.fewest() == longer.fewest()


def test_the_interval_of_gpus_holds_for_both_ends_of_the_demand() -> None:
    """Few requests of very different lengths: the traffic may be a fifth lighter or heavier than seen."""
    trace = varied([6, 12, 24, 60, 90] * 5)
    load, profile, serving = arrivals(60.0, 1700), line(gpu={"count": 2}), PLACES
    row = only(30.0, load, "off", trace=trace, profile=profile, **serving)
    found = traffic(load, 30.0, trace, profile=profile, **serving)
    heavier, lighter = noise_of(found, "off", row["engines_fewest"])
    assert 0.2 < heavier.work < 0.6
    ends = []
    for change, sign in ((lighter, -1.0), (heavier, 1.0)):
        rate = load.rate * math.exp(sign * (change.work + change.step))
        sla = 30.0 * math.exp(sign * (change.step + change.slow))
        ends.append(fewest_engines(24, trace, profile, "off", load.scaled(rate), sla, **serving)[0])
    low, high = row["gpus_interval"]
    assert ends[0] < row["engines"] < ends[1]
    assert 2 * (ends[0] - 1) <= low <= 2 * ends[0]
    assert 2 * ends[1] <= high <= 2 * (ends[1] + 1)
    assert low <= row["gpus"] <= high
    assert low % 2 == high % 2 == 0, "whole engines of two GPUs"
    assert row["engines_fewest"] < row["engines"], "it leans to the safe side"


def test_plans_from_few_requests_lean_and_their_intervals_hold_the_population() -> None:
    """Eight traces of 40 requests of a population of 1,500: too few engines are the costly error."""
    rng = np.random.default_rng(7)
    whole = varied(np.maximum(rng.lognormal(3.0, 0.6, 1500), 4).astype(int))
    load = arrivals(80.0, 800)
    truth = only(40.0, load, "fixed:2", trace=whole, marginal=False, **PLACES)["engines_fewest"]
    rows = []
    for _ in range(8):
        part = whole.select(rng.choice(whole.request_ids, 40, replace=False).tolist())
        rows.append(only(40.0, load, "fixed:2", trace=part, marginal=False, **PLACES))
    held = [row["gpus_interval"][0] <= truth <= row["gpus_interval"][1] for row in rows]
    assert sum(held) >= 7
    assert sum(row["engines"] >= truth for row in rows) >= 7
    width = np.mean([row["gpus_interval"][1] - row["gpus_interval"][0] for row in rows])
    spread = np.std([row["engines_fewest"] for row in rows], ddof=1)
    assert width <= 2 * (2 * 1.96 * spread) + 2, "whole engines at either end"


def test_the_interval_of_a_sure_thing_is_narrow() -> None:
    """All requests alike, and fleets either side of the answer far from the promise."""
    row = only(50.0, arrivals(45.0), "fixed:2", **PLACES)
    assert row["gpus_interval"] == [row["gpus"], row["gpus"]]


def test_where_the_noise_leaves_no_fleet_its_upper_end_is_unknown() -> None:
    """Speed is kept by 95.5 % of the requests however many engines there are: by 95 % for certain, never."""
    slow, fast = varied([24], 0.05, seed=1), varied([24] * 19, 0.9, seed=2)
    trace = Trace.from_arrays(
        request=np.concatenate([slow.request, fast.request + 1]),
        position=np.concatenate([slow.position, fast.position]),
        confidence_logit=np.concatenate([slow.confidence_logit, fast.confidence_logit]),
        accepted=np.concatenate([slow.accepted, fast.accepted]),
        prompt_tokens=20,
        metadata={"licence": "CC0"},
    )
    document = ask(120.0, arrivals(20.0, 300), trace=trace, policies=["fixed:4"], fraction=0.94, **PLACES)
    low, high = document["policies"][0]["gpus_interval"]
    assert low <= document["policies"][0]["gpus"]
    assert high is None


# -- GPUs, cost, and what binds ------------------------------------------------------------------------------


def test_cost_is_gpu_hours_over_tokens() -> None:
    """Two GPUs an engine, groups of two engines that step together: four GPUs for each of the plan's."""
    profile, serving = line(gpu={"count": 2}), PLACES | {"ranks_per_group": 2}
    document = ask(50.0, arrivals(60.0), profile=profile, policies=["fixed:2"], gpu_cost=2.5, **serving)
    row = document["policies"][0]
    wanted, _ = fewest_engines(4, EVEN, profile, "fixed:2", arrivals(60.0), 50.0, **serving)
    assert row["engines"] == wanted
    assert row["gpus"] == 4 * row["engines"]
    assert [p["gpus"] for p in row["curve"]] == [4 * p["engines"] for p in row["curve"]]
    assert row["cost_per_hour"] == pytest.approx(2.5 * row["gpus"])
    an_hour = row["throughput"] * 3600
    assert row["cost_per_million_tokens"] * an_hour / 1e6 == pytest.approx(row["cost_per_hour"])
    assert document["gpus_per_engine"] == 2
    assert document["gpu_cost_per_hour"] == 2.5
    assert "cost_per_hour" not in only(50.0, arrivals(60.0), "fixed:2", profile=profile, **serving)


def test_speed_binds_where_nobody_waits() -> None:
    """Places for all: a smaller fleet is slower because its passes are larger, not because of a queue."""
    row = only(70.0, arrivals(120.0), "off", max_running=256, batch_tokens=64)
    assert row["engines"] > 1
    assert row["binds"] == "speed"


def test_memory_binds_where_users_wait_for_it() -> None:
    row = only(60.0, arrivals(60.0), "off", max_running=256, batch_tokens=64, kv_tokens=170)
    free = only(60.0, arrivals(60.0), "off", max_running=256, batch_tokens=64)
    assert row["engines"] > free["engines"]
    assert row["binds"] == "memory"
    # Of a fixed context nobody grows, so that users wait for memory and none gives it back.
    fixed = only(60.0, arrivals(60.0), "off", max_running=256, batch_tokens=64, context=30, kv_tokens=100)
    assert fixed["engines"] > 1
    assert fixed["binds"] == "memory"


def test_the_profile_binds_where_its_costs_end() -> None:
    """Passes above the capture limit have no cost, and a pass of one block is above it."""
    profile = line(capture={"sizes": [1, 2, 4], "limit": 4})
    row = only(10.0, arrivals(30.0), "fixed:4", profile=profile, **PLACES)
    assert row["engines"] is None
    assert row["binds"] == "profile"


def test_what_binds_is_read_off_the_fleet_one_smaller() -> None:
    """Arrivals like clockwork: three engines never have a queue, and on two it grows."""
    load = Workload("even", np.arange(300) / 34.0)
    held = fleet_of(3, EVEN, line(), "off", load, **PLACES)
    assert held.summary["full_steps"] == 0
    row = only(50.0, load, "off", **PLACES)
    assert (row["engines"], row["binds"]) == (3, "queueing")


def test_one_engine_is_bound_by_nothing_but_its_traffic() -> None:
    row = only(30.0, arrivals(5.0), "off", **PLACES)
    assert (row["engines"], row["binds"]) == (1, "traffic")


# -- which policy --------------------------------------------------------------------------------------------


def test_a_lossy_policy_is_never_recommended() -> None:
    """`global` is as small and as fast as any; it does not keep the text."""
    document = ask(50.0, arrivals(60.0), policies=["global", "off", "hindsight"], **PLACES)
    rows = {row["policy"]: row for row in document["policies"]}
    assert rows["global"]["engines"] < rows["off"]["engines"]
    assert {name: row["lossless"] for name, row in rows.items()} == {
        "global": False,
        "off": True,
        "hindsight": False,
    }
    assert document["recommended"] == "off"
    sees = varied([24] * 60, confidence_sees_token=True)
    document = ask(
        50.0, arrivals(60.0), trace=sees, policies=["lagged:2", "early-stop", "fixed:1", "off"], **PLACES
    )
    assert document["recommended"] in ("fixed:1", "off"), (
        "who reads confidences that see their token is lossy"
    )
    only_lossy = ask(50.0, arrivals(60.0), policies=["global"], **PLACES)
    assert only_lossy["recommended"] is only_lossy["marginal"] is None


@pytest.mark.parametrize("names", [["off", "fixed:2", "fixed:4"], ["fixed:4", "fixed:2", "off"]])
def test_fewest_engines_win_and_among_equals_the_fastest_slow_user(names: list[str]) -> None:
    document = ask(50.0, arrivals(60.0), policies=names, **PLACES)
    rows = document["policies"]
    assert [row["policy"] for row in rows] == names
    best = next(row for row in rows if row["policy"] == document["recommended"])
    assert best["engines"] == min(row["engines"] for row in rows)
    level = [row for row in rows if row["engines"] == best["engines"]]
    assert best["tps_user"]["p05"] == max(row["tps_user"]["p05"] for row in level)
    assert len(level) > 1, "a tie to decide"


def test_the_default_policies_are_those_of_an_answer() -> None:
    document = ask(50.0, arrivals(5.0, 40), **PLACES)
    names = ["off", "fixed:1", "fixed:4", "threshold:0.3", "early-stop", "lagged:2"]
    assert [row["policy"] for row in document["policies"]] == names


# -- what a little more is worth -----------------------------------------------------------------------------


def highest(
    engines: int, trace: Trace, profile: StepProfile, policy: str, load: Workload, **more: Any
) -> float:
    """Largest rate of these arrivals at which 50 tokens/s are kept, by a scan in steps of 0.5 %."""
    rates = load.rate * 1.005 ** np.arange(-220, 220)
    good = 0.0
    at = int(np.searchsorted(rates, 12.0 * engines))
    low, high = at, at
    keeps = {}

    def kept(i: int) -> bool:
        if i not in keeps:
            result = fleet_of(engines, trace, profile, policy, load.scaled(rates[i]), **more)
            keeps[i] = share_of_fleet(result, 50.0) >= 0.95
        return keeps[i]

    while kept(high):
        low, high = high, high + 8
    while not kept(low):
        low, high = low - 8, low
    for i in range(low, high + 1):
        if not kept(i):
            break
        good = float(rates[i])
    return good


def test_worth_is_the_difference_of_two_highest_rates() -> None:
    """One more engine (not two, and of this fleet), twice the capture limit, the block's last position."""
    sizes = [1, 4, 8, 12]
    profile = line(
        verify={"tokens": sizes, "seconds": [0.01, 0.0103, 0.0107, 0.0111]},
        capture={"sizes": sizes, "limit": 12},
        eager={"tokens": [13, 24], "seconds": [0.02, 0.025]},
    )
    load = arrivals(40.0, 1500)
    document = ask(50.0, load, profile=profile, policies=["fixed:4"], **PLACES)
    n, worth = document["policies"][0]["engines"], document["marginal"]
    base = highest(n, EVEN, profile, "fixed:4", load, **PLACES)
    assert worth["rate"] == pytest.approx(base, rel=0.008)
    more = highest(n + 1, EVEN, profile, "fixed:4", load, **PLACES) - base
    assert worth["one_more_engine"] == pytest.approx(more, abs=0.015 * base)
    doubled = line(
        verify={"tokens": [1, 24], "seconds": [0.01, 0.0123]},
        capture={"sizes": [*sizes, 16, 20, 24], "limit": 24},
        eager={"tokens": [13, 24], "seconds": [0.02, 0.025]},
    )
    wider = highest(n, EVEN, doubled, "fixed:4", load, **PLACES) - base
    assert worth["capture_limit_doubled"] == pytest.approx(wider, abs=0.015 * base)
    assert worth["capture_limit"] == [12, 24]
    assert wider > 0.1 * base
    shorter = highest(n, EVEN, profile, "fixed:3", load, block_size=3, **PLACES)
    assert worth["last_block_position"] == pytest.approx(base - shorter, abs=0.015 * base)
    assert abs(base - shorter) > 0.03 * base
    assert worth["block_size"] == BLOCK
    assert document["policies"][0]["engines"] == n


def test_the_worth_is_that_of_what_is_recommended() -> None:
    load = arrivals(60.0)
    both = ask(50.0, load, policies=["off", "fixed:2"], **PLACES)
    alone = ask(50.0, load, policies=["fixed:2"], **PLACES)
    assert both["recommended"] == "fixed:2"
    assert both["marginal"] == alone["marginal"] != ask(50.0, load, policies=["off"], **PLACES)["marginal"]


def test_worth_leaves_out_what_the_fleet_has_not() -> None:
    """No capture limit, no block: `off` drafts nothing, and a profile of kernels alone knows no graph."""
    worth = ask(50.0, arrivals(40.0), policies=["off"], **PLACES)["marginal"]
    assert set(worth) == {"rate", "one_more_engine"}
    captured = {
        "capture": {"sizes": [1, 8, 16], "limit": 16},
        "eager": {"tokens": [17, 24], "seconds": [0.02, 0.025]},
    }
    for method, told in (("measured", True), ("composed", False), ("roofline", False)):
        profile = line(**captured, provenance={"method": method})
        worth = ask(50.0, arrivals(40.0), profile=profile, policies=["fixed:2"], **PLACES)["marginal"]
        assert ("capture_limit_doubled" in worth) is told
        assert "last_block_position" in worth


@pytest.mark.parametrize("end", [0.0111, 0.0107, 0.0103])
def test_a_table_that_ends_flat_makes_no_larger_pass_free(end: float) -> None:
    """Stairs and inversions at the limit are noise: the captured curve goes on by its upper half."""
    sizes = [1, 4, 6, 8, 10, 12]
    seconds = [0.01, 0.0103, 0.0105, 0.0107, 0.0109, end]
    profile = line(
        verify={"tokens": sizes, "seconds": seconds},
        capture={"sizes": sizes, "limit": 12},
        eager={"tokens": [13, 24], "seconds": [0.02, 0.025]},
    )
    wider = _wider_capture(profile)
    if end == 0.0103:
        assert wider is None, "what does not rise says nothing of larger passes"
        return
    assert wider is not None
    slope = float(np.polyfit(sizes[2:], seconds[2:], 1)[0])
    assert wider.verify_seconds(np.array([24]))[0] == pytest.approx(end + 12 * slope)
    assert wider.verify_seconds(np.array([12]))[0] == pytest.approx(end)
    assert wider.graph_limit == 24


@pytest.mark.parametrize("rate", [2.0, 30.0, 900.0])
def test_the_highest_rate_does_not_depend_on_where_the_search_begins(rate: float) -> None:
    load = arrivals(30.0)
    found = highest_rate(traffic(load.scaled(rate)), make("off"), 2)
    wanted = highest_rate(traffic(load), make("off"), 2)
    assert found == pytest.approx(wanted, rel=6e-3)
    for factor, kept in ((1.0, True), (0.99, True), (1.01, False)):
        result = fleet_of(2, EVEN, line(), "off", load.scaled(found * factor), **PLACES)
        assert (share_of_fleet(result, 50.0) >= 0.95) is kept


# -- the document --------------------------------------------------------------------------------------------


def test_plan_holds_what_was_asked() -> None:
    serving = PLACES | {"prefill": "chunked", "router": "round-robin", "context": 40}
    document = ask(
        50.0, arrivals(30.0), fraction=0.9, limits=Limits(0.4), seed=3, policies=["off"], **serving
    )
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert (document["sla_tps"], document["sla_fraction"]) == (50.0, 0.9)
    assert document["limits"] == {"ttft_seconds": 0.4, "itl_seconds": None, "e2e_seconds": None, "shares": {}}
    assert document["settings"] == {
        "prefill": "chunked",
        "router": "round-robin",
        "context": 40,
        "max_running": 4,
        "seed": 3,
    }
    assert (document["profile"], document["requests"]) == ("line", 300)
    assert document["rate"] == document["rate_simulated"] == pytest.approx(30.0)
    plain = ask(50.0, arrivals(30.0), policies=["off"])
    assert plain["settings"]["router"] == "least-outstanding"
    assert plain["settings"]["max_running"] == 256, "the engine's default, not the number of arrivals"
    assert any("prefill" in said for said in plain["not_modelled"])
    assert not any("prefill" in said for said in document["not_modelled"])
    assert ask(50.0, arrivals(30.0), policies=["off"], workers=3) == plain


def test_every_warning_is_said_once() -> None:
    """Of the profile, the trace, the arrivals, their laying on the trace, and of each policy's own run."""
    trace = varied([24] * 30, synthetic=True)
    load = arrivals(20.0, output_tokens=np.where(np.arange(300) % 3, 20, 60))
    load = replace(load, metadata={"warnings": ["a row was dropped"]})
    policies = ["off", "global", "lagged:2"]
    document = ask(30.0, load, trace=trace, profile=line(draft=None), policies=policies, **PLACES)
    said = document["warnings"]
    assert len(said) == len(set(said))
    for text in (
        "a row was dropped",
        "states no draft cost",
        "longer than the traced request",
        "global is not lossless",
        "30 distinct traced requests",
    ):
        assert sum(text in warning for warning in said) == 1, text
    assert set(trace.warnings) <= set(said)


def test_progress_counts_the_trials() -> None:
    seen: list[tuple[int, int | None, str]] = []
    document = ask(
        50.0,
        arrivals(45.0),
        policies=["off", "fixed:2"],
        progress=lambda done, total, name: seen.append((done, total, name)),
        **PLACES,
    )
    assert {name for _, _, name in seen} == {"off", "fixed:2"}
    done = [count for count, _, _ in seen]
    assert done == sorted(done)
    assert done[-1] >= sum(len(row["curve"]) for row in document["policies"])
    assert {total for _, total, _ in seen} == {None}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"sla_tps": 0.0}, "SLA is 0"),
        ({"sla_tps": math.nan}, "SLA is nan"),
        ({"rate": -1.0}, "rate is -1"),
        ({"rate": 5.0, "gpu_cost": 0.0}, "gpu_cost is 0"),
        ({"rate": 5.0, "fraction": 0.0}, "fraction is 0"),
        ({"rate": 5.0, "fraction": 1.01}, "fraction is 1.01"),
        ({}, "either a rate or a workload"),
        ({"rate": 5.0, "workload": arrivals(5.0, 30)}, "not both"),
        ({"workload": arrivals(5.0, 19)}, "19 arrivals"),
        ({"rate": 5.0, "limits": Limits(0.1), "prefill": "disaggregated"}, "prefill chunked"),
    ],
)
def test_plans_that_make_no_sense_are_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        plan(EVEN, line(), **({"sla_tps": 50.0, "calibration": None} | more))


def test_twenty_arrivals_and_all_of_the_requests_may_be_asked() -> None:
    row = only(30.0, arrivals(1.0, 20), "off", fraction=1.0, **PLACES)
    assert row["engines"] == 1
    assert row["share_at_sla"] == 1.0


# -- the sentence ------------------------------------------------------------------------------------------


def test_the_sentence_names_the_fleet_and_what_drafting_nothing_needs() -> None:
    document = fake_plan()
    rows = {row["policy"]: row for row in document["policies"]}
    text = headline(document)
    assert "5 GPUs (4 ~ 6) with lagged:2" in text
    assert "without drafting 11" in text
    assert "306 requests/s" in text
    assert "95% of requests" in text
    assert "500 ms" in text
    assert "0.059 per million" in text
    rows["off"] |= {"gpus": 5, "tps_user": {"p05": 41.0}}
    rows["lagged:2"]["tps_user"] = {"p05": 59.0}
    text = headline(document)
    assert "41 instead of 59 tokens/s" in text
    rows["off"]["gpus"] = None
    assert "without drafting no number of GPUs" in headline(document)
    rows["lagged:2"] |= {"gpus": 1, "gpus_interval": [1, None]}
    assert "1 GPU (1 ~ unknown)" in headline(document)


def test_the_sentence_says_when_drafting_does_not_pay() -> None:
    document = fake_plan() | {"recommended": "off", "limits": None}
    text = headline(document)
    assert "Drafting does not pay here" in text
    assert "11 GPUs" in text
    assert "first token" not in text
    document["policies"] = document["policies"][:1]
    assert "does not pay" not in headline(document), "nothing else was tried"
    document["recommended"] = None
    assert "No lossless policy tried reaches 80 tokens/s" in headline(document)
