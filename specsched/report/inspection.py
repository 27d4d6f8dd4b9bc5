"""What a profile, trace or calibration holds, as text: one sentence, its table, what is wrong with it."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from .text import NOTHING, count, decimal, grid, paragraph, share, width

Row = Mapping[str, Any]


def inspection_text(found: Row) -> str:
    """Text of a dictionary of `specsched.inspection`, except calibrations (`calibration_text`)."""
    bodies = {
        "profile": _profile,
        "trace": _trace,
        "acceptance": _acceptance,
        "benchmark": _runs,
        "drafter": _drafter,
    }
    body = bodies[found["kind"]](found)
    findings = [paragraph(text, "warning: ") for text in found["warnings"]]
    findings += [paragraph(text, "finding: ") for text in found["lint"]]
    return "\n\n".join([*body, "\n".join(findings) or "nothing to remark"])


def _shown(pairs: list[tuple[str, Any]]) -> list[tuple[str, str]]:
    return [(name, str(value)) for name, value in pairs if value not in (None, "", 0)]


def _facts(shown: list[tuple[str, str]]) -> str:
    indent = max(len(name) for name, _ in shown) + 2
    return "\n".join(
        textwrap.fill(name.ljust(indent) + value, width(), subsequent_indent=" " * indent)
        for name, value in shown
    )


def profile_headline(found: Row) -> str:
    """The shape of a profile, in a sentence."""
    knee, limit = found["knee_tokens"], found["capture_limit"]
    pieces = [
        f"flat to about {count(knee)} tokens" if knee else "without a knee in its range",
        f"{len(found['cliffs'])} {'cliff' if len(found['cliffs']) == 1 else 'cliffs'}"
        if found["cliffs"]
        else "no cliffs",
        f"graphs captured to {count(limit)} tokens" if limit else "no captured sizes",
    ]
    return f"{found['name']}: {', '.join(pieces)}."


def profile_facts(found: Row) -> list[tuple[str, str]]:
    """What a profile is of and where it comes from: names and values."""
    memory = found["kv_capacity_tokens"]
    return _shown(
        [
            ("GPU", f"{found['gpu']}" + (f" x {found['gpus']}" if found["gpus"] > 1 else "")),
            ("model", found["model"]),
            ("made", f"{found['method']}: {found['source']}"),
            ("licence", found["licence"]),
            (
                "range",
                _range(found),
            ),
            ("lookup", found["lookup"]),
            ("decides by", found.get("decides_by")),
            ("first pass", f"{decimal(1e3 * found['first_pass_seconds'], 2)} ms for one token, no draft"),
            ("KV memory", f"{count(memory)} tokens{_drafting(found)}" if memory is not None else "not said"),
            (
                "fit",
                ", ".join(
                    f"{k.replace('_', ' ')} {v:.3g}" if isinstance(v, float) else f"{k.replace('_', ' ')} {v}"
                    for k, v in (found["fit"] or {}).items()
                    if not isinstance(v, dict)
                ),
            ),
        ]
    )


def _drafting(found: Row) -> str:
    """What a drafter leaves of the KV memory."""
    if found["drafter_memory_known"]:
        return f", {count(found['kv_capacity_drafting'])} beside the drafter"
    return " without a drafter, whose memory is not said" if found["draft_share"] else ""


def _profile(found: Row) -> list[str]:
    blocks = [paragraph(profile_headline(found)), _facts(profile_facts(found))]
    if found["cliffs"]:
        header = ["cliff: tokens", "to", "pass takes", "because of"]
        rows = [
            [count(c["before"]), count(c["after"]), f"x {c['ratio']:.2f}", c["kind"]] for c in found["cliffs"]
        ]
        blocks.append(grid(header, rows))
    if found["draft_share"]:
        few = found["draft_share"][:: max(1, len(found["draft_share"]) // 6)]
        rows = [[count(row["requests"]), share(row["share"])] for row in few]
        blocks.append(grid(["requests", "drafting's share\nof a step"], rows))
    return blocks


def _drafter(found: Row) -> list[str]:
    few, features = found["draft_vocab_size"], found["features"]
    first = (
        f"{found['name']}: {found['drafter']} in the layout of {found['layout']}, "
        f"{count(found['block_size'])} drafts a step."
    )
    facts = [
        ("layers", f"{found['layers']} of width {count(found['hidden_size'])}"),
        (
            "reads",
            "" if features is None else f"the outputs of the target's layers {', '.join(map(str, features))}",
        ),
        ("target", f"of {found['target_layers']} layers" if found["target_layers"] else ""),
        ("drafts", f"{count(few)} of {count(found['vocab_size'])} tokens" if few else "all tokens"),
        ("heads", _heads(found)),
        ("normed", "; ".join(found["norms"])),
        ("rotary", "scaled as Llama 3.1's" if found["rope_scaled"] else ""),
        ("holds", f"{count(found['parameters'])} parameters in {', '.join(found['dtypes'])}{_also(found)}"),
    ]
    return [paragraph(first), _facts(_shown(facts))]


def _heads(found: Row) -> str:
    markov = "" if found["markov_head"] == "none" else f"Markov ({found['markov_head']})"
    return ", ".join(filter(None, [markov, "confidence" if found["confidence_head"] else ""]))


def _also(found: Row) -> str:
    missing = [word for word in ("embedding", "LM head") if word not in found["holds"]]
    return f"; {' and '.join(missing)}: the target's" if missing else ""


def _range(found: Row) -> str:
    low, high = found["tokens"]
    return f"{found['points']} points, {count(low)} to {count(high)} tokens"


def trace_facts(found: Row) -> list[tuple[str, str]]:
    """What a trace is of and where it comes from: names and values."""
    made = "synthetic" if found["synthetic"] else found["mode"]
    return _shown(
        [
            ("kind", f"{made}, block {found['block_size']}"),
            ("drafter", found["drafter"]),
            ("target", found["target"]),
            ("temperature", found["temperature"]),
            ("licence", found["licence"]),
            ("output tokens", _spread(found["output_tokens"])),
            ("prompt tokens", _spread(found["prompt_tokens"])),
            ("domains", ", ".join(f"{name} {count(n)}" for name, n in found["domains"].items())),
            ("arrivals", "in the file" if found["arrivals"] else ""),
        ]
    )


def trace_rows(found: Row) -> tuple[list[str], list[list[str]]]:
    """Header and cells, a row a position of the block."""
    rates = found["conditional_acceptance"]
    header = [
        "position",
        "per decoding step:\naccepted if\nthe one before",
        "per row:\naccepted\nthis far",
        "AUC",
        "ECE %",
        "floor",
        "Brier",
    ]
    rows = [
        [
            count(row["position"]),
            share(rate),
            share(row["accepted_share"]),
            decimal(row["auc"], 3),
            decimal(100 * row["ece"], 1),
            decimal(100 * row["noise_floor"], 1),
            decimal(row["brier"], 3),
        ]
        for row, rate in zip(found["positions"], rates, strict=True)
    ]
    return header, rows


def trace_headline(found: Row) -> str:
    """How long a trace is and what whole blocks emit, in a sentence."""
    return (
        f"{found['name']}: {count(found['requests'])} requests, {count(found['rows'])} anchors; verifying "
        f"whole blocks emits {decimal(found['emitted_per_step'], 2)} tokens a step."
    )


def _trace(found: Row) -> list[str]:
    return [paragraph(trace_headline(found)), _facts(trace_facts(found)), grid(*trace_rows(found))]


def _acceptance(found: Row) -> list[str]:
    first = (
        f"{found['name']}: acceptance rates of {found['block_size']} positions, no confidences; verifying "
        f"whole blocks emits {decimal(found['mean_length'], 2)} tokens a step."
    )
    steps = count(found["steps"]) if found["steps"] else "not said"
    facts = _facts(
        _shown(
            [
                ("format", found["format"]),
                ("steps", steps),
                ("notes", " ".join(found["notes"])),
                ("use", f"specsched trace synth --acceptance {found['file']} -o mine.parquet"),
            ]
        )
    )
    intervals = found.get("intervals")
    rates = zip(found["conditional"], found["survival"], strict=True)
    rows = [[count(k), share(rate), share(far)] for k, (rate, far) in enumerate(rates, 1)]
    header = ["position", "per decoding step:\naccepted if\nthe one before", "accepted\nthis far"]
    if intervals:
        header.insert(2, "95 % interval")
        for row, (low, high) in zip(rows, intervals, strict=True):
            row.insert(2, f"{share(low)} ~ {share(high)}")
    table = grid(header, rows)
    return [paragraph(first), facts, table]


def _runs(found: Row) -> list[str]:
    runs = found["runs"]
    first = (
        f"{found['name']}: {len(runs)} {'run' if len(runs) == 1 else 'runs'} of {found['tool']}, measured."
    )
    sizes = ["prompt", "output", "tokens\na step"]
    header = ["run", "arm", "users", "tokens/s\nper user", "tokens/s", *sizes]
    rows = [
        [
            row["source"],
            row["arm"] or row["policy"] or NOTHING,
            NOTHING if row["users"] is None else count(row["users"]),
            decimal(row["user"], 1),
            decimal(row["total"], 0),
            NOTHING if row["prompt_tokens"] is None else count(row["prompt_tokens"]),
            NOTHING if row["output_tokens"] is None else count(row["output_tokens"]),
            decimal(row["accept_length"], 2),
        ]
        for row in runs
    ]
    use = _facts(_shown([("use", f"specsched fit {found['file']} ... -o mine.json")]))
    return [paragraph(first), use, grid(header, rows)]


def _spread(spread: Row) -> str:
    return f"{count(spread['min'])} to {count(spread['max'])}, mean {decimal(spread['mean'])}"
