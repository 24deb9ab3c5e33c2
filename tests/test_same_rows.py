"""The same rows, bit for bit: however they are cut, evaluated, written and interrupted."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mlsysim_sweep as ms
from mlsysim_sweep import cluster, dataset, store
from mlsysim_sweep.engine.plan import Plan
from tests import strategies
from tests.engine.brute import WHERE, survivors

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")

BLOCKS = (1, 7, 1000, 2**17)


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """Two workers in this process: the ways of Dask without its processes."""
    from distributed import Client

    with Client(
        processes=False, n_workers=2, threads_per_worker=1, dashboard_address=":0"
    ) as connected:
        yield connected


class _Interrupted(Exception):
    """In the middle of a run."""


def _stopping(runner: dataset.Runner, count: int) -> dataset.Runner:
    """A runner that is interrupted after some parts."""

    def run(*arguments: Any) -> Iterator[dataset.Finished]:
        for done, finished in enumerate(runner(*arguments)):
            if done == count:
                raise _Interrupted
            yield finished

    return run


def _read(folder: Path) -> pa.Table:
    return pa.concat_tables(pq.read_table(file) for file in dataset.files(folder))


@settings(max_examples=60)
@given(asked=strategies.sweeps(tuple(WHERE)), data=st.data())
def test_rows_are_the_same_on_every_way(client: Any, asked: dict[str, Any], data: Any) -> None:
    grid = ms.Sweep(**asked).grid
    runners = {
        "serial": dataset.on_threads(1),
        "threads": dataset.on_threads(2),
        "dask": cluster.on_dask(client),
    }

    def plan() -> Plan:
        """Blocks and threads may change at a resume, too."""
        return Plan(grid, data.draw(st.sampled_from(BLOCKS), "block_points"))

    def runner() -> dataset.Runner:
        return runners[data.draw(st.sampled_from(sorted(runners)), "runner")]

    rows = data.draw(st.sampled_from((1, 50, 2**17)), "rows of a group")
    part_points = max(1, grid.points // data.draw(st.integers(1, 6), "parts"))
    options = {"part_points": part_points, "rows": rows}
    wanted = store.table(plan()).replace_schema_metadata()
    _bitwise(wanted, survivors(Plan(grid)))

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        workers = data.draw(st.sampled_from((1, 2)), "workers")
        store.write(plan(), folder / "one.parquet", overwrite=False, workers=workers)
        dataset.write_dataset(plan(), folder / "whole", runner=runner(), **options)
        stopping = _stopping(runner(), data.draw(st.integers(0, 5), "stop after"))
        try:
            dataset.write_dataset(plan(), folder / "resumed", runner=stopping, **options)
        except _Interrupted:
            dataset.write_dataset(
                plan(), folder / "resumed", runner=runner(), resume=True, **options
            )
        found = pq.read_table(folder / "one.parquet")
        assert found.replace_schema_metadata().equals(wanted)
        for kind in ("whole", "resumed"):
            assert _read(folder / kind).replace_schema_metadata().equals(wanted)
        assert [f.read_bytes() for f in dataset.files(folder / "whole")] == [
            f.read_bytes() for f in dataset.files(folder / "resumed")
        ]


def _bitwise(table: pa.Table, wanted: dict[str, Any]) -> None:
    """Every column of a table against that of brute force: floats by their bits."""
    for name in table.column_names:
        found = table.column(name).to_pandas().to_numpy()
        if found.dtype == np.float64:
            assert found.tobytes() == np.asarray(wanted[name], np.float64).tobytes(), name
        else:
            np.testing.assert_array_equal(found, wanted[name], name)
