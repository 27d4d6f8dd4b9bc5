"""Runs at given loads as text: one row a run, and the doubts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..documents.promise import with_limits
from .tables import has_limits, promised_blocks, tail
from .text import count, decimal, gaps, grid, interval, paragraph, share

Row = Mapping[str, Any]
_MARKS = {True: "", False: " (not lossless)", None: " (not proved lossless)"}


def runs_text(document: Row) -> str:
    """The document `specsched/runs/1` as text: a concluding sentence, speeds, steps, doubts."""
    runs = document["runs"]
    blocks = [
        headline(document),
        *arrivals_line(document),
        grid(*speed_rows(document)),
        *promised_blocks(document, named(document)),
        "What a step does there:",
        grid(*step_rows(runs)),
        "\n".join(tail(document)),
    ]
    return "\n\n".join(blocks)


def headline(document: Row) -> str:
    """One sentence: at the heaviest load, which lossless policy turns out most."""
    runs = document["runs"]
    heaviest = max(row["concurrency"] or 0 for row in runs)
    there = [row for row in runs if (row["concurrency"] or 0) == heaviest]
    proved = [row for row in there if row["lossless"]]
    lossless, kind = (
        proved or there,
        "lossless policies" if proved else "policies tried, none proved lossless",
    )
    if document["arrivals"] != "closed" and document.get("sla_tps"):
        best = max(lossless, key=lambda row: (row["share_at_sla"] or 0.0, row["throughput"]))
        text = (
            f"With arrivals {document['arrivals']}, {share(best['share_at_sla'])} of requests get "
            f"{document['sla_tps']:g} tokens/s or more{with_limits(document.get('limits'))} under "
            f"{best['policy']}"
        )
        if len(lossless) > 1:
            text += f", more than under any other of the {kind}"
        if (best.get("backlog") or {}).get("grows"):
            text += "; but more arrives than it serves, and a longer run serves fewer"
        return text + "."
    best = max(lossless, key=lambda row: row["throughput"])
    load = f"{count(heaviest)} users" if heaviest else f"arrivals {document['arrivals']}"
    return (
        f"With {load}, {best['policy']} has most throughput of the {kind}: "
        f"{count(best['throughput'])} tokens/s, {decimal(best['tps_user'].get('mean'))} tokens/s per user."
    )


def arrivals_line(document: Row) -> list[str]:
    """The rate and the gaps that were run; nothing for a closed loop."""
    if not document.get("rate"):
        return []
    many = document["arrivals_requests"]
    said = gaps(document["burstiness"], document["recorded"])
    return [paragraph(f"{document['rate']:.4g} requests/s ({said}); {count(many)} requests run:")]


def speed_rows(document: Row) -> tuple[list[str], list[list[str]]]:
    """Header and cells: throughput, the users' speeds and, where something is promised, who gets it."""
    runs = document["runs"]
    closed = any(row["concurrency"] for row in runs)
    promised = document.get("sla_tps") is not None or has_limits(document)
    columns: list[tuple[str, Callable[[Row], str], bool]] = [  # title, cell, shown at all
        ("policy", lambda row: row["policy"] + _MARKS[row["lossless"]], True),
        ("users", lambda row: count(row["concurrency"]), closed),
        ("users\n(mean)", lambda row: decimal(row["concurrency_mean"]), not closed),
        ("tokens/s\nin all", lambda row: count(row["throughput"]), True),
        ("interval", lambda row: interval((row.get("intervals") or {}).get("throughput")), closed),
        ("per user\np05", lambda row: decimal(row["tps_user"].get("p05")), True),
        ("\np50", lambda row: decimal(row["tps_user"].get("p50")), True),
        ("\nmean", lambda row: decimal(row["tps_user"].get("mean")), True),
        ("at the\nSLA", lambda row: share(row.get("share_at_sla")), promised),
    ]
    shown = [(title, cell) for title, cell, wanted in columns if wanted]
    return [title for title, _ in shown], [[cell(row) for _, cell in shown] for row in runs]


def named(document: Row) -> list[tuple[str, Row]]:
    """(policy and load, run) of all runs."""
    several = len({row["concurrency"] for row in document["runs"]}) > 1
    return [
        (row["policy"] + (f", {count(row['concurrency'])} users" if several else ""), row)
        for row in document["runs"]
    ]


def step_rows(runs: list[Row]) -> tuple[list[str], list[list[str]]]:
    """Header and cells: what a step does."""
    header = [
        "policy",
        "users",
        "emitted\nper step",
        "tokens verified\nper request",
        "drafts\nrejected",
        "ms\nper step",
        "preempted",
    ]
    return header, [
        [
            row["policy"],
            count(row["concurrency"] or row["concurrency_mean"]),
            decimal(row["emitted_per_step"], 2),
            decimal(row["verify_tokens_per_request"], 2),
            share(row["rejected_share"]),
            decimal(1e3 * row["step_seconds"], 2),
            count(row["preemptions"]),
        ]
        for row in runs
    ]
