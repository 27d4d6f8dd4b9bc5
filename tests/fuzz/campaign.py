"""Many damaged files to every command, on other draws, all failures collected: `make fuzz` runs it.

    python tests/fuzz/campaign.py --mutations 50000 --seed 1

A worker runs them in its own process; one that hangs in compiled code is killed and the next goes on behind
it. At the end every kind of failure is shown once, with the smallest file that shows it kept under `--keep`,
and how often an error of our own code was turned into a sentence by a catch-all alone.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "support")]
HANGS = 60  # seconds without a word from a worker


def work(seed: int, start: int, count: int, only: str) -> None:
    """Run the mutations start .. count - 1 and tell each on stdout as a line of JSON."""
    import commands
    import mutation

    told = sys.stdout
    with tempfile.TemporaryDirectory() as folder:
        cases = [case for case in commands.build(Path(folder), True) if only in case.name]
        for number in range(start, count):
            random = Random(f"{seed}/{number}")
            case = random.choice(cases)
            raw = commands.content(Path(folder), case)
            times = random.choice([1, 1, 2, 3])
            damaged = mutation.damaged(random, case.file, raw, times)
            print(json.dumps({"number": number, "case": case.name}), file=told, flush=True)
            found = commands.run(Path(folder), case, damaged)
            line: dict[str, Any] = {"number": number, "case": case.name, **found.__dict__}
            if found.broken:
                line["raw"] = damaged.hex()
            print(json.dumps(line), file=told, flush=True)


def kind(line: dict[str, Any]) -> str:
    """What makes two failures one: the last place in our code, else the words without numbers and names."""
    broken = str(line["broken"])
    places = re.findall(r'specsched/([\w/]+\.py)", line (\d+)', broken)
    if "Traceback" in broken and places:
        return f"{broken.strip().splitlines()[-1].split(':')[0]} {places[-1][0]}:{places[-1][1]}"
    return re.sub(r"'[^']*'|\d+(\.\d+)?", "#", broken)[:90]


def campaign(seed: int, mutations: int, only: str, keep: Path | None) -> int:
    """Run a campaign; returns how many kinds of failure there were."""
    kinds: dict[str, dict[str, Any]] = {}
    counts: Counter[str] = Counter()
    caught: Counter[str] = Counter()
    codes: Counter[Any] = Counter()
    at = 0
    while at < mutations:
        words = [sys.executable, __file__, "--worker", "--seed", str(seed), "--start", str(at)]
        words += ["--mutations", str(mutations), "--only", only]
        worker = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        errors: list[str] = []
        assert worker.stdout is not None
        assert worker.stderr is not None
        reader = threading.Thread(target=errors.extend, args=(worker.stderr,))
        reader.start()
        began: dict[str, Any] = {}
        timer: threading.Timer | None = None
        for text in worker.stdout:
            if timer is not None:
                timer.cancel()
            if not text.startswith("{"):
                continue
            line = json.loads(text)
            at = line["number"] + 1
            if "code" not in line:
                began = line
                timer = threading.Timer(HANGS, worker.kill)
                timer.start()
                continue
            began = {}
            codes[line["code"]] += 1
            if line["caught"]:
                caught[line["caught"]] += 1
            if line["broken"]:
                _note(kinds, counts, line)
            if at % 500 == 0:
                print(f"{at} mutations, {len(kinds)} kinds of failure", file=sys.stderr, flush=True)
        worker.wait()
        reader.join()
        if began:
            why = "hangs" if worker.returncode == -9 else f"ends the process ({worker.returncode})"
            _note(kinds, counts, {**began, "broken": why, "raw": "", "message": "".join(errors[-5:])})
        elif worker.returncode:
            raise SystemExit("the worker failed:\n" + "".join(errors[-30:]))
    for number, (name, line) in enumerate(sorted(kinds.items(), key=lambda item: -counts[item[0]])):
        print(f"\n[{counts[name]}] {name}\n  {line['case']} (mutation {line['number']})")
        print(line["broken"][-1500:])
        if keep is not None and line["raw"]:
            keep.mkdir(parents=True, exist_ok=True)
            (keep / f"{number:03d}@{line['case']}").write_bytes(bytes.fromhex(line["raw"]))
    print(f"\n{mutations} mutations, seed {seed}: exit codes {dict(codes)}, {len(kinds)} kinds of failure")
    print("errors of our own that a catch-all alone turned into a sentence:")
    for place, times in caught.most_common(40):
        print(f"  [{times}] {place}")
    return len(kinds)


def _note(kinds: dict[str, dict[str, Any]], counts: Counter[str], line: dict[str, Any]) -> None:
    """Count a failure, and keep the smallest file of its kind."""
    name = kind(line)
    counts[name] += 1
    if name not in kinds:
        print(f"{line['number']} {line['case']}: {line['broken'][-600:]}", file=sys.stderr, flush=True)
    if name not in kinds or len(line["raw"]) < len(kinds[name]["raw"]):
        kinds[name] = line


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutations", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--only", default="", help="cases whose name holds this text")
    parser.add_argument("--keep", type=Path, help="a folder for a file of each kind of failure")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        work(given.seed, given.start, given.mutations, given.only)
    else:
        sys.exit(min(campaign(given.seed, given.mutations, given.only, given.keep), 1))
