"""Parts written by Dask workers, some of which are killed on purpose."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xarray

import mlsysim_sweep as ms
from mlsysim_sweep import cluster, dataset
from mlsysim_sweep.errors import Mistake, OutputError
from tests.test_dataset import AXES, INPUTS, PART_POINTS, rows, same, sweep

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as local,
        Client(local) as connected,
    ):
        yield connected


def write(folder: str | Path, client: Any, **options: Any) -> None:
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


def test_workers_write_to_a_url(client: Any, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/out"
    write(url, client)
    found = pa.concat_tables(pq.read_table(file) for file in dataset.files(url))
    assert same(found, sweep().arrow())
    assert dataset.status(url, hashes=True).complete


def _planted(fault: Callable[[Any], None], *, after: bool = False) -> Any:
    """Workers that run ``fault`` on each part, before or after they write it.

    A function inside a function travels by value: workers cannot import the tests.
    """

    def write(*arguments: Any) -> Any:
        from mlsysim_sweep.cluster import _write

        if not after:
            fault(arguments[2])
        done = _write(*arguments)
        if after:
            fault(arguments[2])
        return done

    return mock.patch.object(cluster, "_write", write)


def _whole(folder: Path) -> bool:
    """Whether every part is there once, and all rows are as they should be."""
    found = dataset.status(folder, hashes=True)
    assert (found.complete, found.finished, found.strangers) == (True, found.parts, ())
    return same(rows(folder), sweep().arrow())


@pytest.mark.parametrize("after", [False, True])
def test_a_worker_that_is_killed_once_costs_its_part_only(
    client: Any, tmp_path: Path, after: bool
) -> None:
    """Before the part is written, and between its file and the message that it is done."""
    mark = str(tmp_path / "mark")

    def once(part: Any) -> None:
        if part.number == 2 and not os.path.exists(mark):
            with open(mark, "w"):
                os.kill(os.getpid(), 9)

    with _planted(once, after=after):
        write(tmp_path / "out", client)
    assert os.path.exists(mark)
    assert _whole(tmp_path / "out")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_worker_may_be_lost_at_any_time(client: Any, tmp_path: Path, number: int) -> None:
    client.wait_for_workers(2, timeout=20)
    victims = list(client.run(os.getpid).values())[:1]

    def lost(_: int) -> None:
        if victims:
            os.kill(victims.pop(), number)

    write(tmp_path / "out", client, progress=lost)
    assert not victims
    assert _whole(tmp_path / "out")


def _fails(part: Any) -> None:
    if part.number == 2:
        raise RuntimeError("planted")


def _kills(part: Any) -> None:
    if part.number == 2:
        os.kill(os.getpid(), 9)


def _by_value(function: Any) -> Any:
    """The same function, without a module to import it from."""
    return types.FunctionType(function.__code__, {"os": os, "__builtins__": __builtins__})


def _refuses(part: Any) -> None:
    from mlsysim_sweep.errors import OutputError

    if part.number == 2:
        raise OutputError("s3://bucket/out", "planted")


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        (_fails, "RuntimeError: planted"),
        (_kills, "KilledWorker"),
        (_refuses, "OutputError: s3://bucket/out: planted"),
    ],
)
def test_a_part_that_cannot_be_written_is_named_and_the_rest_kept(
    client: Any, tmp_path: Path, fault: Any, named: str
) -> None:
    with (
        _planted(_by_value(fault)),
        pytest.raises(OutputError, match=r"part 2 \(points 800 to 1,199\)") as caught,
    ):
        write(tmp_path / "out", client)
    assert named in str(caught.value)
    found = dataset.status(tmp_path / "out")
    assert (found.finished, found.complete) == (found.parts - 1, False)
    write(tmp_path / "out", client, resume=True)
    assert _whole(tmp_path / "out")


_CLIENT = """
import os, sys
from distributed import Client, LocalCluster
import mlsysim_sweep as ms
from mlsysim_sweep import cluster, dataset

def die(_):
    os.kill(os.getpid(), 9)

