"""Whole grids at once, each quantity at its own rank, for grids that fit in memory."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mlsysim_sweep.constraints import mask
from mlsysim_sweep.engine.mesh import Array, Box, Points, boxes, part_of, whole
from mlsysim_sweep.engine.plan import Plan, Slices


def bytes_needed(plan: Plan, names: tuple[str, ...]) -> int:
    """Bytes of the named quantities, each on its own axes, and of the feasibility mask."""
    return sum(8 * plan.cells(plan.dims[name]) for name in names) + plan.cells(
        plan.rule_dims(plan.rules)
    )


def evaluate(plan: Plan, names: tuple[str, ...]) -> dict[str, Array]:
    """Values of the named quantities, each on its own axes only.

    Quantities on few axes are evaluated at once; larger ones are filled in block by block, so that
    intermediate values stay in the cache.
    """
    full = whole(plan)
    most = plan.block_points
    large = [n for n in names if n not in plan.once and plan.cells(plan.dims[n]) > most]
    with np.errstate(all="ignore"):
        values = {name: _own_axes(plan, name, full(name)) for name in names if name not in large}
        values |= _filled(plan, large)
    return {name: _whole_numbers(plan, name, values[name]) for name in names}


def _whole_numbers(plan: Plan, name: str, values: Array) -> Array:
    """Whole quantities as int64, unless some do not exist: those stay NaN, so all stay float."""
    formula = plan.graph.formulas.get(name)
    is_whole = formula is not None and formula.whole and values.dtype.kind == "f"
    return values.astype(np.int64) if is_whole and (np.abs(values) < 2.0**63).all() else values


def _own_axes(plan: Plan, name: str, values: Array) -> Array:
    sizes = dict(zip(plan.grid.dims, plan.grid.shape, strict=True))
    return values.reshape([sizes[dim] for dim in plan.dims[name]])


def _filled(plan: Plan, names: list[str]) -> dict[str, Array]:
    open_shapes = {name: plan.corner(plan.dims[name]) for name in names}
    filled: dict[str, Array] = {}
    for box in boxes(plan) if names else ():
        for name in names:
            target = _target(box, open_shapes[name])
            if target is None:
                continue
            values = box(name)
            if name not in filled:
                filled[name] = np.empty(open_shapes[name], values.dtype)
            filled[name][target] = values
    return {name: _own_axes(plan, name, values) for name, values in filled.items()}


def _target(box: Box, shape: tuple[int, ...]) -> Slices | None:
    """Where a block's values go; None where an earlier block has filled the same place."""
    slices = tuple(box.slices.values())
    if any(n == 1 and s.start > 0 for s, n in zip(slices, shape, strict=True)):
        return None
    return part_of(slices, shape)


def feasible(plan: Plan) -> Array:
    """Where every rule holds, on the axes that any rule mentions."""
    dims = plan.rule_dims(plan.rules)
    shape = plan.corner(dims)
    holds = np.ones(shape, bool)
    with np.errstate(all="ignore"):
        for box in boxes(plan):
            target = _target(box, shape)
            if target is None:
                continue
            for rule in plan.rules:
                holds[target] &= mask(rule.predicate, box)
    return holds.reshape([n for n, d in zip(shape, plan.grid.dims, strict=True) if d in dims])


def row(points: Points, i: int, columns: tuple[str, ...]) -> dict[str, Any]:
    """One of some points as plain Python values."""
    grid = points.box.plan.grid
    found = {}
    for name in columns:
        given = grid.fields.get(name)
        if given is not None and len(given.dims) == 1:
            value = given.values[points.positions(given.dims[0])[i]]
        else:
            value = np.broadcast_to(points(name), (points.count,))[i]
        formula = points.box.plan.graph.formulas.get(name)
        plain = value.item() if isinstance(value, np.generic) else value
        is_whole = formula is not None and formula.whole and math.isfinite(plain)
        found[name] = int(plain) if is_whole else plain
    return found


class OnDemand:
    """A variable of a grid, or its feasibility mask, as an array evaluated where it is indexed."""

    def __init__(self, plan: Plan, name: str) -> None:
        self.plan, self.name = plan, name
        self.is_mask = name not in plan.dims
        self.dims = plan.rule_dims(plan.rules) if self.is_mask else plan.dims[name]
        sizes = dict(zip(plan.grid.dims, plan.grid.shape, strict=True))
        self.shape = tuple(sizes[dim] for dim in self.dims)
        self.ndim = len(self.shape)
        self.dtype = self[(slice(0, 1),) * self.ndim].dtype

    def __getitem__(self, key: Slices) -> Array:
        """Values of a slab of the variable's own axes."""
        wanted = dict(zip(self.dims, key, strict=True))
        lengths = dict(zip(self.dims, self.shape, strict=True))
        slab = tuple(
            slice(*wanted[dim].indices(lengths[dim])) if dim in wanted else slice(0, 1)
            for dim in self.plan.grid.dims
        )
        box = Box(self.plan, slab)
        shape = tuple(
            s.stop - s.start for d, s in zip(self.plan.grid.dims, slab, strict=True) if d in wanted
        )
        with np.errstate(all="ignore"):
            return (self._mask(box) if self.is_mask else box(self.name)).reshape(shape)

    def _mask(self, box: Box) -> Array:
        holds = np.ones(box.open_shape(self.dims), bool)
        for rule in self.plan.rules:
            holds &= mask(rule.predicate, box)
        return holds
