"""Figures 2 to 4 of the paper in kind, with the bundled drafters of the tiny target: decay by position,
drafters in order, gain with γ.

A one-million-parameter target and drafters trained for minutes on a CPU: no number here can equal the
paper's. What can be compared is which drafter comes first, whether acceptance falls along the block, and how
the gain grows with its length. Reported as found.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from specsched.files.disk import bundled_dir

from .common import COLOURS, Absent, Settings, canvas, rounded, save, table
from .engine import prompts

NAMES = {
    "DSpark, Markov head": "tiny-dspark-markov",
    "DSpark, RNN head": "tiny-dspark-rnn",
    "DSpark, Markov head, one layer": "tiny-dspark-markov-1layer",
    "DSpark, no head": "tiny-dspark-none",
    "DFlash": "tiny-dflash",
    "Eagle3": "tiny-eagle3",
}
PAPER_ORDER = (
    "DSpark above DFlash above Eagle3 in tokens per step, the RNN head slightly above the Markov head, "
    "deeper drafters above one layer"
)


def present() -> dict[str, str]:
    """The drafters that are bundled."""
    folder = bundled_dir("models")
    return {label: name for label, name in NAMES.items() if folder.joinpath(name, "config.json").is_file()}


def run(settings: Settings) -> dict[str, Any]:
    """Conditional acceptance and tokens per step of every bundled tiny drafter, whole blocks, temperature
    1."""
    found = present()
    if len(found) < 2:
        raise Absent("fewer than two of the tiny drafters are in models/; scripts/train_models.py makes them")
    from specsched.torch_side.drafter.dspark import load_drafter
    from specsched.torch_side.engine.evaluation import evaluate
    from specsched.torch_side.target.weights import load_target

    target = load_target("tiny")
    asked = prompts()[: 4 if settings.quick else 96]
    numbers: dict[str, Any] = {"prompts": len(asked), "drafters": {}}
    for label, name in found.items():
        drafter = load_drafter(name, target)
        done = evaluate(
            target,
            drafter,
            asked,
            temperature=1.0,
            max_tokens=12 if settings.quick else 96,
            max_batch=32,
            seed=1,
        )
        numbers["drafters"][label] = {"name": name, **of_rounds(done["samples"], drafter.block_size)}
    draw(settings, numbers)
    return rounded(numbers)


def of_rounds(samples: list[dict[str, Any]], block: int) -> dict[str, Any]:
    """Figures of one drafter: by position, by block length, and the standard error of its tokens per step
    (by request)."""
    accepted = [np.array([r["accepted"] for r in s["rounds"]], float) for s in samples if s["rounds"]]
    every = np.concatenate(accepted)
    rounds = np.array([len(a) for a in accepted], float)
    tokens = np.array([a.sum() + len(a) for a in accepted])
    tau = tokens.sum() / rounds.sum()
    return {
        "rounds": int(rounds.sum()),
        "tau": float(tau),
        "error": float(np.sqrt(((tokens - tau * rounds) ** 2).sum()) / rounds.sum()),
        "conditional": [
            float((every >= k).sum() / max((every >= k - 1).sum(), 1)) for k in range(1, block + 1)
        ],
        "reached": [int((every >= k - 1).sum()) for k in range(1, block + 1)],
        # Cut blocks at the same anchors: what a shorter block would have kept there.
        "by_block": [float(np.minimum(every, k).mean() + 1.0) for k in range(1, block + 1)],
    }


def draw(settings: Settings, numbers: dict[str, Any]) -> None:
    """Acceptance by position and tokens per step by block length."""
    figure, axes = canvas(9, 3.6, 2)
    for colour, (label, entry) in zip(COLOURS, numbers["drafters"].items(), strict=False):
        at = range(1, len(entry["conditional"]) + 1)
        axes[0].plot(at, entry["conditional"], "o-", ms=3, color=colour, label=label)
        axes[1].plot(at, entry["by_block"], "o-", ms=3, color=colour, label=label)
    axes[0].set(xlabel="position", ylabel="accepted, given all before were", ylim=(0, 1))
    axes[1].set(xlabel="block length γ", ylabel="tokens per step")
    axes[0].legend(fontsize=7)
    save(figure, settings, "drafters")


def text(numbers: dict[str, Any]) -> str:
    """The section of the document."""
    found = numbers["drafters"]
    order = sorted(found, key=lambda label: -found[label]["tau"])
    body = [
        [
            label,
            f"{e['tau']:.2f} ± {e['error']:.2f}",
            *(f"{e['conditional'][k]:.2f}" for k in (0, 2, 4, 6) if k < len(e["conditional"])),
        ]
        for label, e in found.items()
    ]
    first, second = found[order[0]], found[order[1]]
    apart = (first["tau"] - second["tau"]) / float(np.hypot(first["error"], second["error"]))
    missing = [label for label in NAMES if label not in found]
    left = f" Not bundled, so not compared: {', '.join(missing)}." if missing else ""
    return f"""The tiny drafters in `models/` on {numbers["prompts"]} made-up sums, whole blocks,
temperature 1. In the paper: {PAPER_ORDER}. Found here, most tokens per
step first: {"; ".join(order)}
(the first two are {apart:.1f} standard errors apart).{left}

{table(["drafter", "tokens per step", "position 1", "3", "5", "7"], body)}

![drafters](figures/drafters.png)
"""
