"""The answer of `answer` in a sentence or two."""

from __future__ import annotations

from ..documents.answer import Answer, PolicyRow
from ..documents.promise import promise


def headline(document: Answer) -> str:
    """One sentence that concludes."""
    rows = {row["policy"]: row for row in document["policies"]}
    promised = promise(document)
    best = rows.get(document["recommended"] or "")
    if best is None:
        unproved = [row for row in rows.values() if row["lossless"] is None and row["capacity"] > 0]
        if unproved:
            most = max(unproved, key=lambda row: row["capacity"])
            return (
                f"No policy proved lossless reaches {promised}; {most['policy']}, not proved, carries "
                f"{most['capacity']} users per engine."
            )
        return f"No lossless policy tried reaches {promised}, even with one user per engine."
    low, high = best["capacity_interval"]
    given = document.get("settings", {}).get("loads") == "given"
    users = f"{best['capacity']} users per engine ({low} ~ {high})"
    if given:
        users = f"{best['capacity']} users per engine, of the loads given,"
        return _of_given_loads(f"{best['policy']} carries {users} at {promised}", best, rows)
    if best["binds"] in ("profile", "ladder"):
        ends = "the profile's costs end" if best["binds"] == "profile" else "no larger load was tried"
        users = f"at least {best['capacity']} users per engine ({ends} there)"
    carries = f"{best['policy']} carries {users} at {promised}"
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
        if best["binds"] in ("memory", "ladder") and off["binds"] == best["binds"]:
            return f"{carries}{tie}, as many as without drafting, but {_faster(best, off)}."
        return f"{carries}{tie}; without drafting {off['capacity']}, within the noise: drafting may not pay."
    times = best["capacity"] / off["capacity"]
    return f"{carries}{tie}, {times:.2f} times as many as without drafting ({off['capacity']})."


def _faster(best: PolicyRow, off: PolicyRow) -> str:
    """Throughput and the slow users' speed beside those without drafting, each at its own capacity."""
    fast, slow = (row["at_capacity"]["tps_user"]["p05"] for row in (best, off) if row["at_capacity"])
    out = f"at {fast:.0f} instead of {slow:.0f} tokens/s"
    if off["throughput_at_capacity"] > 0:
        times = best["throughput_at_capacity"] / off["throughput_at_capacity"]
        out += f" for the slowest 5 % of users and {times:.2f} times the throughput"
    return out


def _of_given_loads(carries: str, best: PolicyRow, rows: dict[str, PolicyRow]) -> str:
    """No ratio of users: loads that somebody chose say which passed, not how many fit."""
    off = rows.get("off")
    if off is None or best is off:
        return f"{carries[:-1] if carries.endswith(',') else carries}."
    if off["capacity"] == 0:
        return f"{carries}; without drafting none of them passes."
    if off["capacity"] != best["capacity"]:
        return f"{carries}; without drafting {off['capacity']} (no load between them was tried)."
    return f"{carries}, as without drafting, but {_faster(best, off)}."
