"""A published engine: vLLM serving DeepSeek-V4-Flash with DSpark on four B300.

Known: its start-up cost table, its draft costs, its capture limit (1024), and two sweeps over concurrency,
without speculation and with 7 drafts always verified. Fitted on the sweep without speculation alone:
overhead(R), and the pause between the requests of a place. Fitted on the one point of the sweep with drafts
that is then not judged, concurrency 1: the level of acceptance (its speed of a user) and how much requests
differ (its throughput). Assumed and varied: the length of the prompts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import specsched as ss
from specsched.formats.registry import read
from specsched.profile import StepProfile
from specsched.simulator import Serving
from specsched.trace import Trace
from specsched.trace.settings import FIGURE_2

from .common import COLOURS, Settings, canvas, data_file, percent, rounded, rows, save, table

PREFIX = "vllm_b300_dsv4flash0731_tp4_"
LIMIT, PROMPTS, OUTPUT = 1024, 880, 512
PROMPT_TOKENS = 256
VARIED_PROMPTS = (64, 256, 1024)
VARIED_TOKENS = (0.9, 1.0, 1.1)
MOST_SHARE = 0.95  # of the ease of a token that is its request's: how much requests differ
LOG_ODDS = 1.9  # of acceptance, that multiply the tokens of a step by about e: the step of a search
LOCAL_SHARE = 0.56  # of it that neighbouring tokens share, where the request leaves room


@dataclass(frozen=True)
class Published:
    """One arm of the sweep: concurrency -> (tokens/s/user, tokens/s in all); `clipped` points are left
    out."""

    user: dict[int, float]
    total: dict[int, float]
    clipped: tuple[int, ...]


def read_arm(path: Any, arm: str) -> Published:
    found = [row for row in rows(path) if row["arm"] == arm]
    kept = {int(r["concurrency"]): r for r in found}
    return Published(
        user={c: float(r["tok_s_user"]) for c, r in kept.items()},
        total={c: float(r["tok_s_total"]) for c, r in kept.items()},
        clipped=tuple(c for c, r in kept.items() if r["clipped"] == "1"),
    )


def base_profile(settings: Settings) -> StepProfile:
    """The published table, without any overhead."""
    verify = data_file(settings, "validation", PREFIX + "verify_cost_ms.csv")
    draft = data_file(settings, "validation", PREFIX + "draft_cost_ms.csv")
    found = read(verify, draft=str(draft), capture_limit=LIMIT, gpu_count=4, name="vllm-b300-v4-flash")
    return found.object


def with_overhead(profile: StepProfile, overhead: dict[int, float]) -> StepProfile:
    """overhead(R) linear between the fitted loads (in the square root of R from 0)."""
    loads = sorted(overhead)
    grid = sorted({*loads, *(int(x) for x in np.geomspace(1, loads[-1], 24))})
    seconds = np.interp(np.sqrt(grid), np.sqrt(loads), [overhead[c] for c in loads])
    curve = {"requests": grid, "seconds": [float(s) for s in seconds], "beyond": "slope"}
    return StepProfile.from_dict({**profile.to_dict(), "overhead": curve})


def acceptance(scale: float) -> tuple[float, ...]:
    """Conditional acceptances: the decay of figure 2 (chat), its level moved in log-odds by `scale`."""
    level = np.array(FIGURE_2["chat"])
    return tuple(1.0 / (1.0 + np.exp(-(np.log(level / (1.0 - level)) + scale))))


def text_of(scale: float, requests: int, request_share: float = 0.1) -> Trace:
    """A trace whose requests decode 511 tokens each: what 512 output tokens leave after the prefill's."""
    return ss.synthesise(
        acceptance(scale),
        requests=requests,
        output_tokens=float(OUTPUT - 1),
        prompt_tokens=1.0,
        length_spread=0.0,
        seed=7,
        name="b300",
        request_share=request_share,
        local_share=min(LOCAL_SHARE, 1.0 - request_share),
    )


def tokens_per_step(trace: Trace) -> float:
    """Mean tokens of a step that verifies whole blocks, along the text."""
    total = steps = 0
    for start, length in zip(trace.starts, trace.lengths, strict=True):
        at = 0
        while at < length:
            at += int(trace.accepted[start + at]) + 1
            steps += 1
        total += int(length)
    return total / steps


