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


@dataclass(frozen=True)
class Table:
    """The rules that live on few axes, decided once for the whole grid.

    ``holds`` is a mask on the open mesh, None where there is no such rule; ``left`` counts the
    points of the grid that are left after each of the rules. ``full`` keeps what is evaluated once.
    """

    holds: Array | None
    left: tuple[int, ...]
    full: Box

    @classmethod
    def of(cls, plan: Plan) -> Table:
        """Decide the rules of :attr:`Plan.table_rules`."""
        rules, full = plan.table_rules, whole(plan)
        if not rules:
            return cls(None, (), full)
        dims = plan.rule_dims(rules)
        corner = plan.corner(dims)
        table = np.zeros(corner, bool)
        left = [0] * len(rules)
        repeats = plan.grid.points // math.prod(corner)
        with np.errstate(all="ignore"):
            for slices in split(tuple(slice(0, n) for n in corner), plan.block_points):
                box = Box(plan, slices, full)
                holds = np.ones(box.shape, bool)
                for k, rule in enumerate(rules):
                    holds &= mask(rule.predicate, box)
                    count = int(np.count_nonzero(holds))
                    left[k] += count * repeats
                    if not count:
                        break
                table[slices] = holds
        return cls(table, tuple(left), full)

    def within(self, slab: Slices) -> Array | None:
        """The part of the mask that covers a slab."""
        if self.holds is None:
            return None
        return self.holds[part_of(slab, self.holds.shape)]


def live(plan: Plan, table: Table, slab: Slices) -> Iterator[Slices]:
    """The slabs of a slab that hold survivors of the table, in the order of rows.

    A slab is cut only while it holds more than a block's worth of survivors, so that what the
    table drops costs nothing.
    """
    holds = table.within(slab)
    if holds is None:
        yield from split(slab, plan.block_points)
        return
    survivors = int(np.count_nonzero(holds)) * (size(slab) // holds.size)
    if survivors > plan.block_points:
        for piece in halves(slab):
            yield from live(plan, table, piece)
    elif survivors:
        yield slab


class Walk:
    """One pass over a grid or one slab of it.

    Iterate it for the survivors of each block, in the order of rows. ``visited`` counts the points
    decided so far and is passed to ``progress`` after each block; :attr:`block_left` and
    :meth:`funnel` are complete after the last one.
    """

    def __init__(
        self,
        plan: Plan,
        table: Table | None = None,
        slab: Slices | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.plan = plan
        self.table = table or Table.of(plan)
        self.slab = slab or plan.whole
        self.visited = 0
        self.block_left = [0] * len(plan.block_rules)
        self._progress = progress

    def __iter__(self) -> Iterator[Points]:
        for slab in live(self.plan, self.table, self.slab):
            survivors, left = decide(self.plan, self.table, slab)
            self.seen(slab, left)
            if survivors is not None:
                yield survivors
        self.seen(self.slab)

    def seen(self, slab: Slices, left: Sequence[int] = ()) -> None:
        """Take note that all up to the end of a slab is decided, and what each rule left in it."""
        if left:
            self.block_left = [a + b for a, b in zip(self.block_left, left, strict=True)]
        self.visited = last_point(slab, self.plan.grid.shape) + 1
        if self._progress:
            self._progress(self.visited)

    def funnel(self) -> Funnel:
        """What each rule dropped, in order; complete only after the last block."""
        return funnel(self.plan, (*self.table.left, *self.block_left))


def funnel(plan: Plan, left: Sequence[int]) -> Funnel:
    """The funnel of a plan from what each of its rules left."""
    steps = [plan.grid.points, *left]
    rows = [
        FunnelRow(r.name, r.text, plan.rule_dims([r]), steps[k] - steps[k + 1], steps[k + 1])
        for k, r in enumerate(plan.rules)
    ]
    return Funnel(plan.grid.points, tuple(rows), steps[-1])


def decide(plan: Plan, table: Table, slab: Slices) -> tuple[Points | None, list[int]]:
    """The survivors of one slab, and how many points each of the block rules left in it.

    Rules are decided on the box while many points are left, then point by point.
    """
    box, holds = Box(plan, slab, table.full), table.within(slab)
    left = [0] * len(plan.block_rules)
    points: Points | None = None
    with np.errstate(all="ignore"):
        for k, rule in enumerate(plan.block_rules):
            if points is None and _share(holds) >= GATHER_SHARE:
                here = mask(rule.predicate, box)
                holds = here if holds is None else holds & here
                left[k] = int(np.count_nonzero(holds)) * (box.points // holds.size)
            else:
                points = points or Points.where(box, holds)
                points = points.kept(mask(rule.predicate, points))
                left[k] = points.count
            if not left[k]:
                return None, left
        return points or Points.where(box, holds), left


def _share(holds: Array | None) -> float:
    return 1.0 if holds is None else int(np.count_nonzero(holds)) / max(1, holds.size)


def size(slab: Slices) -> int:
    """Number of points of a slab."""
    return math.prod(s.stop - s.start for s in slab)


def last_point(slab: Slices, shape: tuple[int, ...]) -> int:
    """Position of a slab's last point in the order of rows."""
    position = 0
    for s, n in zip(slab, shape, strict=True):
        position = position * n + s.stop - 1
    return position


def first_point(slab: Slices, shape: tuple[int, ...]) -> int:
    """Position of a slab's first point in the order of rows."""
    return last_point(tuple(slice(s.start, s.start + 1) for s in slab), shape)


def halves(slab: Slices) -> Iterator[Slices]:
    """A slab cut in two along its first axis that can be cut."""
    axis = next(i for i, s in enumerate(slab) if s.stop - s.start > 1)
    start, stop = slab[axis].start, slab[axis].stop
    middle = (start + stop + 1) // 2
    for piece in (slice(start, middle), slice(middle, stop)):
        yield (*slab[:axis], piece, *slab[axis + 1 :])


def split(slab: Slices, most: int) -> Iterator[Slices]:
    """Cut a slab into slabs of at most ``most`` points, in the order of rows."""
    if size(slab) <= max(1, most):
        yield slab
        return
    axis = next(i for i, s in enumerate(slab) if s.stop - s.start > 1)
    step = max(1, most // size(slab[axis + 1 :]))
    for start in range(slab[axis].start, slab[axis].stop, step):
        piece = slice(start, min(start + step, slab[axis].stop))
        yield from split((*slab[:axis], piece, *slab[axis + 1 :]), most)


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
