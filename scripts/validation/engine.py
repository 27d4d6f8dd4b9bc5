"""The small real engine of this package against the simulator, on this machine's wall clock.

Measured here: the engine's step profile, and a dense trace of the same target and drafter. Nothing is
fitted on the runs that are compared.

    profile 0 | runs 0 | profile 1 | runs 1 | ... | profile n        simulated for runs i: the mean of what
                                                                      profiles i and i + 1 say

A machine's speed drifts over minutes, a virtual one's by more than the error looked for: so the profile is
measured before and after every repeat of the runs, each repeat has its own error, and their median counts.
It is not run on a busy machine: a wall clock there measures the neighbours.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np

import specsched as ss
from specsched.files.disk import bundled_dir

from .common import COLOURS, Absent, Settings, canvas, percent, rounded, save, table

TARGET, DRAFTER = "tiny", "tiny-dspark-markov"
POLICIES = ("off", "fixed:1", "fixed:7", "threshold:0.3", "early-stop", "lagged:2")
LOADS = (1, 2, 4, 8, 16, 32, 64)
MAX_TOKENS = 96
METHOD = "affine"  # of calibration, the same for engine and simulator
QUIET = 1.5  # one-minute load above which the machine counts as busy
HEAD = [
    *("policy, users", "engine tokens/s", "simulated", "error", "a user's speed", "tokens/step", "simulated"),
    *("z", "verified, engine / simulated", "noise"),
]
LEVEL = 3.3  # |z| beyond this (0.1 % two-sided) is a difference; 42 comparisons leave 4 % for one by chance


def prompts() -> list[dict[str, Any]]:
    """Small sums in words, like the text the tiny target was trained on; made here so that nothing else is
    needed."""
    names = ("Tom", "Anna", "Sam", "Maria", "Ben", "Lucy", "Omar", "Ida")
    things = ("apples", "books", "marbles", "stickers", "coins", "cookies", "pencils", "shells")
    rows = []
    for i in range(96):
        who, what, a, b = names[i % 8], things[(i // 8) % 8], 3 + i % 17, 2 + i % 11
        rows.append(
            {
                "domain": "math",
                "prompt": f"{who} has {a} {what} and gets {b} more each day for {2 + i % 5} days. "
                f"How many {what} does {who} have then?",
            }
        )
    return rows


def load_models() -> tuple[Any, Any]:
    """The bundled tiny target and its drafter; raises Absent."""
    if not bundled_dir("models").joinpath(DRAFTER, "config.json").is_file():
        raise Absent(f"the bundled drafter {DRAFTER} is not here; scripts/train_models.py makes it")
    from specsched.torch_side.drafter.dspark import load_drafter
    from specsched.torch_side.target.weights import load_target

    target = load_target(TARGET)
    return target, load_drafter(DRAFTER, target)


def busy() -> float:
    """One-minute load average before this check began to load the machine itself; 0 where there is none."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def run(settings: Settings, models: tuple[Any, Any] | None = None) -> dict[str, Any]:
    """Profile, trace, runs and their comparison. `models` stand in for the bundled ones (tests)."""
    load = busy()
    target, drafter = models if models is not None else load_models()
    if load > QUIET and not settings.cpu_time:
        raise Absent(
            f"this machine is busy (load {load:.1f} > {QUIET}), its wall clock would measure the neighbours"
        )
    from .engine_loop import cpu_seconds, pinned

    rows = prompts()
    if models is not None:
        rows = [{"domain": "math", "prompt_ids": [1 + i % 4, 2, 3]} for i in range(8)]
    with (
        pinned(core=not settings.cpu_time) as pins,
        cpu_seconds() if settings.cpu_time else contextlib.nullcontext(),
    ):
        numbers = measure_and_compare(settings, target, drafter, rows)
    numbers["machine"] |= {
        "load_before": load,
        "load_after": busy(),
        "quiet": load <= QUIET,
        "clock": "cpu" if settings.cpu_time else "wall",
        **pins,
    }
    draw(settings, numbers)
    return rounded(numbers)


