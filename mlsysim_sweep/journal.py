"""An append-only record of finished parts, safe against a crash at any byte.

One line a record: JSON, a tab, the CRC-32 of the JSON. Each is on disk before the next begins. A
last line without its end is the mark of a crash and is dropped; any other damage is refused.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlsysim_sweep.errors import OutputError

Record = Mapping[str, Any]


def encoded(record: Record) -> bytes:
    """A record as a line."""
    text = json.dumps(record, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return f"{text}\t{zlib.crc32(text.encode()):08x}\n".encode()


def decoded(line: bytes) -> dict[str, Any] | None:
    """The record of a line, its end left off; None where it is damaged."""
    text, tab, checksum = line.rpartition(b"\t")
    if not tab or checksum != f"{zlib.crc32(text):08x}".encode():
        return None
    found: dict[str, Any] = json.loads(text)
    return found


def read(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The records of a journal, and the number of bytes that hold them.

    Raises
    ------
    OutputError
        If a line that has its end is damaged.
    """
    data = path.read_bytes()
    records: list[dict[str, Any]] = []
    position = 0
    while position < len(data):
        end = data.find(b"\n", position)
        record = decoded(data[position:end]) if end >= 0 else None
        if record is None:
            if end >= 0:
                raise OutputError(
                    path,
                    f"damaged in line {len(records) + 1}",
                    "the dataset cannot be trusted: write it again with --overwrite",
                )
            break
        records.append(record)
        position = end + 1
    return records, position


class Journal:
    """A journal open for appending; a torn tail is cut off first."""

    def __init__(self, path: Path, sound: int) -> None:
        self._file = path.open("ab")
        self._file.truncate(sound)

    def append(self, *records: Record) -> None:
        """Add records and wait until they are on disk."""
        self._file.write(b"".join(encoded(record) for record in records))
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()
