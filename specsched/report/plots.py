"""Plots as PNG: on a canvas of their own (no display, no global state), the same bytes for the same answer.

Colours are Okabe and Ito's, told apart by colour-blind readers; policies that are not lossless are dashed.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import plain
from .tables import by_capacity
from .text import share

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = Mapping[str, Any]
BLUE, ORANGE, GREEN, RED, PINK, SKY, VIOLET, BROWN = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#5B3FA0", "#8C510A",
)  # fmt: skip
_LONGEST_TEXT = 90
_LONGEST_NAME = 32  # of a policy, in a key beside the plot
INK, FAINT = "#222222", "#8a8a8a"
FIXED = (RED, PINK, BROWN, VIOLET)  # fixed:k is often compared with itself
MARKERS = "osD^vPX<>"


def figure(width: float, height: float) -> Figure:
    """An empty figure on the PNG canvas, in the style that all plots share."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    fig = Figure(figsize=(width, height), dpi=150, layout="constrained", facecolor="white")
    FigureCanvasAgg(fig)
    return fig


def png(fig: Figure) -> bytes:
    """The figure as PNG bytes, without a date in it; its texts as they are, not as formulas or commands."""
    from matplotlib.text import Text

    ticks = {id(label) for axes in fig.axes for axis in (axes.xaxis, axes.yaxis) for label in _ticks(axis)}
    for text in fig.findobj(Text):
        if id(text) not in ticks and isinstance(text, Text):
            text.set_parse_math(False)  # `$` in a name is no formula
            text.set_text(plain(text.get_text(), _LONGEST_TEXT))
    stream = io.BytesIO()
    fig.savefig(stream, format="png", metadata={"Software": "specsched"})
    return stream.getvalue()


def _ticks(axis: Any) -> list[Any]:
    return [*axis.get_ticklabels(minor=False), *axis.get_ticklabels(minor=True)]


def dress(axes: Axes, title: str, subtitle: str, x: str, y: str) -> None:
    """Titles, light grid, no box: the look all plots share."""
    axes.set_title(title, loc="left", fontsize=11.5, fontweight="bold", color=INK, pad=19 if subtitle else 6)
    axes.annotate(subtitle, (0, 1), xycoords="axes fraction", xytext=(0, 6), textcoords="offset points",
                  fontsize=9, color=FAINT)  # fmt: skip
    axes.set_xlabel(x, fontsize=9.5, color=INK)
    axes.set_ylabel(y, fontsize=9.5, color=INK)
    axes.grid(True, color="#e4e4e4", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=9, color=FAINT, labelcolor=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)


