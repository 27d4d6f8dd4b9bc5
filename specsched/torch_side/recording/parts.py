"""What an interrupted recording has finished, on disk: whole batches, and requests of the batch at work."""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...errors import TraceError
from ...files.archive import check_archive
from ...files.disk import read_json
from ...files.output import atomic_write, damaged, write_json
from .coupling import Rows, check_rows


class Recorded(NamedTuple):
    """One recorded request."""

    rows: Rows
    domain: str
    prompt_tokens: int


class Parts:
    """What of a recording is finished, in a folder, with the settings it was made under.

    A file a batch; of the batch at work its sampled texts (`coupling.save_texts`: they were decoded side by
    side, so only the same batch gives the same bits) and a file for every request drafted along its text.
    """

    def __init__(self, folder: Path | None, fingerprint: dict[str, Any], block_size: int) -> None:
        self.folder, self.block_size, self.dense = folder, block_size, fingerprint["mode"] == "dense"
        if folder is None:
            return
        about = folder / "settings.json"
        self._refuse_foreign()
        before = read_json(about, TraceError) if about.is_file() else None
        if before is not None and not isinstance(before, dict):
            raise TraceError(f"{about} is not of a recording; delete it, or record to another file")
        if before is not None and before != fingerprint:
            different = sorted(k for k in fingerprint if before.get(k) != fingerprint[k])
            raise TraceError(
                f"{about}: an unfinished recording with other settings ({', '.join(different) or 'more'}); "
                "finish it with those, delete its folder, or record to another file"
            )
        write_json(about, fingerprint, own=True)

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
        self._remove(lambda name: not name.startswith(("part-", "settings")))

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

    def _refuse_foreign(self) -> None:
        """A folder that holds anything else than parts is somebody's own."""
        if self.folder is None or not os.path.lexists(self.folder):
            return
        if self.folder.is_symlink() or not self.folder.is_dir():
            raise TraceError(f"{self.folder} is not a folder of parts; record to another file")
        for entry in sorted(self.folder.iterdir()):
            if not _is_part(entry):
                raise TraceError(
                    f"{self.folder} holds {entry.name!r}, which is not of a recording; move it elsewhere, or "
                    "record to another file"
                )

    def remove(self) -> None:
        """Delete the parts, and the folder where nothing else is in it."""
        if self.folder is None or not self.folder.is_dir():
            return
        self._remove(lambda name: True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def _remove(self, chosen: Callable[[str], bool]) -> None:
        for entry in self.folder.iterdir() if self.folder is not None else ():
            if _is_part(entry) and chosen(entry.name):
                entry.unlink(missing_ok=True)


def _is_part(path: Path) -> bool:
    """Whether a file of a folder of parts is one that a recording writes there (or left half written)."""
    if path.is_symlink() or not path.is_file():
        return False
    name = path.name
    own = name == "settings.json" or re.fullmatch(
        r"part-\d{5,}\.npz|request-\d{7,}\.npz|[0-9a-f]{16}\.texts", name
    )
    return bool(own or re.fullmatch(r"\.specsched-[0-9a-f]{16}\.tmp", name))
