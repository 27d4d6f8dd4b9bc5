"""Settings to type into an engine, as text: what was compared, what each is worth, the lines to paste."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from .tables import tail
from .text import count, decimal, grid, interval, paragraph

Row = Mapping[str, Any]
GIB = 2.0**30


def advice_text(document: Row, engines: Sequence[str] = ()) -> str:
    """The document `specsched/advice/1` as text; `engines`: of these alone (default: all)."""
    chosen = [e for e in document["engines"] if not engines or e["engine"] in engines]
    blocks = [
        paragraph(document["headline"]),
        grid(*candidate_rows(document)),
        *not_searched(document),
        paragraph(schedule_line(document)),
        paragraph(memory_line(document)),
    ]
    for engine in chosen:
        blocks.append(f"{engine['title']} ({engine['read_in']}): {policy_said(engine)}")
        blocks.append(grid(*setting_rows(engine)))
        blocks.append("\n".join(paragraph(said) for said in setting_notes(engine)))
        blocks.append(paste_text(engine["paste"]))
    return "\n\n".join([*blocks, "\n".join(tail(document))])


def candidate_rows(document: Row) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the policies, each at this traffic."""
    promised = document["traffic"]["kind"] == "sla"
    header = ["policy", "users", "interval"] if promised else ["policy", "users"]
    header += ["tokens/s", "interval", f"{document['traffic']['share']:.0%} of\nusers reach"]
    rows = []
    for row in document["candidates"]:
        users = [count(row["users"])]
        if promised:
            searched = row["capacity"] is not None
            users = [count(row["capacity"]) if searched else f"at {count(row['users'])}"]
            users.append(interval(row["capacity_interval"]))
        speed = count(row["throughput"]) if row["steady"] else "piles up" if row["throughput"] else "-"
        rows.append(
            [row["policy"], *users, speed, interval(row["throughput_interval"]), decimal(row["slow_user"])]
        )
    return header, rows


def not_searched(document: Row) -> list[str]:
    """How to read a policy whose capacity nobody searched."""
    if document["traffic"]["kind"] != "sla" or all(r["capacity"] is not None for r in document["candidates"]):
        return []
    return [paragraph("at N: simulated with N users alone; its own capacity was not searched.")]


def schedule_line(document: Row) -> str:
    """The schedule by batch size in words."""
    said = document["schedule"]
    rows = ", ".join(f"{k} for {_range(first, last)}" for first, last, k in said["rows"])
    return (
        f"schedule (drafts by batch size, within {said['tolerance']:.0%} of the best k at each, at "
        f"{count(said['context'])} tokens of context): {rows}"
    )


def _range(first: int, last: int) -> str:
    return f"{first}" if first == last else f"{first}-{last}"


def memory_line(document: Row) -> str:
    """Where the memory goes, in words."""
    m = document["memory"]
    if m["kv_tokens"] is None:
        return "memory: not said by the profile, so that it bounds nothing here"
    drafter = "of unknown memory, not counted"
    if m["drafter_weights"] is not None and m["drafter_kv_per_token"] is not None:
        drafter = (
            f"{m['drafter_weights'] / GIB:,.1f} GiB of weights and "
            f"{m['drafter_kv_per_token'] / 1024:,.0f} KiB of KV a token"
        )
    graphs = f"{m['graph'] / 2**20:,.0f} MiB a captured size" if m["graph"] else "captured sizes not counted"
    return (
        f"memory: KV of {count(m['kv_tokens'])} tokens without a drafter, "
        f"{count(m['kv_tokens_drafting'])} beside it (drafter: {drafter}; {graphs}; "
        f"{m['kept_free']:.0%} kept free)"
    )


def policy_said(engine: Row) -> str:
    """What an engine is told, in words."""
    k, policy = engine["num_speculative_tokens"], engine["policy"]
    if not k:
        return f"no drafting, at most {count(engine['max_num_seqs'])} requests at once"
    rule = {"schedule": "a schedule by batch size"}.get(policy, f"{k} drafts")
    if policy.startswith("lagged"):
        rule = f"budgets by confidences {engine['lag']} steps old"
    return f"{rule}, at most {count(engine['max_num_seqs'])} requests at once"


def setting_rows(engine: Row) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the settings of one engine, all of it last; read with `setting_notes`."""
    header = ["setting", "advised", "instead of", "gains", "95 % interval", "with", "without"]
    rows = [[s["name"], s["value"], s["default"], *_worth(s["worth"])] for s in engine["settings"]]
    return header, [*rows, ["all of it", "", "only told to draft", *_worth(engine["total"])]]


def setting_notes(engine: Row) -> list[str]:
    """What every difference is counted in, and how to read it."""
    said = [
        f"{s['name']}: {s['worth']['measure'] + ', ' if s['worth'] else ''}{s['said']}"
        for s in engine["settings"]
    ]
    return [*said, f"all of it: {engine['total']['measure']}"]


def _worth(worth: Row | None) -> list[str]:
    """The difference, its interval, and both figures."""
    if worth is None:
        return ["-", "", "", ""]
    low_high, relative = worth["interval"], worth["relative"]
    return [
        "-" if relative is None else _signed(relative),
        "" if low_high is None else " ~ ".join(_signed(v) for v in low_high),
        _figure(worth["recommended"]),
        _figure(worth["default"]),
    ]


def _figure(value: float) -> str:
    return count(value) if value >= 1000 else f"{value:.4g}"


def _signed(value: float) -> str:
    return f"{round(value, 3) + 0.0:+.1%}"


def over_lines(command: str) -> str:
    """A command with each of its long options on a line of its own, continued as a POSIX shell has it."""
    lines: list[list[str]] = [[]]
    for word in shlex.split(command):
        if word.startswith("--"):
            lines.append([])
        lines[-1].append(word)
    return " \\\n  ".join(shlex.join(line) for line in lines)


def paste_text(paste: Row) -> str:
    """The lines of one engine, files first."""
    blocks = [f"# {name}\n{content.rstrip()}" for name, content in paste["files"].items()]
    blocks.append(over_lines(paste["command"]))
    if paste["tables"]:
        blocks.append(f"# tables named above, written by --out: {', '.join(paste['tables'])}")
    blocks += [paragraph(said, "# unverified: ") for said in paste["unverified"]]
    return "\n".join(blocks)
