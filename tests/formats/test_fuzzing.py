"""Whatever is wrong with a foreign file, the answer is a SpecschedError or a valid object: never a
traceback.
"""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsched import formats
from specsched.errors import SpecschedError

DATA = Path(__file__).parent / "data"
DOCUMENTS = sorted(p for p in DATA.iterdir() if p.suffix in (".json", ".jsonl"))
TABLES = sorted(p for p in DATA.iterdir() if p.suffix in (".csv", ".txt"))
JUNK = [
    None,
    True,
    -1,
    0,
    1e308,
    0.5,
    "x",
    "7",
    [],
    {},
    [1, None],
    {"a": 1},
    [[1]],
    float("nan"),
    3.5,
    10**30,
]
HINTS = {"batch_size": 8, "input_len": 16, "output_len": 64}


def spots(value, path=()):
    """Every place of a parsed document that can be replaced or removed."""
    yield path
    children = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, child in children:
        yield from spots(child, (*path, key))


def damaged(document, rng):
    """The document with one or two places replaced by junk, or removed."""
    document = copy.deepcopy(document)
    for _ in range(rng.choice([1, 1, 2])):
        places = [p for p in spots(document) if p]
        if not places:
            break
        path = rng.choice(places)
        holder = document
        for key in path[:-1]:
            holder = holder[key]
        if rng.random() < 0.3:
            del holder[path[-1]]
        else:
            holder[path[-1]] = copy.deepcopy(rng.choice(JUNK))
    return document


def read_or_refuse(path, **hints):
    try:
        found = formats.read(path, **hints)
    except SpecschedError:
        return
    assert found.kind in ("profile", "trace", "calibration", "acceptance")


@pytest.mark.parametrize("source", DOCUMENTS, ids=lambda p: p.name)
@given(seed=st.integers(0, 10**6))
def test_damaged_documents(tmp_path_factory, source, seed):
    rng = random.Random(seed)
    lines = source.read_text()
    rows = (
        [json.loads(line) for line in lines.splitlines()] if source.suffix == ".jsonl" else json.loads(lines)
    )
    broken = damaged(rows, rng)
    path = tmp_path_factory.mktemp("fuzz") / source.name
    text = "\n".join(map(json.dumps, broken)) if source.suffix == ".jsonl" and broken else json.dumps(broken)
    path.write_text(text)
    runs = [(DATA / "vllm_latency_long.json", 8, 16, 264)]
    read_or_refuse(path, **(HINTS | {"runs": runs} if "latency" in source.name else {}))


@pytest.mark.parametrize("source", TABLES, ids=lambda p: p.name)
@given(seed=st.integers(0, 10**6))
def test_damaged_text(tmp_path_factory, source, seed):
    rng = random.Random(seed)
    text = source.read_text()
    for _ in range(rng.choice([1, 2, 3])):
        at = rng.randrange(len(text))
        text = (
            text[:at]
            + rng.choice(["", ",", "\n", "x", "-", "9", "nan", '"', "{", "}"])
            + text[at + rng.randrange(3) :]
        )
    path = tmp_path_factory.mktemp("fuzz") / source.name
    path.write_text(text)
    read_or_refuse(path)