def measure_and_compare(
    settings: Settings, target: Any, drafter: Any, rows: list[dict[str, Any]]
) -> dict[str, Any]:
    """Everything but what is said of the machine."""
    quick = settings.quick
    tokens = 12 if quick else MAX_TOKENS
    trace = recorded(target, drafter, rows, tokens, samples=1 if quick else 4)
    calibration = ss.fit_sts(trace, method=METHOD)
    loads = (1, 3) if quick else LOADS
    policies = policies_for(drafter.block_size)
    repeats, *least = (2, 0.0, 6, 2) if quick else (5, 1.0, 40, 8)
    profiles = [measured(target, drafter, trace, quick)]
    runs = []
    for repeat in range(repeats):
        runs.append(
            one_repeat(
                target, drafter, profiles[-1], calibration, rows, loads, policies, tokens, repeat, least
            )
        )
        profiles.append(measured(target, drafter, trace, quick))
    simulated = [
        simulate_all(trace, profile, calibration, loads, policies, 100 if quick else 1500)
        for profile in profiles
    ]
    fits = [(profile.fit or {}).get("median_relative_error", np.nan) for profile in profiles]
    return {
        "machine": host(profiles[0]),
        "calibration": METHOD,
        "trace": {
            "requests": len(trace.request_ids),
            "anchors": len(trace.request),
            "mean_tokens": float(trace.lengths.mean()),
        },
        "profile_fit": float(np.median(fits)),
        "drift": drift(profiles, loads),
        "loads": list(loads),
        "policies": list(policies),
        "repeats": repeats,
        **compared(runs, simulated, loads, policies),
    }


def host(profile: ss.StepProfile) -> dict[str, Any]:
    """CPU and versions, as the profiler noted them."""
    noted = profile.provenance.get("host") or {}
    return {key: noted[key] for key in ("cpu", "torch", "python") if key in noted}


def policies_for(block: int) -> tuple[str, ...]:
    return tuple(p if p != "fixed:7" else f"fixed:{block}" for p in POLICIES)


def recorded(target: Any, drafter: Any, rows: list[dict[str, Any]], tokens: int, samples: int) -> ss.Trace:
    """A dense trace of the same target, drafter and prompts; other random numbers than the engine's runs."""
    from specsched.torch_side.recording.recorder import record

    with tempfile.TemporaryDirectory() as folder:
        return record(
            target,
            drafter,
            rows,
            f"{folder}/own.parquet",
            temperature=1.0,
            max_tokens=tokens,
            samples=samples,
        )


