"""Places that parts are written to."""

from __future__ import annotations

from pathlib import Path

from mlsysim_sweep.place import Folder, Hashing


def test_a_part_may_be_written_twice_at_once(tmp_path: Path) -> None:
    """A worker may still be writing a part that an interrupted run asked of it."""
    place = Folder(tmp_path / "out")
    with place.opened(resume=False):

        def abandoned(sink: Hashing) -> bool:
            sink.write(b"begun")
            assert place.put("part.parquet", resumed) == (4, resumed_hash)
            sink.write(b", and done")
            return True

        def resumed(sink: Hashing) -> bool:
            sink.write(b"done")
            return True

        resumed_hash = "a4c3ed04a95a3da14a9d235c83d868bed7c0f45cf7f3faa751ee8f50598d2211"
        place.put("part.parquet", abandoned)
    assert place.address("part.parquet").read_bytes() == b"begun, and done"
    assert list((tmp_path / "out" / "staging").iterdir()) == []


def test_an_unwanted_part_leaves_nothing(tmp_path: Path) -> None:
    place = Folder(tmp_path / "out")
    with place.opened(resume=False):
        assert place.put("part.parquet", lambda sink: False) is None
    assert place.sizes() == {}
    assert list((tmp_path / "out" / "staging").iterdir()) == []