def benchmark(
    trace: Trace,
    profile: StepProfile,
    policy: str,
    users: int,
    prompt: int,
    requests: int,
    pause: float = 0.0,
    **more: Any,
) -> dict[str, float]:
    """The benchmark as it was run: `requests` prompts queue for `users` places, all there at once.

    Speed of a user is 1 / median time per output token, as published; throughput counts the drain at the
    end, as theirs does, and `pause` seconds for every request that a place serves.
    """
    load = ss.Workload(
        name="bench",
        arrival_seconds=np.zeros(requests),
        prompt_tokens=np.full(requests, prompt),
        output_tokens=np.full(requests, OUTPUT),
    )
    serving = Serving(prefill="chunked", max_running=users, warmup=0.0)
    result = ss.simulate(trace, profile, policy, workload=load, serving=serving, log_steps=200_000, **more)
    a, log = result.arrays, result.steps
    tpot = (a["finish_seconds"] - a["ready_seconds"]) / a["tokens"]
    decoding = log[log["requests"] > 0]
    return {
        "user": float(1.0 / np.median(tpot)),
        "total": requests * OUTPUT / (float(a["finish_seconds"].max()) + pause * requests / users),
        "tokens_per_step": float(a["tokens"].sum() / a["steps"].sum()),
        "verified": float(1.0 + a["verified"].sum() / a["steps"].sum()),
        "step_ms": 1e3 * float(decoding["seconds"].mean()),
        "off_graph": float((decoding["tokens"] + decoding["prefill_tokens"] > LIMIT).mean()),
        "joined_by_prefill": float((decoding["prefill_tokens"] > 0).mean()),
    }


def fit_overhead(
    profile: StepProfile, nospec: Published, trace: Trace, prompt: int, requests: int, rounds: int = 4
) -> dict[int, float]:
    """overhead(R) at the published loads, such that the simulated run without speculation has their speeds.

    The simulated run contains the prefills that the measured one contained, so that these are not counted
    twice. (What
    `specsched profile fit-overhead` does from the speeds alone; it knows of no prefill.)
    """
    extra = {c: max(1.0 / nospec.user[c] - float(profile.verify_seconds(c)), 0.0) for c in nospec.user}
    for _ in range(rounds):
        for c in nospec.user:
            got = benchmark(trace, with_overhead(profile, extra), "off", c, prompt, max(requests, 2 * c))
            extra[c] = max(extra[c] + 1.0 / nospec.user[c] - 1.0 / got["user"], 0.0)
    return extra


def pause_of(profile: StepProfile, nospec: Published, trace: Trace, prompt: int, requests: int) -> float:
    """Seconds a request takes at one user, without speculation, beyond its simulated prefill and steps: what
    lies between two requests of a place (front end, detokenising, the client)."""
    got = benchmark(trace, profile, "off", 1, prompt, requests)
    return max(OUTPUT / nospec.total[1] - OUTPUT / got["total"], 0.0)


def fit_acceptance(
    profile: StepProfile, user: float, ratio: float, traced: int, share: float | None, **bench: Any
) -> tuple[float, float, Trace]:
    """(log-odds shift, share of the request, trace) that give one user the median speed `user` and a
    throughput `ratio` times that; with `share` given, the speed alone is met.
    """

    shift = 0.0

    def at(share: float) -> tuple[Trace, float]:
        nonlocal shift
        for attempt in range(4):
            trace = text_of(shift, traced, share)
            got = benchmark(trace, profile, "fixed:7", 1, **bench)
            if abs(user / got["user"] - 1.0) < 0.002 or attempt == 3:
                break
            shift += LOG_ODDS * np.log(user / got["user"])
        return trace, got["total"] / got["user"]

    low, high = (0.0, MOST_SHARE) if share is None else (share, share)
    for _ in range(5 if share is None else 0):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if at(middle)[1] > ratio else (low, middle)
    trace, _ = at(0.5 * (low + high))
    return shift, 0.5 * (low + high), trace


