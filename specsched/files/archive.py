"""Archives of arrays and tensors (`.npz`, `.pt`) and folders of weights: nothing endless among them."""

from __future__ import annotations

import os
import stat
import zipfile
from pathlib import Path

from ..errors import SpecschedError

_MOST_COMPRESSED = 256 << 20  # bytes that compressed members may become; what we write is not compressed


def check_archive(path: Path) -> None:
    """Raise ValueError for a zip whose members become far more bytes than the file has."""
    with zipfile.ZipFile(path) as archive:
        held = sum(member.file_size for member in archive.infolist())
    if held > max(path.stat().st_size, _MOST_COMPRESSED):
        raise ValueError("compressed members that become too many bytes")


def files_of(folder: Path, pattern: str, error: type[SpecschedError]) -> list[Path]:
    """The files of a folder that match, sorted; a pipe or a device among them raises `error`, as it could be
    waited for without end."""
    found = sorted(folder.glob(pattern))
    for path in found:
        try:
            mode = os.stat(path).st_mode
        except OSError as e:
            raise error(f"cannot read {path}: {e.strerror or e}; remove it, or fetch it again") from None
        if not stat.S_ISREG(mode):
            raise error(f"{path} is not a regular file; put the file itself there")
    return found
