"""Do the intervals cover? Traces of a population, and how often their intervals hold its capacity.

    python scripts/interval_coverage.py --quick              # two policies, one size: about a minute
    python scripts/interval_coverage.py --json coverage.json

A population is many synthetic requests; a trace is a few of them. The truth is what the whole population
gives. For every policy and size of trace the table says which share of the nominal 95 % intervals contains
it, how wide they are beside the spread of the estimates themselves (1: as wide as 95 % of the estimates), and
how many estimates lie above the truth (capacity: too many users) or below it (plan: too few engines).
Synthetic requests are independent of one another; those of a real trace may not be, and then its intervals
are too short.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from specsched.documents.plan import PlanRow
from specsched.planner.capacity import Question, Search, interval_of, ladder
from specsched.planner.plan import plan
from specsched.profile import StepProfile
from specsched.schedule import make
from specsched.simulator import Serving, simulate
from specsched.simulator.replay import Replay
from specsched.simulator.requests import closed_loop
from specsched.simulator.run import Run
from specsched.trace import Trace, synthesise

POLICIES = ("off", "fixed:1", "fixed:4", "threshold:0.3", "early-stop", "lagged:2")
SIZES = (25, 50, 150, 400)
BLOCK, POPULATION = 4, 6000
SLA, SHARE = 110.0, 0.95
MEASURED = 300  # requests of a run
USERS = 16  # of the runs whose summaries are compared
RATE = 400.0  # requests/s of a plan
SUMMARY = ("throughput", "emitted_per_step", "verify_tokens_per_request", "rejected_share")

# Requests alike, and requests of which some are long and some hard: as a table of `synthesise` settings.
POPULATIONS: dict[str, dict[str, float]] = {
    "homogeneous": {"length_spread": 0.2, "request_share": 0.02},
    "heterogeneous": {"length_spread": 0.8, "request_share": 0.35},
}


def profile() -> StepProfile:
    """6 ms a pass and 0.05 ms a token of it, 0.1 ms a thousand tokens of context; 1 ms to draft."""
    return StepProfile.from_dict(
        {
            "schema": "specsched/profile/1",
            "name": "line with attention",
            "verify": {"tokens": [1, 2001], "seconds": [0.006, 0.106]},
            "attention": {"kv_tokens": [0, 1_000_000], "seconds": [0.0, 0.1]},
            "draft": {"requests": [1, 101], "seconds": [0.001, 0.002], "block_size": BLOCK},
            "provenance": {"method": "imported"},
        }
    )


def population(kind: str, seed: int = 1) -> Trace:
    """Many requests, their confidences right as they are."""
    return synthesise(
        (0.75,) * BLOCK,
        requests=POPULATION,
        output_tokens=40.0,
        prompt_tokens=350.0,
        temperature=1.0,
        seed=seed,
        name=kind,
        **POPULATIONS[kind],
    )


def sample(whole: Trace, requests: int, seed: int) -> Trace:
    """So many requests of the population, without replacement."""
    rng = np.random.default_rng([seed, requests])
    return whole.select(rng.choice(whole.request_ids, requests, replace=False).tolist())


class Found(NamedTuple):
    """An estimate and its interval; None: open on that side."""

    value: float
    low: float | None
    high: float | None

    def holds(self, truth: float) -> bool:
        return (self.low is None or self.low <= truth) and (self.high is None or truth <= self.high)


def users(trace: Trace, policy: str, truth: float) -> Found:
    """Capacity as `simulate --sla` finds it; loads below a third of the truth are not tried."""
    question = Question(Replay.of(trace), profile(), Serving(), SLA, SHARE, MEASURED, 0)
    search = Search(question, make(policy, block_size=BLOCK))
    rungs = [load for load in ladder(question) if load >= truth / 3]
    return Found(search.first_failure(rungs)[0], *interval_of(search, rungs))


def true_users(whole: Trace, policy: str) -> float:
    """Capacity of the population: the last load before the first failure, each request once."""
    replay, made = Replay.of(whole), make(policy, block_size=BLOCK)

    def passes(load: int) -> bool:
        run = Run(replay, profile(), Serving(), closed_loop(replay, load, POPULATION, 0), POPULATION)
        return run.result(made, 0, bootstrap=False).share_at(SLA) >= SHARE

    good, bad = 0, 4
    while passes(bad):
        good, bad = bad, bad * 2
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if passes(middle) else (good, middle)
    return float(good)


def figures(trace: Trace, policy: str, measured: int = MEASURED) -> dict[str, Found]:
    """The summary of a run at USERS, with its intervals."""
    summary = simulate(trace, profile(), policy, USERS, requests=measured, log_steps=1).summary
    return {
        name: Found(summary[name], *(summary["intervals"][name] or (None, None)))
        for name in SUMMARY
        if policy != "off" or name == "throughput"
    }


def planned(trace: Trace, policy: str, requests: int) -> PlanRow:
    """The row of a plan, nothing fitted."""
    asked: dict[str, Any] = {"rate": RATE, "policies": [policy], "requests": requests}
    asked |= {"prefill": "disaggregated", "calibration": None, "marginal": False}
    return plan(trace, profile(), SLA, **asked)["policies"][0]


def engines(trace: Trace, policy: str) -> Found:
    """Engines as `plan` finds them."""
    row = planned(trace, policy, 1000)
    assert row["engines"] is not None
    low, high = row["gpus_interval"] or (None, None)
    return Found(row["engines"], low, high)


def true_engines(whole: Trace, policy: str) -> float:
    """Fewest engines for the population: what a plan over its every request finds, without its margin."""
    fewest = planned(whole, policy, 2 * POPULATION)["engines_fewest"]
    assert fewest is not None
    return float(fewest)


def row(truth: float, found: list[Found], unsafe: Callable[[float], bool]) -> dict[str, Any]:
    """Coverage of one cell."""
    values = np.array([f.value for f in found], dtype=np.float64)
    widths = [f.high - f.low for f in found if f.low is not None and f.high is not None]
    spread = 2 * 1.96 * float(values.std(ddof=1)) if len(values) > 1 else 0.0
    width = float(np.mean(widths)) if widths else float("nan")
    return {
        "truth": truth,
        "traces": len(found),
        "mean": float(values.mean()),
        "covered": float(np.mean([f.holds(truth) for f in found])),
        "width": width,
        "width_of_spread": width / spread if spread > 0 else None,
        "unsafe": float(np.mean([unsafe(v) for v in values])),
    }


def cells(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One after the other: population, policy, size, what is asked."""
    for kind in args.populations:
        whole = population(kind)
        for policy in args.policies:
            truths: dict[str, float] = {}
            if "users" in args.ask:
                truths["users"] = true_users(whole, policy)
            if "engines" in args.ask:
                truths["engines"] = true_engines(whole, policy)
            true = figures(whole, policy, POPULATION) if "figures" in args.ask else {}
            for size in args.sizes:
                traces = [sample(whole, size, seed) for seed in range(args.traces)]
                about = {"population": kind, "policy": policy, "requests": size}
                if "users" in args.ask:
                    truth = truths["users"]
                    found = [users(trace, policy, truth) for trace in traces]
                    yield about | {"of": "users"} | row(truth, found, lambda v, t=truth: v > t)
                if "engines" in args.ask:
                    truth = truths["engines"]
                    found = [engines(trace, policy) for trace in traces]
                    yield about | {"of": "engines"} | row(truth, found, lambda v, t=truth: v < t)
                several = [figures(trace, policy) for trace in traces] if true else []
                for name, of in true.items():
                    found = [each[name] for each in several]
                    yield about | {"of": name} | row(of.value, found, lambda v, t=of.value: v > t)


