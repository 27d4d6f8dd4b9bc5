"""What `profile fit-overhead` met, load by load."""

from __future__ import annotations

from ..profile import StepProfile
from .text import count, decimal, grid, paragraph, share


def overhead_text(profile: StepProfile) -> str:
    """Tokens/s of one user by load: of the table alone, as measured, and of the fitted profile."""
    fit = (profile.fit or {})["overhead"]
    columns = (fit["loads"], fit["table_tok_s_user"], fit["measured_tok_s_user"], fit["refitted_tok_s_user"])
    rows = [
        [count(load), *(decimal(v, 1) for v in (table, measured, refitted)), share(refitted / measured - 1.0)]
        for load, table, measured, refitted in zip(*columns, strict=True)
    ]
    if fit["law"] is None:
        how = "Through every load: no smooth law meets them all, or they are too few to show their noise."
    else:
        a, b, c = (1e3 * term for term in fit["law"])
        how = (
            f"Smoothed: {a:.3g} + {b:.3g} sqrt(R) + {c:.3g} R ms; the loads scatter about it by "
            f"{fit['scatter']:.1%} of a step, which is read as noise."
        )
    header = ["users", "table alone,\ntokens/s", "measured", "refitted", "off by"]
    return "\n\n".join([grid(header, rows), paragraph(how)])
