"""Fronts and rankings of whatever holds rows, read once and kept nowhere in full."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from mlsysim_sweep import sources, store
from mlsysim_sweep.constraints import mask
from mlsysim_sweep.engine.mesh import Array, Box, Points
from mlsysim_sweep.engine.plan import Plan, Slices
from mlsysim_sweep.engine.pool import ordered, threads
from mlsysim_sweep.engine.run import Table, decide, live
from mlsysim_sweep.errors import Mistake, shown
from mlsysim_sweep.pareto import Front, oriented
from mlsysim_sweep.sources import Batch, Grid, Source

if TYPE_CHECKING:
    import pandas

Names: TypeAlias = str | Sequence[str]

RANK = "rank"
RUN_POINTS, ROW_POINTS = 2**10, 2**7
"""Points of a block that are judged together by their smallest costs, before one by one."""
BLOCK_POINTS = 2**18
"""Points of a block of which only a front is kept: two threads are then 1.6 times as fast as one.

With half of that they are not faster: Python's lock is taken too often.
"""
WAITING_POINTS = 2**22
"""Points that the fronts of all groups together may hold unsorted."""
SAMPLE_POINTS = 2**16
"""Points of a grid that are evaluated first: what one of them beats need not be looked at."""


def pareto_front(
    x: Any,
    *,
    minimize: Names = (),
    maximize: Names = (),
    by: Names = (),
    rank: int = 1,
    distinct: bool = False,
    epsilon: float | None = None,
) -> pandas.DataFrame:
    """Rows that no other row beats in every objective, best first objective first.

    Parameters
    ----------
    x
        A :class:`Sweep`, which is evaluated block by block; an xarray Dataset, DataFrame or Arrow
        table; or the path of a Parquet file or folder, whoever wrote it.
    minimize, maximize
        Columns of numbers, one or more together. A row with a missing number is left out.
    by
        Columns to have a front of their own for each value, such as ``"accelerator"``.
    rank
        How many successive fronts: the second is that of the rows without the first. With more than
        one, a column ``rank`` says which.
    distinct
        Of rows that are equal in all objectives, only the first; by default all.
    epsilon
        Thin each front: each row left out has one that is kept and differs from it by a factor of
        less than ``1 + epsilon`` in every objective. The best row of each objective is kept.

    Raises
    ------
    Mistake
        If there is no objective, or a name is no column of numbers.

    >>> import mlsysim_sweep as ms
    >>> sweep = ms.Sweep.load("gpt3-million").variant(inputs={"microbatches": 64})
    >>> front = ms.pareto_front(sweep, minimize=["step_time", "n_devices"], by="accelerator")
    >>> front[["accelerator", "tp", "pp", "dp", "n_devices", "step_time"]].head(3).round(3)
      accelerator  tp  pp   dp  n_devices  step_time
    0        H100   8  16  128      16384      0.187
    1        H100   8  16  127      16256      0.188
    2        H100   8  12  169      16224      0.190
    """
    objectives = [*((n, False) for n in _names(minimize)), *((n, True) for n in _names(maximize))]
    groups = _names(by)
    source = sources.opened(x)
    _check_objectives(source, objectives)
    sources.check_columns(source, "by", groups)
    if rank < 1:
        raise Mistake("rank", f"{rank} given", "a whole number from 1")
    if epsilon is not None and not epsilon > 0:
        raise Mistake("epsilon", f"{shown(epsilon)} given", "a number above 0", "0.05")
    fronts = _fronts(source, objectives, groups, rank, distinct)
    return _frame(source, [_ordered(front, objectives, epsilon) for front in fronts], rank > 1)


def top(x: Any, k: int, *, by: str, per: Names = (), largest: bool = False) -> pandas.DataFrame:
    """The ``k`` best rows by a column, for each value of ``per`` if given; best first.

    The smallest values are the best, unless ``largest``. Of equal ones the first row comes first;
    a row with a missing number is left out.

    Raises
    ------
    Mistake
        If ``k`` is below 1, or a name is no column; ``by`` must be one of numbers.

    >>> import mlsysim_sweep as ms
    >>> sweep = ms.Sweep.load("gpt3-1k-h100")
    >>> best = ms.top(sweep, 1, by="step_time", per="accelerator")
    >>> best[["accelerator", "tp", "pp", "dp", "step_time"]].round(3)
      accelerator  tp  pp  dp  step_time
    0        H100   8   4  32      2.279
    1        H200   8   4  32      2.279
    2        B200   8   4  32      1.064
    3      MI300X   8   4  32      1.751
    """
    if k < 1:
        raise Mistake("k", f"{k} given", "a whole number from 1")
    source, groups = sources.opened(x), _names(per)
    sources.check_columns(source, "by", [by])
    sources.check_columns(source, "per", groups)
    best = _Best(k)
    seen = _Groups()
    for batch in source.batches([by], groups):
        best.add(oriented(batch.numbers[by], largest), seen.numbers(batch, groups), batch.ids)
    return store.to_pandas(source.take(best.ids))


def _names(given: Names) -> list[str]:
    return [given] if isinstance(given, str) else list(given)


def _check_objectives(source: Source, objectives: Sequence[tuple[str, bool]]) -> None:
    if not objectives:
        raise Mistake("minimize", "no objective given", "a column of numbers", '"step_time"')
    names = [name for name, _ in objectives]
    sources.check_columns(source, "minimize", [n for n, turned in objectives if not turned])
    sources.check_columns(source, "maximize", [n for n, turned in objectives if turned])
    for name in names:
        if names.count(name) > 1:
            raise Mistake("minimize", f"{name} is given twice", "each objective once")


class _Groups:
    """A number for each combination of labels, in the order in which they are first seen."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], int] = {}

    def numbers(self, batch: Batch, names: Sequence[str]) -> Array:
        """The group of each row of a batch."""
        code = np.zeros(len(batch.ids), np.int64)
        for name in names:
            code = code * len(batch.labels[name][1]) + batch.labels[name][0]
        found, first, inverse = np.unique(code, return_index=True, return_inverse=True)
        numbers = np.empty(len(found), np.int64)
        for at in np.argsort(first):
            key = tuple(
                values[codes[first[at]]] for codes, values in (batch.labels[n] for n in names)
            )
            numbers[at] = self._known.setdefault(key, len(self._known))
        return numbers[inverse]


