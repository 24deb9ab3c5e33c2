"""Parquet files: what is in them, who can read them, and that none is ever half written."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import mlsysim_sweep as ms
from mlsysim_sweep import store
from mlsysim_sweep.engine import budget
from mlsysim_sweep.engine.plan import Plan
from tests.asking import CHIP, sweep

NAMES = ["H100", "名前", "Café", "=1+1", "<script>", 'a "quote"']
THIRD = (2**53 + 1) // 3
FREE = {"memory": "off", "tp_within_node": False}


@pytest.fixture(scope="module")
def asked() -> ms.Sweep:
    return sweep(
        inputs={"pp": 1},
        axes={"accelerator": NAMES, "tp": [1, 3], "dp": [1, THIRD], "microbatches": [2, 2**40]},
        accelerator=dict.fromkeys(NAMES[1:], CHIP),
        feasible={**FREE, "where": "tp * dp != 1"},
        name="名前",
    )


@pytest.fixture(scope="module")
def path(asked: ms.Sweep, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("store") / "layouts é.parquet"
    asked.to_parquet(target)
    return target


# --- what is in a file ---------------------------------------------------------------------------


def test_axis_columns_come_first_whole_and_text(asked: ms.Sweep, path: Path) -> None:
    schema = pq.read_schema(path)
    assert tuple(schema.names) == asked.columns
    assert schema.names[:4] == ["accelerator", "tp", "dp", "microbatches"]
    assert schema.field("accelerator").type == pa.dictionary(pa.int32(), pa.string())
    assert schema.field("tp").type == pa.int32()
    assert schema.field("microbatches").type == schema.field("dp").type == pa.int64()
    assert (
        schema.field("n_devices").type == schema.field("min_devices_for_state").type == pa.int64()
    )
    floats = set(schema.names[4:]) - {"n_devices", "min_devices_for_state"}
    assert {schema.field(name).type for name in floats} == {pa.float64()}
    assert all(
        name in ("n_devices", "min_devices_for_state")
        for name in schema.names
        if schema.field(name).nullable
    )


def test_fields_say_unit_description_and_source(path: Path) -> None:
    schema = pq.read_schema(path)
    for field in schema:
        assert {b"unit", b"description", b"source"} <= set(field.metadata)
        assert field.metadata[b"description"]
    assert schema.field("step_time").metadata[b"unit"] == b"s"
    assert schema.field("tp").metadata[b"source"] == b"input"
    assert b"Narayanan" in schema.field("bubble").metadata[b"source"]


def refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def test_one_document_says_the_rest(asked: ms.Sweep, path: Path) -> None:
    text = pq.read_metadata(path).metadata[b"mlsysim_sweep"].decode()
    document = json.loads(text, parse_constant=refuse)
    assert document == ms.read_document(path)
    assert document["package"] == "mlsysim-sweep" and document["model"] == "parallel_layout"
    assert document["spec"] == asked.spec and document["spec"]["sweep"]["name"] == "名前"
    assert (document["points"], document["axes"]) == (48, asked.sizes)
    assert document["survivors"] == pq.read_metadata(path).num_rows == len(asked.table())
    assert document["funnel"]["rules"][-1]["left"] == document["survivors"]
    assert list(document["columns"]) == list(asked.columns)
    assert {row["name"] for row in document["catalog"]} == {*NAMES, "GPT3"}
    assert document["notes"]


def test_arrow_table_and_file_are_the_same(asked: ms.Sweep, path: Path) -> None:
    table, read = asked.arrow(), pq.read_table(path)
    assert read.equals(table.unify_dictionaries())
    assert table.schema.equals(read.schema, check_metadata=False)
    for name in table.schema.names:
        assert (
            read.schema.field(name).metadata[b"unit"] == table.schema.field(name).metadata[b"unit"]
        )
    own = json.loads(table.schema.metadata[b"mlsysim_sweep"])
    assert own["survivors"] == ms.read_document(path)["survivors"]


# --- who can read it -----------------------------------------------------------------------------


def expected(asked: ms.Sweep) -> dict[str, list[Any]]:
    return {
        name: column.to_pylist() for name, column in zip(asked.columns, asked.arrow(), strict=True)
    }


def test_whole_numbers_are_exact(asked: ms.Sweep) -> None:
    rows = expected(asked)
    assert 2**53 + 1 in rows["n_devices"]
    assert rows["n_devices"] == [t * d for t, d in zip(rows["tp"], rows["dp"], strict=True)]


def test_pandas_reads_it(asked: ms.Sweep, path: Path) -> None:
    frame = pd.read_parquet(path)
    assert {name: frame[name].tolist() for name in frame} == expected(asked)
    assert frame["accelerator"].dtype == "category"
    assert (frame["tp"].dtype, frame["dp"].dtype, frame["n_devices"].dtype) == (
        "int32",
        "int64",
        "int64",
    )
    assert frame.attrs["mlsysim_sweep"]["step_time"]["unit"] == "s"
    own = asked.table()
    pd.testing.assert_frame_equal(frame, own, check_categorical=False)
    assert own.attrs == frame.attrs


def test_polars_reads_it(asked: ms.Sweep, path: Path) -> None:
    frame = pl.read_parquet(path)
    assert frame.to_dict(as_series=False) == expected(asked)
    assert frame.schema["tp"] == pl.Int32 and frame.schema["n_devices"] == pl.Int64
    assert "mlsysim_sweep" in pl.read_parquet_metadata(path)


def test_duckdb_reads_it(asked: ms.Sweep, path: Path) -> None:
    def answer(query: str) -> list[Any]:
        found: Any = duckdb.sql(query, params={"path": str(path)})
        return found.fetchall()  # type: ignore[no-any-return]

    rows = expected(asked)
    described = answer("describe select * from read_parquet($path)")
    assert [row[0] for row in described] == list(rows)
    assert answer("select * from read_parquet($path)") == list(zip(*rows.values(), strict=True))
    rule = "accelerator = '名前' and n_devices > 9007199254740992"
    found = answer(f"select microbatches from read_parquet($path) where {rule}")
    assert found == [(2,), (2**40,)]
    assert (b"mlsysim_sweep",) in answer("select key from parquet_kv_metadata($path)")


def test_an_empty_file_has_the_whole_schema(asked: ms.Sweep, path: Path, tmp_path: Path) -> None:
    nothing = asked.variant(feasible={"where": "step_time < 1e-20 s"})
    saved = nothing.to_parquet(tmp_path / "none.parquet")
    assert (saved.rows, saved.best) == (0, ())
    assert pq.read_schema(tmp_path / "none.parquet").equals(pq.read_schema(path))
    assert pd.read_parquet(tmp_path / "none.parquet").shape == (0, len(asked.columns))
    assert pl.read_parquet(tmp_path / "none.parquet").columns == list(asked.columns)
    assert (
        nothing.table().dtypes.equals(asked.table().dtypes)
        or nothing.table()["tp"].dtype == "int32"
    )
    document = ms.read_document(tmp_path / "none.parquet")
    assert document["survivors"] == 0 and document["funnel"]["feasible"] == 0


# --- how it is packed ----------------------------------------------------------------------------

ROWS = 2_600_000


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("large") / "large.parquet"
    columns = ["n_devices", "bubble", "step_time", "zero1_state_per_device"]
    asked = sweep(
        axes={"pp": [1, 2], "dp": {"range": [1, ROWS // 2]}}, columns=columns, feasible=FREE
    )
    assert asked.to_parquet(target).rows == ROWS
    return target


def test_row_groups_hold_about_a_million_rows(large: Path) -> None:
    metadata = pq.read_metadata(large)
    groups = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    assert sum(groups) == ROWS and len(groups) == 3
    assert all(900_000 < rows <= budget.ROW_GROUP_ROWS for rows in groups[:-1])


def test_encodings(large: Path) -> None:
    group = pq.read_metadata(large).row_group(0)
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    assert {column.compression for column in columns.values()} == {"ZSTD"}
    assert "BYTE_STREAM_SPLIT" in columns["step_time"].encodings
    assert not columns["step_time"].has_dictionary_page
    assert columns["bubble"].has_dictionary_page
    assert all(column.is_stats_set for column in columns.values())
    assert large.stat().st_size < ROWS * 4 * 8 / 2


def test_pages_carry_checksums(path: Path, tmp_path: Path) -> None:
    content, damaged = path.read_bytes(), tmp_path / "damaged.parquet"
    group = pq.read_metadata(path).row_group(0)
    for i in range(group.num_columns):
        column = group.column(i)
        start = column.dictionary_page_offset or column.data_page_offset
        flipped = bytearray(content)
        flipped[start + column.total_compressed_size - 2] ^= 1
        damaged.write_bytes(flipped)
        with (
            pytest.raises(OSError, match=r"CRC checksum verification failed"),
            pq.ParquetFile(damaged, page_checksum_verification=True) as file,
        ):
            file.read()


# --- that none is half written -------------------------------------------------------------------


@pytest.fixture
def plan() -> Plan:
    """Twelve blocks, each with survivors."""
    asked = sweep(axes={"pp": [1, 2, 3], "dp": {"range": [1, 256]}}, feasible=FREE)
    plan = Plan(asked.grid, block_points=64)
    assert plan.block_count == 12
    return plan


def after(blocks: int, error: BaseException) -> Callable[[int], None]:
    """A progress callback that raises after some blocks."""
    seen = iter(range(blocks))

    def progress(_: int) -> None:
        if next(seen, None) is None:
            raise error

    return progress


@pytest.mark.parametrize("blocks", [0, 1, 5, 11])
@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), ZeroDivisionError(), SystemExit(3), MemoryError()]
)
def test_an_exception_leaves_nothing(
    plan: Plan, tmp_path: Path, blocks: int, error: BaseException
) -> None:
    with pytest.raises(type(error)):
        store.write(plan, tmp_path / "out.parquet", overwrite=False, progress=after(blocks, error))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("blocks", [0, 5, 11])
def test_an_exception_keeps_the_old_file(plan: Plan, tmp_path: Path, blocks: int) -> None:
    target = tmp_path / "out.parquet"
    target.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt):
        store.write(plan, target, overwrite=True, progress=after(blocks, KeyboardInterrupt()))
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


def test_an_overwrite_keeps_the_old_file_until_the_end(plan: Plan, tmp_path: Path) -> None:
    target = tmp_path / "out.parquet"
    target.write_bytes(b"old")
    seen = []
    store.write(plan, target, overwrite=True, progress=lambda _: seen.append(target.read_bytes()))
    assert len(seen) >= 12
    assert set(seen) == {b"old"}
    assert pq.read_metadata(target).num_rows == 768
    assert list(tmp_path.iterdir()) == [target]


def test_an_existing_file_is_refused_before_any_work(plan: Plan, tmp_path: Path) -> None:
    target = tmp_path / "out.parquet"
    target.write_bytes(b"old")
    with pytest.raises(ms.OutputError, match=r"out\.parquet: exists already; give --overwrite"):
        store.write(plan, target, overwrite=False, progress=after(0, AssertionError()))
    assert target.read_bytes() == b"old"


def test_a_file_that_comes_meanwhile_stays(plan: Plan, tmp_path: Path) -> None:
    target = tmp_path / "out.parquet"

    def comes(_: int) -> None:
        target.write_bytes(b"theirs")

    with pytest.raises(ms.OutputError, match="was written by someone else meanwhile"):
        store.write(plan, target, overwrite=False, progress=comes)
    assert target.read_bytes() == b"theirs"
    assert list(tmp_path.iterdir()) == [target]


def test_of_two_writers_exactly_one_wins(plan: Plan, tmp_path: Path) -> None:
    target = tmp_path / "out.parquet"
    barrier = threading.Barrier(2, timeout=60)
    outcomes: list[object] = []

    def together(_: int) -> None:
        barrier.wait()

    def write() -> None:
        try:
            store.write(plan, target, overwrite=False, progress=together)
            outcomes.append("won")
        except ms.OutputError as error:
            outcomes.append(error.problem)

    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert sorted(map(str, outcomes)) == ["was written by someone else meanwhile", "won"]
    assert pq.read_metadata(target).num_rows == 768
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("comes", [False, True])
def test_a_file_system_without_hard_links(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, comes: bool
) -> None:
    target = tmp_path / "out.parquet"

    def no_links(*_: object) -> NoReturn:
        if comes:
            target.write_bytes(b"theirs")
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", no_links)
    if comes:
        with pytest.raises(ms.OutputError, match=r"exists already; choose another name"):
            store.write(plan, target, overwrite=False)
        assert target.read_bytes() == b"theirs"
    else:
        store.write(plan, target, overwrite=False)
        assert pq.read_metadata(target).num_rows == 768
    assert list(tmp_path.iterdir()) == [target]


CHILD = """
import os, resource, signal, sys
from pathlib import Path
from mlsysim_sweep import store
from mlsysim_sweep.engine.plan import Plan
from tests.asking import sweep
grid = sweep(axes={"pp": [1, 2, 3], "dp": {"range": [1, 256]}},
             feasible={"memory": "off", "tp_within_node": False}).grid
