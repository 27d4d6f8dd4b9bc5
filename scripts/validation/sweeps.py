"""Public sweeps, each learned from a few of its runs by `specsched fit` and judged on the others.

What is fitted and what is judged is said for each set; nothing of a judged run is used but its load, its
lengths and which policy it ran. A comparison counts for the sign where two arms of a set differ by more than
NOISE."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from specsched.fitting import Benchmark, fit
from specsched.fitting.judge import NOISE, judge
from specsched.formats.registry import read
from specsched.formats.runs import Measured
from specsched.profile import StepProfile

from .common import Absent, Settings, data_file, percent, rounded, rows, table

Chosen = Callable[[Measured], bool]


@dataclass(frozen=True)
class Sweep:
    """A set: its runs, which of them are fitted, which are not judged, and what is said of it."""

    name: str
    runs: Sequence[Measured]
    fitted: Chosen
    told: str
    prior: StepProfile | None = None
    unjudged: Chosen = lambda run: False


def _number(text: str | None) -> float | None:
    return float(text) if text not in (None, "", "None") else None


def _catid(settings: Settings, file: str, policies: dict[str, str]) -> list[Measured]:
    """Runs of one site's tables; those its memory limited are left out."""
    return [
        Measured(
            source=f"{r['arm']} {r['thinking']} {r['users']}", users=int(r["users"]), arm=r["arm"],
            policy=policies[r["arm"]], user=_number(r["tok_s_user_p50"]), total=_number(r["total_tok_s"]),
            prompt_tokens=int(r["input_tokens"]), output_tokens=int(r["output_tokens"]),
            accept_length=_number(r["accept_length"]), text=r["thinking"],
        )
        for r in rows(data_file(settings, "validation", file))
        if r["arm"] in policies and r["capacity_limited"] != "True"
    ]  # fmt: skip


def _some_of_low(run: Measured) -> bool:
    low = run.text == "low" and run.users in (1, 8, 32)
    return low or (run.policy != "off" and run.users == 1)


def b300(settings: Settings) -> Sweep:
    """vLLM: cost tables, the sweep without drafts, one point with them."""
    stem = "vllm_b300_dsv4flash0731_tp4_"
    policies = {"nospec": "off", "k7": "fixed:7", "adaptive": "lagged:2"}
    found = [
        r for f in ("sweep.csv", "adaptive.csv") for r in rows(data_file(settings, "validation", stem + f))
    ]
    runs = [
        Measured(
            source=f"{r['arm']} {r['concurrency']}", users=int(r["concurrency"]), arm=r["arm"],
            policy=policies[r["arm"]], user=None if r["clipped"] == "1" else float(r["tok_s_user"]),
            total=float(r["tok_s_total"]), prompt_tokens=256, output_tokens=512, prompts=880,
        )
        for r in found
    ]  # fmt: skip
    draft = str(data_file(settings, "validation", stem + "draft_cost_ms.csv"))
    verify = data_file(settings, "validation", stem + "verify_cost_ms.csv")
    prior = read(verify, draft=draft, capture_limit=1024, gpu_count=4, name="vllm-b300").object
    return Sweep(
        "DeepSeek-V4-Flash, 4 x B300, vLLM", runs,
        lambda run: run.policy == "off" or (run.policy == "fixed:7" and run.users == 1),
        "its cost tables, the arm without drafts, 7 drafts at one user; judged: 7 drafts at other loads, the "
        "adaptive arm; prompts of 256 tokens assumed", prior,
    )  # fmt: skip


def flash(settings: Settings) -> Sweep:
    policies = {"nospec": "off", "dspark5_static": "fixed:5"}
    return Sweep(
        "DeepSeek-V4-Flash, GB300, SGLang", _catid(settings, "gb300_dsv4flash0731_tp1_sweep.csv", policies),
        _some_of_low,
        "no table; both arms of effort low at 1, 8 and 32 users, the drafting arm of the others at one user",
    )  # fmt: skip


def qwen(settings: Settings) -> Sweep:
    policies = {"autoregressive": "off", "dflash2": "fixed:7"}
    return Sweep(
        "Qwen3.8-27B, GB300, SGLang, DFlash2", _catid(settings, "gb300_qwen38_27b_tp1_sweep.csv", policies),
        _some_of_low,
        "no table; both arms of effort low at 1, 8 and 32 users, the drafting arm of the others at one user",
    )  # fmt: skip


def mi355x(settings: Settings) -> Sweep:
    policies = {"nospec": "off", "fixed7": "fixed:7"}
    runs = [
        Measured(
            source=f"{r['arm']} {r['users']}", users=int(r["users"]), arm=r["arm"], policy=policies[r["arm"]],
            total=float(r["total_tok_s"]), prompt_tokens=256, output_tokens=512, prompts=880,
        )
        for r in rows(data_file(settings, "validation", "public_arms.csv"))
        if r["set"] == "vllm#52362"
    ]  # fmt: skip
    return Sweep(
        "DeepSeek-V4-Flash, 8 x MI355X, vLLM", runs, lambda run: run.users in (4, 32, 256),
        "no table, no counters; both arms at 4, 32 and 256 users; prompts of 256 tokens assumed",
    )  # fmt: skip


