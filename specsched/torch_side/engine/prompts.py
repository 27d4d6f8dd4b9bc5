"""Prompts as rows of a file, and as token ids."""

from __future__ import annotations

import gzip
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import SpecschedError
from ...files.disk import read_json
from ...files.guard import reading
from ...files.reader import kind_of
from ...files.strict import parse_json
from ..target.decoder import Target

_MOST_BYTES = 256 << 20


def read_prompts(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Rows of a prompts file: a JSON list of {"prompt": text or "prompt_ids": [int], "domain": text}.

    "turns" (a list of user messages, of which the first is asked) may stand for "prompt"; a `.jsonl` file
    has one row a line. Raises `SpecschedError` naming row and key.
    """
    path = Path(path)
    if path.suffix == ".jsonl":
        rows = read_rows(path)
    else:
        rows = read_json(path, SpecschedError)
    if not isinstance(rows, list) or not rows:
        raise SpecschedError(f"{path}: expected a JSON list of prompts with at least one row")
    return [_checked(row, f"{path}, row {i}") for i, row in enumerate(rows)]


class Row(dict[str, Any]):
    """A row of a prompts file that knows where it stands, for messages."""

    where = ""


def _checked(row: Any, where: str) -> Row:
    """The row, where it asks something in one of the three ways; raises SpecschedError."""
    if not isinstance(row, dict) or not ({"prompt", "prompt_ids", "turns"} & row.keys()):
        raise SpecschedError(f"{where}: needs a key 'prompt' (text) or 'prompt_ids' (list of int)")
    prompt, turns, ids, domain = (row.get(key) for key in ("prompt", "turns", "prompt_ids", "domain"))
    if "prompt" in row and not isinstance(prompt, str):
        raise SpecschedError(f"{where}: prompt is {kind_of(prompt)}; it must be a text")
    if "prompt_ids" in row and not isinstance(ids, list):
        raise SpecschedError(f"{where}: prompt_ids is {kind_of(ids)}; it must be a list of whole numbers")
    if "turns" in row and (
        not isinstance(turns, list) or not turns or not all(isinstance(one, str) for one in turns)
    ):
        raise SpecschedError(f"{where}: turns must be a list of one or more texts, the user's messages")
    if domain is not None and not isinstance(domain, str):
        raise SpecschedError(f"{where}: domain is {kind_of(domain)}; it must be a text")
    checked = Row(row)
    checked.where = where
    return checked


def ids_of(target: Target, row: dict[str, Any], index: int, thinking: bool | None = None) -> list[int]:
    """Token ids of a prompts row: `prompt_ids` as they are, text through the target's chat format.

    `thinking`: see `Tokenizer.chat`."""
    where = getattr(row, "where", "") or f"prompts row {index}"
    top = target.config.vocab_size
    if "prompt_ids" in row:
        ids = row["prompt_ids"]
        if not ids or not all(type(t) is int and 0 <= t < top for t in ids):
            raise SpecschedError(f"{where}: prompt_ids must be one or more integers in 0..{top - 1}")
        return list(ids)
    if target.tokenizer is None:
        raise SpecschedError(
            f"{where} is text but target {target.config.name!r} has no tokenizer; give prompt_ids"
        )
    text = row["turns"][0] if "turns" in row else row["prompt"]
    if target.tokenizer.chat_template is None:
        found = target.tokenizer.encode(text)
    else:
        found = target.tokenizer.chat([{"role": "user", "content": text}], thinking)
    if not found:
        by = target.tokenizer.template_source if target.tokenizer.chat_template is not None else None
        raise SpecschedError(f"{where}: the prompt has no token{f' by {by}' if by else ''}; give a text")
    if max(found) >= top:
        raise SpecschedError(
            f"{target.tokenizer.source or target.config.name}: token id {max(found)} is beyond the model's "
            f"vocabulary of {top}; tokenizer and weights do not belong together"
        )
    return found


@dataclass(frozen=True)
class Prompt:
    """One conversation to answer. `turns`: the user's messages; `source`: the set it came from."""

    turns: tuple[str, ...]
    domain: str
    source: str


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Rows of a `.jsonl` or `.jsonl.gz` file."""
    if not path.is_file():
        raise SpecschedError(f"no prompt file {path}; give the folder that holds text/ and prompts/")
    opener = gzip.open if path.suffix == ".gz" else open
    rows = []
    with reading(path, SpecschedError, "prompts file"), opener(path, "rb") as stream:
        raw = stream.read(_MOST_BYTES + 1)
        if len(raw) > _MOST_BYTES:
            raise SpecschedError(
                f"{path} holds more than {_MOST_BYTES >> 20} MB of prompts; give a part of it"
            )
        for number, line in enumerate(raw.decode("utf-8-sig").split("\n"), 1):
            if line.strip():
                rows.append(parse_json(line, f"{path}, line {number}", SpecschedError))
    return rows