seen = []
def progress(visited):
    seen.append(visited)
    if len(seen) == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
store.write(Plan(grid, block_points=64), Path(sys.argv[1]), overwrite=True, progress=progress)
"""


@pytest.mark.parametrize("block", [1, 6, 12])
@pytest.mark.parametrize("old", [None, b"old"])
def test_a_kill_leaves_the_old_file_or_none(tmp_path: Path, block: int, old: bytes | None) -> None:
    target = tmp_path / "out.parquet"
    if old is not None:
        target.write_bytes(old)
    command = [sys.executable, "-c", CHILD, str(target), str(block)]
    root = Path(__file__).parents[1]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert (target.read_bytes() if target.exists() else None) == old
    for left in tmp_path.iterdir():
        if left != target:
            assert left.name.startswith(".out.parquet.") and left.name.endswith(".tmp")
            with pytest.raises((pa.ArrowInvalid, OSError)):
                pq.read_metadata(left)


@contextlib.contextmanager
def no_large_files() -> Iterator[None]:
    """No file may grow beyond 4 kB: a full disk, as a process sees it.

    Only around the writing: pytest's own report may go to a file that is longer.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("old", [False, True])
def test_no_room(plan: Plan, tmp_path: Path, old: bool) -> None:
    target = tmp_path / "out.parquet"
    if old:
        target.write_bytes(b"old")
    with no_large_files(), pytest.raises(ms.OutputError) as caught:
        store.write(plan, target, overwrite=old)
    assert str(caught.value).startswith(f"{target}: no room to write: {os.strerror(errno.EFBIG)} (")
    assert "bytes free); free some space, or write elsewhere" in str(caught.value)
    assert [found.read_bytes() for found in tmp_path.iterdir()] == ([b"old"] if old else [])


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENOSPC, "no room to write"),
        (errno.EDQUOT, "no room to write"),
        (errno.EIO, "cannot be written"),
        (errno.EROFS, "cannot be written: Read-only file system; check the folder"),
    ],
)
def test_errors_while_writing(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, said: str
) -> None:
    def fail(*_: object, **__: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    for place, name in ((pq.ParquetWriter, "write_table"), (os, "fsync"), (Path, "touch")):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, fail)
            with pytest.raises(ms.OutputError) as caught:
                store.write(plan, tmp_path / "out.parquet", overwrite=False)
        assert said in str(caught.value) and os.strerror(number) in str(caught.value)
        assert list(tmp_path.iterdir()) == []


