"""The journal, damaged at every byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlsysim_sweep import journal
from mlsysim_sweep.errors import OutputError

RECORDS = [{"question": {"a": "é\n\t"}}, {"part": 0, "rows": 2**60}, {"part": 1, "left": [1, 2]}]


def written(path: Path) -> bytes:
    log = journal.Journal(path, 0)
    log.append(*RECORDS)
    log.close()
    return path.read_bytes()


def test_round_trip_and_append(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    data = written(path)
    assert journal.read(path) == (RECORDS, len(data))
    log = journal.Journal(path, len(data))
    log.append({"part": 2})
    log.close()
    assert journal.read(path)[0] == [*RECORDS, {"part": 2}]
    assert data.count(b"\n") == len(RECORDS)


def test_a_tail_torn_at_any_byte_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    data = written(path)
    ends = [i + 1 for i, byte in enumerate(data) if byte == ord("\n")]
    for cut in range(len(data)):
        path.write_bytes(data[:cut])
        whole = sum(end <= cut for end in ends)
        records, sound = journal.read(path)
        assert records == RECORDS[:whole]
        log = journal.Journal(path, sound)
        log.append(*RECORDS[whole:])
        log.close()
        assert path.read_bytes() == data


def test_damage_is_refused_at_every_byte(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    data = written(path)
    for at in range(len(data) - 1):
        broken = bytearray(data)
        broken[at] ^= 0x10
        path.write_bytes(broken)
        with pytest.raises(OutputError, match="damaged in line"):
            journal.read(path)
