"""Finished answers on disk, one file a request, from which an interrupted run resumes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from ...errors import SpecschedError
from ...files.disk import read_json
from ...files.output import damaged, write_json
from ...files.reader import Reader
from ..drafter.base import Drafter
from .engine import Output, Request, Round

NAMES = r"answer-\d{7,}\.json"
_LARGEST = 3.5e38  # a score is a float32


class Answers:
    """Answers of requests by their keys in `folder`, which belongs to one run (`files.parts.PartsFolder`).

    vocabulary: how many tokens the target has; ends: those after which a text stops; block_size: γ;
    drafts: whether every step drafts (True), none does (False), or some may (None).

    An answer depends on its own request and, by rounding alone, on those decoded beside it: a run that
    resumes may differ from one that was not interrupted as much as one of another batch size.
    """

    def __init__(
        self, folder: Path, *, vocabulary: int, ends: Collection[int], block_size: int, drafts: bool | None
    ) -> None:
        self._folder, self._vocabulary, self._ends = folder, vocabulary, ends
        self._block, self._drafts = block_size, drafts

    def load(self, request: Request) -> Output | None:
        """The finished answer; None where it is not there. Raises SpecschedError for a damaged file."""
        path = self._path(request.key)
        if not path.is_file():
            return None
        with damaged(path, SpecschedError, "delete it, and its request is answered again"):
            read = Reader(read_json(path, SpecschedError), str(path), SpecschedError)
            read.numbers("output_ids")
            ids = self._tokens(read.document["output_ids"])
            if not 1 <= len(ids) <= request.max_tokens:
                raise ValueError("no token, or more than were asked for")
            ended = [token in self._ends for token in ids]
            if any(ended[:-1]) or not (ended[-1] or len(ids) == request.max_tokens):
                raise ValueError("a text that does not stop where it should")
            rounds = read.document["rounds"]
            if not isinstance(rounds, list):
                raise ValueError("rounds that are no list")
            return Output(request, ids, self._rounds(rounds, ids))

    def _rounds(self, rounds: list[Any], ids: list[int]) -> list[Round]:
        """The rounds, each from where the one before it ended (behind that where some steps draft nothing),
        to the end of the answer, whose tokens their accepted drafts are."""
        if rounds and self._drafts is False:
            raise ValueError("rounds of a run that drafts nothing")
        made, begins = [self._round(one) for one in rounds], 0
        for one in made:
            text = ids[one.position + 1 : one.position + 1 + one.accepted]
            if not begins <= one.position < len(ids) - 1 or text != list(one.draft_ids[: len(text)]):
                raise ValueError("a round that does not belong to this answer")
            if self._drafts and one.position != begins:
                raise ValueError("a round is missing")
            begins = one.position + one.accepted + 1
        if self._drafts and begins < len(ids) - 1:
            raise ValueError("the last round is missing")
        return made

    def _round(self, values: dict[str, Any]) -> Round:
        made = Round(
            _whole(values["position"]),
            tuple(self._tokens(values["draft_ids"])),
            tuple(map(float, values["confidence_logits"])),
            _whole(values["verified"]),
            _whole(values["accepted"]),
        )
        whole = len(made.draft_ids) == len(made.confidence_logits) == self._block
        known = all(abs(score) <= _LARGEST for score in made.confidence_logits)
        if not whole or not known or not made.accepted <= made.verified <= self._block:
            raise ValueError("a round that cannot have been")
        return made

    def _tokens(self, values: list[Any]) -> list[int]:
        return [_whole(token, self._vocabulary) for token in values]

    def save(self, output: Output) -> None:
        """Keep a finished answer."""
        rounds = [one._asdict() for one in output.rounds]
        document = {"output_ids": output.output_ids, "rounds": rounds}
        write_json(self._path(output.request.key), document, own=True)

    def _path(self, key: int) -> Path:
        return self._folder / f"answer-{key:07d}.json"


def _whole(value: Any, below: int = 2**31) -> int:
    """A count, or a token of so many, as it was written: no text, no fraction, no truth."""
    if type(value) is not int or not 0 <= value < below:
        raise ValueError("an entry that is no whole number, or too large")
    return value


def drafter_digest(drafter: Drafter) -> str:
    """SHA-256 over the drafter's own tensors, by name, in float32, and what else decides the drafts of one
    with a head of its own."""
    digest = hashlib.sha256()
    for name, tensor in sorted(drafter.held_state().items()):
        digest.update(name.encode() + tensor.detach().float().cpu().contiguous().numpy().tobytes())
    if drafter.config.own_head:
        ids = [] if drafter.draft_ids is None else drafter.draft_ids.tolist()
        digest.update(json.dumps([drafter.config.to_dict(), ids]).encode())
    return digest.hexdigest()


def rows_digest(rows: Iterable[dict[str, Any]]) -> str:
    """SHA-256 over rows of prompts."""
    return hashlib.sha256(json.dumps(list(rows), sort_keys=True).encode()).hexdigest()
