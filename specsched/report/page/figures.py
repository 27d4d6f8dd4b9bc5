"""Charts of the inputs as plain figures for the page: a profile, a calibration, a trace, a plan, a sweep."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...errors import plain
from ..plots import INK, styles

if TYPE_CHECKING:
    from ...calibration import Calibration
    from ...profile import StepProfile
    from ...trace import Trace

Row = Mapping[str, Any]
Figure = dict[str, Any]
BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
SYMBOLS = {
    **{"o": "circle", "s": "square", "D": "diamond", "^": "triangle-up", "v": "triangle-down", "P": "cross"},
    **{"X": "x", "<": "triangle-left", ">": "triangle-right"},
}
FEWEST_IN_A_DOT = 20
_MOST_POINTS = 1500  # of one line: more are thinned, cliffs kept


def label(text: Any, most: int = 60) -> str:
    """Text for a chart, where `<b>` would be markup and control characters are shown."""
    return html.escape(plain(str(text), most), quote=False)


def policy_looks(names: Sequence[str]) -> list[Figure]:
    """Colour, symbol and opacity of each policy's curve, as on the PNG plots."""
    found = styles(names)
    return [
        {
            "label": label(name),
            "colour": "@ink" if found[name]["color"] == INK else found[name]["color"],
            "symbol": SYMBOLS[found[name]["marker"]],
            "opacity": found[name]["alpha"],
        }
        for name in names
    ]


def line(name: str, x: Iterable[float], y: Iterable[float], colour: str, **more: Any) -> Figure:
    """A named line; `hover` is a template, `dash` and `points` as plotly has them."""
    points = more.pop("points", False)
    return {
        "type": "scatter",
        "mode": "lines+markers" if points else "lines",
        "name": label(name),
        "x": [float(value) for value in x],
        "y": [float(value) for value in y],
        "line": {"color": colour, "width": more.pop("width", 2), "dash": more.pop("dash", "solid")},
        "marker": {"color": colour, "size": more.pop("size", 6)},
        **more,
    }


def axis(title: str, **more: Any) -> Figure:
    return {"title": {"text": label(title, 120)}, **more}


def upright(at: float, text: str) -> tuple[Figure, Figure]:
    """A vertical line at `at` and the words beside its top: a shape and an annotation."""
    shape = {
        **{"type": "line", "xref": "x", "yref": "paper", "x0": at, "x1": at, "y0": 0, "y1": 1},
        "line": {"color": "@ink", "width": 1.4, "dash": "dash"},
    }
    words = {
        **{"x": at, "y": 1, "yref": "paper", "yanchor": "top", "xanchor": "left", "showarrow": False},
        **{"text": f" {label(text)}", "font": {"color": "@ink", "size": 12}, "bgcolor": "@paper"},
    }
    return shape, words


def profile_figure(profile: StepProfile, knee: int | None, cliffs: Iterable[Row]) -> Figure:
    """ms of a pass against its tokens, on and off the graph, with the knee and the cliffs."""
    import numpy as np

    from ...profile.lint import sizes_shown

    last = profile.verify.x[-1] if profile.eager is None else profile.eager.x[-1]
    tokens = sizes_shown(int(last), [int(c["before"]) for c in cliffs], _MOST_POINTS)
    ms = 1e3 * (profile.verify_seconds(tokens) + profile.bias_seconds)
    limit = profile.graph_limit
    inside = tokens <= limit if limit is not None else np.ones(len(tokens), bool)
    hover = "%{x:,} tokens<br>%{y:.3g} ms<extra></extra>"
    name = "captured graph, padded" if limit is not None else "cost used"
    data = [line(name, tokens[inside], ms[inside], BLUE, hovertemplate=hover)]
    if not inside.all():
        data.append(line("off the graph", tokens[~inside], ms[~inside], RED, hovertemplate=hover))
    points = line(
        "points of the table",
        profile.verify.x,
        1e3 * (profile.verify.y + profile.bias_seconds),
        "@ink",
        size=4,
        hovertemplate=hover,
    )
    data.append({**points, "mode": "markers"})
    jumps = [c for c in cliffs if c["before"] <= last]
    if jumps:
        at = np.array([c["after"] for c in jumps])
        shown = line("cliffs", at, 1e3 * (profile.verify_seconds(at) + profile.bias_seconds), ORANGE, size=10)
        said = [f"{label(c['kind'])}: x {c['ratio']:.2f}" for c in jumps]
        shown |= {"mode": "markers", "text": said, "hovertemplate": "%{x:,} tokens<br>%{text}<extra></extra>"}
        shown["marker"]["symbol"] = "triangle-up"
        data.append(shown)
    steep = float(ms.max()) > 8.0 * max(float(ms.min()), 1e-12)
    marks = [upright(at, text) for at, text in ((knee, "knee"), (limit, "capture limit")) if at]
    layout = {
        "xaxis": _logarithmic("tokens in the pass (anchors and drafts)"),
        # Where passes differ by much, the short ones, which matter most, would lie on the axis.
        "yaxis": axis("ms per pass", **({"type": "log"} if steep else {"rangemode": "tozero"})),
        "shapes": [shape for shape, _ in marks],
        "annotations": _on_log(words for _, words in marks),
    }
    return {"data": data, "layout": layout}


