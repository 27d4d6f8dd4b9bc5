"""`make bench`: one table of what is fast and what is not, against floors of the same run and against peers.

    python bench/run.py            measure, print, and fail where a ratio is a quarter worse than written down
    python bench/run.py --write    and write it down: bench/performance.json, docs/performance.md
    python bench/run.py --full     a million requests and a first run with nothing compiled too
    python bench/run.py --base DIR another checkout measured in turn, for what both can do
    python bench/run.py --parts    where the time of two runs goes, written down

Processor seconds where a run takes long, the least of several turns where it is short; both sides in one run,
so that a busy or another machine moves both.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

# Threads of the linear algebra wait in a loop, which would count as ours; numpy reads these once, at import.
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path.insert(0, str(HERE))

import arrivals  # noqa: E402
import loop  # noqa: E402
import plans  # noqa: E402
import start  # noqa: E402
from rows import Row, shown  # noqa: E402

KEPT = HERE / "performance.json"
WORSE = 1.25  # a ratio that has grown by more than that fails
PARTS: dict[str, Any] = {
    "plans": plans.rows,
    "loop": loop.rows,
    "open": loop.open_rows,
    "arrivals": arrivals.rows,
    "start": start.rows,
}


def measured(parts: list[str], full: bool) -> list[Row]:
    """All rows of the parts asked for."""
    found: list[Row] = []
    for name in parts:
        found += PARTS[name](full) if name in ("loop", "start") else PARTS[name]()
    return found


def table(rows: list[dict[str, Any]]) -> str:
    """Rows as markdown: what, ours, floor or peer, ratio, goal, met."""
    lines = ["| what | ours | floor or peer | ratio | goal | met |", "|---|---:|---|---:|---|---|"]
    for row in rows:
        floor = f"{shown(row['floor'], row['unit'])}: {row['against']}"
        met = "yes" if row["met"] else "no"
        cells = row["what"], shown(row["ours"], row["unit"]), floor, f"{row['ratio']:.2f}", row["goal"], met
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def regressions(rows: list[dict[str, Any]], kept: list[dict[str, Any]]) -> list[str]:
    """What has become slower by a quarter than its ratio in the file."""
    before = {row["key"]: row["ratio"] for row in kept}
    return [
        f"{row['what']}: {row['ratio']:.2f} times {row['against']}, {before[row['key']]:.2f} as written down"
        for row in rows
        if row["ratio"] > WORSE * before.get(row["key"], float("inf"))
    ]


def compared(base: str, parts: list[str]) -> list[dict[str, Any]]:
    """Ours and another checkout's seconds for every row of `parts`, the least of two runs each, in turn."""
    found: dict[str, dict[str, Any]] = {}
    for side in ("now", "then", "now", "then"):
        environment = {**os.environ, "PYTHONPATH": str(ROOT) if side == "now" else base}
        command = [sys.executable, __file__, "--json", "--only", *parts]
        run = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        for row in json.loads(run.stdout):
            here = found.setdefault(row["key"], {"key": row["key"], "what": row["what"], "unit": row["unit"]})
            here[side] = min(here.get(side, float("inf")), row["ours"])
    return list(found.values())


def comparison(rows: list[dict[str, Any]]) -> str:
    """What `compared` found, as markdown."""
    lines = ["| what | then | now | times as fast |", "|---|---:|---:|---:|"]
    for row in rows:
        then, now = shown(row["then"], row["unit"]), shown(row["now"], row["unit"])
        lines.append(f"| {row['what']} | {then} | {now} | {row['then'] / row['now']:.1f} |")
    return "\n".join(lines)


def _write(kept: dict[str, Any]) -> int:
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    document = {"schema": "specsched/performance/1", **kept, "machine": machine}
    KEPT.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return subprocess.run([sys.executable, str(ROOT / "scripts" / "performance.py")], check=True).returncode


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--parts", action="store_true", help="where the time of two runs goes, written down")
    parser.add_argument("--base", metavar="DIR")
    parser.add_argument("--commit", default="", help="what the base is, to be written down")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--json", action="store_true", help="print the rows as JSON and nothing else")
    given = parser.parse_args()
    kept = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {"rows": []}
    if given.parts:
        for kind in ("open", "sla"):
            command = [sys.executable, str(HERE / "parts.py"), kind]
            run = subprocess.run(command, check=True, capture_output=True, text=True)
            kept.setdefault("parts", {})[kind] = json.loads(run.stdout)
        return _write(kept)
    if given.base:
        kept["compared"] = {"commit": given.commit, "rows": compared(given.base, given.only)}
        print(comparison(kept["compared"]["rows"]))
        return _write(kept) if given.write else 0
    rows = [row.document() for row in measured(given.only, given.full)]
    if given.json:
        print(json.dumps(rows))
        return 0
    print(table(rows))
    worse = regressions(rows, kept["rows"])
    for line in worse:
        print(f"slower: {line}", file=sys.stderr)
    if given.write:
        fresh = {row["key"] for row in rows}
        kept["rows"] = [*rows, *(row for row in kept["rows"] if row["key"] not in fresh)]
        return _write(kept)
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