def styles(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Line style of each policy name: the colour of its class, a marker of its own, repeats lighter.

    So a family keeps its colour from plot to plot, whatever else is compared.
    """
    from ..schedule import POLICIES, Policy

    chosen: dict[str, dict[str, Any]] = {}
    seen: dict[str, int] = {}
    for position, name in enumerate(names):
        family = name.split(":")[0]
        repeat = seen.get(family, 0)
        seen[family] = repeat + 1
        colour = FIXED[repeat % len(FIXED)] if family == "fixed" else POLICIES.get(family, Policy).colour
        chosen[name] = {
            "color": colour,
            "marker": MARKERS[position % len(MARKERS)],
            "alpha": 1.0 if family == "fixed" else max(1.0 - 0.3 * repeat, 0.4),
        }
    return chosen


def short(policy: Row) -> str:
    """The name of a policy where a key beside a plot shows it."""
    return plain(policy["policy"], _LONGEST_NAME)


def _inputs(answer: Row) -> str:
    return f"{answer['trace']} on {answer['profile']}"


def _thousands(axes: Axes, which: str = "y") -> None:
    from matplotlib.ticker import FuncFormatter

    axis = axes.yaxis if which == "y" else axes.xaxis
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _legend(fig: Figure, axes: Axes, title: str) -> None:
    """The key beside the plot, where it can cover no data."""
    fig.legend(
        *axes.get_legend_handles_labels(), loc="outside right upper", frameon=False, fontsize=9, title=title,
        alignment="left", title_fontsize=9, labelspacing=0.75,
    )  # fmt: skip


def _some(rows: list[Row]) -> int:
    """Every how many points a marker helps more than it covers."""
    return max(1, len(rows) // 12)


def _curve(policy: Row) -> list[Row]:
    return sorted(policy["curve"], key=lambda row: row["concurrency"])


def speed_key(fraction: float) -> tuple[str, str]:
    """The percentile of the users' speed that the SLA is about, and how the axis names it."""
    if abs(fraction - 0.95) < 1e-9:
        return "p05", "95% of users are at least this fast"
    if abs(fraction - 0.5) < 1e-9:
        return "p50", "half of the users are at least this fast"
    return "p05", "95% of users are at least this fast; the SLA counts " + share(fraction)


def pareto_png(answer: Row) -> bytes:
    """Throughput against tokens/s/user, one line a policy, the SLA as a line: PNG bytes."""
    fig = figure(9.2, 5.2)
    axes = fig.subplots()
    key, meaning = speed_key(answer["sla_fraction"])
    look = styles(policy["policy"] for policy in answer["policies"])
    for policy in by_capacity(answer):
        _pareto_line(axes, policy, key, look[policy["policy"]], policy["policy"] == answer.get("recommended"))
    dress(
        axes,
        "Throughput against speed per user",
        _inputs(answer),
        f"tokens/s each user gets ({meaning})",
        "output tokens/s of one engine",
    )
    axes.set_ylim(0, 1.1 * axes.get_ylim()[1])  # room for the name of the SLA above the curves
    fastest = max(row["tps_user"][key] for policy in answer["policies"] for row in policy["curve"])
    _sla_line(axes, answer["sla_tps"], fastest)
    _thousands(axes)
    _legend(fig, axes, "users at the SLA")
    return png(fig)


def _pareto_line(axes: Axes, policy: Row, key: str, look: dict[str, Any], leads: bool) -> None:
    rows = _curve(policy)
    axes.plot(
        [row["tps_user"][key] for row in rows],
        [row["throughput"] for row in rows],
        markevery=_some(rows),
        label=f"{short(policy)}: {policy['capacity']:,}" + ("  (recommended)" if leads else ""),
        linestyle="-" if policy["lossless"] else "--",
        linewidth=2.6 if leads else 1.5,
        markersize=4.2,
        markeredgewidth=0,
        zorder=4 if leads else 3,
        **look,
    )
    at = [row for row in rows if row["concurrency"] == policy["capacity"]]
    if at:
        axes.plot(
            at[0]["tps_user"][key], at[0]["throughput"], marker="o", markersize=11, markerfacecolor="none",
            markeredgewidth=1.8, color=look["color"], linestyle="none", zorder=5,
        )  # fmt: skip


def _sla_line(axes: Axes, sla: float, fastest: float) -> None:
    """The SLA as a labelled line, the side that misses it shaded; an SLA far off the curves is only named."""
    far = sla > 1.5 * fastest
    axes.set_xlim(0, 1.06 * (fastest if far else max(fastest, sla)))
    right = far or sla > 0.75 * axes.get_xlim()[1]
    axes.annotate(
        f"SLA {sla:g} tokens/s" + (": beyond all of these \u2192" if far else ""),
        (1.0 if far else sla, 1.0), xycoords=("axes fraction" if far else "data", "axes fraction"),
        xytext=(-5 if right else 5, -4), textcoords="offset points", ha="right" if right else "left",
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.5},
        va="top", fontsize=9, color=INK, zorder=6,
    )  # fmt: skip
    axes.axvspan(0, sla, color="#000000", alpha=0.045, linewidth=0, zorder=0)
    if not far:
        axes.axvline(sla, color=INK, linewidth=1.2, linestyle=(0, (4, 3)), zorder=2)


def load_png(answer: Row) -> bytes:
    """Throughput, its gain over no drafting, and what is verified, against concurrency: PNG bytes."""
    fig = figure(9.2, 9.4)
    top, middle, bottom = fig.subplots(3, 1, sharex=True, height_ratios=[3, 2.2, 2])
    look = styles(policy["policy"] for policy in answer["policies"])
    off = next((policy for policy in answer["policies"] if policy["policy"] == "off"), None)
    for policy in by_capacity(answer):
        rows = _curve(policy)
        users = [row["concurrency"] for row in rows]
        leads = policy["policy"] == answer.get("recommended")
        style = {
            "linestyle": "-" if policy["lossless"] else "--", "linewidth": 2.6 if leads else 1.5,
            "markersize": 4.2, "markeredgewidth": 0, "markevery": _some(rows), "zorder": 4 if leads else 3,
            **look[policy["policy"]],
        }  # fmt: skip
        top.plot(users, [row["throughput"] for row in rows], label=short(policy), **style)
        if policy["capacity"]:
            _bar(top, policy, look[policy["policy"]]["color"])
            _ring(top, policy, rows, look[policy["policy"]]["color"])
        if off is not None:
            middle.plot(users, _gain(rows, off), **style)
        bottom.plot(users, [row["verify_tokens_per_request"] for row in rows], **style)
    dress(top, "Throughput against load", _inputs(answer), "", "output tokens/s\nof one engine")
    dress(middle, "Gain over no drafting", "" if off else "off was not run", "", "throughput / that of off")
    verified = "tokens per request and step\n(anchor included)"
    dress(bottom, "What is verified", "", "concurrent users (one engine)", verified)
    _log_users(bottom, answer)
    top.set_ylim(bottom=0)
    bottom.set_ylim(bottom=0)
    _thousands(top)
    _legend(fig, top, "ring: capacity at the SLA")
    return png(fig)


