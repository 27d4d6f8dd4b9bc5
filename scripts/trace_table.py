"""Print the table of traces/README.md: what recorded traces hold, and how good their confidences are.

    python scripts/trace_table.py chat math code

tau is the anchor mean of accepted + 1; "walk" the mean along the steps a full-block engine takes (dense
anchors overweight easy stretches). Per position: P(accepted >= k), then AUC and ECE of the survival on the
requests the STS fit has not seen, raw -> after STS, and the noise floor of that ECE.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from specsched.calibration import fit_sts
from specsched.trace import Trace, load_trace


def walk_tau(trace: Trace) -> float:
    """Mean tokens per step of an engine that verifies whole blocks, cut at the end of each request."""
    steps = tokens = 0
    for start, length in zip(trace.starts, trace.lengths, strict=True):
        at = 0
        while at < length:
            at += int(trace.accepted[start + at]) + 1
            steps += 1
        tokens += int(length)
    return tokens / steps


def rows(name: str) -> list[str]:
    """Markdown rows of one trace."""
    trace = load_trace(name)
    held = fit_sts(trace).report["held_out"]["positions"]
    shares = [float(np.mean(trace.accepted > k)) for k in range(trace.block_size)]
    head = (
        f"`{trace.name}`: {len(trace)} anchors, {len(trace.request_ids)} requests, "
        f"τ {1 + float(trace.accepted.mean()):.3f} (walk {walk_tau(trace):.3f})"
    )

    def line(label: str, values: list[str]) -> str:
        return f"| {label} | " + " | ".join(values) + " |"

    return [
        head,
        "",
        line("position", [str(k + 1) for k in range(trace.block_size)]),
        "|---" * (trace.block_size + 1) + "|",
        line("P(accepted ≥ k)", [f"{s:.3f}" for s in shares]),
        line("AUC", [_number(p["auc_before"], 3) for p in held]),
        line("ECE raw, %", [_number(100 * p["ece_before"], 2) for p in held]),
        line("ECE after STS, %", [_number(100 * p["ece_after"], 2) for p in held]),
        line("noise floor, %", [_number(100 * p["noise_floor"], 2) for p in held]),
        "",
    ]


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


if __name__ == "__main__":
    for given in sys.argv[1:]:
        print("\n".join(rows(given)))
