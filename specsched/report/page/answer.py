"""The answer of `simulate --sla` as a page: its curves to play with, and all that stands behind it."""

from __future__ import annotations

from collections.abc import Mapping
from string import Template
from typing import Any

from ...documents.promise import with_limits
from .. import tables
from ..plots import speed_key
from ..text import decimal, proved, share
from . import figures
from .background import Background, sections_of
from .frame import asset, doubts, glossary, origins, page
from .html import Section, escape, listed, paragraph, table

Row = Mapping[str, Any]
SCRIPTS = ("capacity.js", "page.js", "answer.js")
WORDS = (
    "user",
    "speed of a user",
    "SLA",
    "p05, p50, p95",
    "capacity",
    "interval",
    "throughput",
    "TTFT",
    "TPOT",
    "ITL",
    "end-to-end",
    "goodput",
    "draft, block",
    "emitted per step",
    "verification",
    "confidence",
    "calibration",
    "captured size",
    "lossless",
    "hindsight",
)
_CURVE = (
    "concurrency",
    "throughput",
    "tps_user",
    "share_at_sla",
    "emitted_per_step",
    "verify_tokens_per_request",
    "step_seconds",
    "memory_held",
    "limits_kept",
    "priced",
    "keeps_tps",
)


def answer_page(answer: Row, command: str = "", background: Background | None = None) -> str:
    """The document `specsched/answer/1` as one HTML page."""
    data: dict[str, Any] = {"charts": {}, "answer": _explored(answer)}
    crossings = tables.crossover_lines(answer)
    sections = [
        Section("Play with it", explorer(answer, data["answer"])),
        Section("Users one engine carries", _capacity(answer)),
        Section("The policies", table(*policy_rows(answer["policies"]), words=True)),
        *waited_sections(answer, tables.held_rows(answer)),
        Section("What would change the answer", _steepness(answer)),
        Section(
            "What a step does at that load",
            table(*tables.step_rows(answer)) + (listed(crossings) if crossings else ""),
        ),
        *sections_of(background, answer, data["charts"]),
        *doubts(answer),
        *origins(answer, command),
        glossary(WORDS),
    ]
    subtitle = f"{answer['trace']} on {answer['profile']}"
    return page(answer["headline"], question(answer), subtitle, sections, data, SCRIPTS)


def question(answer: Row) -> str:
    """What was asked, in a sentence."""
    engine = "GPU" if (answer.get("gpus_per_engine") or 1) == 1 else "engine"
    return (
        f"How many users fit on one {engine} with {share(answer['sla_fraction'])} of requests at "
        f"{answer['sla_tps']:g} tokens/s or faster{with_limits(answer.get('limits'))}, and how should it "
        "speculate?"
    )


def _explored(answer: Row) -> dict[str, Any]:
    """What the scripts of the explorer read: figures to six digits, speeds and shares that decide whole."""
    key, meaning = speed_key(answer["sla_fraction"])
    policies = tables.by_capacity(answer)
    looks = figures.policy_looks([policy["policy"] for policy in policies])
    return {
        "sla_tps": answer["sla_tps"],
        "speed_key": key,
        "speed_meaning": meaning,
        "limits": with_limits(answer.get("limits")),
        "recommended": answer.get("recommended"),
        "ladder": answer["ladder"],
        "policies": [
            {
                **look,
                "id": str(number),
                "policy": policy["policy"],
                "lossless": policy["lossless"],
                "capacity": policy["capacity"],
                "interval": policy["capacity_interval"],
                "captured_loads": policy["captured_loads"],
                "refused_loads": policy["refused_loads"],
                "curve": [_trimmed(row) for row in policy["curve"]],
            }
            for number, (policy, look) in enumerate(zip(policies, looks, strict=True))
        ],
    }


def _trimmed(row: Row) -> dict[str, Any]:
    kept = {key: row[key] for key in _CURVE}
    return {k: float(f"{v:.6g}") if isinstance(v, float) and k != "keeps_tps" else v for k, v in kept.items()}


