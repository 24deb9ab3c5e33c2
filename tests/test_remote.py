"""Datasets at URLs: a store that fails, is damaged or is shared must not change one row."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from typer.testing import CliRunner

from mlsysim_sweep import dataset, place, remote
from mlsysim_sweep.cli import app
from mlsysim_sweep.errors import Mistake, OutputError
from tests.test_dataset import PART_POINTS, _Counting, _FailsAt, same, sweep


@pytest.fixture
def url() -> Iterator[str]:
    """A folder in memory that nobody else uses."""
    found = f"memory://bucket-{uuid.uuid4().hex}/out"
    yield found
    store = fsspec.filesystem("memory")
    if store.exists(found):
        store.rm(found, recursive=True)


@pytest.fixture(scope="module")
def whole() -> pa.Table:
    return sweep().arrow()


def write(url: str, runner: Any = None, **options: Any) -> None:
    runner = runner or dataset.on_threads(1)
    options = {"part_points": PART_POINTS, **options}
    dataset.write_dataset(sweep()._plan, url, runner=runner, **options)


def rows(url: str) -> pa.Table:
    tables = []
    for file in dataset.files(url):
        with fsspec.open(file) as opened:
            tables.append(pq.read_table(opened))
    return pa.concat_tables(tables)


def names(url: str) -> set[str]:
    system, path = remote.resolve(url)
    return {found.removeprefix(f"{path}/") for found in system.find(path)}


def changed(url: str, name: str, data: bytes) -> None:
    system, path = remote.resolve(url)
    system.pipe_file(f"{path}/{name}", data)


def resumed(url: str, whole: pa.Table) -> list[int]:
    """The parts that a resumed run writes, after which all is as it should be."""
    count = _Counting()
    write(url, count, resume=True)
    assert same(rows(url), whole)
    assert dataset.status(url, hashes=True).complete
    return count.written


def test_rows_are_those_of_a_folder(url: str, tmp_path: Path, whole: pa.Table) -> None:
    write(url)
    write(str(tmp_path / "out"))
    assert same(rows(url), whole)
    here = {f.name: f.read_bytes() for f in dataset.files(tmp_path / "out")}
    assert {f.rpartition("/")[2] for f in dataset.files(url)} == here.keys()
    for name, data in here.items():
        with fsspec.open(f"{url}/data/{name}") as file:
            assert file.read() == data
    assert dataset.status(url) == dataset.status(tmp_path / "out")


def test_a_partition_is_folders_there_too(url: str, whole: pa.Table) -> None:
    write(url, partition="accelerator")
    folders = {n.split("/")[1] for n in names(url) if n.startswith("data/")}
    assert folders == {"accelerator=H100", "accelerator=B200"}
    assert sum(pq.read_table(fsspec.open(f).open()).num_rows for f in dataset.files(url)) == (
        whole.num_rows
    )


def test_what_exists_is_refused_and_kept(url: str, whole: pa.Table) -> None:
    write(url)
    with pytest.raises(OutputError, match="exists already; give --resume to go on"):
        write(url)
    with pytest.raises(OutputError, match="exists already; remove it first"):
        write(url, overwrite=True)
    assert same(rows(url), whole)


def test_another_question_is_refused(url: str) -> None:
    with pytest.raises(RuntimeError):
        write(url, _FailsAt(2))
    other = sweep(batch_tokens=4e6)._plan
    with pytest.raises(OutputError, match=r"another question: inputs\.batch_tokens"):
        dataset.write_dataset(other, url, runner=_Counting(), resume=True, part_points=PART_POINTS)


def test_an_interrupted_run_goes_on(url: str, whole: pa.Table) -> None:
    with pytest.raises(RuntimeError):
        write(url, _FailsAt(2))
    found = dataset.status(url)
    assert (found.finished, found.complete) == (2, False)
    with pytest.raises(OutputError, match="2 parts are finished, and more are to come"):
        dataset.files(url)
    assert resumed(url, whole) == list(range(2, found.parts))


@pytest.mark.parametrize("data", [b"", b"PAR1", None])
def test_a_damaged_part_is_found_and_redone(url: str, whole: pa.Table, data: bytes | None) -> None:
    write(url)
    name = dataset.files(url)[1].removeprefix(f"{url}/")
    system, path = remote.resolve(url)
    original = system.cat_file(f"{path}/{name}")
    flipped = original[:-9] + bytes([original[-9] ^ 1]) + original[-8:]
    changed(url, name, flipped if data is None else data)
    found = dataset.status(url, hashes=True)
    assert (found.damaged, found.complete) == ((name.removeprefix("data/"),), False)
    assert resumed(url, whole) == [int(name[-16:-8])]


def test_a_missing_part_is_redone(url: str, whole: pa.Table) -> None:
    write(url)
    system, path = remote.resolve(url)
    system.rm(f"{path}/data/part-00000001.parquet")
    with pytest.raises(OutputError, match=r"damaged: part-00000001\.parquet"):
        dataset.files(url)
    assert dataset.status(url, hashes=True).damaged == ("part-00000001.parquet",)
    assert resumed(url, whole) == [1]


def test_a_torn_record_is_as_good_as_none(url: str, whole: pa.Table) -> None:
    write(url)
    system, path = remote.resolve(url)
    record = system.cat_file(f"{path}/journal/part-00000001.json")
    for cut in range(0, len(record) - 1, 7):
        changed(url, "journal/part-00000001.json", record[:cut])
        assert dataset.status(url).finished == dataset.status(url).parts - 1
    assert resumed(url, whole) == [1]


def test_a_record_counts_for_its_own_question_only(url: str, whole: pa.Table) -> None:
    write(url)
    system, path = remote.resolve(url)
    foreign = f"memory://bucket-{uuid.uuid4().hex}/out"
    dataset.write_dataset(
        sweep(batch_tokens=4e6)._plan, foreign, runner=_Counting(), part_points=PART_POINTS
    )
    system.copy(f"{foreign}/journal/part-00000001.json", f"{path}/journal/part-00000001.json")
    assert resumed(url, whole) == [1]


def test_strangers_are_said_and_not_read(url: str, whole: pa.Table) -> None:
    write(url)
    changed(url, "data/copy.parquet", b"x")
    assert dataset.status(url).strangers == ("copy.parquet",)
    assert same(rows(url), whole)


def test_two_writers_of_one_question_do_no_harm(url: str, whole: pa.Table) -> None:
    class Both(_Counting):
        def __call__(self, plan, table, todo, where, options):  # type: ignore[no-untyped-def]
            write(url, resume=True)
            yield from super().__call__(plan, table, todo, where, options)

    write(url, Both())
    assert same(rows(url), whole)
    assert dataset.status(url, hashes=True).complete


def test_a_writer_of_another_question_in_between_is_noticed(url: str) -> None:
    mine = place.at(url)
    other = sweep(batch_tokens=4e6)._plan
    real = MemoryFileSystem.pipe_file

    def overtaken(self: Any, path: str, value: bytes, **options: Any) -> None:
        real(self, path, value, **options)
        if path.endswith("question.json"):
            asked = {"question": dataset.question(other, PART_POINTS, None)}
            real(self, path, place.journal.encoded(asked), **options)

    with (
        mock.patch.object(MemoryFileSystem, "pipe_file", overtaken),
        pytest.raises(OutputError, match="is being written by somebody else"),
    ):
        write(str(mine))


# --- a store that fails ---------------------------------------------------------------------------

_OPERATIONS = ("pipe_file", "put_file", "ls", "makedirs", "cat", "open")


class _Flaky:
    """Every operation of the store in memory is counted; the one that is asked for fails."""

    def __init__(self, at: int) -> None:
        self.at, self.done = at, 0

    def __enter__(self) -> _Flaky:
        self._patches = [
            mock.patch.object(MemoryFileSystem, name, self._wrapped(name)) for name in _OPERATIONS
        ]
        for patch in self._patches:
            patch.start()
        return self

    def __exit__(self, *_: object) -> None:
        for patch in self._patches:
            patch.stop()

    def _wrapped(self, name: str) -> Any:
        original = getattr(MemoryFileSystem, name)

        def operation(store: MemoryFileSystem, *arguments: Any, **options: Any) -> Any:
            self.done += 1
            if self.done == self.at:
                raise ConnectionError(f"planted in {name}")
            return original(store, *arguments, **options)

        return operation


def test_a_store_that_fails_at_any_operation_loses_nothing(url: str, whole: pa.Table) -> None:
    with _Flaky(0) as counting:
        write(f"{url}-calm")
    assert counting.done > 20
    for at in range(1, counting.done + 1):
        here = f"{url}-{at}"
        with _Flaky(at) as flaky, pytest.raises(OutputError) as caught:
            write(here)
        assert flaky.done >= at
        assert str(caught.value).startswith(f"{here}: ConnectionError: planted in ")
        before = {r["part"] for r in _records(here) if "part" in r}
        count = _Counting()
        write(here, count, resume=True)
        assert before.isdisjoint(count.written)
        assert same(rows(here), whole)


def _records(url: str) -> list[dict[str, Any]]:
    found = place.at(url)
    assert isinstance(found, place.Remote)
    return found._read()


# --- at the door ----------------------------------------------------------------------------------


def test_a_single_file_at_a_url_is_refused(url: str) -> None:
    with pytest.raises(Mistake, match="a folder"):
        sweep().to_parquet(f"{url}.parquet")
    assert not fsspec.filesystem("memory").exists(f"{url}.parquet")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("gopher://host/out", "Protocol not known: gopher"),
        ("abfs://container/out", "adlfs"),
    ],
)
def test_a_url_that_nobody_can_open_is_said(given: str, said: str) -> None:
    with pytest.raises(Mistake, match=said) as caught:
        sweep().to_parquet(given)
    assert "s3://bucket/out" in str(caught.value)


def test_without_fsspec_the_extra_is_named(url: str) -> None:
    with (
        mock.patch.dict(sys.modules, {"fsspec.core": None}),
        pytest.raises(Mistake, match=r"pip install 'mlsysim-sweep\[remote\]'"),
    ):
        sweep().to_parquet(url)


class _Buckets(MemoryFileSystem):
    """A store in memory whose paths begin with a bucket that must exist."""

    protocol = "buckets"
    store: dict[str, Any] = {}  # noqa: RUF012 -- as in the class above
    pseudo_dirs = [""]  # noqa: RUF012

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.removeprefix("buckets://").strip("/")

    def info(self, path: str, **options: Any) -> Any:
        if path == "misspelt":
            raise FileNotFoundError(path)
        return {"name": path, "size": 0, "type": "directory"}


def test_no_bucket_is_made_of_a_misspelt_name() -> None:
    fsspec.register_implementation("buckets", _Buckets, clobber=True)
    with pytest.raises(OutputError, match="FileNotFoundError: misspelt"):
        write("buckets://misspelt/out")
    assert not _Buckets.store


def test_nothing_at_a_url_is_no_dataset(url: str) -> None:
    with pytest.raises(OutputError, match="is not a dataset of mlsysim-sweep"):
        dataset.status(url)


# --- what a user types ----------------------------------------------------------------------------


def test_a_sweep_writes_to_a_url(url: str) -> None:
    saved = sweep().to_parquet(url)
    here = sweep().arrow()
    assert (saved.path, saved.rows) == (url, here.num_rows)
    assert saved.best[0]["step_time"] == min(here["step_time"].to_pylist())


def test_the_command_line_takes_a_url(url: str) -> None:
    def invoke(*arguments: str) -> Any:
        return CliRunner().invoke(app, arguments)

    asked = ["run", "gpt3-1k-h100", "--axis", "dp=32", "-o", url]
    done = invoke(*asked, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["path"] == url
    again = invoke(*asked)
    assert (again.exit_code, "--resume" in again.stderr) == (3, True)
    assert invoke(*asked, "--resume").exit_code == 0
    assert invoke("status", url).exit_code == 0
    assert invoke("verify", url).exit_code == 0
    changed(url, "data/part-00000000.parquet", b"")
    assert invoke("verify", url).exit_code == 3
