"""Whether the intervals cover: shares of intervals that hold the truth, from `interval_coverage`."""

from __future__ import annotations

import argparse
from typing import Any

from .common import Settings, rounded

SIZES = (50, 150, 400)
RUN_AT = "throughput", "emitted_per_step", "verify_tokens_per_request", "rejected_share"


def run(settings: Settings) -> dict[str, Any]:
    """Every cell of the experiment; a quarter of an hour on one core and more."""
    import interval_coverage as experiment

    asked = argparse.Namespace(
        policies=["off", "lagged:2"] if settings.quick else list(experiment.POLICIES),
        sizes=[50] if settings.quick else list(SIZES),
        populations=list(experiment.POPULATIONS),
        ask=["users", "engines", "figures"],
        traces=2 if settings.quick else 20,
    )
    return {"cells": rounded(list(experiment.cells(asked)))}


def _table(cells: list[dict[str, Any]]) -> str:
    sizes = sorted({cell["requests"] for cell in cells})
    rows = ["| population | policy | truth | " + " | ".join(f"{n} requests" for n in sizes) + " |"]
    rows.append("|---|---|---:|" + "---:|" * len(sizes))
    for kind, policy in dict.fromkeys((cell["population"], cell["policy"]) for cell in cells):
        found = {c["requests"]: c for c in cells if (c["population"], c["policy"]) == (kind, policy)}
        shown = [_cell(found[n]) if n in found else "" for n in sizes]
        truth = next(iter(found.values()))["truth"]
        rows.append(f"| {kind} | {policy} | {truth:g} | " + " | ".join(shown) + " |")
    return "\n".join(rows)


def _cell(cell: dict[str, Any]) -> str:
    width = "" if cell["width_of_spread"] is None else f"{cell['width_of_spread']:.1f}, "
    return f"{cell['covered']:.0%} ({width}{cell['unsafe']:.0%})"


def _range(cells: list[dict[str, Any]]) -> str:
    shares = [cell["covered"] for cell in cells]
    widths = [cell["width_of_spread"] for cell in cells if cell["width_of_spread"]]
    return (
        f"{min(shares):.0%} to {max(shares):.0%} of {len(cells)} cells' intervals hold it, widths "
        f"{min(widths):.1f} to {max(widths):.1f}"
    )


def text(numbers: dict[str, Any]) -> str:
    """The section of docs/validation.md."""
    cells = numbers["cells"]
    of = {name: [c for c in cells if c["of"] == name] for name in ("users", "engines", *RUN_AT)}
    counts = sorted({cell["traces"] for cell in cells})
    figures = "\n".join(
        f"- {name.replace('_', ' ')}: {_range(moving)}."
        for name in RUN_AT
        if (moving := [c for c in of[name] if c["width_of_spread"]])
    )
    return f"""A nominal 95 % interval should hold, for at least nine traces in ten, what the whole population
gives. Populations of 6,000 synthetic requests (outputs of 40 tokens, prompts of 350 on average;
homogeneous: lengths of sigma 0.2, acceptance alike; heterogeneous: lengths of sigma 0.8, a third of
the ease of a text its request's own), an engine of 6 ms a pass, 0.05 ms a token and 0.1 ms a
thousand tokens of context, 110 tokens/s for 95 % of requests. Made by `python
scripts/interval_coverage.py --traces 20 --sizes 50 150 400`; here {counts[0]} to {counts[-1]}
traces a cell, so that one cell says 90 % or 100 % of what is 95 %.

**Users at the SLA.** The share of intervals that hold the truth (their width, 1 being that of 95 %
of the estimates; the share of estimates above the truth):

{_table(of["users"])}

**Engines of a plan for 400 requests/s.** The same (the share of answers below the truth, a fleet
too small):

{_table(of["engines"])}

**Figures of a run at 16 users**, where they differ from trace to trace:

{figures}

- The estimate of `simulate` is not leaned: in about half of the traces it lies above the truth.
  `plan` leans, for a fleet one engine short misses its promise.
- Assumed: requests are independent of one another, and the trace is a fair sample of the traffic.
  Logs come in sessions and hours; then the intervals are too short by what those have in common.
- Confidences are right as drawn. What a calibration fitted on few requests adds is not in the
  intervals; where half of a trace is fitted on, they are those of the other half's requests.
"""
