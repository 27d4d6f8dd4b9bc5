"""The capacity plan as text: how many GPUs, under which policy, at what cost, and what more would buy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..documents.promise import with_limits
from .tables import promised_blocks, tail
from .text import count, decimal, gaps, grid, paragraph, proved, share

Row = Mapping[str, Any]
MOST_HOURS = 30  # rows of the table of hours; more are summed up by their GPUs (all are in the JSON)


def plan_text(plan: Row) -> str:
    """The whole plan as text: a concluding sentence, two tables, marginal values, the doubts."""
    header, speeds = speed_rows(plan)
    blocks = [
        paragraph(plan["headline"]),
        traffic_line(plan),
        grid(*fleet_rows(plan)),
        *(["In that fleet:", grid(header, speeds)] if speeds else []),
        *promised_blocks(plan, held_rows(plan)),
        "\n".join(paragraph(line) for line in [*notes(plan), *marginal_lines(plan)]),
        *hours_blocks(plan),
        "\n".join(tail(plan)),
    ]
    return "\n\n".join(block for block in blocks if block)


def traffic_line(plan: Row) -> str:
    """What the fleet was asked to carry."""
    said = gaps(plan["burstiness"], plan.get("recorded", False))
    return paragraph(
        f"GPUs for {plan['rate']:.4g} requests/s ({said}; {count(plan['requests'])} simulated), "
        f"{share(plan['sla_fraction'])} of them at {plan['sla_tps']:g} tokens/s or "
        f"faster{with_limits(plan.get('limits'))}:"
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
    money = plan.get("currency") or "cost"
    header += [f"{money}\nper hour", "per million\ntokens"] if costs else []
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
        rows.append([*cells, proved(row["lossless"])])
    return [*header, "lossless"], rows


def _span(bounds: Any) -> str:
    if bounds is None:
        return "-"
    return f"{count(bounds[0])} ~ {count(bounds[1]) if bounds[1] is not None else '?'}"


def speed_rows(plan: Row) -> tuple[list[str], list[list[str]]]:
    """Header and cells of the second table: speeds and steps in the fleet found."""
    header = [
        "policy",
        "tokens/s\nin all",
        "per user\np05",
        "\np50",
        "\nmean",
        "emitted\nper step",
        "drafts\nrejected",
    ]
    rows = []
    for row in by_gpus(plan):
        if row["engines"] is None:
            continue
        speed = row["tps_user"]
        cells = [
            row["policy"],
            count(row["throughput"]),
            *(decimal(speed.get(key)) for key in ("p05", "p50", "mean")),
        ]
        cells += [decimal(row["emitted_per_step"], 2), share(row["rejected_share"])]
        rows.append(cells)
    return header, rows


def held_rows(plan: Row) -> list[tuple[str, Row]]:
    """(name, figures of the fleet found) of the policies that some number of GPUs is enough for."""
    return [(row["policy"], row) for row in by_gpus(plan) if row["engines"] is not None]


def notes(plan: Row) -> list[str]:
    """What the marks mean, and the policies that no number of GPUs helps."""
    lines = []
    if plan["recommended"]:
        lines.append("* recommended: of the lossless policies the one that needs fewest GPUs.")
        if plan.get("recommended_runs_in"):
            lines.append(plan["recommended_runs_in"]["said"])
    for row in by_gpus(plan):
        if row["engines"] is not None and row["engines"] > row.get("engines_fewest", row["engines"]):
            lines.append(
                f"{row['policy']}: {count(row['engines_fewest'])} engines would do for these very requests; "
                "one too few misses the promise, so the answer allows for work a standard error heavier."
            )
    for row in by_gpus(plan):
        if row["engines"] is None:
            lines.append(f"{row['policy']} misses the SLA however many GPUs it gets ({row['binds']}).")
    return lines


def hours_blocks(plan: Row) -> list[str]:
    """Which hour needs how many GPUs, and what a fleet that follows the traffic would save."""
    found = plan.get("hours")
    if not found:
        return []
    header, rows = hours_rows(found)
    return [paragraph(hours_line(found)), grid(header, rows)]


def hours_line(found: Row) -> str:
    """The peak's fleet against one that follows, in GPU hours and money."""
    gpus = "GPU" if found["gpus_peak"] == 1 else "GPUs"
    text = (
        f"hours: {count(found['gpus_peak'])} {gpus} at the peak, {decimal(found['gpus_mean'])} in the mean. "
        "The fleet of the peak takes "
        f"{_figure(found['gpu_hours_peak'])} GPU hours over the arrivals, one that follows "
        f"them {_figure(found['gpu_hours_following'])}: "
        f"{share(found['saving'])} less"
    )
    if found["cost_peak"] is not None:
        text += f" ({_figure(found['cost_following'])} instead of {_figure(found['cost_peak'])})"
    return f"{text}; estimated with {found['policy']} for the busiest ten minutes of each."


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000.0 else f"{value:.4g}"


def hours_rows(found: Row) -> tuple[list[str], list[list[str]]]:
    """A row an hour; of many hours, a row for each number of GPUs."""
    table = found["table"]
    unit = {3600.0: "hours", 600.0: "10 minutes"}[found["bin_seconds"]]
    if len(table) <= MOST_HOURS:
        start = [row["start"] or f"{row['start_seconds'] / 3600.0:.2f} h" for row in table]
        rows = [
            [at, count(row["requests"]), decimal(row["rate"], 2), count(row["gpus"])]
            for at, row in zip(start, table, strict=True)
        ]
        return ["from", "requests", "requests/s", "GPUs"], rows
    rows = []
    for gpus in sorted({row["gpus"] for row in table}):
        held = [row for row in table if row["gpus"] == gpus]
        rates = [row["rate"] for row in held]
        rows.append([count(gpus), count(len(held)), decimal(min(rates), 2), decimal(max(rates), 2)])
    return ["GPUs", unit, "requests/s\nfrom", "\nto"], rows


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
            f"{found['last_block_position']:.3g} requests/s of the most this fleet carries."
        )
    return lines