def test_targets_that_cannot_be(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    said = {
        "file": "exists already",
        "folder": "is a directory; name a file",
        "file/out.parquet": "file does not exist; make it first",
        "no/such/out.parquet": "no/such does not exist; make it first",
        "x" * 300: "File name too long",
        "a\x00b": "cannot be a file's name",
    }
    never = after(0, AssertionError())
    for name, problem in said.items():
        with pytest.raises(ms.OutputError) as caught:
            store.write(plan, tmp_path / name, overwrite=False, progress=never)
        assert problem in str(caught.value) and str(caught.value).isprintable()
    for name in ("folder", "pipe"):
        with pytest.raises(ms.OutputError, match=r"is a directory|is a device or a pipe"):
            store.write(plan, tmp_path / name, overwrite=True, progress=never)
    with pytest.raises(ms.OutputError, match=r"is a directory"):
        store.write(plan, Path(), overwrite=True, progress=never)
    assert sorted(found.name for found in tmp_path.iterdir()) == ["file", "folder", "pipe"]
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_names_of_any_length_that_a_file_can_have(plan: Plan, tmp_path: Path) -> None:
    for name in ("🚀" * 63, "x" * 255, " ", "é.parquet"):
        store.write(plan, tmp_path / name, overwrite=False)
        assert pq.read_metadata(tmp_path / name).num_rows == 768


def test_a_link_is_replaced_not_followed(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"old")
    for name, aim in (("link", "precious"), ("dangling", "nowhere")):
        (tmp_path / name).symlink_to(aim)
        with pytest.raises(ms.OutputError, match=r"exists already"):
            store.write(plan, tmp_path / name, overwrite=False)
        store.write(plan, tmp_path / name, overwrite=True)
        assert not (tmp_path / name).is_symlink()
        assert pq.read_metadata(tmp_path / name).num_rows == 768
    assert (tmp_path / "precious").read_bytes() == b"old"
    assert not (tmp_path / "nowhere").exists()


def test_a_new_file_has_the_usual_permissions(plan: Plan, tmp_path: Path) -> None:
    store.write(plan, tmp_path / "out.parquet", overwrite=False)
    (tmp_path / "usual").touch()
    usual = (tmp_path / "usual").stat().st_mode
    assert (tmp_path / "out.parquet").stat().st_mode == usual


# --- reading the document back -------------------------------------------------------------------


def test_files_of_others_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "theirs.parquet")
    with pytest.raises(ms.OutputError, match=r"theirs\.parquet: was not written by mlsysim-sweep"):
        ms.read_document(tmp_path / "theirs.parquet")
    (tmp_path / "text.parquet").write_text("not Parquet at all")
    for name in ("text.parquet", "nosuch.parquet", "."):
        with pytest.raises(ms.OutputError, match=r"cannot be read as Parquet"):
            ms.read_document(tmp_path / name)
    for forged in (b"{", b"\xff", b"[" * 10_000):
        table = pa.table({"a": [1]}).replace_schema_metadata({b"mlsysim_sweep": forged})
        pq.write_table(table, tmp_path / "forged.parquet")
        with pytest.raises(ms.OutputError):
            ms.read_document(tmp_path / "forged.parquet")


