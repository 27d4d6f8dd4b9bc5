"""Write docs/performance.md from bench/performance.json; `--check` fails when it is stale, as a test does."""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))

import run  # noqa: E402

TARGET = ROOT / "docs" / "performance.md"
HEAD = """# How fast it is

Written by `python scripts/performance.py` from bench/performance.json, which `make bench` compares with
and `python bench/run.py --write` makes; a test fails when it is stale. All figures are measured, on a
machine shared with other work: seconds are of the processor or the least of many short turns, and only
ratios within one run mean something elsewhere. `make bench` fails where a ratio has become a quarter
worse.
"""
THEN = """
## Against an earlier commit

Both in one run, in turn, least of two runs each, one thread; then: commit {commit}.
"""
PARTS = """
## Where the time goes

Processor seconds by part (`python bench/parts.py open` and `sla`): 2,000 requests at 20/s under lagged:2, and
`specsched simulate --trace qwen3-4b-chat --sla 120 --out DIR`, kernels compiled. Taken once, machine busy.
"""
PEERS = """
## Other simulators

None of these is run by `make bench`. They were run once, side by side with commit 5bfcf25 of ours, on
two shared cores and in processor seconds: 2,000 requests of 512 tokens in and 256 out. What was kept are
the ratios: ours ran 15.6 and 13 times as fast as vidur, 3.4 and 2.6 times as fast as the WebAssembly
build of inference-lab, at 7,174 and 11,023 requests/s of its own. Requests simulated per second, worked
out from these:

| simulator | at 6.45 requests/s | at 20 requests/s | what it leaves out |
|---|---:|---:|---|
| vidur | 460 | 848 | speculation |
| inference-lab, WebAssembly | 2,110 | 4,240 | which request is which; calibration |
"""


def text() -> str:
    """The document."""
    kept = json.loads(run.KEPT.read_text(encoding="utf-8"))
    parts = [HEAD, f"Machine: {kept['machine']}.\n", run.table(kept["rows"])]
    if "compared" in kept:
        parts += [THEN.format(commit=kept["compared"]["commit"]), run.comparison(kept["compared"]["rows"])]
    if "parts" in kept:
        parts += [PARTS, _parts(kept["parts"])]
    return "\n".join([*parts, PEERS])


def _parts(kinds: dict[str, dict[str, float]]) -> str:
    names = list(dict.fromkeys(name for spent in kinds.values() for name in spent))
    lines = [f"| part | {' | '.join(kinds)} |", f"|---|{'---:|' * len(kinds)}"]
    for name in [*names, "all"]:
        cells = [sum(s.values()) if name == "all" else s.get(name) for s in kinds.values()]
        lines.append(f"| {name} | {' | '.join('' if c is None else f'{c:.3f}' for c in cells)} |")
    return "\n".join(lines)


def main() -> int:
    if "--check" in sys.argv[1:]:
        if TARGET.exists() and TARGET.read_text(encoding="utf-8") == text():
            return 0
        print("docs/performance.md is stale; run: python scripts/performance.py", file=sys.stderr)
        return 1
    TARGET.write_text(text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
