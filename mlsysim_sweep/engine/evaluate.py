"""Whole grids at once, each quantity at its own rank, for grids that fit in memory."""

from __future__ import annotations

import math

import numpy as np

from mlsysim_sweep.constraints import mask
from mlsysim_sweep.engine.mesh import Array, Box, boxes, part_of, whole
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
    pairs = list(zip(plan.grid.dims, plan.grid.shape, strict=True))
    open_shapes = {n: tuple(s if d in plan.dims[n] else 1 for d, s in pairs) for n in names}
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
    pairs = zip(plan.grid.dims, plan.grid.shape, strict=True)
    shape = tuple(n if d in dims else 1 for d, n in pairs)
    holds = np.ones(shape, bool)
    with np.errstate(all="ignore"):
        for box in boxes(plan):
            target = _target(box, shape)
            if target is None:
                continue
            for rule in plan.rules:
                holds[target] &= mask(rule.predicate, box)
    return holds.reshape([n for n, d in zip(shape, plan.grid.dims, strict=True) if d in dims])


def block_bytes(plan: Plan) -> int:
    """Upper bound of the memory that one block's values take."""
    return 8 * math.prod(plan.block_shape) * (len(plan.graph.formulas) + len(plan.grid.dims))
