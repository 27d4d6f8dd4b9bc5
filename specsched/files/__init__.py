"""Files: how they are found, read and written.

disk        bundled names
pipe        pipes and devices, with a limit
strict      JSON and TOML with their size, depth and digits bounded
archive     archives of arrays, folders of files: nothing endless among them
guard       errors of libraries turned into one sentence that names the file
footer      how many values a Parquet file holds
output      where every write is decided: what may be written over, atomically
reader      typed fields of a JSON document, with errors that name the entry
kind        what a file is, by its content
"""

from .disk import bundled_dir, bundled_names, one_line_lists, resolve
from .guard import reading
from .output import atomic_write, write_json
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
