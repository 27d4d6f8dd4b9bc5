"""The answer of `answer` in a sentence or two."""

from __future__ import annotations

from ..documents import Answer


def headline(document: Answer) -> str:
    """One sentence that concludes."""
    rows = {row["policy"]: row for row in document["policies"]}
    promise = f"{document['sla_tps']:g} tokens/s for {document['sla_fraction']:.0%} of requests"
    best = rows.get(document["recommended"] or "")
    if best is None:
        return f"No lossless policy tried reaches {promise}, even with one user per engine."
    low, high = best["capacity_interval"]
    users = f"{best['capacity']} users per engine ({low} ~ {high})"
    if best["binds"] in ("profile", "ladder"):
        ends = "the profile's costs end" if best["binds"] == "profile" else "no larger load was tried"
        users = f"at least {best['capacity']} users per engine ({ends} there)"
    carries = f"{best['policy']} carries {users} at {promise}"
    off = rows.get("off")
    drafting = [row for row in rows.values() if row["lossless"] and row["policy"] != "off"]
    if best["policy"] == "off":
        rival = max(drafting, key=lambda row: row["capacity"], default=None)
        if rival is None:
            return carries + "."
        return f"Drafting does not pay at this SLA: {carries}, {rival['policy']} {rival['capacity']}."
    level = [r["policy"] for r in drafting if r is not best and r["capacity_interval"][1] >= best["capacity"]]
    tie = f" ({', '.join(level)} within the noise)" if level else ""
    if off is None:
        return f"{carries}{tie}."
    if off["capacity"] == 0:
        return f"{carries}{tie}; without drafting nobody gets that speed."
    if best["capacity_interval"][0] <= off["capacity_interval"][1]:
        fast, slow = (row["at_capacity"]["tps_user"]["p05"] for row in (best, off) if row["at_capacity"])
        if best["binds"] == "memory":
            speeds = f"{fast:.0f} instead of {slow:.0f} tokens/s"
            return f"{carries}{tie}, as many as without drafting, but at {speeds}."
        return (
            f"{carries}{tie}, within the noise of drafting nothing ({off['capacity']}): drafting may not pay."
        )
    times = best["capacity"] / off["capacity"]
    return f"{carries}{tie}, {times:.2f} times as many as without drafting ({off['capacity']})."