def measured(target: Any, drafter: Any, trace: ss.Trace, quick: bool) -> ss.StepProfile:
    """The engine's step profile over the loads and contexts of the comparison."""
    from specsched.torch_side.measure.profiler import measure_engine
    from specsched.torch_side.measure.run import Plan

    middle = int(trace.prompt_tokens.mean() + trace.lengths.mean() / 2)
    if quick:
        plan = Plan(replays=3, warmups=1, settle_seconds=0.0, budget_seconds=20.0)
        return measure_engine(target, drafter, (1, 3), (max(middle, 4),), plan)
    contexts = (middle, max(middle // 2, 8), 2 * middle)
    plan = Plan(replays=10, warmups=2, settle_seconds=1.0, budget_seconds=60.0)
    return measure_engine(target, drafter, LOADS, contexts, plan)


def drift(profiles: Sequence[ss.StepProfile], loads: Sequence[int]) -> float:
    """Largest change of a step without drafts from one profile to another, median over the loads."""
    steps = np.array([[p.seconds(c, c, 0.0) for c in loads] for p in profiles])
    return float(np.median(steps.max(0) / steps.min(0)) - 1.0)


def one_repeat(
    target: Any,
    drafter: Any,
    profile: ss.StepProfile,
    calibration: ss.Calibration,
    rows: list[dict[str, Any]],
    loads: Sequence[int],
    policies: Sequence[str],
    tokens: int,
    repeat: int,
    least: Sequence[Any],
) -> dict[tuple[str, int], Any]:
    """One engine run by (policy, load): all loads, and at each of them all policies, every repeat in another
    order."""
    from specsched.torch_side.engine.engine import Engine
    from specsched.torch_side.engine.prompts import ids_of

    from .engine_loop import run_window

    ids = [tuple(ids_of(target, row, i)) for i, row in enumerate(rows)]
    capacity = max(len(p) for p in ids) + tokens + drafter.block_size + 1
    found: dict[tuple[str, int], Any] = {}
    for load in loads:
        for turn in range(len(policies)):
            policy = policies[(turn + repeat) % len(policies)]
            engine = Engine(
                target,
                drafter,
                policy,
                seed=repeat,
                max_batch=load,
                capacity=capacity,
                profile=profile,
                calibration=calibration,
            )
            found[policy, load] = run_window(engine, ids, load, tokens, *least, repeat)
    return found


def simulate_all(
    trace: ss.Trace,
    profile: ss.StepProfile,
    calibration: ss.Calibration,
    loads: Sequence[int],
    policies: Sequence[str],
    requests: int,
) -> dict[tuple[str, int], dict[str, Any]]:
    """Summaries of the simulator by (policy, load), on the whole trace: the engine too answers all
    prompts."""
    return {
        (p, c): ss.simulate(
            trace, profile, p, concurrency=c, requests=max(requests, 3 * c), calibration=calibration
        ).summary
        for p in policies
        for c in loads
    }


def compared(
    runs: Sequence[dict[tuple[str, int], Any]],
    simulated: Sequence[dict[tuple[str, int], dict[str, Any]]],
    loads: Sequence[int],
    policies: Sequence[str],
) -> dict[str, Any]:
    """Errors, the test of tokens per step, ranking and crossovers. `simulated` has one entry more than
    `runs`: of the profiles before and after each."""
    from .engine_loop import tokens_per_step

    def median_of(real: list[float], said: list[float]) -> tuple[float, float, float, float]:
        """(engine, simulated, error, its standard deviation): of run i against sqrt(said i, said i + 1)."""
        errors = [np.sqrt(said[i] * said[i + 1]) / value - 1.0 for i, value in enumerate(real)]
        return (*(float(np.median(x)) for x in (real, said, errors)), float(np.std(errors, ddof=1)))

    table_: dict[str, dict[str, list[float]]] = {}
    for policy in policies:
        rows: dict[str, list[float]] = {}
        for load in loads:
            own, said = [run[policy, load] for run in runs], [one[policy, load] for one in simulated]
            tokens, error = tokens_per_step(own)
            low, high = (said[0].get("intervals") or {}).get("emitted_per_step") or (0.0, 0.0)
            both = float(np.hypot(error, (high - low) / 3.92))
            # The engine plans run i by profile i: what policies verify depends on it, not on the one after.
            weight = np.array([sum(w.rounds.values()) for w in own]) / sum(
                sum(w.rounds.values()) for w in own
            )
            emitted = float(weight @ [s["emitted_per_step"] for s in said[:-1]])
            real, predicted, off, noise = median_of(
                [w.throughput for w in own], [s["throughput"] for s in said]
            )
            user_off = median_of(
                [float(np.mean(w.speeds)) for w in own], [s["tps_user"]["mean"] for s in said]
            )
            for key, value in {
                "engine": real,
                "simulated": predicted,
                "error": off,
                "user_error": user_off[2],
                "tokens_per_step": tokens,
                "simulated_tokens_per_step": emitted,
                "z": (tokens - emitted) / both if both > 1e-9 else 0.0,
                "verified": float(weight @ [w.verified for w in own]),
                "simulated_verified": float(weight @ [s["verify_tokens_per_request"] for s in said[:-1]]),
                "noise": noise,
            }.items():
                rows.setdefault(key, []).append(value)
        table_[policy] = rows
    return {"by_policy": table_, **agreement(table_, loads)}


def agreement(table_: dict[str, dict[str, list[float]]], loads: Sequence[int]) -> dict[str, Any]:
    """Pairs of policies in the same order (of those that differ by more than twice the noise), and the best
    one at every load."""
    names = list(table_)
    noise = float(np.median([n for rows in table_.values() for n in rows["noise"]]))
    same = pairs = 0
    for i, _ in enumerate(loads):
        for a in range(len(names)):
            for b in range(a + 1, len(names)):
                real = table_[names[a]]["engine"][i] / table_[names[b]]["engine"][i] - 1.0
                said = table_[names[a]]["simulated"][i] - table_[names[b]]["simulated"][i]
                if abs(real) > 2.0 * noise:
                    pairs, same = pairs + 1, same + (np.sign(real) == np.sign(said))
    errors = np.array([rows["error"] for rows in table_.values()])
    users = np.array([rows["user_error"] for rows in table_.values()])
    z = np.array([rows["z"] for rows in table_.values()])
    return {
        "median_noise": noise,
        "median_error": float(np.median(np.abs(errors))),
        "largest_error": float(errors.flat[np.abs(errors).argmax()]),
        "within_5": float((np.abs(errors) <= 0.05).mean()),
        "median_user_error": float(np.median(np.abs(users))),
        "largest_z": float(np.abs(z).max()),
        "differ": int((np.abs(z) > LEVEL).sum()),
        "comparisons": int(z.size),
        "pairs": pairs,
        "same_order": int(same),
        "best": {
            who: [max(names, key=lambda n: table_[n][key][i]) for i in range(len(loads))]
            for who, key in (("engine", "engine"), ("simulated", "simulated"))
        },
    }


def draw(settings: Settings, numbers: dict[str, Any]) -> None:
    """Throughput of engine and simulator against users."""
    figure, axes = canvas(10, 3.8, 2)
    for colour, (policy, rows) in zip(COLOURS, numbers["by_policy"].items(), strict=False):
        axes[0].plot(numbers["loads"], rows["engine"], "o", color=colour, ms=4)
        axes[0].plot(numbers["loads"], rows["simulated"], color=colour, label=policy)
        axes[1].plot(
            numbers["loads"], [100 * e for e in rows["error"]], "o-", ms=3, color=colour, label=policy
        )
    axes[0].set(
        xscale="log", yscale="log", xlabel="users", ylabel="tokens/s", title="engine dots, simulator lines"
    )
    axes[1].axhspan(-5, 5, color=COLOURS[2], alpha=0.15)
    axes[1].set(xscale="log", xlabel="users", ylabel="error of throughput, %")
    axes[0].legend(fontsize=7)
    save(figure, settings, "engine")


def text(numbers: dict[str, Any]) -> str:
    """The section of the document."""
    m, n = numbers["machine"], numbers
    if not (m["quiet"] or m["clock"] == "cpu"):
        raise ValueError("wall-clock numbers of a busy machine are not published")
    clock = (
        "wall clock"
        if m["clock"] == "wall"
        else "CPU seconds of the process, not wall clock: the machine was not quiet"
    )
    where = ", pinned to one core" if m["pinned"] else ""
    ragged = [p for p in n["by_policy"] if p != "off" and not p.startswith("fixed")]
    bias = {
        "off": np.mean(n["by_policy"]["off"]["error"]),
        "ragged": np.mean([e for p in ragged for e in n["by_policy"][p]["error"]]),
        "most": np.mean([n["by_policy"][p]["error"][-1] for p in ragged]),
    }
    verdict = f"""- By policy: `off` is {bias["off"]:+.1%} on average, the policies that verify unequal
  lengths {bias["ragged"]:+.1%}, at {n["loads"][-1]} users {bias["most"]:+.0%}. Unequal lengths are padded,
  which a cost by tokens cannot see; how much of it that is was not told apart from the noise (last
  column)."""
    if m["clock"] == "cpu":
        verdict += """
- **Not yet run on a quiet machine.** CPU seconds are far less disturbed by neighbours than a wall clock,
  but caches
  and memory are shared, as the noise shows; it is larger than the goal of 5 %, which this run can therefore
  neither
  confirm nor refute for times. Tokens per step depend on no clock."""
    verdict += """
- Admission (prefill, and the drafter's context of new prompts) is not in the time compared."""
    body = []
    for policy, rows in n["by_policy"].items():
        for i, load in enumerate(n["loads"]):
            body.append(
                [
                    f"{policy}, {load}",
                    f"{rows['engine'][i]:,.0f}",
                    f"{rows['simulated'][i]:,.0f}",
                    percent(rows["error"][i]),
                    percent(rows["user_error"][i]),
                    f"{rows['tokens_per_step'][i]:.2f}",
                    f"{rows['simulated_tokens_per_step'][i]:.2f}",
                    f"{rows['z'][i]:+.1f}",
                    f"{rows['verified'][i]:.2f} / {rows['simulated_verified'][i]:.2f}",
                    percent(rows["noise"][i], signed=False),
                ]
            )
    best = ", ".join(
        f"{c}: {a}" + ("" if a == b else f" (simulated: {b})")
        for c, a, b in zip(n["loads"], n["best"]["engine"], n["best"]["simulated"], strict=True)
    )
    wrong = [
        n["by_policy"][a]["engine"][i] / n["by_policy"][b]["engine"][i] - 1.0
        for i, (a, b) in enumerate(zip(n["best"]["engine"], n["best"]["simulated"], strict=True))
        if a != b
    ]
    close = f" Where they differ the simulated choice is at most {max(wrong):.0%} slower." if wrong else ""
    return f"""The small engine of `torch_side` (continuous batching, real drafting, ragged verification)
served the
bundled tiny target with its DSpark drafter on {m.get("cpu", "a CPU")}, {m["threads"]} thread{where}. Load
of the machine before: {m["load_before"]:.1f}, after: {m["load_after"]:.1f}; clock: {clock}. A dense trace
was recorded ({n["trace"]["requests"]} requests, {n["trace"]["anchors"]:,} anchors); then every load and
policy ran {n["repeats"]} times, and the profile was measured before and after each of these repeats,
because this machine's own speed drifts (a step without drafts: by {n["drift"]:.0%} between the fastest and
the slowest of the {n["repeats"] + 1} profiles). An error is the median over repeats of simulated, by the
profiles around the repeat, against measured in it. Time is decoding, without admission (prefill). *Fitted
on the runs compared: nothing.*

- Throughput: median error {n["median_error"]:.1%}, largest {n["largest_error"]:+.1%}; {n["within_5"]:.0%}
  of the {n["comparisons"]} points are within 5 %. Speed of a user: median
  error {n["median_user_error"]:.1%}. Run-to-run noise: {n["median_noise"]:.1%} (standard
  deviation of a point's error over the repeats, median point; text and machine together).
- Tokens per step: {n["differ"]} of {n["comparisons"]} differ by more than {LEVEL} standard errors
  (two-sided 0.1 % each; by request, both sides); largest
  {n["largest_z"]:.1f}.
- Order of policies: {n["same_order"]} of the {n["pairs"]} pairs that differ by more than twice the noise are
  in the same order.
- Best policy at each load: {best}.{close}
{verdict}

![engine and simulator](figures/engine.png)

{table(HEAD, body)}
"""
