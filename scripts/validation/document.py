"""docs/validation.md from docs/validation.json: every number of the text is one of the JSON."""

from __future__ import annotations

import json
import textwrap
from types import ModuleType
from typing import Any

from . import drafters, engine, intervals, paper, published, sensitivity, sweeps, traces
from .common import ROOT

SECTIONS: dict[str, ModuleType] = {
    "sweeps": sweeps,
    "published": published,
    "paper": paper,
    "traces": traces,
    "sensitivity": sensitivity,
    "drafters": drafters,
    "engine": engine,
    "intervals": intervals,
}
TITLES = {
    "engine": "Against the package's own engine",
    "sweeps": "Against public sweeps, learned from a few of their runs",
    "published": "Against a published engine: vLLM, DeepSeek-V4-Flash on four B300",
    "paper": "Against the paper: DSpark in production",
    "traces": "The paper's figures 5 and 6 on the bundled traces",
    "drafters": "The paper's figures 2 to 4 in kind",
    "sensitivity": "Which input matters",
    "intervals": "Do the intervals cover?",
}
NUMBERS, TEXT = ROOT / "docs" / "validation.json", ROOT / "docs" / "validation.md"
HEAD = """# How far the simulator is from reality

Written by `make validate` from docs/validation.json, which holds every number below; a test fails when the
two differ. Data that is not in the
repository (published sweeps, the paper's figures as tables) is read from a folder beside it; a section
whose data is absent keeps its last
numbers.

No constant is fitted on figures it is judged by: each section says what was fitted on what. An error is
predicted / published - 1.
"""
NOT_RUN = "**Not run.** No numbers of this section are in docs/validation.json."
NOT_RUN_WHY = {
    "engine": "**Not run yet on a quiet machine.** Engine and simulator have not been compared on a wall\n"
    "clock: `python scripts/validate.py --only engine` does it in about ten minutes, and refuses on a\n"
    "busy machine.",
    "drafters": "**Not run.** The tiny drafters were not in models/ when this was written;\n"
    "`python scripts/validate.py --only drafters` compares them.",
}
TAIL = """## Not checked

- Against an engine on a GPU that this package drives itself (`specsched profile` on a GPU, then
  `torch_side` there): waits for a GPU.
- TensorRT-LLM's data-parallel engines (DEP4, DEP8), and Vision-Exp on one GB300: their sweeps are read by
nothing here. - Memory pressure, preemption and open arrivals against a real engine. """


def load() -> dict[str, Any]:
    """The numbers as stored; an empty document where there is none."""
    return json.loads(NUMBERS.read_text(encoding="utf-8")) if NUMBERS.is_file() else {}


def as_json(numbers: dict[str, Any]) -> str:
    return json.dumps({name: numbers[name] for name in SECTIONS if name in numbers}, indent=1) + "\n"


def filled(text: str) -> str:
    """Prose and lists refilled to the width of the other documents; tables, figures and headings as they
    are."""
    blocks = []
    for block in text.split("\n\n"):
        if block.startswith(("|", "!", "#")):
            blocks.append(block)
            continue
        items: list[str] = []
        for line in block.split("\n"):
            if line.startswith("- ") or not items:
                items.append(line)
            else:
                items[-1] += " " + line.strip()
        blocks.append("\n".join(textwrap.fill(i, 118, **_shape(i), **_WHOLE_WORDS) for i in items))
    return "\n\n".join(blocks)


_WHOLE_WORDS: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}


def _shape(item: str) -> dict[str, str]:
    return {"subsequent_indent": "  " if item.startswith("- ") else ""}


def as_text(numbers: dict[str, Any]) -> str:
    """The whole document."""
    # What JSON makes of keys and tuples, so that stored and fresh numbers give the same text.
    numbers = json.loads(as_json(numbers))
    parts = [HEAD]
    if "sweeps" in numbers:
        parts.append(sweeps.summary(numbers["sweeps"]) + "\n")
    for name, title in TITLES.items():
        body = SECTIONS[name].text(numbers[name]) if name in numbers else NOT_RUN_WHY.get(name, NOT_RUN)
        parts.append(f"## {title}\n\n{body.strip()}\n")
    return filled("\n".join([*parts, TAIL])).strip() + "\n"


def store(numbers: dict[str, Any]) -> None:
    """Write both files."""
    NUMBERS.write_text(as_json(numbers), encoding="utf-8")
    TEXT.write_text(as_text(numbers), encoding="utf-8")


def stale() -> str | None:
    """What is wrong with docs/validation.md; None when it is what its JSON gives."""
    if not TEXT.is_file() or TEXT.read_text(encoding="utf-8") != as_text(load()):
        return "docs/validation.md is not what docs/validation.json gives; run python scripts/validate.py"
    return None
