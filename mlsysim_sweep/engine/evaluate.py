"""Whole grids at once, each quantity at its own rank, for grids that fit in memory."""

from __future__ import annotations

import math

import numpy as np

from mlsysim_sweep.constraints import mask
from mlsysim_sweep.engine.mesh import Array, Box
from mlsysim_sweep.engine.plan import Plan, Slices


def whole(plan: Plan) -> Box:
    """The box that is the whole grid."""
    return Box(plan, tuple(slice(0, n) for n in plan.grid.shape))


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
    small = whole(plan)
    large = [name for name in names if plan.cells(plan.dims[name]) > plan.block_points]
    values: dict[str, Array] = {}
    with np.errstate(all="ignore"):
        for name in names:
            if name not in large:
                values[name] = _own_axes(plan, name, small(name))
        for name, filled in _filled(plan, large).items():
            values[name] = filled
    return {name: _whole_numbers(plan, name, values[name]) for name in names}


def _whole_numbers(plan: Plan, name: str, values: Array) -> Array:
    """Whole quantities as int64, unless some do not exist: those stay NaN, so all stay float."""
    formula = plan.graph.formulas.get(name)
    is_whole = formula is not None and formula.whole and values.dtype.kind == "f"
    return values.astype(np.int64) if is_whole and np.isfinite(values).all() else values


def _own_axes(plan: Plan, name: str, values: Array) -> Array:
    sizes = dict(zip(plan.grid.dims, plan.grid.shape, strict=True))
    return values.reshape([sizes[dim] for dim in plan.dims[name]])


def _filled(plan: Plan, names: list[str]) -> dict[str, Array]:
    pairs = list(zip(plan.grid.dims, plan.grid.shape, strict=True))
    open_shapes = {n: tuple(s if d in plan.dims[n] else 1 for d, s in pairs) for n in names}
    filled: dict[str, Array] = {}
    for slices in plan.blocks() if names else ():
        box = Box(plan, slices)
        for name in names:
            target = _target(slices, open_shapes[name])
            if target is None:
                continue
            values = box(name)
            if name not in filled:
                filled[name] = np.empty(open_shapes[name], values.dtype)
            filled[name][target] = values
    return {name: _own_axes(plan, name, values) for name, values in filled.items()}


def _target(slices: Slices, shape: tuple[int, ...]) -> Slices | None:
    """Where a block's values go; None where an earlier block has filled the same place."""
    if any(n == 1 and s.start > 0 for s, n in zip(slices, shape, strict=True)):
        return None
    return tuple(s if n > 1 else slice(0, 1) for s, n in zip(slices, shape, strict=True))


def feasible(plan: Plan) -> Array:
    """Where every rule holds, on the axes that any rule mentions."""
    dims = plan.rule_dims(plan.rules)
    pairs = zip(plan.grid.dims, plan.grid.shape, strict=True)
    shape = tuple(n if d in dims else 1 for d, n in pairs)
    holds = np.ones(shape, bool)
    with np.errstate(all="ignore"):
        for slices in plan.blocks():
            target = _target(slices, shape)
            if target is None:
                continue
            box = Box(plan, slices)
            for rule in plan.rules:
                holds[target] &= mask(rule.predicate, box)
    return holds.reshape([n for n, d in zip(shape, plan.grid.dims, strict=True) if d in dims])


def block_bytes(plan: Plan) -> int:
    """Upper bound of the memory that one block's values take."""
    return 8 * math.prod(plan.block_shape) * (len(plan.graph.formulas) + len(plan.grid.dims))
