"""Byte-level BPE, read from `tokenizer.json` or a GGUF file, and trained from scratch for the tiny target.

Text is cut into words by regular expressions, each word's UTF-8 bytes are merged pair by pair in the order
the merges were learned. Special tokens (chat marks) are cut out first and never merged.

It is our own, and tests hold it to the `tokenizers` library: that library runs a file's patterns without a
limit of time, cannot be interrupted, and answers one that backtracks with a panic that prints a stack trace
before Python can refuse it.
"""

from __future__ import annotations

import os
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import regex

from ...errors import SpecschedError, quoted
from ...files.disk import read_json
from ...files.guard import reading
from ...files.output import write_json
from ...files.reader import Reader
from .template import render
from .tokenizer_json import (
    GPT2_WORDS,
    added_tokens,
    chat_template_of,
    merges_of,
    splits_of,
    vocabulary,
)

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def _byte_letters() -> dict[int, str]:
    """GPT-2's map of bytes to printable letters: what vocabularies and merges are spelled in."""
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {b: chr(b) for b in keep}
    spare = (b for b in range(256) if b not in letters)
    return letters | {b: chr(256 + i) for i, b in enumerate(spare)}


_LETTER = _byte_letters()
_BYTE_LEVEL = {"add_prefix_space": False, "trim_offsets": True, "use_regex": False}
_BYTE = {letter: byte for byte, letter in _LETTER.items()}


