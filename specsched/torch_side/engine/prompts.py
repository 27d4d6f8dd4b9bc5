"""Prompts as rows of a file, and as token ids."""

from __future__ import annotations

import gzip
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import SpecschedError
from ...files.disk import read_json
from ..target.decoder import Target


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
    for i, row in enumerate(rows):
        if not isinstance(row, dict) or not ({"prompt", "prompt_ids", "turns"} & row.keys()):
            raise SpecschedError(
                f"{path}, row {i}: needs a key 'prompt' (text) or 'prompt_ids' (list of int)"
            )
    return rows


def ids_of(target: Target, row: dict[str, Any], index: int) -> list[int]:
    """Token ids of a prompts row: `prompt_ids` as they are, text through the target's chat format."""
    if "prompt_ids" in row:
        ids = row["prompt_ids"]
        top = target.config.vocab_size
        if not ids or not all(isinstance(t, int) and 0 <= t < top for t in ids):
            raise SpecschedError(
                f"prompts row {index}: prompt_ids must be one or more integers in 0..{top - 1}"
            )
        return list(ids)
    if target.tokenizer is None:
        raise SpecschedError(
            f"prompts row {index} is text but target {target.config.name!r} has no tokenizer; give prompt_ids"
        )
    text = row["turns"][0] if "turns" in row else row["prompt"]
    if target.tokenizer.chat_template is None:
        return target.tokenizer.encode(text)
    return target.tokenizer.chat([{"role": "user", "content": text}])


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
    with opener(path, "rt", encoding="utf-8") as stream:
        return [json.loads(line) for line in stream]
