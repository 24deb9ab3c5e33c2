"""Parts written by Dask workers, some of which are killed on purpose."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import xarray

import mlsysim_sweep as ms
from mlsysim_sweep import cluster, dataset
from mlsysim_sweep.errors import Mistake, OutputError
from tests.test_dataset import PART_POINTS, rows, same, sweep

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as local,
        Client(local) as connected,
    ):
        yield connected


def write(folder: Path, client: Any, **options: Any) -> None:
    runner = cluster.on_dask(client)
    dataset.write_dataset(sweep()._plan, folder, runner=runner, part_points=PART_POINTS, **options)


def test_workers_write_the_bytes_that_threads_write(client: Any, tmp_path: Path) -> None:
    write(tmp_path / "dask", client)
    runner = dataset.on_threads(1)
    dataset.write_dataset(
        sweep()._plan, tmp_path / "threads", runner=runner, part_points=PART_POINTS
    )
    for file in dataset.files(tmp_path / "threads"):
        assert (tmp_path / "dask" / "data" / file.name).read_bytes() == file.read_bytes()
    found = dataset.status(tmp_path / "dask", hashes=True)
    assert (found.complete, found.strangers) == (True, ())


def _once_killed(mark: Path, original: Any, *arguments: Any) -> Any:
    """Write a part; the first call for part 2 kills its worker after the file is in place."""
    done = original(*arguments)
    if arguments[2].number == 2 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return done


@pytest.mark.faults
def test_a_lost_worker_costs_its_parts_only(client: Any, tmp_path: Path) -> None:
    killing = functools.partial(_once_killed, tmp_path / "mark", cluster._write)
    with mock.patch.object(cluster, "_write", killing):
        write(tmp_path / "out", client)
    assert (tmp_path / "mark").exists()
    found = dataset.status(tmp_path / "out", hashes=True)
    assert (found.complete, found.finished, found.strangers) == (True, found.parts, ())
    assert same(rows(tmp_path / "out"), sweep().arrow())


def _always_fails(original: Any, *arguments: Any) -> Any:
    if arguments[2].number == 2:
        raise RuntimeError("planted")
    return original(*arguments)


def _always_kills(original: Any, *arguments: Any) -> Any:
    if arguments[2].number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*arguments)


@pytest.mark.faults
@pytest.mark.parametrize(
    ("planted", "named"),
    [
        (_always_fails, "RuntimeError: planted"),
        (_always_kills, "KilledWorker"),
    ],
)
def test_a_part_that_cannot_be_written_is_named_and_the_rest_kept(
    client: Any, tmp_path: Path, planted: Any, named: str
) -> None:
    failing = functools.partial(planted, cluster._write)
    with (
        mock.patch.object(cluster, "_write", failing),
        pytest.raises(OutputError, match=r"part 2 \(points 800 to 1,199\)") as caught,
    ):
        write(tmp_path / "out", client)
    assert named in str(caught.value)
    found = dataset.status(tmp_path / "out")
    assert (found.finished, found.complete) == (found.parts - 1, False)
    write(tmp_path / "out", client, resume=True)
    assert same(rows(tmp_path / "out"), sweep().arrow())


def test_a_sweep_takes_a_client(client: Any, tmp_path: Path) -> None:
    saved = sweep().to_parquet(tmp_path / "out", client=client)
    assert saved.rows == sweep().arrow().num_rows
    with pytest.raises(Mistake, match="client: given for a single file"):
        sweep().to_parquet(tmp_path / "out.parquet", client=client)


def test_no_scheduler_is_said() -> None:
    with (
        pytest.raises(Mistake, match=r"--dask: no scheduler answers at tcp://127\.0\.0\.1:9"),
        mock.patch.object(cluster, "_TIMEOUT", 1),
        cluster.connected("tcp://127.0.0.1:9", None),
    ):
        pass


@pytest.mark.parametrize("chunks", [7, {"dp": 16, "pp": 2}, {}])
def test_lazy_datasets_hold_the_same_values(chunks: Any) -> None:
    lazy = sweep().dataset(chunks=chunks)
    assert all(variable.chunks is not None for variable in lazy.data_vars.values())
    xarray.testing.assert_equal(lazy.compute(), sweep().dataset())
    assert lazy["step_time"].attrs == sweep().dataset()["step_time"].attrs


def test_lazy_values_of_sizes_that_do_not_exist() -> None:
    made = sweep().variant(inputs={"devices": 96})
    xarray.testing.assert_equal(made.dataset(chunks=2).compute(), made.dataset())
    assert isinstance(made, ms.Sweep)