def run(settings: Settings) -> dict[str, Any]:
    """All numbers of the section; see the module's docstring for what is fitted on what."""
    sweep = data_file(settings, "validation", PREFIX + "sweep.csv")
    nospec, drafted = read_arm(sweep, "nospec"), read_arm(sweep, "k7")
    table_only = base_profile(settings)
    requests, traced = (300, 40) if settings.quick else (PROMPTS, 220)
    loads = sorted(nospec.user)
    if settings.quick:
        loads = [1, 128]
        nospec = Published({c: nospec.user[c] for c in loads}, nospec.total, ())
    plain = text_of(0.0, 20)
    main = predict(table_only, nospec, drafted, loads, requests, traced, Assumed())
    numbers: dict[str, Any] = {
        "assumed": {"prompt_tokens": PROMPT_TOKENS, "output_tokens": OUTPUT, "prompts": requests},
        "fitted": main.pop("fitted"),
        "loads": loads,
        "published": {
            "off": {"user": [nospec.user[c] for c in loads], "total": [nospec.total[c] for c in loads]},
            "fixed:7": {"user": [drafted.user[c] for c in loads], "total": [drafted.total[c] for c in loads]},
            "clipped": list(drafted.clipped),
        },
        "table_only": [
            benchmark(plain, table_only, "off", c, PROMPT_TOKENS, requests)["total"] for c in loads
        ],
        **main,
        "errors": errors(main["predicted"], drafted, loads),
        "off_error": [
            main["predicted"]["off"]["total"][i] / nospec.total[c] - 1.0 for i, c in enumerate(loads)
        ],
        "share": {
            "fixed:7": drafted.total[1] / drafted.user[1],
            "off": nospec.total[1] / nospec.user[1],
        },
        "varied": {},
    }
    for label, assumed in ({} if settings.quick else VARIED).items():
        if assumed.request_share is None:  # differing is the requests' own, whatever else is assumed
            assumed = replace(assumed, request_share=numbers["fitted"]["request_share"])
        found = predict(table_only, nospec, drafted, loads, requests, traced, assumed, ("fixed:7",))
        numbers["varied"][label] = errors(found["predicted"], drafted, loads)
    adaptive = settings.shared / "validation" / (PREFIX + "adaptive.csv")
    if adaptive.is_file():  # published after these predictions: judged, never fitted
        real = read_arm(adaptive, "adaptive")
        numbers["adaptive"] = {key: [getattr(real, key)[c] for c in loads] for key in ("user", "total")}
    draw(settings, numbers)
    return rounded(numbers)


@dataclass(frozen=True)
class Assumed:
    """What the published sweep does not say."""

    prompt_tokens: int = PROMPT_TOKENS
    tokens_scale: float = 1.0  # of the tokens per step that one user's speed implies
    request_share: float | None = None  # None: as much as the throughput at one user says


ALIKE = "requests differ little (10 %)"
VARIED = {
    "prompts of 64 tokens": Assumed(prompt_tokens=64),
    "prompts of 1,024 tokens": Assumed(prompt_tokens=1024),
    "10 % fewer tokens per step": Assumed(tokens_scale=0.9),
    "10 % more tokens per step": Assumed(tokens_scale=1.1),
    ALIKE: Assumed(request_share=0.1),
}


def predict(
    table_only: StepProfile,
    nospec: Published,
    drafted: Published,
    loads: list[int],
    requests: int,
    traced: int,
    assumed: Assumed,
    policies: tuple[str, ...] = ("off", "fixed:7", "lagged:2"),
) -> dict[str, Any]:
    """Fit on the run without speculation (and the one point), then predict."""
    plain, prompt = text_of(0.0, 20), assumed.prompt_tokens
    extra = fit_overhead(table_only, nospec, plain, prompt, requests)
    profile = with_overhead(table_only, extra)
    pause = pause_of(profile, nospec, plain, prompt, requests)
    speed, one = drafted.user[1], {"prompt": prompt, "requests": requests, "pause": pause}
    ratio = drafted.total[1] / speed
    shift, share, trace = fit_acceptance(
        profile, speed * assumed.tokens_scale, ratio, traced, assumed.request_share, **one
    )
    calibration = ss.fit_sts(trace) if "lagged:2" in policies else None
    predicted: dict[str, dict[str, list[float]]] = {}
    for policy in policies:
        text_read = plain if policy == "off" else trace
        found = [benchmark(text_read, profile, policy, c, calibration=calibration, **one) for c in loads]
        predicted[policy] = {key: [row[key] for row in found] for key in found[0]}
    tokens = tokens_per_step(trace)
    return {
        "fitted": {
            "overhead_ms": {c: 1e3 * s for c, s in extra.items()},
            "pause_ms": 1e3 * pause,
            "request_share": share,
            "tokens_per_step": tokens,
            "acceptance": list(acceptance(shift)),
        },
        "predicted": predicted,
        # One step after another of full blocks, no prompt in any of them.
        "without_prefill": [tokens / profile.seconds(8 * c, c, 0.0) for c in loads],
    }


