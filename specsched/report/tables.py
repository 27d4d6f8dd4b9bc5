"""Answers as plain text, narrow where possible: the conclusion first, then the tables, then the doubts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..documents.promise import with_limits
from .text import NOTHING, WIDTH, count, decimal, grid, interval, paragraph, proved, share

Row = Mapping[str, Any]
STEEP = 0.7  # of the users, left when steps cost 10 % more: below it a sentence says so


# --------------------------------------------------------------------------- the answer of `simulate --sla`


def at_capacity(policy: Row) -> Row:
    """The figures at the capacity; where that is 0, those of the lightest load there is."""
    if policy.get("at_capacity"):
        return {"concurrency": policy["capacity"], **policy["at_capacity"]}
    return min(policy["curve"], key=lambda row: row["concurrency"])


def by_capacity(answer: Row) -> list[Row]:
    """The policies, most users first; among equals the one with more throughput, then the lossless one."""

    def rank(policy: Row) -> tuple[float, float, bool]:
        return (
            -(policy["capacity"] or 0),
            -(policy.get("throughput_at_capacity") or 0.0),
            not policy["lossless"],
        )

    return sorted(answer["policies"], key=rank)


def capacity_rows(answer: Row) -> tuple[list[str], list[list[str]]]:
    """Header and cells of the first table: how many users, at what speed."""
    several = (answer.get("gpus_per_engine") or 1) > 1
    header = [
        "policy",
        "users",
        "interval",
        "steps\n±10 %",
        *(["users\nper GPU"] if several else []),
        "binds",
        "tokens/s\nin all",
        "per user\np05",
        "\np50",
        "TPOT ms\np95",
    ]
    rows = []
    for policy in by_capacity(answer):
        row = at_capacity(policy)
        speed = row.get("tps_user") or {}
        none = not policy["capacity"]
        rows.append(
            [
                _marked(policy, answer),
                count(policy["capacity"]),
                interval(policy.get("capacity_interval")),
                interval(_if_steps(policy)),
                *([decimal(policy.get("capacity_per_gpu"))] if several else []),
                str(policy.get("binds") or NOTHING),
                NOTHING if none else count(policy.get("throughput_at_capacity")),
                *(decimal(speed.get(key)) for key in ("p05", "p50")),
                # A token's time is 1 / the speed, so its slow end is the speed's.
                decimal(1e3 / speed["p05"]) if speed.get("p05") else NOTHING,
            ]
        )
    return [*header, "lossless"], [
        [*cells, proved(policy["lossless"])] for cells, policy in zip(rows, by_capacity(answer), strict=True)
    ]


def _if_steps(policy: Row) -> list[int] | None:
    """Users when every step takes 10 % longer, and when it takes 10 % less."""
    found = policy.get("capacity_if_steps")
    return [found["costlier"], found["cheaper"]] if found else None


def times_rows(rows: Sequence[tuple[str, Row]], first: str = "policy") -> tuple[list[str], list[list[str]]]:
    """Header and cells: what users wait for, of (name, figures of a run) each; columns without a figure go.

    Where anybody waits for a place, a user's speed without the wait stands beside that with it.
    """
    spreads = (
        ("wait ms", "wait_seconds", 1e3, 0),
        ("TTFT ms", "ttft_seconds", 1e3, 0),
        ("TPOT ms", "tpot_seconds", 1e3, 1),
        ("pause ms", "itl_seconds", 1e3, 0),
        ("end-to-end s", "end_to_end_seconds", 1.0, 2),
    )
    header, columns = [first], [[name for name, _ in rows]]
    for title, key, unit, digits in spreads:
        if not any((row.get(key) or {}).get("p99") for _, row in rows):
            continue
        for quantile in ("p50", "p95", "p99"):
            header.append(f"{title if quantile == 'p50' else ''}\n{quantile}")
            values = [(row.get(key) or {}).get(quantile) for _, row in rows]
            columns.append([decimal(None if v is None else unit * v, digits) for v in values])
    if any((row.get("wait_seconds") or {}).get("p95") for _, row in rows):
        for title, key in (("tokens/s p05\nno wait", "without"), ("\nwith it", "with")):
            header.append(title)
            columns.append([decimal((row.get(f"tps_user_{key}_wait") or {}).get("p05")) for _, row in rows])
    return header, [list(cells) for cells in zip(*columns, strict=True)]


_TIMES = {
    "wait": "wait: for a place in the batch; the last columns are a user's speed without it and with it.",
    "TTFT": "TTFT: from arrival to the first token, wait and prefill in it.",
    "TPOT": "TPOT: time per output token of a request.",
    "pause": "pause: its longest time between two deliveries of tokens.",
}


def times_explained(header: Sequence[str]) -> str:
    """What the columns of `times_rows` say."""
    shown = [text for key, text in _TIMES.items() if any(title.startswith(key) for title in header)]
    return " ".join([*shown, "p95: all but 5% of requests are below."])


_PROMISES = {"speed": "speed", "ttft": "TTFT", "itl": "pause", "e2e": "end-to-end"}


def goodput_rows(rows: Sequence[tuple[str, Row | None]]) -> tuple[list[str], list[list[str]]]:
    """Header and cells: good requests, and the share of requests that keeps each promise alone."""
    found = [(name, goodput) for name, goodput in rows if goodput]
    names = [key for key in _PROMISES if any(key in goodput["shares"] for _, goodput in found)]
    header = ["policy", "good\nrequests", "good\nrequests/s", "good\ntokens/s"]
    header += [("keep\n" if i == 0 else "\n") + _PROMISES[key] for i, key in enumerate(names)]
    return header, [
        [
            name,
            share(goodput["share"]),
            decimal(goodput["requests_per_second"], 3),
            count(goodput["tokens_per_second"]),
            *(share(goodput["shares"].get(key)) for key in names),
        ]
        for name, goodput in found
    ]


def has_limits(document: Row) -> bool:
    """Whether anything is promised beside the speed."""
    limits = document.get("limits") or {}
    return any(limits.get(f"{name}_seconds") is not None for name in ("ttft", "itl", "e2e"))


def step_rows(answer: Row) -> tuple[list[str], list[list[str]]]:
    """Header and cells of the second table: what a step does at that load."""
    header = [
        "policy",
        "at users",
        "emitted\nper step",
        "tokens verified\nper request",
        "drafts\nrejected",
        "of the hindsight\nreference",
    ]
    rows = []
    for policy in by_capacity(answer):
        row = at_capacity(policy)
        rows.append(
            [
                _marked(policy, answer),
                count(row.get("concurrency")),
                decimal(row.get("emitted_per_step"), 2),
                decimal(row.get("verify_tokens_per_request"), 2),
                share(row.get("rejected_share")),
                share(policy.get("hindsight_share")),
            ]
        )
    return header, rows


def _marked(policy: Row, answer: Row) -> str:
    out: str = policy["policy"] + (" *" if policy["policy"] == answer.get("recommended") else "")
    return out


def crossover_lines(answer: Row) -> list[str]:
    """One sentence for each load at which another policy takes the lead in throughput."""
    return [
        f"between {count(crossing['between'][0])} and {count(crossing['between'][1])} users "
        f"{crossing['to']} overtakes {crossing['from']} in throughput"
        for crossing in answer.get("crossovers") or []
    ]


def notes(answer: Row) -> list[str]:
    """Sentences under the tables: what the marks mean, and what needs saying of single policies."""
    lines = []
    if answer.get("recommended"):
        lines.append("* recommended: of the lossless policies the one that carries most users at this speed.")
        if answer.get("recommended_runs_in"):
            lines.append(answer["recommended_runs_in"]["said"])
    for policy in by_capacity(answer):
        off_by = policy.get("capacity_if_steps")
        if policy["capacity"] and off_by and off_by["costlier"] < STEEP * policy["capacity"]:
            lines.append(
                f"{policy['policy']} hangs on the cost of a step: 10 % more leaves {off_by['costlier']} of "
                f"its {policy['capacity']} users."
            )
        if not policy["capacity"]:
            speed = (at_capacity(policy).get("tps_user") or {}).get("p05")
            alone = "" if speed is None else f": its 5th percentile is {decimal(speed)} tokens/s"
            lines.append(
                f"{policy['policy']} misses the SLA even with one user{alone} (the row shows that load)."
            )
        if policy.get("pockets"):
            loads = ", ".join(_pocket(pocket) for pocket in policy["pockets"])
            lines.append(
                f"{policy['policy']} meets the SLA again at {loads} users, beyond its first failure."
            )
    return lines


def columns_explained(answer: Row) -> str:
    """What the columns of the first table say."""
    return (
        "interval: what the noise of the trace leaves (95 %). steps ±10 %: users were every step "
        "10 % longer, "
        f"and shorter. binds: what ends the capacity. p05: the speed that 95 % of requests reach "
        "(the SLA asks "
        f"it of {share(answer['sla_fraction'])}); p50: of half of them."
    )


def _pocket(pocket: Any) -> str:
    if isinstance(pocket, Sequence) and not isinstance(pocket, str):
        return count(pocket[0]) if pocket[0] == pocket[-1] else f"{count(pocket[0])} to {count(pocket[-1])}"
    return count(pocket)


def provenance_lines(answer: Row) -> list[str]:
    """`profile: name (composed; ...)` and the like: where the inputs came from."""
    said = answer.get("about") or {}
    lines = [
        f"{key}: {answer[key]}" + (f" ({said[key]})" if key in said else "") for key in ("profile", "trace")
    ]
    note = answer.get("calibration")
    return [*lines, f"calibration: {calibration_line(note)}"] if note else lines


def calibration_line(note: Row) -> str:
    """What was fitted and on what, in a line."""
    if note["method"] == "none":
        return f"none: raw confidences, all {note['replayed']:,} requests replayed"
    if note.get("fitted_on") is None:
        return f"{note['method']}, from a file; all {note['replayed']:,} requests replayed"
    halves = f"fitted on {note['fitted_on']:,} requests; the other {note['replayed']:,} are replayed"
    return f"{note['method']}, {halves}"


def tail(document: Row) -> list[str]:
    """Warnings, what was not modelled, and the inputs: the end of every text answer."""
    lines = [paragraph(text, "warning: ") for text in dict.fromkeys(document.get("warnings") or [])]
    missing = document.get("not_modelled")
    if missing:
        lines.append(paragraph(missing if isinstance(missing, str) else "; ".join(missing), "not modelled: "))
    return lines + [paragraph(line) for line in provenance_lines(document)]


def answer_text(answer: Row) -> str:
    """The whole answer of `simulate --sla` as text: a concluding sentence, two tables, the doubts."""
    target = f"{share(answer['sla_fraction'])} of requests at {answer['sla_tps']:g} tokens/s or faster"
    target += with_limits(answer.get("limits"))
    crossings = crossover_lines(answer)
    blocks = [
        paragraph(answer["headline"]),
        paragraph(f"Users one engine carries ({_gpus(answer)}) with {target}:"),
        grid(*capacity_rows(answer)),
        paragraph(
            "per user: output tokens/s from a request's first token to its last; p05 is the speed that 95% "
            "of requests reach, p50 that half of them reach. TPOT: ms per output token, at the slow end too."
        ),
        *(promised_blocks(answer, held_rows(answer)) if _waits(answer) else []),
        "What a step does at that load:",
        grid(*step_rows(answer)),
        "\n".join(paragraph(line) for line in notes(answer)),
        "\n".join(paragraph(line, "crossover: ") for line in crossings),
        "\n".join(tail(answer)),
    ]
    return "\n\n".join(block for block in blocks if block)


def _waits(answer: Row) -> bool:
    """Whether users are promised more than TPOT, which the first table has, or wait for a place."""
    held = [policy["at_capacity"] for policy in answer["policies"] if policy.get("at_capacity")]
    return has_limits(answer) or any((row.get("wait_seconds") or {}).get("p95") for row in held)


def held_rows(answer: Row) -> list[tuple[str, Row]]:
    """(name, figures at the capacity) of the policies that carry anybody."""
    return [
        (_marked(policy, answer), {**policy["at_capacity"], "goodput": policy.get("goodput")})
        for policy in by_capacity(answer)
        if policy.get("at_capacity")
    ]


def promised_blocks(document: Row, rows: Sequence[tuple[str, Row]]) -> list[str]:
    """What users wait for and, where limits are given, the good requests."""
    if not rows:
        return []
    header, cells = times_rows(rows)
    text = grid(header, cells)
    if max(map(len, text.split("\n"))) > WIDTH:
        cut = next(i for i, title in enumerate(header) if title.startswith("pause"))
        parts = [[*range(cut)], [0, *range(cut, len(header))]]
        text = "\n\n".join(
            grid([header[i] for i in part], [[row[i] for i in part] for row in cells]) for part in parts
        )
    blocks = ["What users wait for there:", text, paragraph(times_explained(header))]
    if has_limits(document) and any(row.get("goodput") for _, row in rows):
        found = [(name, row.get("goodput")) for name, row in rows]
        blocks += ["Good requests, which keep all that is promised at once:", grid(*goodput_rows(found))]
    return blocks


def _gpus(answer: Row) -> str:
    gpus = answer.get("gpus_per_engine") or 1
    return f"{gpus} GPU" + ("s" if gpus > 1 else "")
