"""Files: how they are found, read and written.

disk        bundled names, atomic writes, JSON
strict      JSON and TOML with their size, depth and digits bounded
guard       errors of libraries turned into one sentence that names the file
reader      typed fields of a JSON document, with errors that name the entry
kind        what a file is, by its content
"""

from .disk import atomic_write, bundled_dir, bundled_names, one_line_lists, resolve, write_json
from .guard import reading
from .reader import Reader
from .strict import read_json

__all__ = [
    "Reader",
    "atomic_write",
    "bundled_dir",
    "bundled_names",
    "one_line_lists",
    "read_json",
    "reading",
    "resolve",
    "write_json",
]
