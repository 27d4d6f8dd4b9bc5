"""Optional packages: imported when needed, or an error that says what to install."""

from __future__ import annotations

import importlib
from types import ModuleType

from .errors import SpecschedError


def extra_module(module: str, extra: str, what: str) -> ModuleType:
    """Import a module that needs an optional dependency; its absence is an error that names the pip extra."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] == "specsched":
            raise
        raise SpecschedError(
            f"{what} needs the Python package {error.name!r}; run: pip install 'specsched[{extra}]'"
        ) from None
