"""The capacity plan as text: how many GPUs, under which policy, at what cost, and what more would buy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .tables import tail
from .text import count, decimal, grid, paragraph, share

Row = Mapping[str, Any]


def plan_text(plan: Row) -> str:
    """The whole plan as text: a concluding sentence, two tables, marginal values, the doubts."""
    header, speeds = speed_rows(plan)
    blocks = [
        paragraph(plan["headline"]),
        traffic_line(plan),
        grid(*fleet_rows(plan)),
        *(["In that fleet:", grid(header, speeds)] if speeds else []),
        "\n".join(paragraph(line) for line in [*notes(plan), *marginal_lines(plan)]),
        "\n".join(tail(plan)),
    ]
    return "\n\n".join(block for block in blocks if block)


def traffic_line(plan: Row) -> str:
    """What the fleet was asked to carry."""
    varied = plan["burstiness"]
    gaps = "Poisson gaps" if abs(varied - 1.0) < 0.15 else f"gaps {varied:.2f} times as varied as Poisson's"
    return paragraph(
        f"GPUs for {plan['rate']:.4g} requests/s ({gaps}; {count(plan['requests'])} simulated), "
        f"{share(plan['sla_fraction'])} of them at {plan['sla_tps']:g} tokens/s or faster:"
    )


def by_gpus(plan: Row) -> list[Row]:
    """The policies, fewest GPUs first; those that no number helps last."""
    return sorted(
        plan["policies"], key=lambda row: (row["gpus"] is None, row["gpus"] or 0, not row["lossless"])
    )


def fleet_rows(plan: Row) -> tuple[list[str], list[list[str]]]:
    """Header and cells of the first table: GPUs and cost."""
    costs = any("cost_per_hour" in row for row in plan["policies"])
    header = ["policy", "GPUs", "interval", "engines", "users\nper engine", "binds", "at the\nSLA"]
    header += ["cost\nper hour", "per million\ntokens"] if costs else []
    rows = []
    for row in by_gpus(plan):
        cells = [
            row["policy"] + (" *" if row["policy"] == plan["recommended"] else ""),
            count(row["gpus"]),
            _span(row["gpus_interval"]),
            count(row["engines"]),
            decimal(row.get("requests_per_engine")),
            row["binds"],
            share(row.get("share_at_sla")),
        ]
        cells += (
            [decimal(row.get("cost_per_hour"), 2), decimal(row.get("cost_per_million_tokens"), 3)]
            if costs
            else []
        )
        rows.append([*cells, "yes" if row["lossless"] else "NO"])
    return [*header, "lossless"], rows


def _span(bounds: Any) -> str:
    if bounds is None:
        return "-"
    return f"{count(bounds[0])} ~ {count(bounds[1]) if bounds[1] is not None else '?'}"


def speed_rows(plan: Row) -> tuple[list[str], list[list[str]]]:
    """Header and cells of the second table: speeds and steps in the fleet found."""
    ttft = any(row.get("ttft_seconds") for row in plan["policies"])
    header = [
        "policy",
        "tokens/s\nin all",
        "per user\np05",
        "\np50",
        "\nmean",
        "emitted\nper step",
        "drafts\nrejected",
    ]
    header += ["TTFT ms\np50", "\np95"] if ttft else []
    rows = []
    for row in by_gpus(plan):
        if row["engines"] is None:
            continue
        speed, first = row["tps_user"], row.get("ttft_seconds") or {}
        cells = [
            row["policy"],
            count(row["throughput"]),
            *(decimal(speed.get(key)) for key in ("p05", "p50", "mean")),
        ]
        cells += [decimal(row["emitted_per_step"], 2), share(row["rejected_share"])]
        cells += [count(1e3 * first[key]) if key in first else "-" for key in ("p50", "p95")] if ttft else []
        rows.append(cells)
    return header, rows


def notes(plan: Row) -> list[str]:
    """What the marks mean, and the policies that no number of GPUs helps."""
    lines = []
    if plan["recommended"]:
        lines.append("* recommended: of the lossless policies the one that needs fewest GPUs.")
    for row in by_gpus(plan):
        if row["engines"] is None:
            lines.append(f"{row['policy']} misses the SLA however many GPUs it gets ({row['binds']}).")
    return lines


def marginal_lines(plan: Row) -> list[str]:
    """What the recommended fleet carries, and what one more of each thing would add, in requests/s."""
    found = plan.get("marginal")
    if not found:
        return []
    lines = [
        f"marginal: this fleet with {plan['recommended']} carries up to {found['rate']:.3g} requests/s; one "
        f"more engine adds {found['one_more_engine']:.3g} requests/s."
    ]
    if "capture_limit_doubled" in found:
        low, high = found["capture_limit"]
        gain = found["capture_limit_doubled"]
        lines.append(
            f"marginal: graphs captured to {count(high)} tokens instead of {count(low)} add {gain:.3g} "
            "requests/s."
        )
    if "last_block_position" in found:
        lines.append(
            f"marginal: the last of the {found['block_size']} positions of a block is worth "
            f"{found['last_block_position']:.3g} requests/s."
        )
    return lines