DAMAGE = """
import random, sys
from pathlib import Path
import mlsysim_sweep as ms
content, damaged = Path(sys.argv[1]).read_bytes(), Path(sys.argv[2])
chance = random.Random(1)
for i in range(200):
    if i % 2:
        changed = content[: chance.randrange(len(content))]
    else:
        changed = bytearray(content)
        for _ in range(4):
            changed[-chance.randrange(1, 6000)] = chance.randrange(256)
    damaged.write_bytes(changed)
    try:
        ms.read_document(damaged)
    except ms.OutputError as error:
        assert str(error).isprintable()
print("done")
"""


def test_damaged_files_are_refused_and_nothing_worse(path: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-c", DAMAGE, str(path), str(tmp_path / "damaged.parquet")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="needs Linux's /proc")
def test_arrow_starts_no_threads_for_the_best_rows(path: Path) -> None:
    """One that holds a Python file when Python ends would abort the process, now and then."""
    script = """
import os, sys
from mlsysim_sweep import store
before = len(os.listdir("/proc/self/task"))
found = store.best([sys.argv[1]], "step_time", 3)
print(len(found), len(os.listdir("/proc/self/task")) - before)
"""
    command = [sys.executable, "-P", "-c", script, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["3", "0"]


def test_nothing_is_pickled(path: Path) -> None:
    assert b"pickle" not in path.read_bytes()
    assert not any(isinstance(field.type, pa.ExtensionType) for field in pq.read_schema(path))
    assert np.dtype(object) not in set(pd.read_parquet(path).dtypes)
