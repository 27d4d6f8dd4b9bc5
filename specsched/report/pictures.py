"""Pictures of the inputs as PNG: what a step costs, what a trace holds, how honest its confidences are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..files.output import atomic_write
from .plots import BLUE, FAINT, GREEN, INK, ORANGE, RED, dress, figure, png

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes

    from ..calibration import Calibration
    from ..profile import StepProfile
    from ..trace import Trace

MOST_SIZES = 20_000  # of a curve that is drawn: more cannot be seen
FEWEST_IN_A_DOT = 20  # a bin of fewer anchors shows its noise, not the confidences
POSITION_COLOURS = (BLUE, ORANGE, GREEN, RED)


def write_picture(path: Path, content: bytes) -> None:
    """Write PNG bytes atomically."""
    with atomic_write(path, "wb") as stream:
        stream.write(content)


def profile_png(profile: StepProfile, roofline: tuple[Any, Any] | None = None) -> bytes:
    """Seconds of a pass and passes per second against its tokens: table, padding, the off-graph part.

    `roofline` is (tokens, seconds) of a bound to draw beside it.
    """
    import numpy as np

    from ..profile.lint import sizes_read, sizes_shown

    fig = figure(9.2, 6.6)
    top, bottom = fig.subplots(2, 1, sharex=True)
    last = int(max(profile.verify.x[-1], profile.eager.x[-1] if profile.eager is not None else 0))
    tokens = sizes_shown(last, [int(size) for size in sizes_read(profile)], MOST_SIZES)
    seconds = profile.verify_seconds(tokens) + profile.bias_seconds
    for axes, shown in ((top, 1e3 * seconds), (bottom, 1.0 / seconds)):
        _graph_and_beyond(axes, profile, tokens, shown)
    x, y = profile.verify.x, 1e3 * (profile.verify.y + profile.bias_seconds)
    top.plot(x, y, "o", markersize=2.6, color=INK, zorder=4, label="points of the table")
    if roofline is not None:
        at, bound = np.asarray(roofline[0]), np.asarray(roofline[1])
        top.plot(at, 1e3 * bound, ":", color=FAINT, linewidth=1.6, label="roofline")
        bottom.plot(at, 1.0 / bound, ":", color=FAINT, linewidth=1.6)
    method = profile.provenance.get("method", "of unknown origin")
    dress(
        top,
        "What a pass costs",
        f"{profile.name} ({method}); no context, overhead or draft",
        "",
        "ms per pass",
    )
    dress(bottom, "SPS(B)", "", "B: tokens in the pass, anchors and drafts", "passes per second")
    for axes in (top, bottom):
        axes.set_ylim(bottom=0)
        axes.set_xlim(left=0)
    fig.legend(*top.get_legend_handles_labels(), loc="outside right upper", frameon=False, fontsize=9)
    return png(fig)


def _graph_and_beyond(axes: Axes, profile: StepProfile, tokens: np.ndarray, shown: np.ndarray) -> None:
    limit = profile.graph_limit
    inside = tokens <= limit if limit is not None else tokens > 0
    name = "captured graph, padded" if limit is not None else "cost used"
    axes.plot(tokens[inside], shown[inside], color=BLUE, linewidth=1.6, label=name)
    if limit is None or inside.all():
        return
    axes.plot(tokens[~inside], shown[~inside], color=RED, linewidth=1.6, label="off the graph")
    axes.axvline(limit, color=INK, linewidth=1.0, linestyle=(0, (4, 3)))
    axes.annotate(
        f"capture limit {limit:,}", (limit, 1.0), xycoords=("data", "axes fraction"), xytext=(4, -4),
        textcoords="offset points", va="top", fontsize=8.5, color=INK,
    )  # fmt: skip


def trace_png(trace: Trace) -> bytes:
    """How far blocks are accepted, by domain, and the reliability of the raw survival at some positions."""
    import numpy as np

    positions = np.arange(1, trace.block_size + 1)
    accepted = {
        name: (trace.accepted[trace.domain == code][:, None] >= positions).mean(axis=0)
        for code, name in enumerate(trace.domain_names)
        if (trace.domain == code).any()
    }
    fig = figure(9.2, 4.4)
    left, right = fig.subplots(1, 2)
    for colour, (domain, survival) in zip(
        POSITION_COLOURS * len(accepted), sorted(accepted.items()), strict=False
    ):
        left.plot(range(1, len(survival) + 1), survival, "o-", color=colour, markersize=4, label=domain)
    dress(
        left,
        "How far blocks are accepted",
        trace.name,
        "position in the block",
        "share of blocks accepted this far",
    )
    left.set_ylim(0, 1)
    left.set_xticks(range(1, 1 + max(map(len, accepted.values()))))
    left.legend(frameon=False, fontsize=9)
    _reliability(right, trace, None, "Reliability", "raw confidences")
    return png(fig)


def reliability_png(trace: Trace, calibration: Calibration) -> bytes:
    """Reliability of the survival before and after calibration, on the requests held out of the fit."""
    held = calibration.held_out_requests
    known = len(held) > 0 and set(held.tolist()) <= set(trace.request_ids.tolist())
    shown = trace.select(held) if known else trace
    fig = figure(9.2, 5.3)
    left, right = fig.subplots(1, 2)
    where = "requests not used for the fit" if known else "all requests"
    _reliability(left, shown, None, "Before calibration", f"{trace.name}, {where}")
    _reliability(right, shown, calibration, f"After calibration ({calibration.method})", where)
    return png(fig)


def _reliability(
    axes: Axes, trace: Trace, calibration: Calibration | None, title: str, subtitle: str
) -> None:
    """Observed against predicted survival at up to four positions; a dot's area is its share of anchors.

    Bins of fewer than FEWEST_IN_A_DOT anchors are left out.
    """
    from ..calibration.metrics import reliability, sigmoid, survival

    logits = trace.confidence_logit
    predicted = survival(sigmoid(logits) if calibration is None else calibration.apply(logits))
    last = trace.block_size
    positions = sorted({1, 1 + last // 3, 1 + 2 * last // 3, last} & set(range(1, last + 1)))
    axes.plot([0, 1], [0, 1], color=FAINT, linewidth=1.0, linestyle=(0, (4, 3)))
    for colour, k in zip(POSITION_COLOURS, positions, strict=False):
        bins = reliability(predicted[:, k - 1], trace.accepted >= k)
        held = bins.count >= FEWEST_IN_A_DOT
        x, y, share = bins.confidence[held], bins.acceptance[held], bins.count[held] / len(trace)
        axes.plot(x, y, "-", color=colour, linewidth=1.3, label=f"position {k}")
        axes.scatter(x, y, s=6 + 240 * share, color=colour, alpha=0.55, linewidth=0)
    dress(axes, title, subtitle, "predicted survival", "accepted this far")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.set_aspect("equal")
    axes.legend(frameon=False, fontsize=8.5, loc="upper left")
