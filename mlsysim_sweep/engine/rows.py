"""Rows of a walk in column buffers, one row group after another, evaluated on a pool."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace

import numpy as np

from mlsysim_sweep.engine.mesh import Array, Box, Points
from mlsysim_sweep.engine.plan import Plan, Slices
from mlsysim_sweep.engine.pool import Here, ordered
from mlsysim_sweep.engine.run import Walk, decide, live


class RowGroup:
    """Column buffers of a row group; they are used again, so that their pages are touched once.

    What does not vary over the grid is held once, and not filled in.
    """

    def __init__(self, plan: Plan, names: Sequence[str], size: int) -> None:
        self.size, self.rows = size, 0
        first = Points(Box(plan, tuple(slice(0, 1) for _ in plan.grid.dims)), None)
        self._buffers = {}
        with np.errstate(all="ignore"):
            for name in names:
                value = first.stored(name)
                varies = bool(plan.dims[name])
                self._buffers[name] = (
                    np.empty(size, value.dtype) if varies else np.broadcast_to(value, (size,))
                )

    def __getitem__(self, name: str) -> Array:
        """Values of a column, as many as there are rows."""
        return self._buffers[name][: self.rows]

    def take(self, points: Points) -> slice:
        """Reserve the next rows for some points."""
        self.rows += points.count
        return slice(self.rows - points.count, self.rows)

    def fill(self, points: Points, place: slice) -> None:
        """Evaluate all columns of some points into their rows."""
        with np.errstate(all="ignore"):
            for name, buffer in self._buffers.items():
                if buffer.flags.writeable:
                    points.into(name, buffer[place])


def row_groups(
    walk: Walk, pool: Executor, names: Sequence[str], size: int, buffers: int | None = None
) -> Iterator[RowGroup]:
    """The survivors of a walk in row groups of at most ``size`` rows, in the order of rows.

    A row group ends where the survivors of the next block do not fit. It is overwritten once
    ``buffers`` more have been asked for; without ``buffers`` it is the caller's to keep.
    """
    plan, table = replace(walk.plan, block_points=min(walk.plan.block_points, size)), walk.table

    def decided(slab: Slices) -> tuple[Slices, Points | None, list[int]]:
        return slab, *decide(plan, table, slab)

    fresh = (RowGroup(plan, names, size) for _ in itertools.count())
    ring = fresh if buffers is None else itertools.cycle(itertools.islice(fresh, buffers))
    group = next(ring)
    fills: list[Future[None]] = []
    for slab, points, left in ordered(
        pool, decided, live(plan, table, walk.slab), 1 if isinstance(pool, Here) else 4
    ):
        walk.seen(slab, left)
        if points is None:
            continue
        if group.rows + points.count > size:
            yield _filled(group, fills)
            group, fills = next(ring), []
            group.rows = 0
        fills.append(pool.submit(group.fill, points, group.take(points)))
    walk.seen(walk.slab)
    if group.rows:
        yield _filled(group, fills)


def _filled(group: RowGroup, fills: Sequence[Future[None]]) -> RowGroup:
    for fill in fills:
        fill.result()
    return group
