"""YAML read as strictly as JSON: plain values alone, size, depth and what its aliases stand for bounded."""

from __future__ import annotations

import re
from typing import Any

from ..errors import SpecschedError, plain
from .strict import DEEPEST

MOST_CHARACTERS = 32 << 20
_MOST_NODES = 200_000  # values, those behind an alias counted as often as they are named: seconds to read
# A key alone on its line with a nested line below it: no log, no CSV and no event stream has that.
_BLOCK = re.compile(r"^[A-Za-z_]\w*:[ \t]*(?:#.*)?\r?\n(?:[ \t]+\S|- )", re.MULTILINE)
_KEY = re.compile(r"[A-Za-z_]\w*:(?:\s|$)")


def is_yaml(text: str) -> bool:
    """Whether a text that is no JSON looks like a YAML mapping."""
    lines = (line for line in text.splitlines() if line.strip() and not line.startswith(("#", "---")))
    return _KEY.match(next(lines, "")) is not None and _BLOCK.search(text) is not None


def parse_yaml(text: str, where: str, error: type[SpecschedError]) -> Any:
    """The value of a YAML text; raises `error` that begins with `where`.

    Tags beyond the plain ones are refused, and so is a text whose aliases stand for millions of values.
    """
    import yaml

    if len(text) > MOST_CHARACTERS:
        raise error(
            f"{where} is larger than {MOST_CHARACTERS >> 20} MB, the most that is read as YAML; give a part"
        )
    try:
        kind = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C where it was built so
        _read_through(yaml, kind, text, where, error)
        loader = kind(text)
        try:
            node = loader.get_single_node()
            if node is None:
                raise error(f"{where} is empty; expected YAML")
            _bounded(node, where, error)
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.YAMLError as e:
        mark = getattr(e, "problem_mark", None)
        at = f", line {mark.line + 1} column {mark.column + 1}" if mark is not None else ""
        why = plain(str(getattr(e, "problem", None) or e).splitlines()[0], 100)
        raise error(f"{where}{at}: is not YAML: {why} (truncated?); fetch or write the file again") from None
    except RecursionError:
        raise error(_deep(where)) from None
    except (ValueError, OverflowError) as e:  # a date or a number that Python has no value for
        why = "a number of thousands of digits" if "digits" in str(e) else plain(str(e), 100)
        raise error(f"{where}: is not YAML: {why}; correct that value") from None


def _read_through(yaml: Any, kind: Any, text: str, where: str, error: type[SpecschedError]) -> None:
    """Refuse what is too deep or too much while it is read, before anything is kept of it."""
    depth = 0
    for number, event in enumerate(yaml.parse(text, Loader=kind)):
        opens = isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent)
        depth += opens - isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent)
        if depth > DEEPEST:
            raise error(_deep(where))
        if number > 2 * _MOST_NODES:  # a list or a mapping is two
            raise error(
                f"{where} holds more than {_MOST_NODES:,} values, the most that is read as YAML; give the "
                "report as JSON"
            )


def _bounded(root: Any, where: str, error: type[SpecschedError]) -> None:
    """Refuse a node that is too deep, or that its aliases blow up."""
    counted: dict[int, int] = {}
    inside: set[int] = set()

    def count(node: Any, depth: int) -> int:
        if depth > DEEPEST or id(node) in inside:
            raise error(_deep(where))
        if id(node) not in counted:
            inside.add(id(node))
            held = node.value if isinstance(node.value, list) else []
            children = [
                child for entry in held for child in (entry if isinstance(entry, tuple) else (entry,))
            ]
            counted[id(node)] = 1 + sum(count(child, depth + 1) for child in children)
            inside.discard(id(node))
        return counted[id(node)]

    if count(root, 0) > _MOST_NODES:
        raise error(
            f"{where}: its aliases stand for more than {_MOST_NODES:,} values; write them out, or less"
        )


def _deep(where: str) -> str:
    return f"{where}: nested more than {DEEPEST} levels deep; write it with fewer"