class Tokenizer:
    """encode, decode and chat for one vocabulary.

    vocab: piece (in GPT-2 byte letters) -> id; merges: pairs, best first; special: text -> id;
    splits: patterns that cut text into words, in order; what lies between matches is a word too. `nfc`
    composes the text first (Qwen), `whole_words` takes a word that is a piece as it is (Llama 3's
    ignore_merges).
    """

    def __init__(
        self,
        vocab: dict[str, int],
        merges: list[tuple[str, str]],
        special: dict[str, int],
        splits: list[str] | None = None,
        chat_template: str | None = None,
        variables: dict[str, Any] | None = None,
        nfc: bool = False,
        whole_words: bool = False,
    ) -> None:
        self.vocab, self.special = vocab, special
        self.nfc, self.whole_words = nfc, whole_words
        self.rank = {pair: i for i, pair in enumerate(merges)}
        self.splits = [GPT2_WORDS] if splits is None else splits
        self.chat_template = chat_template
        self.variables = variables or {}
        self.source: str | None = None  # the files it and its template were read from, for messages
        self.template_source: str | None = None
        self._patterns = [regex.compile(p) for p in self.splits]
        self._special_pattern = (
            regex.compile("|".join(regex.escape(s) for s in sorted(special, key=len, reverse=True)))
            if special
            else None
        )
        self._piece = {i: p for p, i in vocab.items()}
        self._special_text = {i: s for s, i in special.items()}
        self._words: dict[str, list[int]] = {}

    # --- text to ids and back

    def encode(self, text: str) -> list[int]:
        """Token ids; special tokens written out in the text become their ids. No BOS is added."""
        if self.nfc:
            text = unicodedata.normalize("NFC", text)
        ids: list[int] = []
        for piece, is_special in self._cut_special(text):
            if is_special:
                ids.append(self.special[piece])
            else:
                for word in self._words_of(piece):
                    ids.extend(self._word(word))
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Text of the ids, special tokens included; broken UTF-8 at a cut becomes U+FFFD."""
        out: list[bytes] = []
        for i in ids:
            special = self._special_text.get(int(i))
            if special is not None:
                out.append(special.encode())
            else:
                piece = self._piece.get(int(i))
                if piece is None:
                    raise SpecschedError(
                        f"{self.source or 'tokenizer'}: token id {i} is not in its vocabulary of "
                        f"{len(self.vocab)}; tokenizer and weights do not belong together"
                    )
                out.append(bytes(_BYTE[c] for c in piece if c in _BYTE))
        return b"".join(out).decode("utf-8", errors="replace")

    def chat(self, messages: list[dict[str, str]], thinking: bool | None = None) -> list[int]:
        """Ids of a conversation, ending where the assistant's answer begins.

        messages: {"role", "content"} in order. `thinking`: the template's `enable_thinking` (Qwen3 and
        others); None leaves it to the template. Raises `SpecschedError` when the model has no chat template,
        or one that does not ask for `thinking`.
        """
        if self.chat_template is None:
            raise SpecschedError(
                "this tokenizer has no chat template; encode the prompt as plain text instead"
            )
        where = self.template_source or self.source or "this tokenizer"
        values = dict(self.variables)
        if thinking is not None:
            if "enable_thinking" not in self.chat_template:
                raise SpecschedError(
                    f"{where}: the chat template knows no enable_thinking; leave the choice of thinking out"
                )
            values["enable_thinking"] = thinking
        text = render(self.chat_template, where, messages=messages, add_generation_prompt=True, **values)
        return self.encode(text)

    def _cut_special(self, text: str) -> Iterator[tuple[str, bool]]:
        at = 0
        for m in self._special_pattern.finditer(text) if self._special_pattern else ():
            if m.start() > at:
                yield text[at : m.start()], False
            yield m.group(), True
            at = m.end()
        if at < len(text):
            yield text[at:], False

    def _words_of(self, text: str) -> list[str]:
        words = [text]
        for pattern in self._patterns:
            try:
                words = [part for word in words for part in _isolate(pattern, word)]
            except TimeoutError:
                raise SpecschedError(
                    f"{self.source or 'tokenizer'}: the pattern {quoted(pattern.pattern)} takes seconds on "
                    "one text; use another"
                ) from None
        return words

    def _word(self, word: str) -> list[int]:
        known = self._words.get(word)
        if known is None:
            letters = [_LETTER[b] for b in word.encode("utf-8")]
            whole = self.vocab.get("".join(letters)) if self.whole_words else None
            pieces = merge(letters, self.rank) if whole is None else []
            try:
                known = [self.vocab[p] for p in pieces] if whole is None else [whole]
            except KeyError as e:
                raise SpecschedError(
                    f"{self.source or 'tokenizer'}: the piece {quoted(e.args[0])} is not in the vocabulary; "
                    "is the file whole?"
                ) from None
            self._words[word] = known
        return known

    # --- files

    @classmethod
    def from_gguf(cls, meta: dict[str, Any]) -> Tokenizer:
        """Tokenizer of a GGUF file's metadata; byte-level BPE only (`gpt2`), with the pre-tokenizers we
        know."""
        splits = {
            "smollm": [r"\p{N}", GPT2_WORDS],
            "gpt-2": [GPT2_WORDS],
            "default": [GPT2_WORDS],
        }.get(meta.get("tokenizer.ggml.pre", "default"))
        if meta.get("tokenizer.ggml.model") != "gpt2" or splits is None:
            raise SpecschedError(
                f"GGUF tokenizer {meta.get('tokenizer.ggml.model')!r} / {meta.get('tokenizer.ggml.pre')!r} "
                "is not supported; use the model's safetensors folder with its tokenizer.json"
            )
        tokens = meta["tokenizer.ggml.tokens"]
        types = meta["tokenizer.ggml.token_type"]
        if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
            raise SpecschedError("tokenizer.ggml.tokens is not a list of texts; the file is damaged")
        if not isinstance(types, list) or len(types) != len(tokens):
            raise SpecschedError("tokenizer.ggml.token_type has not one entry a token; the file is damaged")
        merges = [_pair(line) for line in meta["tokenizer.ggml.merges"]]
        special = {t: i for i, (t, kind) in enumerate(zip(tokens, types, strict=True)) if kind == 3}
        vocab = {t: i for i, (t, kind) in enumerate(zip(tokens, types, strict=True)) if kind != 3}
        return cls(vocab, merges, special, splits, meta.get("tokenizer.chat_template"))

    @classmethod
    def from_folder(cls, folder: str | os.PathLike[str]) -> Tokenizer:
        """Tokenizer of `tokenizer.json`, its chat template from the files Hugging Face keeps it in."""
        path = Path(folder) / "tokenizer.json"
        template, variables = chat_template_of(Path(folder))
        with reading(path, SpecschedError, "tokenizer"):
            made = cls._of_file(path, template, variables)
        made.source = str(path)
        files = [path.with_name(name) for name in ("chat_template.jinja", "tokenizer_config.json")]
        made.template_source = next((str(file) for file in files if file.is_file()), None)
        return made

    @classmethod
    def _of_file(cls, path: Path, template: str | None, variables: dict[str, Any]) -> Tokenizer:
        raw = read_json(path, SpecschedError)
        read = Reader(raw, str(path), SpecschedError)
        parts = read.block("model")
        if parts is None:
            raise read.fail("model", "is missing; it holds vocab and merges")
        model = parts.document
        if model.get("type", "BPE") != "BPE" or model.get("byte_fallback"):
            raise SpecschedError(
                f"{path}: only byte-level BPE tokenizers are supported, not {quoted(model.get('type'))}"
            )
        vocab = vocabulary(parts)
        merges = merges_of(parts, vocab)
        special = added_tokens(read)
        given = read.block("normalizer")
        normalizer = None if given is None else given.document.get("type")
        if normalizer not in (None, "NFC"):
            raise SpecschedError(f"{path}: normalizer {normalizer!r} is not supported; pass prompt_ids")
        whole_words = bool(model.get("ignore_merges"))
        splits = splits_of(read)
        return cls(vocab, merges, special, splits, template, variables, normalizer == "NFC", whole_words)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a `tokenizer.json` that `from_folder` (and the `tokenizers` library) reads, and its
        template."""
        pre: list[dict[str, Any]] = [
            {"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False}
            for p in self.splits
        ]
        pre.append({"type": "ByteLevel", **_BYTE_LEVEL})
        added = [
            {"id": i, "content": s, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False}
            for s, i in self.special.items()
        ]  # fmt: skip
        document = {
            "version": "1.0",
            "added_tokens": added,
            "normalizer": {"type": "NFC"} if self.nfc else None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": pre},
            "post_processor": None,
            "decoder": {"type": "ByteLevel", **_BYTE_LEVEL},
            "model": {
                "type": "BPE",
                "vocab": self.vocab,
                "merges": [list(p) for p in self.rank],
                "ignore_merges": self.whole_words,
            },
        }
        path = Path(path)
        write_json(path, document)
        if self.chat_template is not None:
            write_json(path.with_name("tokenizer_config.json"), {"chat_template": self.chat_template})


def _isolate(pattern: regex.Pattern, text: str) -> list[str]:
    out, at = [], 0
    for m in pattern.finditer(text, timeout=_PATTERN_SECONDS):
        if m.start() > at:
            out.append(text[at : m.start()])
        if m.group():
            out.append(m.group())
        at = m.end()
    if at < len(text):
        out.append(text[at:])
    return out


def _pair(line: str) -> tuple[str, str]:
    left, right = line.split(" ")
    return left, right


_PATTERN_SECONDS = 5.0  # a pattern that backtracks without end; real ones take microseconds


def merge(pieces: list[str], rank: dict[tuple[str, str], int]) -> list[str]:
    """Apply merges best first until none applies."""
    while len(pieces) > 1:
        best = min(range(len(pieces) - 1), key=lambda i: rank.get((pieces[i], pieces[i + 1]), len(rank)))
        pair = (pieces[best], pieces[best + 1])
        if pair not in rank:
            break
        pieces = join(pieces, pair)
    return pieces


def join(pieces: list[str], pair: tuple[str, str]) -> list[str]:
    """`pieces` with every occurrence of `pair`, left to right, made one piece."""
    out, i = [], 0
    while i < len(pieces):
        if i + 1 < len(pieces) and (pieces[i], pieces[i + 1]) == pair:
            out.append(pieces[i] + pieces[i + 1])
            i += 2
        else:
            out.append(pieces[i])
            i += 1
    return out


def train_bpe(texts: Iterable[str], vocab_size: int, special: list[str], template: str = CHATML) -> Tokenizer:
    """Learn a byte-level BPE: most frequent pair first, ties to the smaller pair, special tokens at the end.

    Ids: 256 bytes, then merges in order, then special tokens, `vocab_size` in all.
    """
    splits = [r"\p{N}", GPT2_WORDS]
    blank = Tokenizer({}, [], {}, splits)
    counts = Counter(word for text in texts for word in blank._words_of(text))
    words = {w: [_LETTER[b] for b in w.encode()] for w in counts}
    pairs: Counter[tuple[str, str]] = Counter()
    holders: dict[tuple[str, str], set[str]] = {}
    for word, pieces in words.items():
        for pair in pairwise(pieces):
            pairs[pair] += counts[word]
            holders.setdefault(pair, set()).add(word)
    merges: list[tuple[str, str]] = []
    while len(merges) < vocab_size - 256 - len(special) and pairs:
        best = max(pairs, key=lambda p: (pairs[p], p))
        if pairs[best] < 2:
            break
        merges.append(best)
        for word in holders.pop(best):
            old, new = words[word], join(words[word], best)
            for pair in pairwise(old):
                pairs[pair] -= counts[word]
            for pair in pairwise(new):
                pairs[pair] += counts[word]
                if pair != best:
                    holders.setdefault(pair, set()).add(word)
            words[word] = new
        del pairs[best]
    names = [_LETTER[b] for b in range(256)] + [a + b for a, b in merges]
    vocab = {name: i for i, name in enumerate(names)}
    ids = {s: len(names) + i for i, s in enumerate(special)}
    return Tokenizer(vocab, merges, ids, splits, template)
