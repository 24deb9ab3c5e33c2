"""Parts of a dataset written by the workers of a Dask cluster.

Only plain data and the functions of this package travel. The journal is kept by the client alone:
a scheduler that dies costs nothing that was finished.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from mlsysim_sweep.dataset import Finished, Options, Part, Runner, write_part
from mlsysim_sweep.engine.plan import Plan
from mlsysim_sweep.engine.run import Table, first_point, last_point
from mlsysim_sweep.errors import Mistake, OutputError
from mlsysim_sweep.place import Place

if TYPE_CHECKING:
    from distributed import Client

_TIMEOUT = 10
"""Seconds that a scheduler has to answer."""

_PATIENCE = 30
"""Seconds without a finished part after which a cluster without workers is said to have none."""

_LOG = logging.getLogger(__name__)


def on_dask(client: Client) -> Runner:
    """A runner on the workers of a cluster; they must see the dataset's folder.

    A worker that is lost costs its parts only: they are done again elsewhere, under the same names.
    A part that fails, or that kills its workers, is named at the end; the rest is kept.
    """

    def run(
        plan: Plan, table: Table, todo: Sequence[Part], where: Place, options: Options
    ) -> Iterator[Finished]:
        shared = where.absolute()
        mark = uuid.uuid4().hex[:8]

        def submit(part: Part) -> Any:
            # Nothing is kept on workers for later parts: what one holds is gone when it is killed.
            key = f"mlsysim-part-{part.number}-{mark}"
            return client.submit(_write, mark, plan, part, shared, options, key=key, pure=False)

        failed: list[tuple[Part, BaseException]] = []
        with _lost_scheduler_said(where):
            for part, future in _in_turn(client, submit, todo):
                error = future.exception()
                if error is None:
                    yield future.result()
                else:
                    failed.append((part, error))
                future.release()
        if failed:
            raise _failure(plan, where, failed)

    return run


def _in_turn(
    client: Client, submit: Callable[[Part], Any], todo: Iterable[Part]
) -> Iterator[tuple[Part, Any]]:
    """Parts as they are done, one under way for each thread that the cluster has at the time.

    No more than that: one that waits beside a part that kills its worker is blamed with it.
    """
    from distributed import wait

    waiting = iter(todo)
    under_way: dict[Any, Part] = {}
    while True:
        threads = sum(client.nthreads().values())
        free = max(1, threads) - len(under_way)
        under_way |= {submit(part): part for part in itertools.islice(waiting, max(0, free))}
        if not under_way:
            return
        try:
            done = wait(list(under_way), timeout=_PATIENCE, return_when="FIRST_COMPLETED").done
        except TimeoutError:
            if not threads:
                _LOG.warning("the cluster has no workers yet, or none any more: waiting")
            continue
        for future in done:
            yield under_way.pop(future), future


@contextlib.contextmanager
def _lost_scheduler_said(where: Place) -> Iterator[None]:
    """Say that the scheduler is gone, and what is left.

    Raises
    ------
    OutputError
        In place of what Dask raises then.
    """
    from distributed import CancelledError
    from distributed.comm.core import CommClosedError

    try:
        yield
    except (CancelledError, CommClosedError) as error:
        raise OutputError(
            where,
            f"the Dask scheduler was lost: {type(error).__name__}",
            "finished parts are kept; start a cluster and give --resume",
        ) from error


_TABLES: dict[str, Table] = {}


def _write(mark: str, plan: Plan, part: Part, where: Place, options: Options) -> Finished:
    """Write one part; the table of filters is decided once in each worker and run."""
    if mark not in _TABLES:
        _TABLES.clear()
        _TABLES[mark] = Table.of(plan)
    return write_part(plan, _TABLES[mark], part, where, options)


def _failure(plan: Plan, where: Place, failed: Sequence[tuple[Part, BaseException]]) -> OutputError:
    """One message for all parts that could not be written, each with its range of points."""
    lines = []
    for part, error in failed:
        start, stop = (
            first_point(part.slab, plan.grid.shape),
            last_point(part.slab, plan.grid.shape),
        )
        lines.append(
            f"part {part.number} (points {start:,} to {stop:,}): {type(error).__name__}: {error}"
        )
    return OutputError(
        where,
        "not all parts could be written: " + "; ".join(lines),
        "the others are kept; --resume tries these again",
    )


@contextlib.contextmanager
def connected(address: str, workers: int | None) -> Iterator[Any]:
    """A client of a running cluster, or of one on this machine where ``address`` is ``local``.

    Raises
    ------
    Mistake
        If Dask is not installed, or nothing answers at the address.
    """
    try:
        from distributed import Client, LocalCluster
    except ImportError:
        raise Mistake(
            "--dask", "Dask is not installed", "pip install 'mlsysim-sweep[dask]'"
        ) from None
    try:
        if address != "local":
            with Client(address, timeout=_TIMEOUT) as client:
                yield client
            return
    except OSError as error:
        raise Mistake(
            "--dask", f"no scheduler answers at {address}: {error}", "its address"
        ) from None
    with (
        LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        yield client
