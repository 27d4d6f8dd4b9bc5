"""What an audit found, as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .text import count, grid, paragraph


def audit_text(found: Mapping[str, Any]) -> str:
    """A document `specsched/audit/1`: the leak or that there is none, what was looked at and what was not."""
    head = f"{found['policy']}: {'a leak' if found['found'] else 'no leak found'}"
    parts = [head]
    if found["leak"] is not None:
        parts.append(leak_text(found["leak"]))
    rows = [
        (row["what"], count(row["systems"]), count(row["inputs"]), "yes" if row["drafts"] else "not read")
        for row in found["searched"]
    ]
    parts.append(grid(("searched", "systems", "inputs", "drafts varied"), rows))
    parts.append(paragraph(f"Bound: {found['bound']}."))
    parts.append("\n".join(["Not covered:", *(paragraph(f"- {what}") for what in found["not_covered"])]))
    return "\n\n".join(parts)


def leak_text(leak: Mapping[str, Any]) -> str:
    """A document `specsched/leak/1`: the system, the two presents, and what comes of it."""
    first, other = leak["presents"]
    k, row = leak["position"], leak["request"]
    what = (
        f"Two versions of the present step, which differ in draft {k} of request {row} and in what may "
        f"follow from it. Whether draft {k} is "
        f"verified must be the same in both: all that is known before it is."
    )
    rows = [
        ("drafts", *(_numbers(each["drafts"]) for each in (first, other))),
        ("confidences", *(_numbers(each["confidence"]) for each in (first, other))),
        ("verified by the policy", *(str(each["length"]) for each in (first, other))),
    ]
    others = [
        f"request {i}: drafts {_numbers(leak['drafts'][i])}, confidences {_numbers(c)}"
        for i, c in enumerate(leak["confidence"])
        if i != row
    ]
    steps = len(leak["steps"])
    rest = [
        f"steps per second at B = 0, 1, ...: {_numbers(leak['sps'])}",
        *others,
        f"earlier steps: {steps or 'none'}{' (in the file)' if steps else ''}",
    ]
    law = leak["law"]
    comes = _law(leak, law)
    return "\n\n".join(
        [
            paragraph(what),
            grid((f"request {row}", "present", "other"), rows),
            "\n".join(map(paragraph, rest)),
            paragraph(comes),
        ]
    )


def _law(leak: Mapping[str, Any], law: Mapping[str, float]) -> str:
    lengths = [each["length"] >= leak["position"] for each in leak["presents"]]
    if lengths[0] == lengths[1]:
        return "The policy treats both versions alike: it does not leak here."
    return (
        f"It is not. Where the drafter draws each of the two tokens half of the time and the target "
        f"has token {law['token']} with probability {law['target']:.2f}, it is served "
        f"with {law['served']:.2f} (exact)."
    )


def _numbers(values: Any) -> str:
    return " ".join(f"{value:.4g}" for value in values)
