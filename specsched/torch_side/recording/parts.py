"""What an interrupted recording has finished, on disk: whole batches, and requests of the batch at work."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...errors import TraceError
from ...files.archive import check_archive
from ...files.output import atomic_write, damaged
from ...files.parts import PartsFolder
from ..engine.answers import NAMES as ANSWERS
from .coupling import Rows, check_rows

_NAMES = rf"part-\d{{5,}}\.npz|request-\d{{7,}}\.npz|[0-9a-f]{{16}}\.texts|{ANSWERS}"


class Recorded(NamedTuple):
    """One recorded request."""

    rows: Rows
    domain: str
    prompt_tokens: int


class Parts:
    """What of a recording is finished, in a folder, with the settings it was made under.

    A file a batch; of the batch at work its sampled texts (`coupling.save_texts`: they were decoded side by
    side, so only the same batch gives the same bits) and a file for every request drafted along its text, or
    for every finished answer of a sequential recording.
    """

    def __init__(self, folder: Path | None, fingerprint: dict[str, Any], block_size: int) -> None:
        self.folder, self.block_size, self.dense = folder, block_size, fingerprint["mode"] == "dense"
        self._parts: PartsFolder | None = None
        if folder is not None:
            elsewhere = "record to another file"
            self._parts = PartsFolder(folder, fingerprint, "recording", _NAMES, elsewhere, TraceError)

    def _request_path(self, key: int) -> Path | None:
        return None if self.folder is None else self.folder / f"request-{key:07d}.npz"

    def _path(self, number: int) -> Path | None:
        return None if self.folder is None else self.folder / f"part-{number:05d}.npz"

    def load(self, number: int) -> list[Recorded] | None:
        """A finished batch; None where it is not there."""
        return self._load(self._path(number))

    def load_request(self, key: int) -> Rows | None:
        """The rows of a finished request of the batch at work."""
        found = self._load(self._request_path(key))
        return None if found is None else found[0].rows

    def save_request(self, key: int, rows: Rows) -> None:
        self._save(self._request_path(key), [Recorded(rows, "", 0)])

    def _load(self, path: Path | None) -> list[Recorded] | None:
        if path is None or not path.is_file():
            return None
        with damaged(path, TraceError, "delete it, and it is recorded again"):
            check_archive(path)
            with np.load(path) as archive:
                z = dict(archive)
            if (
                not len(z["domain"]) == len(z["counts"]) == len(z["prompt_tokens"])
                or z["prompt_tokens"].min(initial=0) < 0
            ):
                raise ValueError("columns of different lengths, or a prompt of less than no tokens")
            if not len(z["counts"]) and not len(z["position"]):
                return []
            cut = np.cumsum(z["counts"])[:-1]
            columns = (np.split(z[name], cut) for name in ("position", "confidence_logit", "accepted"))
            rows = [Rows(*columns_of_one) for columns_of_one in zip(*columns, strict=True)]
            check_rows(rows, z["counts"].tolist(), self.block_size, self.dense)
            about = zip(rows, z["domain"].tolist(), z["prompt_tokens"].tolist(), strict=True)
            return [Recorded(r, str(d), int(p)) for r, d, p in about]

    def save(self, number: int, found: list[Recorded]) -> None:
        """Keep a finished batch; its requests' own files are no longer needed."""
        self._save(self._path(number), found)
        if self._parts is not None:
            self._parts.remove_where(lambda name: not name.startswith(("part-", "settings")))

    def _save(self, path: Path | None, found: list[Recorded]) -> None:
        if path is None:
            return
        rows = [r.rows for r in found]
        arrays: dict[str, Any] = {
            "counts": np.array([len(r.position) for r in rows], np.int64),
            "domain": np.array([r.domain for r in found], dtype=np.str_),
            "prompt_tokens": np.array([r.prompt_tokens for r in found], np.int64),
        }
        for i, name in enumerate(Rows._fields):
            arrays[name] = np.concatenate([r[i] for r in rows]) if rows else np.zeros(0)
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)
        with atomic_write(path, "wb", own=True) as stream:
            stream.write(buffer.getvalue())

    def remove(self) -> None:
        """Delete the parts, and the folder where nothing else is in it."""
        if self._parts is not None:
            self._parts.remove()
