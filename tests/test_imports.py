"""The house's import laws: one way through the rooms, heavy packages only where they belong."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import specsched

ROOT = Path(specsched.__file__).parent
# Rooms in the order data flows; a room may import rooms of a lower storey, and its own.
STOREYS = [
    ["errors"],
    ["files"],
    ["reading", "curves", "shapes"],
    ["profile", "trace", "workload"],
    ["roofline", "overhead"],
    ["calibrate", "metrics"],
    ["inspection"],
    ["kernels"],
    ["schedule"],
    ["simulator", "replay", "intervals", "result"],
    ["sweep"],
    ["planner", "capacity", "fleet"],
    ["report"],
]
SIDE_ROOMS = {
    "formats": {
        "errors",
        "files",
        "reading",
        "curves",
        "shapes",
        "profile",
        "trace",
        "workload",
        "calibrate",
    },
    "torch_side": {
        "errors",
        "files",
        "reading",
        "curves",
        "shapes",
        "profile",
        "trace",
        "workload",
        "calibrate",
        "schedule",
    },
}
TOP = {"cli", "__init__", "__main__"}  # may import every room
HEAVY = {"torch", "numba", "pandas", "matplotlib", "scipy", "pyarrow", "numpy"}


def room(path: Path) -> str:
    """The room a file belongs to: `report/plots.py` to `report`, `profile_lint.py` to `profile`."""
    first = path.relative_to(ROOT).parts[0].removesuffix(".py")
    known = {name for storey in STOREYS for name in storey} | set(SIDE_ROOMS) | TOP
    owners = [name for name in known if first == name or first.startswith(f"{name}_")]
    return owners[0] if owners else first


def files() -> list[Path]:
    return sorted(path for path in ROOT.rglob("*.py") if "_bundled" not in path.parts)


def imports(path: Path, source: str | None = None) -> Iterator[tuple[str, ast.stmt]]:
    """Absolute dotted names of all a file imports, wherever in it; not what only type checkers read."""
    tree = ast.parse(path.read_text() if source is None else source)
    package = ["specsched", *path.relative_to(ROOT).parts[:-1]]
    for node in _running(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield f"{module}.{alias.name}", node


def _running(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            continue
        yield node
        yield from _running(node)


def imported_rooms(path: Path, source: str | None = None) -> set[str]:
    found = set()
    for name, _ in imports(path, source):
        parts = name.split(".")
        if parts[0] == "specsched" and len(parts) > 1:
            candidate = ROOT / parts[1]
            if candidate.is_dir() or candidate.with_suffix(".py").is_file():
                found.add(room(candidate.with_suffix(".py")))
    return found - {room(path)}


def allowed(name: str) -> set[str]:
    if name in SIDE_ROOMS:
        return SIDE_ROOMS[name]
    if name in TOP:
        return {n for storey in STOREYS for n in storey} | set(SIDE_ROOMS) | TOP
    below: set[str] = set()
    for storey in STOREYS:
        if name in storey:
            return below | set(storey) if name not in ("profile", "trace", "workload") else below
        below |= set(storey)
    raise AssertionError(f"the room {name!r} is not in the plan of the house: add it to STOREYS")


@pytest.mark.parametrize("path", files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_one_way(path: Path) -> None:
    wrong = imported_rooms(path) - allowed(room(path))
    assert not wrong, f"{path.name} of {room(path)!r} imports {sorted(wrong)}, which come later in the house"


@pytest.mark.parametrize("path", files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_numba_lives_in_kernels_and_torch_in_torch_side(path: Path) -> None:
    tops = {name.split(".")[0] for name, _ in imports(path)}
    if path.name != "kernels.py":
        assert "numba" not in tops, "numba code goes stale in caches unless it is all in kernels.py"
    if "torch_side" not in path.parts:
        assert "torch" not in tops, "torch belongs to torch_side"
    if path.name == "kernels.py":
        assert not tops - {"__future__", "collections", "typing", "numpy", "numba", "os", "pathlib"}


@pytest.mark.parametrize(
    ("source", "room_found"),
    [
        ("from .planner import answer", "planner"),
        ("from . import report", "report"),
        ("def f():\n    import specsched.simulator", "simulator"),
        ("from specsched.torch_side.target import Target", "torch_side"),
        ("if TYPE_CHECKING:\n    from .planner import answer", None),
    ],
)
def test_the_law_sees_planted_imports(source: str, room_found: str | None) -> None:
    planted = ROOT / "profile_planted.py"
    assert room(planted) == "profile"
    wrong = imported_rooms(planted, source) - allowed("profile")
    assert wrong == (set() if room_found is None else {room_found})


@pytest.mark.parametrize(
    "code", ["import specsched", "import specsched.cli", "import specsched; dir(specsched)"]
)
def test_importing_loads_nothing_heavy(code: str) -> None:
    probe = f"{code}\nimport sys\nprint(*sorted({HEAVY!r} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []


def test_help_of_every_command_loads_nothing_heavy() -> None:
    probe = (
        "import sys, io, contextlib\n"
        "from specsched.cli import main\n"
        "def show(command, words):\n"
        "    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):\n"
        "        main([*words, '--help'])\n"
        "    for name, child in getattr(command, 'commands', {}).items():\n"
        "        show(child, [*words, name])\n"
        "show(main, [])\n"
        f"print(*sorted({HEAVY!r} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []


def test_public_names_are_there_and_hide_no_module() -> None:
    modules = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or path.is_dir()}
    for name in specsched.__all__:
        assert getattr(specsched, name).__name__ == name
        assert name in dir(specsched)
    assert not modules & set(specsched.__all__), "a public name that is also a module hides it"
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        specsched.nonsense  # noqa: B018
