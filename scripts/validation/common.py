"""What the checks share: where data lies, how figures look, how numbers are rounded."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
FIGURES = ROOT / "docs" / "figures"
COLOURS = ("#1b6ca8", "#c8553d", "#588157", "#8a5a9e", "#7f7f7f", "#d4a017")


class Absent(Exception):
    """Data of a check that is not on this machine; the message says which and where it was looked for."""


@dataclass(frozen=True)
class Settings:
    """How a check runs. `quick` cuts sizes for the tests; `figures` None draws nothing.

    `cpu_time`: the own engine is timed in CPU seconds of its process, for a machine that is not quiet.
    """

    shared: Path
    figures: Path | None = FIGURES
    quick: bool = False
    cpu_time: bool = False


def data_file(settings: Settings, *parts: str) -> Path:
    """A file of the shared folder; raises Absent."""
    path = settings.shared.joinpath(*parts)
    if not path.is_file():
        raise Absent(f"{path} is not here; give the folder that holds {parts[0]}/ with --shared")
    return path


def rows(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV whose lines that begin with # are comments."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return list(csv.DictReader(lines))


def rounded(value: Any, digits: int = 4) -> Any:
    """Plain lists, dicts and numbers, rounded to significant digits: what goes into the JSON."""
    if isinstance(value, dict):
        return {str(key): rounded(part, digits) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(part, digits) for part in value]
    if hasattr(value, "tolist"):
        return rounded(value.tolist(), digits)
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    return value


def canvas(width: float, height: float, columns: int = 1) -> tuple[Any, Any]:
    """(figure, axes) drawn without a display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, columns, squeeze=False)[0]
    for ax in axes:
        ax.grid(alpha=0.25)
        ax.spines[["top", "right"]].set_visible(False)
    return figure, axes


def save(figure: Any, settings: Settings, name: str) -> None:
    """Write docs/figures/NAME.png, without a date, so that the same numbers give the same bytes."""
    if settings.figures is None:
        return
    settings.figures.mkdir(parents=True, exist_ok=True)
    figure.savefig(settings.figures / f"{name}.png", metadata={"Software": None})


def table(head: list[str], body: list[list[Any]]) -> str:
    """A Markdown table; the first column is left-aligned."""
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(str(cell) for cell in row) + " |" for row in body)])


def percent(value: float, signed: bool = True) -> str:
    """0.0512 as `+5 %`."""
    return f"{value:+.0%}".replace("%", " %") if signed else f"{value:.0%}".replace("%", " %")


def gain(value: float) -> str:
    """A gain as `+51 %`, a large one as a factor: `×7.6`."""
    return percent(value) if value < 1 else f"×{1.0 + value:.1f}"