HEAD = (
    f"{'population':14}{'policy':15}{'requests':>8}  {'of':26}{'truth':>8}{'mean':>8}{'covered':>8}"
    f"{'width':>8}{'/spread':>8}{'unsafe':>8}"
)


def line(cell: dict[str, Any]) -> str:
    ratio = "" if cell["width_of_spread"] is None else f"{cell['width_of_spread']:.2f}"
    return (
        f"{cell['population']:14}{cell['policy']:15}{cell['requests']:8}  {cell['of']:26}{cell['truth']:8.4g}"
        f"{cell['mean']:8.4g}{cell['covered']:8.0%}{cell['width']:8.3g}{ratio:>8}{cell['unsafe']:8.0%}"
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="Off and lagged, 50 requests, 10 traces.")
    parser.add_argument("--traces", type=int, default=40, help="Traces a cell.")
    parser.add_argument("--policies", nargs="+", default=list(POLICIES))
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES))
    parser.add_argument("--populations", nargs="+", default=list(POPULATIONS), choices=list(POPULATIONS))
    parser.add_argument("--ask", nargs="+", default=["users", "engines", "figures"])
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    if args.quick:
        args.policies, args.sizes, args.traces = ["off", "lagged:2"], [50], min(args.traces, 10)
    return args


def main() -> None:
    args = arguments()
    began, found = time.monotonic(), []
    print(HEAD)
    for cell in cells(args):
        found.append(cell)
        print(line(cell), flush=True)
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
