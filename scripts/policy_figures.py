"""Run the policies no engine has beside those engines have, and write the tables of docs/policies.md.

    python scripts/policy_figures.py [--published FOLDER] [--requests 400]

Every row is one closed loop, or one set of arrivals, replayed under each policy on the same text: half of the
trace's requests, confidences fitted on the other half. FOLDER holds the published B300 cost tables that `make
validate` reads; without it the rows on them keep their last numbers. All rows are kept in docs/policies.json.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np

from specsched.calibration.holdout import split_and_calibrate
from specsched.formats.registry import read
from specsched.planner import answer
from specsched.profile import StepProfile, load_profile
from specsched.simulator import SimResult, simulate
from specsched.trace import load_trace
from specsched.workload import parse_arrivals

ROOT = Path(__file__).resolve().parent.parent
PAGE, DATA = ROOT / "docs" / "policies.md", ROOT / "docs" / "policies.json"
POLICIES = ("off", "lagged:2", "bypass:2")
LOADS = (1, 4, 16, 48, 64, 96, 128, 192, 256)
PAIRS = (
    ("code", "h100-sxm_qwen3-8b_bf16_tp1"),
    ("chat", "h100-sxm_qwen3-30b-a3b_bf16_tp1"),
    ("math-t06", "a100-sxm_llama-3-8b_fp16_tp1_jagged"),
    ("qwen3-4b-chat", "h100-sxm_qwen3-8b_bf16_tp1"),
    ("qwen3-4b-code", "h200-sxm_llama-3-70b_fp8_tp4"),
)
# The first three are those on which the weights of `sla` were chosen; the others were not looked at before.
PROMISES = (
    ("qwen3-4b-chat", "h100-sxm_qwen3-8b_bf16_tp1", 120),
    ("code", "h100-sxm_qwen3-8b_bf16_tp1", 125),
    ("qwen3-4b-math", "h200-sxm_llama-3-70b_fp8_tp4", 80),
    ("math", "h100-sxm_qwen3-8b_bf16_tp1", 120),
    ("chat-t06", "h200-sxm_qwen3-14b_bf16_tp1", 90),
    ("qwen3-4b-code", "h100-sxm_qwen3-30b-a3b_bf16_tp1", 60),
)
SPLITS = 8  # halves of the trace that are replayed, one a seed
HISTORIES = ("fixed:2", "fixed:7", "history:8", "lagged:2")
PUBLISHED = "vllm_b300_dsv4flash0731_tp4_"
ARRIVALS = tuple(f"gamma:{rate}:3" for rate in (40, 55, 65, 75, 90))


def closed(trace: str, profile: StepProfile, loads: tuple[int, ...], requests: int) -> list[dict[str, Any]]:
    """Throughput of every policy at every load, with its interval."""
    replayed, fitted, _ = split_and_calibrate(load_trace(trace), "sts", 0)
    rows = []
    for users in loads:
        row: dict[str, Any] = {"trace": trace, "profile": profile.name, "users": users}
        for policy in POLICIES:
            n = max(requests, 2 * users)
            found = simulate(
                replayed, profile, policy, users, requests=n, calibration=fitted, log_steps=1
            ).summary
            row[policy] = [found["throughput"], *found["intervals"]["throughput"]]
        rows.append(row)
        print(row, file=sys.stderr)
    return rows


def arriving(trace: str, profile: StepProfile, arrivals: str, requests: int) -> dict[str, Any]:
    """Speeds of the users under arrivals in bursts: what arrives is served, the question is how fast."""
    replayed, fitted, _ = split_and_calibrate(load_trace(trace), "sts", 0)
    workload = parse_arrivals(arrivals, requests=20 * requests, seed=0)
    row: dict[str, Any] = {"trace": trace, "profile": profile.name, "arrivals": arrivals}
    for policy in POLICIES:
        run: SimResult = simulate(
            replayed, profile, policy, workload=workload, calibration=fitted, log_steps=1
        )
        speed = run.summary["tps_user"]
        row[policy] = [speed["mean"], *run.summary["intervals"]["tps_user"]["mean"]]
        row[f"{policy} p05"] = speed["p05"]
        row[f"{policy} users"] = run.summary["concurrency_mean"]
    print(row, file=sys.stderr)
    return row


def promised(trace: str, profile: StepProfile, sla: int, requests: int) -> dict[str, Any]:
    """Users at 95 % of requests, and what both policies keep and serve at the users `lagged:2` carries."""
    policies = ("lagged:2", f"sla:{sla}")
    options: dict[str, Any] = {"requests": requests, "policies": list(policies), "prefill": "disaggregated"}
    found = answer(trace, profile, float(sla), **options)
    row: dict[str, Any] = {"trace": trace, "profile": profile.name, "sla": sla}
    row["users"] = [[p["capacity"], *p["capacity_interval"]] for p in found["policies"]]
    load = max(row["users"][0][0], 1)
    for name, policy in zip(("lagged", "paced"), policies, strict=True):
        runs = []
        for seed in range(SPLITS):
            replayed, fitted, _ = split_and_calibrate(load_trace(trace), "sts", seed)
            runs.append(
                simulate(
                    replayed,
                    profile,
                    policy,
                    load,
                    requests=requests,
                    calibration=fitted,
                    seed=seed,
                    log_steps=1,
                )
            )
        shares = np.array([run.share_at(float(sla)) for run in runs])
        row[f"{name} share"] = [float(shares.mean()), float(shares.std(ddof=1) / SPLITS**0.5)]
        row[f"{name} tokens/s"] = float(np.mean([run.summary["throughput"] for run in runs]))
    print(row, file=sys.stderr)
    return row


def remembering(
    trace: str, profile: StepProfile, loads: tuple[int, ...], requests: int
) -> list[dict[str, Any]]:
    """Throughput of policies without confidences beside one that has them."""
    replayed, fitted, _ = split_and_calibrate(load_trace(trace), "sts", 0)
    rows = []
    for users in loads:
        row: dict[str, Any] = {"trace": trace, "profile": profile.name, "users": users}
        for policy in HISTORIES:
            run = simulate(
                replayed, profile, policy, users, requests=requests, calibration=fitted, log_steps=1
            )
            row[policy] = [run.summary["throughput"], *run.summary["intervals"]["throughput"]]
        rows.append(row)
        print(row, file=sys.stderr)
    return rows


def published(folder: Path) -> StepProfile:
    """vLLM's own table of DeepSeek-V4-Flash on four B300, with the host's √R ms that it leaves out."""
    verify, draft = folder / f"{PUBLISHED}verify_cost_ms.csv", folder / f"{PUBLISHED}draft_cost_ms.csv"
    found: StepProfile = read(
        verify, draft=str(draft), capture_limit=1024, gpu_count=4, name="vllm-b300-v4-flash"
    ).object
    grid = [1, 2, 4, 8, 16, 32, 64, 128, 256]
    host = {"requests": grid, "seconds": [1e-3 * r**0.5 for r in grid]}
    return StepProfile.from_dict({**found.to_dict(), "overhead": host})


def number(x: list[float], digits: int = 0) -> str:
    return f"{x[0]:,.{digits}f} ({x[1]:,.{digits}f} ~ {x[2]:,.{digits}f})"


def closed_table(rows: list[dict[str, Any]]) -> str:
    head = ["trace, profile", "users", *POLICIES, "bypass:2 against the better of the two"]
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    for row in rows:
        better = max(row["off"][0], row["lagged:2"][0])
        cells = [f"{row['trace']}, {row['profile']}", str(row["users"])]
        cells += [number(row[p]) for p in POLICIES] + [f"{row['bypass:2'][0] / better - 1:+.2%}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def open_table(rows: list[dict[str, Any]]) -> str:
    head = ["arrivals", *(f"{p}: users; mean speed; p05" for p in POLICIES), "mean against the better"]
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    for row in rows:
        better = max(row["off"][0], row["lagged:2"][0])
        cells = [row["arrivals"]]
        cells += [f"{row[f'{p} users']:.0f}; {number(row[p], 1)}; {row[f'{p} p05']:.1f}" for p in POLICIES]
        lines.append("| " + " | ".join([*cells, f"{row['bypass:2'][0] / better - 1:+.1%}"]) + " |")
    return "\n".join(lines)


def promised_table(rows: list[dict[str, Any]]) -> str:
    head = ["trace, profile, SLA", "users, `lagged:2`", "users, `sla`", "more"]
    head += ["at the users of `lagged:2`: its share", "share of `sla`", "tokens/s, `lagged:2`", "`sla`"]
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    for row in rows:
        (lagged, *_), (paced, *_) = row["users"]
        cells = [f"{row['trace']}, {row['profile']}, {row['sla']}", *(number(x) for x in row["users"])]
        cells.append(f"{paced / lagged - 1:+.0%}" if lagged else "")
        for name in ("lagged", "paced"):
            mean, error = row[f"{name} share"]
            cells.append(f"{100 * mean:.1f} ± {100 * error:.1f} %")
        served = row["lagged tokens/s"], row["paced tokens/s"]
        cells += [f"{served[0]:,.0f}", f"{served[1]:,.0f} ({served[1] / served[0] - 1:+.1%})"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def history_table(rows: list[dict[str, Any]]) -> str:
    head = ["trace, profile", "users", *(f"`{p}`" for p in HISTORIES), "`history:8` against `lagged:2`"]
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    for row in rows:
        cells = [f"{row['trace']}, {row['profile']}", str(row["users"]), *(number(row[p]) for p in HISTORIES)]
        cells.append(f"{row['history:8'][0] / row['lagged:2'][0] - 1:+.1%}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def write(kept: dict[str, Any]) -> None:
    """The rows, and the tables between the marks of the page."""
    DATA.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    page = PAGE.read_text(encoding="utf-8")
    tables = {"closed": closed_table(kept["closed"] + kept["published"]), "open": open_table(kept["open"])}
    tables["promised"] = promised_table([*kept["promised"], *kept["published promised"]])
    tables["history"] = history_table([*kept["history"], *kept["published history"]])
    for name, text in tables.items():
        page = re.sub(
            f"(<!-- {name} -->\n).*?(<!-- /{name} -->)", rf"\g<1>{text}\n\g<2>", page, flags=re.DOTALL
        )
    PAGE.write_text(page, encoding="utf-8")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    options.add_argument("--published", type=Path)
    options.add_argument("--requests", type=int, default=400)
    options.add_argument("--only", choices=["closed", "published", "open", "promised", "history"])
    given = options.parse_args()
    kept = json.loads(DATA.read_text(encoding="utf-8")) if DATA.is_file() else {}
    tables = ("closed", "published", "open", "promised", "published promised", "history", "published history")
    kept = dict.fromkeys(tables, ()) | kept
    if given.only in (None, "closed"):
        kept["closed"] = [row for t, p in PAIRS for row in closed(t, load_profile(p), LOADS, given.requests)]
    if given.only in (None, "published") and given.published is not None:
        kept["published"] = closed("qwen3-4b-chat", published(given.published), LOADS, given.requests)
    if given.only in (None, "open"):
        profile = load_profile("h100-sxm_qwen3-8b_bf16_tp1")
        kept["open"] = [arriving("code", profile, arrivals, given.requests) for arrivals in ARRIVALS]
    if given.only in (None, "promised"):
        kept["promised"] = [promised(t, load_profile(p), sla, given.requests) for t, p, sla in PROMISES]
        if given.published is not None:
            profile = published(given.published)
            kept["published promised"] = [promised("qwen3-4b-chat", profile, 80, given.requests)]
    if given.only in (None, "history"):
        kept["history"] = [
            r for t, p in PAIRS for r in remembering(t, load_profile(p), (16, 64, 128), given.requests)
        ]
        if given.published is not None:
            profile = published(given.published)
            kept["published history"] = remembering("qwen3-4b-chat", profile, (16, 64, 128), given.requests)
    write(kept)


if __name__ == "__main__":
    main()
