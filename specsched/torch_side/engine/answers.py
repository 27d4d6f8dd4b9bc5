"""Finished answers on disk, one file a request, from which an interrupted run resumes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ...errors import SpecschedError
from ...files.disk import read_json
from ...files.output import damaged, write_json
from ...files.reader import Reader
from ..drafter.base import Drafter
from .engine import Output, Request, Round

NAMES = r"answer-\d{7,}\.json"


class Answers:
    """Answers of requests by their keys in `folder`, which belongs to one run (`files.parts.PartsFolder`).

    An answer depends on its own request and, by rounding alone, on those decoded beside it: a run that
    resumes may differ from one that was not interrupted as much as one of another batch size.
    """

    def __init__(self, folder: Path, block_size: int) -> None:
        self._folder, self._block = folder, block_size

    def load(self, request: Request) -> Output | None:
        """The finished answer; None where it is not there. Raises SpecschedError for a damaged file."""
        path = self._path(request.key)
        if not path.is_file():
            return None
        with damaged(path, SpecschedError, "delete it, and its request is answered again"):
            read = Reader(read_json(path, SpecschedError), str(path), SpecschedError)
            ids = [int(token) for token in read.numbers("output_ids")]
            return Output(request, ids, [self._round(one) for one in read.document["rounds"]])

    def _round(self, values: dict[str, Any]) -> Round:
        made = Round(
            int(values["position"]),
            tuple(map(int, values["draft_ids"])),
            tuple(map(float, values["confidence_logits"])),
            int(values["verified"]),
            int(values["accepted"]),
        )
        whole = len(made.draft_ids) == len(made.confidence_logits) in (0, self._block)
        if not whole or not 0 <= made.accepted <= made.verified <= self._block or made.position < 0:
            raise ValueError("a round that cannot have been")
        return made

    def save(self, output: Output) -> None:
        """Keep a finished answer."""
        rounds = [one._asdict() for one in output.rounds]
        document = {"output_ids": output.output_ids, "rounds": rounds}
        write_json(self._path(output.request.key), document, own=True)

    def _path(self, key: int) -> Path:
        return self._folder / f"answer-{key:07d}.json"


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
