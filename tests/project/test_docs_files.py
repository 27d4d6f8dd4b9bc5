"""docs/ cannot rot: the samples of docs/files.md are read, links lead somewhere."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

import specsched
from specsched import formats
from specsched.calibration import load_calibration
from specsched.profile import load_profile
from specsched.sweep import read_spec

ROOT = Path(specsched.__file__).parent.parent
DOCS = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
FILES = (ROOT / "docs" / "files.md").read_text(encoding="utf-8")
SAMPLES = dict(re.findall(r"^```\w+ (\S+)\n(.*?)^```$", FILES, flags=re.MULTILINE | re.DOTALL))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in SAMPLES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_every_sample_of_our_own_files_is_read(folder: Path) -> None:
    assert SAMPLES.keys() == {
        "profile.json", "calibration.json", "acceptance.json", "sweep.toml", "decision.json",
    }  # fmt: skip
    probed = load_profile(folder / "decision.json")
    assert probed.decision is not None
    assert probed.decision.seconds(23, 4) == 0.0108 < probed.seconds(23, 4, 0)
    profile = load_profile(folder / "profile.json")
    assert profile.to_dict()["draft"] == json.loads(SAMPLES["profile.json"])["draft"]
    assert profile.gpus == 1
    assert load_calibration(folder / "calibration.json").temperatures.tolist() == [1.12, 1.0, 0.94]
    counted = formats.read(folder / "acceptance.json")
    assert counted.kind == "acceptance"
    assert counted.object.conditional.tolist() == [0.72, 0.65, 0.61]
    sweep = read_spec(folder / "sweep.toml")
    assert len(sweep.points) == 2 * (1 + 2) * 2, "block sizes, off and two lags, loads"


def test_every_entry_of_the_sample_profile_is_one_that_is_written(folder: Path) -> None:
    shown, written = json.loads(SAMPLES["profile.json"]), load_profile(folder / "profile.json").to_dict()
    assert shown.keys() == written.keys()


@pytest.mark.parametrize("page", DOCS, ids=lambda path: path.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        assert target.exists(), f"{page.name}: {link}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), flags=re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}
            assert anchor in slugs, f"{page.name}: {link}"


def test_the_levels_in_the_architecture_are_the_contract() -> None:
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    levels = [set(re.findall(r"\w+", layer)) for layer in contract["layers"] if layer != "__main__"]
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \d \| (.*) \|$", page, re.MULTILINE)
    shown = [set(re.findall(r"`(\w+)`", row)) for row in rows]
    assert shown == levels


def test_the_guide_of_the_package_names_every_package() -> None:
    guide = specsched.__doc__ or ""
    parts = {
        path.stem
        for path in (ROOT / "specsched").iterdir()
        if (path.suffix == ".py" or (path / "__init__.py").is_file()) and not path.name.startswith("_")
    }
    assert {part for part in parts if not re.search(rf"\b{part}\b", guide)} == set()