# --- fronts --------------------------------------------------------------------------------------


def _fronts(
    source: Source,
    objectives: Sequence[tuple[str, bool]],
    by: Sequence[str],
    rank: int,
    distinct: bool,
) -> list[Front]:
    """The front of each group, in the order in which groups are first seen."""
    if isinstance(source, Grid) and _has_large_slabs(source.plan, by):
        plan = replace(source.plan, block_points=BLOCK_POINTS)
        workers, table = len(os.sched_getaffinity(0)), Table.of(plan)
        return [
            _front_of_slab(plan, slab, table, objectives, Front(rank, distinct=distinct), workers)
            for slab in _slabs(plan, by)
        ]
    seen, fronts = _Groups(), dict[int, Front]()
    for batch in source.batches([name for name, _ in objectives], by):
        costs = [oriented(batch.numbers[name], turned) for name, turned in objectives]
        groups = seen.numbers(batch, by) if by else np.zeros(len(batch.ids), np.int64)
        order = np.argsort(groups, kind="stable")
        numbers, starts = np.unique(groups[order], return_index=True)
        for group, at in zip(numbers.tolist(), np.split(order, starts[1:]), strict=False):
            front = fronts.setdefault(group, Front(rank, distinct=distinct))
            front.add([cost[at] for cost in costs], batch.ids[at])
        if sum(front.waiting for front in fronts.values()) > WAITING_POINTS:
            for front in fronts.values():
                front.settle()
    return [fronts[group] for group in sorted(fronts)]