def explorer(answer: Row, data: Row) -> str:
    """Controls and the two charts; answer.js fills them."""
    sla = answer["sla_tps"]
    stops = sorted({sla, *(at["sla_tps"] for p in answer["policies"] for at in p.get("capacity_at") or [])})
    low, high = min(0.5 * sla, stops[0]), max(2.0 * sla, stops[-1])
    measures = {
        "throughput": "throughput",
        "speed": "speed of a user",
        "share": "share of requests at the SLA asked for",
        **({"gain": "gain over no drafting"} if any(p["policy"] == "off" for p in data["policies"]) else {}),
        "verified": "tokens verified",
        "step": "length of a step",
    }
    exact = "any" if answer["ladder"]["refined"] is False else ", ".join(f"{stop:g}" for stop in stops)
    return Template(asset("explorer.html")).substitute(
        sla=f"{sla:g}",
        low=f"{low:g}",
        high=f"{high:g}",
        marks="".join(f'<option value="{stop:g}" label="{stop:g}"></option>' for stop in stops),
        headline=escape(answer["headline"]),
        policies="".join(_toggle(policy) for policy in data["policies"]),
        key=escape(data["speed_key"]),
        meaning=escape(data["speed_meaning"]),
        exact=escape(exact),
        measures="".join(f'<option value="{key}">{escape(text)}</option>' for key, text in measures.items()),
    )


def _toggle(policy: Row) -> str:
    colour = "var(--ink)" if policy["colour"] == "@ink" else policy["colour"]
    dashed = "" if policy["lossless"] else " dashed"
    return (
        f'<label id="policy-{policy["id"]}"><input type="checkbox" checked>'
        f'<span class="swatch{dashed}" style="border-color:{colour};opacity:{policy["opacity"]:g}"></span>'
        f'<span class="name">{escape(policy["policy"])}</span>'
        f'<span class="users">{policy["capacity"]:,}</span></label>'
    )


def waited_sections(document: Row, rows: list[tuple[str, Row]]) -> list[Section]:
    """What users wait for at the loads of an answer and, where limits are given, the good requests."""
    if not rows:
        return []
    header, cells = tables.times_rows(rows)
    body = table(header, cells) + paragraph(tables.times_explained(header), "small")
    sections = [Section("What users wait for", body)]
    if tables.has_limits(document) and any(row.get("goodput") for _, row in rows):
        goods = table(*tables.goodput_rows([(name, row.get("goodput")) for name, row in rows]))
        said = "Good requests keep all that is promised at once; the shares to the right keep each alone."
        sections.append(Section("Good requests", goods + paragraph(said, "small")))
    return sections


def _capacity(answer: Row) -> str:
    return table(*tables.capacity_rows(answer)) + "".join(
        paragraph(note, "small") for note in [*tables.notes(answer), tables.columns_explained(answer)]
    )


def policy_rows(policies: list[Row]) -> tuple[list[str], list[list[str]]]:
    """Header and cells: what each policy is, which engine runs it, whether the text stays the target's."""
    from ...schedule import POLICIES, Policy

    rows = []
    for row in policies:
        known = POLICIES.get(row["policy"].split(":")[0], Policy)
        rows.append([row["policy"], known.meaning, known.runs_in, proved(row["lossless"])])
    return ["policy", "what it does", "runs in", "lossless"], rows


def _steepness(answer: Row) -> str:
    """Users were steps a tenth longer or shorter, or drafts accepted a tenth more or less often."""
    header = ["policy", "users", "steps 10 %\nlonger", "\nshorter", "accepted 10 %\nless", "\nmore"]
    rows = []
    for policy in tables.by_capacity(answer):
        steps, drafts = policy.get("capacity_if_steps"), policy.get("capacity_if_acceptance")
        cells = [steps["costlier"], steps["cheaper"]] if steps else [None, None]
        cells += [drafts["lower"], drafts["higher"]] if drafts else [None, None]
        marked = policy["policy"] + (" *" if policy["policy"] == answer.get("recommended") else "")
        rows.append([marked, *(decimal(cell, 0) for cell in [policy["capacity"], *cells])])
    return table(header, rows) + paragraph(
        "Both to 2 %. Acceptance changes by thinning: of the drafts that the trace accepted a "
        "tenth is rejected, "
        "or of the rejected so many are accepted, confidences left as they are.",
        "small",
    )
