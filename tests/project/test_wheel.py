"""The wheel: built, installed elsewhere, and asked the main question from an empty folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import specsched
from specsched.documents import DOCUMENTS
from specsched.files.disk import bundled_names

ROOT = Path(specsched.__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package and nothing of the checkout; its dependencies come from this environment."""
    target = tmp_path_factory.mktemp("installed")
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--target",
        str(target),
    ]
    subprocess.run([*command, str(wheel)], check=True, capture_output=True)
    return target


def run(installed: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(installed), "MPLCONFIGDIR": str(folder)}
    command = [sys.executable, "-m", "specsched", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_the_wheel_holds_the_package_and_what_is_bundled(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert tops == {"specsched", f"specsched-{specsched.__version__}.dist-info"}
    for name in bundled_names("profiles", ".json"):
        assert f"specsched/_bundled/profiles/{name}.json" in names
    for name in bundled_names("traces", ".parquet"):
        assert f"specsched/_bundled/traces/{name}.parquet" in names
    assert "specsched/py.typed" in names
    for name in DOCUMENTS:
        assert f"specsched/documents/schemas/{name}.json" in names
    assets = {path.name for path in (ROOT / "specsched" / "report" / "assets").iterdir()}
    assert {"plotly-cartesian.min.js", "plotly-LICENSE.txt", "capacity.js", "page.css"} <= assets
    assert {f"specsched/report/assets/{name}" for name in assets} <= set(names)
    licences = {name.rsplit("/", 1)[1] for name in names if ".dist-info/licenses/" in name}
    assert {"LICENSE", "THIRD_PARTY.md", "plotly-LICENSE.txt"} <= licences
    entry = (
        zipfile.ZipFile(wheel).read(f"specsched-{specsched.__version__}.dist-info/entry_points.txt").decode()
    )
    assert "specsched = specsched.cli:main" in entry


def test_bundled_names_resolve_when_installed(installed: Path, tmp_path: Path) -> None:
    done = run(installed, tmp_path, "inspect", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "profiles": bundled_names("profiles", ".json"),
        "traces": bundled_names("traces", ".parquet"),
    }
    where = [sys.executable, "-c", "import specsched.files as f; print(f.bundled_dir('traces'))"]
    found = subprocess.run(
        where, cwd=tmp_path, env={"PYTHONPATH": str(installed)}, capture_output=True, text=True
    )
    assert found.stdout.startswith(str(installed)), "the checkout was read, not the installed package"


def test_the_main_question_is_answered_from_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    question = ["simulate", "--trace", "qwen3-4b-chat", "--sla", "120", "--requests", "40"]
    few = ["--policy", "off", "--policy", "lagged", "--concurrency", "1,32", "--out", "answer"]
    done = run(installed, tmp_path, *question, *few)
    assert done.returncode == 0, done.stderr
    assert "lagged:2" in done.stdout.splitlines()[0] + done.stdout
    written = {path.name for path in (tmp_path / "answer").iterdir()}
    assert written == {"answer.json", "pareto.png", "load.png", "report.html"}
    answer = json.loads((tmp_path / "answer" / "answer.json").read_text())
    assert answer["schema"] == "specsched/answer/1"
    assert {policy["policy"] for policy in answer["policies"]} == {"off", "lagged:2"}
