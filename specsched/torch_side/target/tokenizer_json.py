"""Parts of a `tokenizer.json`, and the chat template beside it, each checked as it is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import regex

from ...errors import SpecschedError, plain, quoted
from ...files.disk import read_json
from ...files.reader import Reader, kind_of
from ...files.strict import read_text

_MOST_IDS = 2**24
GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def _id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_IDS


def vocabulary(model: Reader) -> dict[str, int]:
    vocab = model.mapping("vocab")
    if not vocab:
        raise model.fail("vocab", "is missing or empty; it maps pieces to ids")
    for piece, number in vocab.items():
        if not _id(number):
            key = f"vocab[{quoted(piece, 40)}]"
            raise model.fail(key, f"is {quoted(number)}; it must be an id from 0 to {_MOST_IDS - 1}")
    return vocab


def merges_of(model: Reader, vocab: dict[str, int]) -> list[tuple[str, str]]:
    """Pairs of pieces, written "a b" or ["a", "b"], whose joint piece is in the vocabulary."""
    given = model.document.get("merges")
    if not isinstance(given, list):
        raise model.fail("merges", f"is {kind_of(given)}; it must be a list of pairs")
    pairs = []
    for i, merge in enumerate(given):
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(piece, str) for piece in pair):
            raise model.fail(f"merges[{i}]", f"is {quoted(merge)}; it must be a pair of pieces")
        if pair[0] + pair[1] not in vocab:
            raise model.fail(f"merges[{i}]", f"makes {quoted(pair[0] + pair[1])}, which vocab does not hold")
        pairs.append((pair[0], pair[1]))
    return pairs


def added_tokens(read: Reader) -> dict[str, int]:
    given = read.document.get("added_tokens") or []
    if not isinstance(given, list):
        raise read.fail("added_tokens", f"is {kind_of(given)}; it must be a list")
    special = {}
    for i, entry in enumerate(given):
        token = Reader(entry, read.where, read.error, f"added_tokens[{i}].")
        text = token.document.get("content")
        if not isinstance(text, str) or not text:
            raise token.fail("content", f"is {kind_of(text)}; it must be a text")
        special[text] = token.integer("id", most=_MOST_IDS)
    return special


def splits_of(read: Reader) -> list[str]:
    """Patterns of the pre-tokenizer, each of the kind 'isolate the matches'."""
    pre = read.block("pre_tokenizer")
    if pre is None:
        return []
    given = (
        pre.document.get("pretokenizers", []) if pre.document.get("type") == "Sequence" else [pre.document]
    )
    if not isinstance(given, list):
        raise pre.fail("pretokenizers", f"is {kind_of(given)}; it must be a list")
    return [pattern for i, one in enumerate(given) for pattern in _split(read, one, i)]


def _split(read: Reader, given: Any, number: int) -> list[str]:
    """The pattern of one step, or none."""
    step = Reader(given, read.where, read.error, f"pre_tokenizer[{number}].")
    kind = step.document.get("type")
    if kind == "ByteLevel":
        if step.document.get("add_prefix_space"):
            raise step.fail("add_prefix_space", "is not supported; pass prompt_ids instead of text")
        return [GPT2_WORDS] if step.document.get("use_regex", True) else []
    if kind == "Digits":
        return [r"\p{N}" if step.document.get("individual_digits") else r"\p{N}+"]
    pattern = (
        step.block("pattern") if kind == "Split" and step.document.get("behavior") == "Isolated" else None
    )
    if pattern is not None and "Regex" in pattern.document:
        return [_compiled(read.where, pattern.document["Regex"])]
    if kind is None:
        return []
    raise SpecschedError(
        f"{read.where}: pre-tokenizer {quoted(kind)} is not supported; pass prompt_ids instead of text"
    )


def _compiled(where: str, pattern: Any) -> str:
    try:
        regex.compile(pattern)
    except (regex.error, TypeError, ValueError, RecursionError) as e:
        raise SpecschedError(
            f"{where}: pre_tokenizer pattern {quoted(pattern)} is not a regular expression "
            f"({plain(str(e), 80)}); correct it"
        ) from None
    return str(pattern)


def chat_template_of(folder: Path) -> tuple[str | None, dict[str, Any]]:
    variables: dict[str, Any] = {}
    template = None
    config = folder / "tokenizer_config.json"
    if config.is_file():
        read = Reader(read_json(config, SpecschedError), str(config), SpecschedError)
        template = read.document.get("chat_template")
        if template is not None and not isinstance(template, str | list):
            raise read.fail("chat_template", f"is {kind_of(template)}; it must be a text")
        for key in ("bos_token", "eos_token"):
            value = read.document.get(key)
            text = value.get("content") if isinstance(value, dict) else value
            if text is not None and not isinstance(text, str):
                raise read.fail(key, f"is {kind_of(text)}; it must be a text")
            variables[key] = text or ""
    if (folder / "chat_template.jinja").is_file():
        template = read_text(folder / "chat_template.jinja", SpecschedError, 1 << 20)
    return (template if isinstance(template, str) else None), variables
