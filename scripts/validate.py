"""Reproduce docs/validation.md: its numbers (docs/validation.json), its figures, its text.

    python scripts/validate.py [--shared FOLDER] [--only SECTION ...] [--cpu-time] [--check]

Data that is not in the repository is looked for in --shared, else in $SPECSCHED_SHARED, else in `shared`
beside the checkout. A section whose data is absent keeps what docs/validation.json holds of it, and a message
says so.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from validation import document
from validation.common import ROOT, Absent, Settings


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    beside = os.environ.get("SPECSCHED_SHARED") or ROOT.parent / "shared"
    parser.add_argument("--shared", type=Path, default=Path(beside))
    parser.add_argument("--only", nargs="+", choices=list(document.SECTIONS), default=list(document.SECTIONS))
    parser.add_argument(
        "--check", action="store_true", help="only say whether docs/validation.md is what its JSON gives"
    )
    parser.add_argument(
        "--cpu-time", action="store_true", help="time the own engine in CPU seconds (busy machine)"
    )
    options = parser.parse_args()
    if options.check:
        stale = document.stale()
        print(stale or "docs/validation.md is up to date", file=sys.stderr if stale else sys.stdout)
        return 1 if stale else 0
    numbers = document.load()
    for name in options.only:
        begun = time.perf_counter()
        try:
            numbers[name] = document.SECTIONS[name].run(Settings(options.shared, cpu_time=options.cpu_time))
        except Absent as missing:
            kept = "keeping what docs/validation.json has" if numbers.get(name) else "nothing is known of it"
            print(f"{name}: skipped, {missing}; {kept}")
            continue
        document.store(numbers)
        print(f"{name}: done in {time.perf_counter() - begun:.0f} s")
    document.store(numbers)
    print("wrote docs/validation.json and docs/validation.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
