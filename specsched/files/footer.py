"""How many values the columns of a Parquet file hold, read from its footer.

Arrow's own reader of column metadata ends the process where a footer is damaged (a C++ exception that
nobody catches), and a nested column may hold any number of values in few bytes: so the numbers are taken from
the footer's Thrift structs (compact protocol, https://github.com/apache/parquet-format) first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any

_MOST_BYTES = 64 << 20
_DEEPEST = 24
_ROW_GROUPS, _COLUMNS, _META_DATA, _NUM_VALUES = 4, 1, 3, 5  # field numbers of parquet.thrift


class FooterError(ValueError):
    """A footer that cannot be read."""


def values_held(stream: IO[bytes]) -> int:
    """The values of all columns together, nulls and empty lists counted; raises FooterError.

    stream: a seekable Parquet file; its position is changed.
    """
    size = stream.seek(0, 2)
    stream.seek(max(size - 8, 0))
    tail = stream.read(8)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != b"PAR1" or not 0 < length <= min(size - 8, _MOST_BYTES):
        raise FooterError("its end is no Parquet footer")
    stream.seek(size - 8 - length)
    try:
        footer = _Compact(stream.read(length)).struct(0)
        return sum(
            int(column[_META_DATA][_NUM_VALUES])
            for group in footer[_ROW_GROUPS]
            for column in group[_COLUMNS]
        )
    except (IndexError, KeyError, TypeError) as e:
        raise FooterError("its footer is damaged") from e


class _Compact:
    """Values of Thrift's compact protocol, one behind the other."""

    def __init__(self, raw: bytes) -> None:
        self.raw, self.at = raw, 0

    def struct(self, depth: int) -> dict[int, Any]:
        """Its fields by number."""
        if depth > _DEEPEST:
            raise FooterError("its footer is nested too deeply")
        fields: dict[int, Any] = {}
        number = 0
        while (head := self._byte()) != 0:
            number = number + (head >> 4) if head >> 4 else self._signed()
            fields[number] = self._value(head & 15, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (1, 2):
            return kind == 1
        if kind == 3:
            return self._byte()
        if kind in (4, 5, 6):
            return self._signed()
        if kind == 7:
            return self._bytes(8)
        if kind == 8:
            return self._bytes(self._varint())
        if kind in (9, 10):
            return list(self._items(depth))
        if kind == 12:
            return self.struct(depth + 1)
        raise FooterError(f"its footer holds the unknown type {kind}")

    def _items(self, depth: int) -> Iterator[Any]:
        head = self._byte()
        count = head >> 4 if head >> 4 < 15 else self._varint()
        if count > len(self.raw) - self.at:
            raise FooterError("its footer has a list longer than itself")
        kind = head & 15
        for _ in range(count):
            yield self._byte() == 1 if kind in (1, 2) else self._value(kind, depth + 1)

    def _byte(self) -> int:
        self.at += 1
        return self.raw[self.at - 1]

    def _bytes(self, count: int) -> bytes:
        if count > len(self.raw) - self.at:
            raise FooterError("its footer has a text longer than itself")
        self.at += count
        return self.raw[self.at - count : self.at]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
            if shift > 63:
                raise FooterError("its footer has a number of more than 64 bits")

    def _signed(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)
