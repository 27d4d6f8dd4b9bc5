"""Damaged files of every format, to every reader: an answer, or one sentence that names the file.

2,000 mutations in `make test`, 50,000 in `make fuzz` (SPECSCHED_FUZZ sets their number and, with it, other
draws). What once failed is kept in `cases/`, one file each, and read again every time.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from corpus import Seed, seeds
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutation import damaged

from specsched.errors import SpecschedError, plain

SEEDS = seeds()
MUTATIONS = int(os.environ.get("SPECSCHED_FUZZ", "2000"))
LONGEST = 320
CASES = Path(__file__).parent / "cases"
CASE_FILES = sorted(CASES.iterdir()) if CASES.is_dir() else []
fuzzed = settings(
    max_examples=max(MUTATIONS // len(SEEDS), 1),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def lawful(path: Path, seed: Seed) -> None:
    """Each reader answers, or refuses in one printable sentence that names the file."""
    for reader in seed.readers:
        try:
            reader(path)
        except SpecschedError as error:
            text = str(error)
            assert plain(path.name) in text, f"{reader.__name__}: {text!r} does not name {path.name}"
            assert len(text) <= LONGEST
            assert text.replace("\n", "").isprintable(), text


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: seed.name)
def test_the_seed_itself_is_read(tmp_path: Path, seed: Seed) -> None:
    """Without it the fuzzer would only ever see refusals."""
    path = tmp_path / seed.name
    path.write_bytes(seed.raw)
    refused = []
    for reader in seed.readers:
        try:
            reader(path)
        except SpecschedError as error:
            refused.append(str(error))
    assert len(refused) < len(seed.readers), refused


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: seed.name)
@fuzzed
@given(data=st.data())
def test_damage_is_told(tmp_path_factory: pytest.TempPathFactory, seed: Seed, data: st.DataObject) -> None:
    random = data.draw(st.randoms(use_true_random=False))
    path = tmp_path_factory.getbasetemp() / seed.name
    path.write_bytes(damaged(random, seed.name, seed.raw, random.randint(1, 3)))
    lawful(path, seed)


@pytest.mark.parametrize("case", CASE_FILES, ids=lambda case: case.name)
def test_what_once_failed(case: Path) -> None:
    """A case is named `<number>-<seed>`: the seed says who reads it."""
    seed = next(seed for seed in SEEDS if case.name.partition("-")[2] == seed.name)
    lawful(case, seed)