def errors(predicted: dict[str, Any], drafted: Published, loads: list[int]) -> dict[str, list[float]]:
    """Relative errors of fixed:7."""
    found = predicted["fixed:7"]
    return {
        "user": [found["user"][i] / drafted.user[c] - 1.0 for i, c in enumerate(loads)],
        "total": [found["total"][i] / drafted.total[c] - 1.0 for i, c in enumerate(loads)],
    }


def draw(settings: Settings, numbers: dict[str, Any]) -> None:
    """Speed of a user and throughput against concurrency, published and predicted."""
    figure, axes = canvas(10, 3.8, 2)
    loads = numbers["loads"]
    for ax, key in zip(axes, ("user", "total"), strict=True):
        for colour, policy in zip(COLOURS, ("off", "fixed:7", "lagged:2"), strict=False):
            ax.plot(loads, numbers["predicted"][policy][key], color=colour, label=f"{policy}, predicted")
            if policy in numbers["published"]:
                ax.plot(
                    loads,
                    numbers["published"][policy][key],
                    "o",
                    ms=4,
                    color=colour,
                    label=f"{policy}, published",
                )
        ax.set(xscale="log", xlabel="users")
    axes[1].plot(loads, numbers["table_only"], ":", color=COLOURS[4], label="off, by the table alone")
    axes[0].set(yscale="log", ylabel="tokens/s of a user")
    axes[1].set(ylabel="tokens/s in all")
    axes[1].legend(fontsize=7)
    save(figure, settings, "published_engine")


def _rows_of(n: dict[str, Any]) -> list[list[str]]:
    """The comparison of fixed-7, one row a load, and the lagged prediction beside it."""
    fixed, lagged = n["predicted"]["fixed:7"], n["predicted"]["lagged:2"]
    real = n["published"]["fixed:7"]
    body = []
    for i, c in enumerate(n["loads"]):
        mark = " (fitted)" if c == 1 else " (clipped)" if c in n["published"]["clipped"] else ""
        body.append(
            [
                f"{c}{mark}",
                f"{real['user'][i]:.1f}",
                f"{fixed['user'][i]:.1f}",
                percent(n["errors"]["user"][i]),
                f"{real['total'][i]:,.0f}",
                f"{fixed['total'][i]:,.0f}",
                percent(n["errors"]["total"][i]),
                percent(fixed["off_graph"][i], False),
                f"{n['without_prefill'][i]:.1f}",
                f"{lagged['user'][i]:.1f}",
                f"{lagged['verified'][i]:.1f}",
            ]
        )
    return body


def _adaptive(n: dict[str, Any]) -> str:
    """The adaptive arm: predicted before it was public."""
    if "adaptive" not in n:
        return "- The sweep of the adaptive policy is not at hand: the last two columns are predictions."
    lagged, real = n["predicted"]["lagged:2"], n["adaptive"]
    errors = {key: [p / r - 1.0 for p, r in zip(lagged[key], real[key], strict=True)] for key in real}
    told = {key: ", ".join(percent(e) for e in found) for key, found in errors.items()}
    every = sorted(abs(e) for e in errors["user"])
    fixed = n["published"]["fixed:7"]["total"]
    right = sum(
        (p > f) == (r > g)
        for p, f, r, g in zip(
            lagged["total"], n["predicted"]["fixed:7"]["total"], real["total"], fixed, strict=True
        )
    )
    median, alike = float(np.median(every)), abs(real["total"][0] / fixed[0] - 1)
    return f"""- **The adaptive arm, predicted before it was public**: the last two columns stood here, as
  predictions of lagged:2, before the arm was. At
  {", ".join(map(str, n["loads"]))} users its speed of a user was predicted
  {told["user"]} off (median {percent(median, False)}, largest {percent(every[-1], False)}), its throughput
  {told["total"]}. Nothing was fitted to it. Whether it beats fixed-7 in throughput is said rightly at {right}
  of {len(every)} loads (at one user the two are within {percent(alike, False)})."""


