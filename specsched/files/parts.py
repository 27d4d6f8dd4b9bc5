"""A folder of what an interrupted run has finished, with the settings it was made under."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import SpecschedError
from .disk import read_json
from .output import write_json

_UNFINISHED = re.compile(r"\.specsched-[0-9a-f]{16}\.tmp")


class PartsFolder:
    """The parts of one run. Nothing else may stand in the folder, nor parts of other settings.

    `what`: the run in words ("recording"); `names`: a pattern of its parts' names, whole; `elsewhere`: what
    else a user can do ("record to another file"). Raises `error`, naming the folder and the settings that
    differ.
    """

    def __init__(
        self,
        folder: Path,
        settings: dict[str, Any],
        what: str,
        names: str,
        elsewhere: str,
        error: type[SpecschedError],
    ) -> None:
        self.folder, self._names = folder, re.compile(names)
        about = folder / "settings.json"
        self._refuse_foreign(what, elsewhere, error)
        before = read_json(about, error) if about.is_file() else None
        if before is not None and not isinstance(before, dict):
            raise error(f"{about} is not of a {what}; delete it, or {elsewhere}")
        if before is not None and before != settings:
            different = sorted(k for k in settings if before.get(k) != settings[k])
            raise error(
                f"{about}: an unfinished {what} with other settings ({', '.join(different) or 'more'}); "
                f"finish it with those, delete its folder, or {elsewhere}"
            )
        write_json(about, settings, own=True)

    def _refuse_foreign(self, what: str, elsewhere: str, error: type[SpecschedError]) -> None:
        """A folder that holds anything else than parts is somebody's own."""
        if not os.path.lexists(self.folder):
            return
        if self.folder.is_symlink() or not self.folder.is_dir():
            raise error(f"{self.folder} is not a folder of parts; {elsewhere}")
        for entry in sorted(self.folder.iterdir()):
            if not self._is_part(entry):
                raise error(
                    f"{self.folder} holds {entry.name!r}, which is not of a {what}; move it elsewhere, or "
                    f"{elsewhere}"
                )

    def _is_part(self, path: Path) -> bool:
        """Whether a run writes a file of that name here (or left it half written)."""
        if path.is_symlink() or not path.is_file():
            return False
        name = path.name
        return bool(name == "settings.json" or self._names.fullmatch(name) or _UNFINISHED.fullmatch(name))

    def remove(self) -> None:
        """Delete the parts, and the folder where nothing else is in it."""
        if not self.folder.is_dir():
            return
        self.remove_where(lambda name: True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def remove_where(self, chosen: Callable[[str], bool]) -> None:
        """Delete the parts whose names are chosen."""
        for entry in self.folder.iterdir():
            if self._is_part(entry) and chosen(entry.name):
                entry.unlink(missing_ok=True)