if __name__ == "__main__":
    folder, inputs, axes, feasible, part_points = eval(sys.argv[1], {})
    made = ms.Sweep(inputs=inputs, axes=axes, feasible=feasible)
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as local:
        with Client(local) as client:
            runner = cluster.on_dask(client)
            dataset.write_dataset(
                made._plan, folder, runner=runner, part_points=part_points, progress=die
            )
"""


def test_a_client_that_is_killed_is_taken_over_from_its_journal(tmp_path: Path) -> None:
    script, folder = tmp_path / "client.py", tmp_path / "out"
    script.write_text(_CLIENT)
    asked = repr((str(folder), INPUTS, AXES, {"where": "efficiency > 0.5"}, PART_POINTS))
    ended = subprocess.run([sys.executable, "-P", str(script), asked], timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL
    before = dataset.status(folder)
    assert 0 < before.finished < before.parts
    assert not before.complete
    runner = dataset.on_threads(1)
    dataset.write_dataset(
        sweep()._plan, folder, runner=runner, part_points=PART_POINTS, resume=True
    )
    assert _whole(folder)


@contextlib.contextmanager
def _scheduler(tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A scheduler in a process of its own, with one worker."""
    from distributed.cli import dask_scheduler, dask_worker

    file = tmp_path / "scheduler.json"
    common = ["--no-dashboard", "--scheduler-file", str(file)]
    quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    python = [sys.executable, "-P", "-m"]
    scheduler = subprocess.Popen(
        [*python, dask_scheduler.__name__, "--host", "127.0.0.1", "--port", "0", *common], **quiet
    )
    worker = subprocess.Popen(
        [*python, dask_worker.__name__, "--nthreads", "1", "--no-nanny", *common[:1], *common[1:]],
        **quiet,
    )
    try:
        while not file.exists() or not file.read_text().strip():
            time.sleep(0.05)
        yield json.loads(file.read_text())["address"], scheduler
    finally:
        for process in (worker, scheduler):
            process.kill()
            process.wait()


def test_a_lost_scheduler_is_said_and_finished_parts_are_kept(tmp_path: Path) -> None:
    with _scheduler(tmp_path) as (address, scheduler), cluster.connected(address, None) as client:

        def lost(_: int) -> None:
            scheduler.kill()

        with pytest.raises(OutputError, match=r"the Dask scheduler was lost.*give --resume"):
            write(tmp_path / "out", client, progress=lost)
    before = dataset.status(tmp_path / "out")
    assert 0 < before.finished < before.parts
    runner = dataset.on_threads(1)
    dataset.write_dataset(
        sweep()._plan, tmp_path / "out", runner=runner, part_points=PART_POINTS, resume=True
    )
    assert _whole(tmp_path / "out")


def test_a_cluster_without_workers_is_waited_for_and_said_to_have_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=0, threads_per_worker=1, dashboard_address=":0") as local,
        Client(local) as connected,
        mock.patch.object(cluster, "_PATIENCE", 0.2),
    ):
        later = threading.Timer(1, local.scale, (2,))
        later.start()
        write(tmp_path / "out", connected)
        later.join()
    assert "the cluster has no workers yet" in caplog.text
    assert _whole(tmp_path / "out")


def test_as_many_parts_are_under_way_as_the_cluster_has_threads() -> None:
    """Also when threads join after the first part was given out, as jobs of a queue do."""
    threads, under_way, seen = [0, 0, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1], [0], []

    class Cluster:
        def nthreads(self) -> dict[str, int]:
            return {"worker": threads.pop(0)}

    def submit(part: Any) -> Any:
        under_way[0] += 1
        return part

    def wait(futures: Any, **_: Any) -> Any:
        seen.append(len(futures))
        return types.SimpleNamespace(done=futures[:1])

    with mock.patch("distributed.wait", wait):
        found = [part for part, _ in cluster._in_turn(Cluster(), submit, range(8))]
    assert sorted(found) == list(range(8))
    assert seen == [1, 1, 3, 3, 2, 1, 1, 1]


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
