"""Quantities on an open mesh: a box of the grid, and points picked out of it.

In a :class:`Box` each array has length 1 on the axes it does not depend on, so that NumPy's
broadcasting computes each quantity once, at its own rank. In :class:`Points` arrays are
one-dimensional. The same kernels serve both: ``k(x)[i] == k(x[i])``, bit for bit.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mlsysim_sweep.engine.plan import Plan, Slices

Array: TypeAlias = npt.NDArray[Any]


class Box:
    """A slab of a grid; quantities are evaluated when first asked for, then kept."""

    def __init__(self, plan: Plan, slices: Slices) -> None:
        self.plan = plan
        self.slices = dict(zip(plan.grid.dims, slices, strict=True))
        self.shape = tuple(s.stop - s.start for s in slices)
        self._lengths = dict(zip(plan.grid.dims, self.shape, strict=True))
        self._values: dict[str, Array] = {}

    @property
    def points(self) -> int:
        """Number of points."""
        return math.prod(self.shape)

    def open_shape(self, dims: tuple[str, ...]) -> tuple[int, ...]:
        """The box's shape with length 1 on all axes but the given ones."""
        return tuple(n if d in dims else 1 for d, n in self._lengths.items())

    def cells(self, name: str) -> int:
        """Number of values of a quantity on its own axes in this box."""
        return math.prod(self._lengths[dim] for dim in self.plan.dims[name])

    def __call__(self, name: str) -> Array:
        """Values of an input or quantity on the open mesh."""
        if name not in self._values:
            self._values[name] = self._evaluate(name)
        return self._values[name]

    def _evaluate(self, name: str) -> Array:
        given = self.plan.grid.fields.get(name)
        if given is not None:
            part = (*(self.slices[dim] for dim in given.dims), ...)
            return given.values[part].reshape(self.open_shape(given.dims))
        graph = self.plan.graph
        arguments = {parent: self(parent) for parent in graph.parents(name)}
        return np.asarray(graph.formulas[name].function(**arguments))


class Points:
    """Some points of a box, in the order of the grid; quantities are one-dimensional arrays.

    ``index`` holds the position on each axis of the box; None stands for all of its points.
    """

    def __init__(self, box: Box, index: tuple[Array, ...] | None) -> None:
        self.box = box
        self.index = index
        self.count = box.points if index is None else len(index[0])
        self._values: dict[str, Array] = {}
        self._flat: dict[tuple[bool, ...], Array] = {}

    @classmethod
    def where(cls, box: Box, mask: Array | None) -> Points:
        """The points at which a mask on the open mesh holds; all of them without a mask."""
        if mask is None or mask.all():
            return cls(box, None)
        if mask.size == box.points:
            flat = np.flatnonzero(mask)
            return cls(box, np.unravel_index(flat, box.shape))
        return cls(box, _spread(np.nonzero(mask), mask.shape, box.shape))

    def kept(self, holds: Array) -> Points:
        """The points among these at which ``holds`` is true."""
        keep = np.flatnonzero(np.broadcast_to(holds, (self.count,)))
        if len(keep) == self.count:
            return self
        if self.index is None:
            return Points(self.box, np.unravel_index(keep, self.box.shape))
        return Points(self.box, tuple(index[keep] for index in self.index))

    def __call__(self, name: str) -> Array:
        """Values of an input or quantity at these points.

        A quantity with fewer values in the box than there are points is evaluated there and
        gathered; one with more is evaluated from the gathered values of what it depends on.
        """
        if name not in self._values:
            small = self.box.cells(name) <= self.count or name in self.box.plan.grid.fields
            self._values[name] = self._gathered(self.box(name)) if small else self._evaluated(name)
        return self._values[name]

    def _evaluated(self, name: str) -> Array:
        graph = self.box.plan.graph
        arguments = {parent: self(parent) for parent in graph.parents(name)}
        return np.asarray(graph.formulas[name].function(**arguments))

    def _gathered(self, values: Array) -> Array:
        if self.index is None:
            return np.broadcast_to(values, self.box.shape).reshape(-1)
        long = tuple(length > 1 for length in values.shape)
        if not any(long):
            return np.broadcast_to(values.reshape(-1)[:1], (self.count,))
        return values.reshape(-1)[self._flat_index(long, values.shape)]

    def _flat_index(self, long: tuple[bool, ...], shape: tuple[int, ...]) -> Array:
        """Positions of these points in a flattened array that is long on some axes only."""
        if long not in self._flat:
            assert self.index is not None
            flat: Array | None = None
            for position, is_long, length in zip(self.index, long, shape, strict=True):
                if is_long:
                    flat = position if flat is None else flat * length + position
            assert flat is not None
            self._flat[long] = flat
        return self._flat[long]

    def positions(self, dim: str) -> Array:
        """Position of each point on one axis of the whole grid."""
        axis = self.box.plan.grid.dims.index(dim)
        start = self.box.slices[dim].start
        if self.index is not None:
            return self.index[axis] + start
        spread = np.arange(self.box.shape[axis]).reshape(self.box.open_shape((dim,)))
        return np.broadcast_to(spread, self.box.shape).reshape(-1) + start


def _spread(
    held: tuple[Array, ...], open_shape: tuple[int, ...], shape: tuple[int, ...]
) -> tuple[Array, ...]:
    """Positions in ``shape`` of cells held in an open mask, repeated along its short axes, in order.

    The work is in proportion to the result, whatever the size of the box.
    """
    count = len(held[0])
    repeated = [n if m == 1 else 1 for n, m in zip(shape, open_shape, strict=True)]
    grid = np.ix_(*(np.arange(n) for n in repeated))
    index = [
        np.broadcast_to(
            (cells.reshape(count, *[1] * len(shape)) + spread[np.newaxis]), (count, *repeated)
        ).reshape(-1)
        for cells, spread in zip(held, grid, strict=True)
    ]
    trailing = 0
    while trailing < len(shape) and open_shape[-1 - trailing] == 1:
        trailing += 1
    leading = len(shape) - trailing
    if all(open_shape[i] > 1 or shape[i] == 1 for i in range(leading)):
        return tuple(index)  # what repeats are the last axes only: already in order
    order = np.argsort(np.ravel_multi_index(tuple(index), shape), kind="stable")
    return tuple(positions[order] for positions in index)
