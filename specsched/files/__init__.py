"""Files: how they are found, read and written.

disk        bundled names, atomic writes, JSON
reader      typed fields of a JSON document, with errors that name the entry
kind        what a file is, by its content
"""

from .disk import atomic_write, bundled_dir, bundled_names, one_line_lists, read_json, resolve, write_json
from .reader import Reader

__all__ = [
    "Reader",
    "atomic_write",
    "bundled_dir",
    "bundled_names",
    "one_line_lists",
    "read_json",
    "resolve",
    "write_json",
]