def _has_large_slabs(plan: Plan, by: Sequence[str]) -> bool:
    """Whether each value of ``by`` is a slab of its own that is worth a walk of its own."""
    dims = plan.grid.dims
    if not all(name in dims for name in by):
        return False
    return not by or plan.grid.points >= SAMPLE_POINTS * plan.cells(by)


def _slabs(plan: Plan, by: Sequence[str]) -> Iterator[Slices]:
    """The slabs of a grid on which some axes have one value each."""
    pairs = zip(plan.grid.dims, plan.grid.shape, strict=True)
    cuts = [
        [slice(i, i + 1) for i in range(size)] if dim in by else [slice(0, size)]
        for dim, size in pairs
    ]
    return itertools.product(*cuts)


def _front_of_slab(
    plan: Plan,
    slab: Slices,
    table: Table,
    objectives: Sequence[tuple[str, bool]],
    front: Front,
    workers: int,
) -> Front:
    """Blocks are judged on several threads by what the front is then, and join it in any case."""
    names = [name for name, _ in objectives]
    for name in names:
        sources.check_number(plan, name)

    def judged(piece: Slices) -> tuple[list[Array], Array] | None:
        points, _ = decide(plan, table, piece)
        with np.errstate(all="ignore"):
            if points is not None and points.flat is None:
                points = _promising(points.box, objectives, front)
            if points is None or not points.count:
                return None
            costs = _costs(points, objectives)
        kept = np.flatnonzero(~front.drops(costs))
        return [cost[kept] for cost in costs], sources.ids_of(points)[kept]

    with np.errstate(all="ignore"):
        front.prime(_costs(_sample(plan, slab), objectives))
    with threads(workers) as pool:
        for found in ordered(pool, judged, live(plan, table, slab), 2 * workers):
            if found:
                front.add(*found)
    return front


def _costs(points: Points, objectives: Sequence[tuple[str, bool]]) -> list[Array]:
    return [oriented(points(name), turned) for name, turned in objectives]


def _sample(plan: Plan, slab: Slices) -> Points:
    """Some feasible points of a slab, spread evenly but not in step with its axes."""
    box = Box(plan, slab)
    count = min(box.points, SAMPLE_POINTS)
    points = Points(box, np.unique(np.random.default_rng(0).integers(0, box.points, count)))
    for rule in plan.rules:
        points = points.kept(mask(rule.predicate, points))
    return points