def _logarithmic(title: str) -> Figure:
    return axis(title, type="log", dtick=0.30103, tickformat=",d")


def _on_log(annotations: Iterable[Figure]) -> list[Figure]:
    """Annotations of a logarithmic axis are placed by the logarithm."""
    import math

    return [{**words, "x": math.log10(words["x"])} for words in annotations]


def reliability_figure(trace: Trace, calibration: Calibration | None) -> Figure:
    """Observed against predicted survival at up to four positions; a dot's area is its share of anchors."""
    import numpy as np

    from ...calibration.metrics import reliability, sigmoid, survival

    logits = trace.confidence_logit
    predicted = survival(sigmoid(logits) if calibration is None else calibration.apply(logits))
    last = trace.block_size
    positions = sorted({1, 1 + last // 3, 1 + 2 * last // 3, last} & set(range(1, last + 1)))
    data = [line("honest", [0, 1], [0, 1], "@faint", dash="dash", width=1, hoverinfo="skip")]
    for colour, k in zip((BLUE, ORANGE, GREEN, RED), positions, strict=False):
        bins = reliability(predicted[:, k - 1], trace.accepted >= k)
        held = bins.count >= FEWEST_IN_A_DOT
        share = bins.count[held] / len(trace)
        dots = line(
            f"position {k}", bins.confidence[held], bins.acceptance[held], colour, points=True, width=1.5,
            customdata=[int(n) for n in bins.count[held]],
            hovertemplate="predicted %{x:.0%}<br>accepted %{y:.0%}<br>%{customdata:,} anchors",
        )  # fmt: skip
        dots["marker"] |= {"size": [float(s) for s in 5 + 20 * np.sqrt(share)], "opacity": 0.7}
        data.append(dots)
    layout = {
        "xaxis": axis("predicted: the prefix survives", range=[0, 1], tickformat=".0%"),
        "yaxis": axis("accepted this far", range=[0, 1], tickformat=".0%"),
    }
    return {"data": data, "layout": layout}


def acceptance_figure(by_name: Mapping[str, Sequence[float]]) -> Figure:
    """Share of the blocks accepted up to each position, a line for each name."""
    colours = (BLUE, ORANGE, GREEN, RED)
    data = [
        line(
            name, range(1, 1 + len(shares)), shares, colours[i % 4], points=True,
            hovertemplate="position %{x}<br>%{y:.1%}",
        )
        for i, (name, shares) in enumerate(sorted(by_name.items()))
    ]  # fmt: skip
    layout = {
        "xaxis": axis("position in the block", dtick=1),
        "yaxis": axis("share of blocks accepted this far", range=[0, 1], tickformat=".0%"),
    }
    return {"data": data, "layout": layout}


def acceptance_of(trace: Trace) -> dict[str, list[float]]:
    """Share of the blocks accepted up to each position, by domain."""
    import numpy as np

    positions = np.arange(1, trace.block_size + 1)
    return {
        name: (trace.accepted[trace.domain == code][:, None] >= positions).mean(axis=0).tolist()
        for code, name in enumerate(trace.domain_names)
        if (trace.domain == code).any()
    }
