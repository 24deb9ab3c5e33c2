"""Walks a grid: decides filters where they are cheapest and yields the survivors block by block."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlsysim_sweep.constraints import Funnel, FunnelRow, Miss, Rule, mask, shortfall
from mlsysim_sweep.engine.mesh import Array, Box, Points, boxes, part_of, whole
from mlsysim_sweep.engine.plan import Plan, Slices

GATHER_SHARE = 0.25
"""Below this share of survivors in a block, points are gathered before the next filter.

Gathering was as fast as staying on the box at shares of 0.17 (one more rule) and 0.27 (three); with
all columns to follow at 0.33 and 0.55.
"""


class Walk:
    """One pass over a grid. Iterate it for the survivors of each block, in the order of rows.

    ``visited`` counts the points decided so far and is passed to ``progress`` after each block;
    :meth:`funnel` is complete after the last one.
    """

    def __init__(self, plan: Plan, progress: Callable[[int], None] | None = None) -> None:
        self.plan = plan
        self.visited = 0
        self._progress = progress
        self._left = [0] * len(plan.rules)
        self._table: Array | None = None

    def __iter__(self) -> Iterator[Points]:
        with np.errstate(all="ignore"):
            self._decide_table()
        for box in boxes(self.plan):
            with np.errstate(all="ignore"):
                survivors = self._survivors(box)
            if survivors is not None:
                yield survivors
            if self._progress:
                self._progress(self.visited)

    def _decide_table(self) -> None:
        """Decide the rules that live on few axes, once for the whole grid."""
        rules = self.plan.table_rules
        if not rules:
            return
        dims = self.plan.rule_dims(rules)
        self._table = _open_mask(self.plan, dims)
        repeats = self.plan.grid.points // max(1, self.plan.cells(dims))
        full = whole(self.plan)
        for slices in _table_blocks(self.plan, dims):
            box = Box(self.plan, slices, full)
            holds = np.ones(box.open_shape(dims), bool)
            for k, rule in enumerate(rules):
                holds &= mask(rule.predicate, box)
                left = int(np.count_nonzero(holds))
                self._left[k] += left * repeats
                if not left:
                    break
            self._table[slices] = holds

    def _survivors(self, box: Box) -> Points | None:
        self.visited += box.points
        holds = None
        if self._table is not None:
            holds = self._table[part_of(tuple(box.slices.values()), self._table.shape)]
            if not holds.any():
                return None
        return self._decided(box, holds)

    def _decided(self, box: Box, holds: Array | None) -> Points | None:
        """Decide the remaining rules: on the box while many points are left, then on points."""
        points: Points | None = None
        for k, rule in enumerate(self.plan.block_rules, len(self.plan.table_rules)):
            if points is None and _share(holds) >= GATHER_SHARE:
                here = mask(rule.predicate, box)
                holds = here if holds is None else holds & here
                left = int(np.count_nonzero(holds)) * (box.points // holds.size)
            else:
                points = points or Points.where(box, holds)
                points = points.kept(mask(rule.predicate, points))
                left = points.count
            self._left[k] += left
            if not left:
                return None
        return points or Points.where(box, holds)

    def funnel(self) -> Funnel:
        """What each rule dropped, in order; complete only after the last block."""
        left = [self.plan.grid.points, *self._left]
        rows = [
            FunnelRow(r.name, r.text, self.plan.rule_dims([r]), left[k] - left[k + 1], left[k + 1])
            for k, r in enumerate(self.plan.rules)
        ]
        return Funnel(self.plan.grid.points, tuple(rows), left[-1])


def _share(holds: Array | None) -> float:
    return 1.0 if holds is None else int(np.count_nonzero(holds)) / max(1, holds.size)


def _open_mask(plan: Plan, dims: tuple[str, ...]) -> Array:
    pairs = zip(plan.grid.dims, plan.grid.shape, strict=True)
    return np.zeros(tuple(n if d in dims else 1 for d, n in pairs), bool)


def _table_blocks(plan: Plan, dims: tuple[str, ...]) -> Iterator[Slices]:
    """Blocks of the grid's corner that spans only the table's axes."""
    corner = tuple(
        n if d in dims else 1 for d, n in zip(plan.grid.dims, plan.grid.shape, strict=True)
    )
    return _split(corner, plan.block_points)


def _split(shape: tuple[int, ...], most: int) -> Iterator[Slices]:
    """Cut a shape into slabs of at most about ``most`` points, in row order."""
    if math.prod(shape) <= most or all(n == 1 for n in shape):
        yield tuple(slice(0, n) for n in shape)
        return
    axis = next(i for i, n in enumerate(shape) if n > 1)
    inner = math.prod(shape[axis + 1 :])
    step = max(1, most // inner)
    for start in range(0, shape[axis], step):
        stop = min(start + step, shape[axis])
        head = (*(slice(0, 1) for _ in shape[:axis]), slice(start, stop))
        if inner <= most:
            yield head + tuple(slice(0, n) for n in shape[axis + 1 :])
        else:
            for rest in _split(shape[axis + 1 :], most):
                yield head + rest


# --- explaining ----------------------------------------------------------------------------------


@dataclass
class _Row:
    rejects: int = 0
    only: int = 0
    left: int = 0
    nearest: Miss | None = None


def explain(plan: Plan) -> Funnel:
    """Every rule against every point: what each rejects, alone and in order, and nearest misses.

    Nothing is skipped, so it costs a full evaluation of what the rules mention.
    """
    rows = [_Row() for _ in plan.rules]
    with np.errstate(all="ignore"):
        for box in boxes(plan):
            _explain_block(box, plan.rules, rows)
    left = [plan.grid.points, *(row.left for row in rows)]
    return Funnel(
        plan.grid.points,
        tuple(
            FunnelRow(
                rule.name,
                rule.text,
                plan.rule_dims([rule]),
                left[k] - left[k + 1],
                left[k + 1],
                row.rejects,
                row.only,
                row.nearest,
            )
            for k, (rule, row) in enumerate(zip(plan.rules, rows, strict=True))
        ),
        left[-1],
    )


def _explain_block(box: Box, rules: Sequence[Rule], rows: Sequence[_Row]) -> None:
    holds = [mask(rule.predicate, box) for rule in rules]
    fails = np.zeros(box.shape, np.uint16)
    for here in holds:
        fails += ~here
    so_far = np.ones(box.shape, bool)
    for rule, row, here in zip(rules, rows, holds, strict=True):
        rejected = ~here
        row.rejects += int(np.count_nonzero(rejected)) * (box.points // rejected.size)
        row.only += int(np.count_nonzero(rejected & (fails == 1)))
        candidates = so_far & rejected
        if candidates.any():
            row.nearest = _nearer(row.nearest, box, candidates, shortfall(rule.predicate, box))
        so_far &= here
        row.left += int(np.count_nonzero(so_far))


def _nearer(best: Miss | None, box: Box, candidates: Array, short: Array) -> Miss:
    """The closer of the best miss so far and the best of this block; the first where they tie."""
    places = np.flatnonzero(candidates)
    misses = np.broadcast_to(short, box.shape).reshape(-1)[places]
    nearest = int(np.argmin(misses))
    flat, found = int(places[nearest]), float(misses[nearest])
    if best is not None and best.shortfall <= found:
        return best
    return Miss(layout(Points(box, np.array([flat]))), found)


def layout(point: Points) -> dict[str, Any]:
    """Axis values of the first of some points, as plain Python values."""
    grid = point.box.plan.grid
    found = {}
    for axis in grid.axes:
        position = int(point.positions(axis.name)[0])
        for name, labels in axis.labels.items():
            value = labels[position]
            found[name] = value.item() if isinstance(value, np.generic) else value
    return found