def _promising(box: Box, objectives: Sequence[tuple[str, bool]], front: Front) -> Points:
    """The points of a box without the rows whose smallest costs rule them out.

    A row spans the trailing axes. First a few rows are judged together, as most are far off.
    """
    outer = len(box.shape)
    while outer and math.prod(box.shape[outer - 1 :]) <= ROW_POINTS:
        outer -= 1
    inner, count = math.prod(box.shape[outer:]), math.prod(box.shape[:outer])
    runs = np.arange(0, count, max(1, RUN_POINTS // inner))
    best = [(_Rows(box, name, turned, outer), turned) for name, turned in objectives]
    kept = ~front.drops([oriented(rows.of_runs(runs), turned) for rows, turned in best])
    rows = np.flatnonzero(np.repeat(kept, np.diff(runs, append=count)))
    if len(rows):
        rows = rows[~front.drops([oriented(values.of(rows), turned) for values, turned in best])]
    return Points(box, (rows[:, np.newaxis] * inner + np.arange(inner)).reshape(-1))


class _Rows:
    """The best value of a quantity in rows of a box; a row spans the axes from ``outer`` on."""

    def __init__(self, box: Box, name: str, largest: bool, outer: int) -> None:
        self._best = np.maximum if largest else np.minimum
        values = box(name)
        self._inner = math.prod(values.shape[outer:])
        if values.shape[:outer] != box.shape[:outer]:
            values = np.broadcast_to(values, (*box.shape[:outer], *values.shape[outer:]))
        self._values = values.reshape(-1, self._inner)

    def of_runs(self, starts: Array) -> Array:
        """The best of the rows from each start to the next."""
        best: Array = self._best.reduceat(self._values.reshape(-1), starts * self._inner)
        return best

    def of(self, rows: Array) -> Array:
        """The best of some rows."""
        best: Array = self._best.reduce(self._values[rows], axis=1)
        return best


def _ordered(
    front: Front, objectives: Sequence[tuple[str, bool]], epsilon: float | None
) -> tuple[Array, Array]:
    """Ids and ranks of a front, by rank and then the first objective."""
    costs, ids, ranks = front.result()
    if not len(ids):
        return ids, ranks
    order = np.lexsort((ids, costs[0], ranks))
    if epsilon is not None:
        costs = [oriented(c, turned) for c, (_, turned) in zip(costs, objectives, strict=True)]
        order = order[_thinned([c[order] for c in costs], ranks[order], epsilon)]
    return ids[order], ranks[order]


def _thinned(values: Sequence[Array], ranks: Array, epsilon: float) -> Array:
    """Positions of one row for each cell of a logarithmic grid, and of each column's extremes.

    Two values of a cell have the same sign and differ by a factor of less than ``1 + epsilon``
    (Papadimitriou and Yannakakis, "On the approximability of trade-offs", FOCS 2000).
    """
    with np.errstate(divide="ignore"):
        logs = [np.log(np.abs(column.astype(float))) / np.log1p(epsilon) for column in values]
    cells = [np.floor(log) for log in logs] + [np.sign(column.astype(float)) for column in values]
    _, first = np.unique(np.column_stack([ranks, *cells]), axis=0, return_index=True)
    extremes = [
        pick(np.where(ranks == rank, column.astype(float), fill))
        for column in values
        for rank in np.unique(ranks)
        for pick, fill in ((np.argmin, np.inf), (np.argmax, -np.inf))
    ]
    return np.unique(np.concatenate([first, extremes]).astype(np.int64))


def _frame(
    source: Source, found: Iterable[tuple[Array, Array]], with_rank: bool
) -> pandas.DataFrame:
    pairs = list(found)
    ids = np.concatenate([np.empty(0, np.int64), *(ids for ids, _ in pairs)])
    frame = store.to_pandas(source.take(ids))
    if with_rank:
        frame[RANK] = np.concatenate([np.empty(0, np.int64), *(ranks for _, ranks in pairs)])
    return frame


# --- rankings ------------------------------------------------------------------------------------


class _Best:
    """The ``k`` rows of the smallest cost in each group, of all that were added so far.

    ``ids`` are by group, then cost, then id.
    """

    def __init__(self, k: int) -> None:
        self.k = k
        self.ids = np.empty(0, np.int64)
        self._groups = np.empty(0, np.int64)
        self._costs: Array | None = None
        self._last = np.empty(0, np.int64)  # of each group with k rows: where its last one is

    def add(self, costs: Array, groups: Array, ids: Array) -> None:
        """Take in more rows; NaN is never ranked."""
        held = np.flatnonzero(self._may_rank(costs, groups))
        costs, groups, ids = costs[held], groups[held], ids[held]
        if self._costs is not None:
            costs = np.concatenate([self._costs, costs])
            groups = np.concatenate([self._groups, groups])
            ids = np.concatenate([self.ids, ids])
        order = np.lexsort((ids, costs, groups))
        counts = np.bincount(groups)
        starts = np.cumsum(counts) - counts
        order = order[np.arange(len(order)) - np.repeat(starts, counts) < self.k]
        self._costs, self._groups, self.ids = costs[order], groups[order], ids[order]
        kept = np.minimum(counts, self.k)
        self._last = np.where(kept == self.k, np.cumsum(kept) - 1, -1)

    def _may_rank(self, costs: Array, groups: Array) -> Array:
        """Which rows are numbers, and better than the last that their group holds if it is full."""
        held: Array = costs == costs
        if self._costs is not None and len(self._last):
            known = np.minimum(groups, len(self._last) - 1)
            last = np.where(groups < len(self._last), self._last[known], -1)
            held &= (last < 0) | (costs < self._costs[last])
        return held
