"""Column chunks encoded apart, joined into one Parquet file.

Arrow encodes a file's columns one after the other, on one thread. Here each column of a row group
is encoded as a file of its own, in memory, on any thread; the bytes of the pages are then copied
behind one another, and a footer is written that holds all row groups with their offsets moved. The
footer is in Thrift's compact protocol (Apache Parquet format, ``parquet.thrift``); fields that are
not offsets or sums are passed on untouched.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

MAGIC = b"PAR1"

# Field numbers of parquet.thrift.
_ROWS, _GROUPS = 3, 4
_COLUMNS, _GROUP_ROWS, _GROUP_OFFSET, _ORDINAL = 1, 3, 5, 7
_GROUP_SIZES = (2, 6)
_CHUNK_OFFSET, _CHUNK_METADATA, _OFFSET_INDEX, _COLUMN_INDEX = 2, 3, 4, 6
_PAGE_OFFSETS = (9, 10, 11, 14)

# Type codes of the compact protocol.
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = (
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12,
)  # fmt: skip
_INTEGERS = frozenset({_I16, _I32, _I64})


@dataclass
class Struct:
    """A Thrift structure: field number -> (type, value), in order."""

    fields: dict[int, tuple[int, Any]]

    def __getitem__(self, number: int) -> Any:
        return self.fields[number][1]

    def moved(self, number: int, by: int) -> None:
        """Add to a whole field, if there is one and it is set."""
        if self.fields.get(number, (0, 0))[1]:
            kind, value = self.fields[number]
            self.fields[number] = (kind, value + by)


class _Reader:
    """The compact protocol, read from bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def byte(self) -> int:
        self.position += 1
        return self.data[self.position - 1]

    def unsigned(self) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def signed(self) -> int:
        value = self.unsigned()
        return (value >> 1) ^ -(value & 1)

    def struct(self) -> Struct:
        fields: dict[int, tuple[int, Any]] = {}
        number = 0
        while (head := self.byte()) != 0:
            number = number + (head >> 4) if head >> 4 else self.signed()
            fields[number] = (head & 0x0F, self.value(head & 0x0F))
        return Struct(fields)

    def value(self, kind: int) -> Any:
        if kind in (_TRUE, _FALSE):
            return kind == _TRUE
        if kind in _INTEGERS:
            return self.signed()
        if kind == _BYTE:
            return self.byte()
        if kind == _DOUBLE:
            self.position += 8
            return struct.unpack_from("<d", self.data, self.position - 8)[0]
        if kind == _BINARY:
            length = self.unsigned()
            self.position += length
            return self.data[self.position - length : self.position]
        if kind in (_LIST, _SET):
            return self.list()
        if kind == _STRUCT:
            return self.struct()
        raise ValueError(f"Parquet footer: Thrift type {kind} is not known")

    def list(self) -> tuple[int, list[Any]]:
        head = self.byte()
        length = head >> 4 if head >> 4 != 15 else self.unsigned()
        kind = head & 0x0F
        if kind in (_TRUE, _FALSE):
            return kind, [self.byte() == _TRUE for _ in range(length)]
        return kind, [self.value(kind) for _ in range(length)]


def _unsigned(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _signed(value: int) -> bytes:
    return _unsigned((value << 1) ^ (value >> 63))


def _written(kind: int, value: Any) -> Iterator[bytes]:
    """A value in the compact protocol; a boolean field lives in its header."""
    if kind in _INTEGERS:
        yield _signed(value)
    elif kind == _BYTE:
        yield bytes([value])
    elif kind == _DOUBLE:
        yield struct.pack("<d", value)
    elif kind == _BINARY:
        yield _unsigned(len(value))
        yield value
    elif kind in (_LIST, _SET):
        inner, items = value
        length = len(items)
        yield (
            bytes([length << 4 | inner])
            if length < 15
            else bytes([0xF0 | inner]) + _unsigned(length)
        )
        for item in items:
            if inner in (_TRUE, _FALSE):
                yield bytes([_TRUE if item else _FALSE])
            else:
                yield from _written(inner, item)
    elif kind == _STRUCT:
        yield from _written_struct(value)


def _written_struct(value: Struct) -> Iterator[bytes]:
    last = 0
    for number, (kind, held) in value.fields.items():
        step = number - last
        yield bytes([step << 4 | kind]) if 0 < step < 16 else bytes([kind]) + _signed(number)
        yield from _written(kind, held)
        last = number
    yield b"\0"


def read_footer(encoded: memoryview | bytes) -> tuple[Struct, int]:
    """The footer of a whole Parquet file in memory, and where its pages end."""
    length = int.from_bytes(encoded[-8:-4], "little")
    start = len(encoded) - 8 - length
    return _Reader(bytes(encoded[start:-8])).struct(), start


class Sink(Protocol):
    """What bytes are written to."""

    def write(self, data: bytes | memoryview, /) -> object:
        """Take some bytes."""


class Splicer:
    """Writes one Parquet file from column chunks that were encoded as files of their own.

    The columns of a row group come each in a file of one row group; all files of a column must
    share its type and writer settings.
    """

    def __init__(self, sink: Sink) -> None:
        self.rows = 0
        self._sink = sink
        self._groups: list[Struct] = []
        self._position = len(MAGIC)
        sink.write(MAGIC)

    def add(self, columns: Sequence[memoryview | bytes]) -> None:
        """Append one row group, its columns in the order of the schema."""
        parts = [self._append(encoded) for encoded in columns]
        group = parts[0]
        for part in parts[1:]:
            group[_COLUMNS][1].extend(part[_COLUMNS][1])
            for number in _GROUP_SIZES:
                group.moved(number, part.fields.get(number, (0, 0))[1])
        if _ORDINAL in group.fields:
            group.fields[_ORDINAL] = (_I16, len(self._groups))
        self._groups.append(group)
        self.rows += group[_GROUP_ROWS]

    def _append(self, encoded: memoryview | bytes) -> Struct:
        """Copy the pages of one file; its row group with the offsets that they now have."""
        footer, end = read_footer(encoded)
        shift = self._position - len(MAGIC)
        self._sink.write(encoded[len(MAGIC) : end])
        self._position += end - len(MAGIC)
        group: Struct = footer[_GROUPS][1][0]
        group.moved(_GROUP_OFFSET, shift)
        for chunk in group[_COLUMNS][1]:
            for number in (_CHUNK_OFFSET, _OFFSET_INDEX, _COLUMN_INDEX):
                chunk.moved(number, shift)
            for number in _PAGE_OFFSETS:
                chunk[_CHUNK_METADATA].moved(number, shift)
        return group

    def close(self, template: memoryview | bytes) -> None:
        """Write the footer: schema and metadata of ``template``, a file without rows."""
        footer, _ = read_footer(template)
        footer.fields[_ROWS] = (_I64, self.rows)
        footer.fields[_GROUPS] = (_LIST, (_STRUCT, self._groups))
        written = b"".join(_written_struct(footer))
        self._sink.write(written + struct.pack("<I", len(written)) + MAGIC)
