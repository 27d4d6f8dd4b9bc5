"""Every command on valid files, and on damaged ones that once failed: the laws are in `commands`.

`make fuzz` draws others (`campaign.py`); what fails there is kept in `command_cases/`, one file each.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from random import Random

import commands
import mutation
import pytest

KEPT = Path(__file__).parent / "command_cases"
DAMAGED = 220  # each of the cases once or twice; `make fuzz` has 50,000
KEPT_FILES = sorted(KEPT.iterdir()) if KEPT.is_dir() else []


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[commands.Case]]:
    folder = tmp_path_factory.mktemp("files")
    with_torch = all(find_spec(name) for name in ("torch", "gguf", "safetensors"))
    return folder, commands.build(folder, with_torch)


def test_every_command_answers_on_valid_files(built: tuple[Path, list[commands.Case]]) -> None:
    """Without it the fuzzer would only ever see refusals."""
    folder, cases = built
    refused = {}
    for case in cases:
        found = commands.run(folder, case, commands.content(folder, case), seconds=120)
        assert found.broken is None, (case.name, found.broken)
        if found.code != 0:
            refused[case.name] = found.message
    # Files that are half of something, or need hints.
    needy = ("trtllm_exact", "vllm_draft", "vllm_latency")
    assert [name for name in refused if not any(word in name for word in needy)] == [], refused


def test_no_damage_breaks_a_command(built: tuple[Path, list[commands.Case]]) -> None:
    """A campaign in small: every case in turn, so that each command and file is among them."""
    folder, cases = built
    broken = {}
    for number in range(DAMAGED):
        random = Random(f"make test/{number}")
        case = cases[number % len(cases)]
        damaged = mutation.damaged(
            random, case.file, commands.content(folder, case), random.choice([1, 1, 2, 3])
        )
        found = commands.run(folder, case, damaged, seconds=60)
        if found.broken:
            broken[f"{number} {case.name}"] = found.broken
    assert broken == {}


@pytest.mark.parametrize("kept", KEPT_FILES, ids=lambda kept: kept.name)
def test_what_once_failed(built: tuple[Path, list[commands.Case]], kept: Path) -> None:
    """A case is named `<number>@<name of the command and its file>`."""
    folder, cases = built
    name = kept.name.partition("@")[2]
    for case in (case for case in cases if case.name == name):
        assert commands.run(folder, case, kept.read_bytes(), seconds=60).broken is None