def _gain(rows: list[Row], off: Row) -> list[float]:
    """Throughput over that of `off` at the same load, read between its loads."""
    import numpy as np

    base = _curve(off)
    users = [row["concurrency"] for row in rows]
    against = np.interp(users, [row["concurrency"] for row in base], [row["throughput"] for row in base])
    return [row["throughput"] / float(of) for row, of in zip(rows, against, strict=True)]


def _bar(axes: Axes, policy: Row, colour: str) -> None:
    """The interval of the throughput at the capacity."""
    bounds = ((policy.get("at_capacity") or {}).get("intervals") or {}).get("throughput")
    if bounds:
        axes.vlines(policy["capacity"], *bounds, color=colour, linewidth=5, alpha=0.3, zorder=2)


def _ring(axes: Axes, policy: Row, rows: list[Row], colour: str) -> None:
    at = [row for row in rows if row["concurrency"] == policy["capacity"]]
    if at:
        axes.plot(
            policy["capacity"], at[0]["throughput"], marker="o", markersize=11, markerfacecolor="none",
            markeredgewidth=1.8, color=colour, linestyle="none", zorder=5,
        )  # fmt: skip


def _log_users(axes: Axes, answer: Row) -> None:
    axes.set_xscale("log", base=2)
    _whole_ticks(axes, [row["concurrency"] for policy in answer["policies"] for row in policy["curve"]])


def _whole_ticks(axes: Axes, values: list[int]) -> None:
    """Powers of two as whole numbers on a logarithmic axis."""
    from matplotlib.ticker import FixedLocator, NullLocator

    ticks = [2**power for power in range(30) if min(values) <= 2**power <= max(values)]
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    _thousands(axes, "x")


def plan_png(plan: Row) -> bytes:
    """Share of requests that get what was promised against the GPUs of the fleet: PNG bytes."""
    fig = figure(9.2, 4.8)
    axes = fig.subplots()
    look = styles(row["policy"] for row in plan["policies"])
    order = sorted(plan["policies"], key=lambda row: (row["gpus"] is None, row["gpus"] or 0))
    for row in order:
        leads = row["policy"] == plan.get("recommended")
        gpus = [point["gpus"] for point in row["curve"]]
        axes.plot(
            gpus, [100 * point["share_at_sla"] for point in row["curve"]],
            label=f"{short(row)}: {row['gpus'] if row['gpus'] is not None else 'none is enough'}",
            linestyle="-" if row["lossless"] else "--", linewidth=2.6 if leads else 1.5, markersize=4.2,
            markeredgewidth=0, zorder=4 if leads else 3, **look[row["policy"]],
        )  # fmt: skip
    wanted = 100 * plan["sla_fraction"]
    axes.axhline(wanted, color=INK, linewidth=1.2, linestyle=(0, (4, 3)), zorder=2)
    axes.annotate(
        f"{wanted:g}% wanted", (0.0, wanted), xycoords=("axes fraction", "data"), xytext=(4, 3),
        textcoords="offset points", fontsize=9, color=INK,
    )  # fmt: skip
    promise = "% of requests that get what is promised"
    dress(axes, "Keeping the promise", f"{_inputs(plan)}; {plan['rate']:.4g} requests/s", "GPUs", promise)
    axes.set_xscale("log", base=2)
    axes.set_ylim(0, 105)
    _whole_ticks(axes, [point["gpus"] for row in order for point in row["curve"]])
    _legend(fig, axes, "GPUs needed")
    return png(fig)


def hours_png(hours: Row) -> bytes:
    """GPUs that each hour of recorded arrivals needs, against the fleet of the peak: PNG bytes."""
    fig = figure(9.2, 4.2)
    axes = fig.subplots()
    table, width = hours["table"], hours["bin_seconds"] / 3600.0
    left = [row["start_seconds"] / 3600.0 for row in table]
    needs = [row["gpus"] for row in table]
    axes.bar(left, needs, width=width, align="edge", color=INK, alpha=0.35, linewidth=0, label="following")
    axes.axhline(hours["gpus_peak"], color=INK, linewidth=1.2, linestyle=(0, (4, 3)), label="for the peak")
    said = f"{hours['policy']}; a fleet that follows takes {hours['saving']:.0%} fewer GPU hours"
    dress(axes, "GPUs by the hour", said, "hours from the first arrival", "GPUs")
    axes.set_ylim(0, 1.15 * max(hours["gpus_peak"], 1))
    axes.legend(frameon=False, fontsize=9)
    return png(fig)