WHERE = """Where it is worst, and why:

- B300, throughput of 7 drafts at 128 and 256 users: how much requests differ decides how long the last of
  them run alone, and one point at one user hardly shows it (the next section fits it to that point alone).
- DFlash2 at effort medium and none: texts of a few requests. Accepted lengths of one effort, as the site's
  gauge shows them, scatter by 15 % from load to load, and one point of each effort was fitted.
- Flash, no drafts at 64 and 128 users: beyond the loads that were fitted (32). In the drafting arm the
  published throughput nearly doubles from 32 to 64 users at one speed of a user, which no step cost does:
  another setting.
- Qwen, throughput without drafts at 64 and 128 users: its speed is met, its throughput is 8 % and 15 % too
  high. Loads beyond the fitted ones; what prompts of 8k tokens cost there is the likeliest cause, and was
  not told apart from how the site counts the beginning and the end of a run."""
SETS = {"b300": b300, "flash": flash, "qwen": qwen, "mi355x": mi355x}


def judged(sweep: Sweep) -> dict[str, Any]:
    """Fit on some, predict the others: errors of each, and signs between arms at one load."""
    known = [run for run in sweep.runs if sweep.fitted(run)]
    unseen = [run for run in sweep.runs if not sweep.fitted(run)]
    found = fit(known, sweep.prior, Benchmark(batch_tokens=8192))
    told = judge(found, unseen)
    points: dict[str, dict[str, Any]] = {
        run.source: {"run": run.source, "policy": run.policy, "users": run.users, "text": run.text,
                     "user_error": None, "total_error": None}
        for run in unseen
    }  # fmt: skip
    for row in told["runs"]:
        points[row["source"]] |= {row["what"]: row["predicted"], f"{row['what']}_error": row["error"]}
    return {
        "name": sweep.name,
        "told": sweep.told,
        "fitted": len(known),
        "fitted_error": float(np.median(np.abs(np.expm1(found.solution.residual)))),
        "points": list(points.values()),
        "signs": [told["signs_right"], told["signs_compared"]],
    }


def run(settings: Settings) -> dict[str, Any]:
    """Every set whose data is there."""
    out = {}
    for key, make in list(SETS.items())[: 1 if settings.quick else None]:
        try:
            sweep = make(settings)
        except Absent:
            if len(out) == 0 and key == list(SETS)[-1]:
                raise
            continue
        out[key] = judged(sweep)
    if not out:
        data_file(settings, "validation", "public_arms.csv")
    return dict(rounded(out))


def _errors(points: Sequence[dict[str, Any]], key: str) -> np.ndarray:
    return np.abs([p[f"{key}_error"] for p in points if p[f"{key}_error"] is not None])


def summary(numbers: dict[str, Any]) -> str:
    """The figures of all sets together: what stands at the top of the document."""
    points = [p for found in numbers.values() for p in found["points"]]
    user, total = _errors(points, "user"), _errors(points, "total")
    right, every = (sum(found["signs"][i] for found in numbers.values()) for i in (0, 1))
    return (
        f"**On public sweeps** ({len(numbers)} sets, {len(points)} judged points; below): median error "
        f"{np.median(total):.1%} of throughput and {np.median(user):.1%} of a user's speed, 90 % of "
        "points within "
        f"{np.quantile(total, 0.9):.0%} and {np.quantile(user, 0.9):.0%}; which of two arms is "
        "faster is said "
        f"rightly in {right} of the {every} comparisons that differ by more than {NOISE:.0%}. "
        "(Goals: 5 %, 12 %, 95 %.) These are points that no fit saw, but the form of the fit without a "
        "cost table, what is made of published accept lengths, and which loads of GB300 Flash and Qwen3.8 "
        "are fitted were settled while looking at the errors of GB300 Flash, Qwen3.8 and B300: only MI355X "
        "(8 points) was judged at the first try, and the figures are better than those of a set never seen."
    )


def text(numbers: dict[str, Any]) -> str:
    """The section of the document."""
    body = []
    for found in numbers.values():
        user, total = _errors(found["points"], "user"), _errors(found["points"], "total")
        right, every = found["signs"]
        body.append(
            [
                found["name"], f"{found['fitted']}, {found['fitted_error']:.1%}", str(len(found["points"])),
                "-" if not len(user) else f"{np.median(user):.1%} / {np.quantile(user, 0.9):.0%}",
                f"{np.median(total):.1%} / {np.quantile(total, 0.9):.0%}", f"{right} of {every}",
            ]
        )  # fmt: skip
    head = [
        *("set", "runs fitted, median error", "judged", "a user's speed, median / 90 %"),
        *("throughput, median / 90 %", "signs right"),
    ]
    parts = [
        "Each set is learned from a few of its runs by `specsched fit`, and judged on the others. "
        "For a set of your "
        "own, `specsched fit FITTED --judge UNSEEN` prints the same: what each run is off by, median "
        "and 90 %, signs.",
        table(head, body),
        "\n".join(f"- *{found['name']}*, fitted on: {found['told']}." for found in numbers.values()),
        *(_points(found) for found in numbers.values()),
        WHERE,
    ]
    return "\n\n".join(parts)


def _points(found: dict[str, Any]) -> str:
    """Errors by arm and load, a row an arm."""
    loads = sorted({p["users"] for p in found["points"]})
    arms = list(dict.fromkeys((p["policy"], p["text"]) for p in found["points"]))
    body = []
    for policy, kind in arms:
        at = {p["users"]: p for p in found["points"] if (p["policy"], p["text"]) == (policy, kind)}
        cells = []
        for load in loads:
            errors = [at[load][f"{key}_error"] for key in ("user", "total")] if load in at else []
            cells.append(" / ".join(percent(e) for e in errors if e is not None))
        body.append([f"{policy}" + (f", {kind}" if kind else ""), *cells])
    return f"{found['name']}: errors of a user's speed / of throughput by users.\n\n" + table(
        ["", *map(str, loads)], body
    )
