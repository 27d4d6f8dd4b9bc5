"""Docstrings as prose: no line left short in the middle of a paragraph by an edit."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHORT = 40  # characters: a paragraph that is wrapped by hand at 110 has no such line before its last


def orphans(source: str) -> list[str]:
    """Short lines that go on, in lower case and with no columns or examples, on the next line."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            continue
        for paragraph in (ast.get_docstring(node) or "").split("\n\n"):
            lines = paragraph.splitlines()
            if "  " in paragraph.strip() or "\b" in paragraph or " : " in paragraph:
                continue
            for short, after in itertools.pairwise(lines):
                if len(short) < SHORT and after[:1].islower():
                    found.append(f"{short} / {after}")
    return found


def test_the_search_finds_one() -> None:
    assert orphans('"""A sentence that was cut\nin two by an edit, somewhere."""') != []
    assert orphans('"""name  what it is\nother  what that is."""') == []


def test_no_line_of_a_paragraph_is_left_short() -> None:
    files = sorted((ROOT / "specsched").rglob("*.py"))
    assert files
    found = {str(path.relative_to(ROOT)): orphans(path.read_text()) for path in files}
    assert {name: lines for name, lines in found.items() if lines} == {}