def text(numbers: dict[str, Any]) -> str:
    """The section of the document."""
    n, loads = numbers, numbers["loads"]
    fixed = n["predicted"]["fixed:7"]
    real = n["published"]["fixed:7"]
    body = _rows_of(n)
    head = [
        *("users", "user, published", "predicted", "error", "in all, published", "predicted", "error"),
        *("steps off graph", "user, no prefill", "lagged:2, user", "verified"),
    ]
    varied = [
        [label, *(percent(e) for e in found["user"][1:]), *(percent(e) for e in found["total"][1:])]
        for label, found in {"as assumed": n["errors"], **n["varied"]}.items()
    ]
    judged = [i for i, c in enumerate(loads) if c != 1 and c not in n["published"]["clipped"]]
    worst = max((abs(n["errors"]["user"][i]), i) for i in judged)
    over = [n["table_only"][i] / n["published"]["off"]["total"][i] for i in range(len(loads))]
    totals = [n["errors"]["total"][i] for i in judged]
    pauses = n["fitted"]["pause_ms"] / 1e3 * real["total"][0] / n["assumed"]["output_tokens"]
    alike = n["varied"].get(ALIKE, n["errors"])
    little, fit = [alike["total"][i] for i in judged], n["fitted"]
    at = loads.index(128)
    overhead = ", ".join(f"{float(ms):.1f} at {c}" for c, ms in n["fitted"]["overhead_ms"].items())
    off_total = ", ".join(percent(e) for e in n["off_error"])
    return f"""The benchmark is replayed as it was run: {n["assumed"]["prompts"]} prompts of
{n["assumed"]["output_tokens"]}
output tokens wait for a number of places, prompts are prefilled in chunks that join decode steps, passes
above 1,024
tokens run off the graph.

*Fitted on the sweep without speculation:* overhead(R), such that the simulated sweep, prefills included,
has the published speeds of a user (ms: {overhead}); the pause between two requests of a place, such that one
user has the published throughput ({fit["pause_ms"]:.0f} ms). *Fitted on one point of fixed-7, one user, which
is not judged:* the level of acceptance, from the speed of a user ({fit["tokens_per_step"]:.2f} tokens per
step; its fall by position is that of figure 2, chat), and how much requests differ, from the throughput,
which lies below that speed the more they do ({fit["request_share"]:.0%} of the variance of the ease of a
token is its request's). *Assumed:* prompts of {n["assumed"]["prompt_tokens"]} tokens. *Judged by:*
fixed-7 at every other load.

{table(head, body)}

Speeds of a user are 1 / median time per output token, tokens/s; "clipped" was drawn at the edge of the
published figure.

![published engine](figures/published_engine.png)

- **Speed of a user**: at most {percent(worst[0], False)} wrong where judged (at {loads[worst[1]]} users).
- **The collapse at 128 users is there**, for the reason it has: 128 × 8 = 1,024 tokens sit exactly on the
  capture limit, and the
  {percent(fixed["off_graph"][at], False)} of steps that a prefill chunk joins cost 104 ms instead of 21.
  Without prefill the same simulation gives
  {n["without_prefill"][at]:.0f} tokens/s where {real["user"][at]:.1f} was measured.
- **Throughput of fixed-7** is {percent(min(totals))} to {percent(max(totals))} off where judged, without
  speculation {off_total}. With requests that differ little (last row below) it would be
  {percent(min(little))} to {percent(max(little))}: the published throughput at one user, where there is
  nothing to schedule, is {percent(n["share"]["fixed:7"], False)} of the published (median) speed of a
  user, without speculation {percent(n["share"]["off"], False)}. Pauses
  take {pauses:.1%} of that run, the rest is put down to requests that differ (fitted to it): hard ones are
  served longer, and the last of them end the run alone.
- **The table alone**, without overhead(R), promises {over[-1]:.1f} times the measured throughput without
  speculation at {loads[-1]} users.
{_adaptive(n)}

Errors of fixed-7 under other assumptions, at {", ".join(str(c) for c in loads[1:])} users: a user's speed,
then throughput.

{table(["", *(f"user, {c}" for c in loads[1:]), *(f"in all, {c}" for c in loads[1:])], varied)}

Prompts of 1,024 tokens would push steps off the graph from 16 users on: the length of the prompts is an
input a planner must be told.
"""
