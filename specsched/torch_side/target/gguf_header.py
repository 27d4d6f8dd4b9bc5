"""The header of a GGUF file walked once before the `gguf` library reads it.

The library trusts every length in the file: a damaged one makes it loop over 2^60 entries. Here each length
is held against the bytes that are left. Layout: magic, version uint32, tensors uint64, keys uint64; then per
key a name, a type and a value (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
"""

from __future__ import annotations

import struct
from pathlib import Path

from ...errors import SpecschedError

_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_TEXT, _ARRAY = 8, 9
_MOST_KEYS, _MOST_TENSORS, _MOST_ENTRIES = 10_000, 100_000, 2_000_000


def check_header(path: Path) -> None:
    """Raise SpecschedError where a count or a length of the header does not fit the file."""
    size = path.stat().st_size
    with path.open("rb") as stream:

        def take(form: str) -> int:
            raw = stream.read(struct.calcsize(form))
            if len(raw) < struct.calcsize(form):
                raise SpecschedError(f"{path}: the GGUF header is cut short; fetch the file again")
            return int(struct.unpack(form, raw)[0])

        def skip(n: int, what: str) -> None:
            if n > size - stream.tell():
                raise SpecschedError(f"{path}: {what} is longer than the file; it is damaged: fetch it again")
            stream.seek(n, 1)

        if stream.read(4) != b"GGUF":
            raise SpecschedError(f"{path} is not a GGUF file (it does not begin with GGUF); fetch it again")
        version, tensors, keys = take("<I"), take("<Q"), take("<Q")
        if version not in (2, 3):
            raise SpecschedError(f"{path}: GGUF version {version}; versions 2 and 3 are read")
        if tensors > _MOST_TENSORS or keys > _MOST_KEYS:
            raise SpecschedError(f"{path}: {keys} keys and {tensors} tensors; the header is damaged")
        for number in range(keys):
            what = f"key {number + 1} of the header"
            skip(take("<Q"), what)
            kind = take("<I")
            count = 1
            if kind == _ARRAY:
                kind, count = take("<I"), take("<Q")
                if count > min(_MOST_ENTRIES, size):
                    raise SpecschedError(f"{path}: {what} has {count} entries; the file is damaged")
            if kind == _TEXT:
                for _ in range(count):
                    skip(take("<Q"), what)
            elif kind in _SIZES:
                skip(_SIZES[kind] * count, what)
            else:
                raise SpecschedError(f"{path}: {what} has the unknown type {kind}; the file is damaged")
        for number in range(tensors):
            what = f"tensor {number + 1} of the header"
            skip(take("<Q"), what)
            dimensions = take("<I")
            if not 1 <= dimensions <= 4:
                raise SpecschedError(f"{path}: {what} has {dimensions} dimensions; the file is damaged")
            skip(8 * dimensions + 12, what)
