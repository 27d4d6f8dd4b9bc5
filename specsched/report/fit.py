"""What `specsched fit` found: each unknown with what the runs say of it, run by run, and predictions."""

from __future__ import annotations

from functools import partial
from typing import Any

from .plots import BLUE, BROWN, GREEN, ORANGE, PINK, RED, SKY, VIOLET, dress, figure, png
from .text import count, decimal, grid, interval, paragraph, share

COLOURS = (BLUE, RED, GREEN, ORANGE, VIOLET, BROWN, PINK, SKY)


def fit_text(found: dict[str, Any]) -> str:
    """A `specsched/fit/1` document as text."""
    parts = [
        found["headline"],
        "Found (95 %):",
        grid(*unknown_rows(found["unknowns"])),
        "Measured and fitted:",
    ]
    parts += [grid(*run_rows(found["runs"])), paragraph(errors_line(found["errors"]))]
    if found.get("judged"):
        parts += ["Judged by runs that the fit did not see:", grid(*judged_rows(found["judged"]["runs"]))]
        parts.append(paragraph(judged_line(found["judged"])))
    if found["predictions"]:
        parts += ["Predicted, in the setting of these runs (95 % of what the fit leaves open):"]
        parts.append(grid(*prediction_rows(found["predictions"])))
    notes = [paragraph(text, "assumed: ") for text in found["assumed"]]
    notes += [paragraph(text, "warning: ") for text in found["warnings"]]
    return "\n\n".join([*parts, "\n".join(notes)])


def unknown_rows(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Header and cells: each unknown, and whether the runs determine it."""
    body = []
    for row in rows:
        digits = 3 if abs(row["value"]) < 10 else 1
        unit = f" {row['unit']}" if row["unit"] else ""
        body.append(
            [
                row["label"],
                decimal(row["value"], digits) + unit,
                interval(row["interval"], partial(decimal, digits=digits)),
                row["determined"],
            ]
        )
    return ["", "value", "interval", "by the runs"], body


def run_rows(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Header and cells: each figure of each run, measured and fitted."""
    body = [
        [
            f"{row['policy']}, {row['users']}" + (f", {row['text']}" if row["text"] else ""),
            {"user": "a user", "total": "in all", "length": "tokens a step"}[row["what"]],
            decimal(row["measured"], 1 if row["measured"] >= 10 else 2),
            decimal(row["fitted"], 1 if row["fitted"] >= 10 else 2),
            share(row["error"]),
            share(row["left_out_error"]),
        ]
        for row in rows
    ]
    return ["policy, users", "what", "measured", "fitted", "off by", "left out,\noff by"], body


def errors_line(errors: dict[str, Any]) -> str:
    """How far fitted figures are from measured ones, in two sentences."""
    return (
        f"Fitted figures are off by {errors['median']:.1%} in the median and {errors['p90']:.1%} at "
        "90 %; a run's "
        f"own figures, predicted from the other runs alone, by {errors['left_out_median']:.1%} and "
        f"{errors['left_out_p90']:.1%}. The scatter is {errors['noise_factor']:.1f} times the noise stated."
    )


def judged_rows(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Header and cells: each figure of each judged run, measured and predicted."""
    body = [
        [
            f"{row['policy']}, {row['users']}" + (f", {row['text']}" if row["text"] else ""),
            {"user": "a user", "total": "in all"}[row["what"]],
            decimal(row["measured"], 1),
            decimal(row["predicted"], 1),
            f"{row['error']:+.1%}",
        ]
        for row in rows
    ]
    return ["policy, users", "what", "measured", "predicted", "off by"], body


def judged_line(judged: dict[str, Any]) -> str:
    """Median and 90 % errors, and how often the faster of two arms is said."""
    said = [
        f"{name} by {held['median']:.1%} in the median and {held['p90']:.1%} at 90 % (mean "
        f"{held['bias']:+.1%}, "
        f"{held['figures']:.0f} figures)"
        for name, held in (("a user's speed", judged["user"]), ("throughput", judged["total"]))
        if held is not None
    ]
    text = f"Predicted, not fitted: off in {' and in '.join(said)}."
    if judged["signs_compared"]:
        text += (
            f" Which of two arms is faster is said rightly in {judged['signs_right']} of "
            f"{judged['signs_compared']} "
            f"comparisons that differ by more than {judged['signs_noise']:.0%}."
        )
    return f"{text} Fitted on {', '.join(judged['fitted_on'][:6])}" + (
        f" and {len(judged['fitted_on']) - 6} more runs." if len(judged["fitted_on"]) > 6 else "."
    )


def prediction_rows(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Header and cells: a policy at a load, with what the fit leaves open."""
    body = [
        [
            row["policy"],
            count(row["users"]),
            decimal(row["user"], 1),
            interval(row["user_interval"], lambda x: decimal(x, 0)),
            count(row["total"]),
            interval(row["total_interval"]),
            decimal(row["verified"], 2),
        ]
        for row in rows
    ]
    head = ["policy", "users", "tokens/s\nof a user", "", "in all", "", "verified\nper request"]
    return head, body


def fit_png(found: dict[str, Any]) -> bytes:
    """Measured (dots) against fitted (lines) by load: speed of a user, throughput; predictions dashed."""
    fig = figure(10.0, 4.4)
    axes = fig.subplots(1, 2)
    arms = list(dict.fromkeys((row["policy"], row["text"]) for row in found["runs"]))
    predicted = list(dict.fromkeys(row["policy"] for row in found["predictions"]))
    for ax, what, title in ((axes[0], "user", "Speed of a user"), (axes[1], "total", "Throughput")):
        for i, (policy, text) in enumerate(arms):
            rows = [r for r in found["runs"] if (r["policy"], r["text"], r["what"]) == (policy, text, what)]
            rows.sort(key=lambda row: row["users"])
            colour = COLOURS[i % len(COLOURS)]
            name = policy + (f", {text}" if text else "")
            ax.plot(
                [r["users"] for r in rows], [r["fitted"] for r in rows], color=colour, label=f"{name}, fitted"
            )
            ax.plot([r["users"] for r in rows], [r["measured"] for r in rows], "o", ms=4.5, color=colour)
        for i, policy in enumerate(predicted):
            rows = [r for r in found["predictions"] if r["policy"] == policy]
            colour = COLOURS[(len(arms) + i) % len(COLOURS)]
            users = [r["users"] for r in rows]
            ax.plot(users, [r[what] for r in rows], "--", color=colour, label=f"{policy}, predicted")
            ends = list(zip(*(r[f"{what}_interval"] for r in rows), strict=True))
            ax.fill_between(users, ends[0], ends[1], color=colour, alpha=0.15)
        ax.set_xscale("log")
        ax.set_yscale("log")
        dress(ax, title, "dots measured, lines fitted", "users", "output tokens per second")
    axes[1].legend(fontsize=7)
    return png(fig)
