"""Quantities on an open mesh: a box of the grid, and points picked out of it.

In a :class:`Box` each array has length 1 on the axes it does not depend on, so that NumPy's
broadcasting computes each quantity once, at its own rank. In :class:`Points` arrays are
one-dimensional. The same kernels serve both: ``k(x)[i] == k(x[i])``, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mlsysim_sweep.engine.plan import Plan, Slices
from mlsysim_sweep.vocabulary import CHOICES

Array: TypeAlias = npt.NDArray[Any]

# glibc returns the free top of the heap to the system after each block, and the next block touches
# new pages, unless it has seen a large array freed: then it keeps twice that (mallopt(3), dynamic
# threshold). Blocks take up to half less time. No page of this array is ever touched.
np.empty(2**22 - 2**12)


class Box:
    """A slab of a grid; quantities are evaluated when first asked for, then kept.

    Those that the plan evaluates once are taken from ``full``, the box that is the whole grid.
    """

    def __init__(self, plan: Plan, slices: Slices, full: Box | None = None) -> None:
        self.plan = plan
        self._full = full
        self.slices = dict(zip(plan.grid.dims, slices, strict=True))
        self.shape = tuple(s.stop - s.start for s in slices)
        self._lengths = dict(zip(plan.grid.dims, self.shape, strict=True))
        # What is the same in every block is found once, and handed to each as it begins.
        self._fixed: dict[str, Array] = full._fixed if full is not None else {}
        self._values = self._fixed.copy()

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

    def has(self, name: str) -> bool:
        """Whether the values of a quantity are at hand."""
        return name in self._values or name in self.plan.once or name in self.plan.grid.fields

    def __call__(self, name: str) -> Array:
        """Values of an input or quantity on the open mesh."""
        found = self._values.get(name)
        if found is None:
            found = self._values[name] = self._evaluate(name)
            if found.size == 1 and not self.plan.dims[name]:
                self._fixed[name] = found
        return found

    def _evaluate(self, name: str) -> Array:
        given = self.plan.grid.fields.get(name)
        if given is not None:
            here: Any = (*(self.slices[dim] for dim in given.dims), ...)
            part: Array = given.values[here]
            return part.reshape(self.open_shape(given.dims))
        if self._full is not None and name in self.plan.once:
            values = self._full(name)
            return values[part_of(tuple(self.slices.values()), values.shape)]
        graph = self.plan.graph
        arguments = {parent: self(parent) for parent in graph.parents(name)}
        values = np.asarray(graph.formulas[name].function(**arguments))
        return values if values.ndim else values.reshape(self.open_shape(()))


def part_of(slices: Slices, shape: tuple[int, ...]) -> Slices:
    """The slices that cut a block out of an array that has length 1 on some axes."""
    return tuple(s if n > 1 else slice(0, 1) for s, n in zip(slices, shape, strict=True))


def whole(plan: Plan) -> Box:
    """The box that is the whole grid."""
    return Box(plan, tuple(slice(0, n) for n in plan.grid.shape))


def boxes(plan: Plan) -> Iterator[Box]:
    """The blocks of a grid, in the order of rows."""
    full = whole(plan)
    for slices in plan.blocks():
        yield Box(plan, slices, full)


class Points:
    """Some points of a box, in the order of the grid; quantities are one-dimensional arrays.

    ``flat`` holds their positions in the flattened box; None stands for all of its points.
    """

    def __init__(self, box: Box, flat: Array | None) -> None:
        self.box = box
        self.flat = flat
        self.count = box.points if flat is None else len(flat)
        self._values: dict[str, Array] = {}
        self._places: dict[tuple[bool, ...], Array] = {}

    @classmethod
    def where(cls, box: Box, mask: Array | None) -> Points:
        """The points at which a mask on the open mesh holds; all of them without a mask."""
        if mask is None or mask.all():
            return cls(box, None)
        return cls(box, _spread(mask, box.shape))

    def kept(self, holds: Array) -> Points:
        """The points among these at which ``holds`` is true."""
        keep = np.flatnonzero(np.broadcast_to(holds, (self.count,)))
        if len(keep) == self.count:
            return self
        return Points(self.box, keep if self.flat is None else self.flat[keep])

    def __call__(self, name: str) -> Array:
        """Values of an input or quantity at these points.

        A quantity that the box has, or that has fewer values in the box than there are points, is
        gathered from there; another is evaluated from the gathered values of what it depends on.
        """
        if name not in self._values:
            if self.box.has(name) or self.box.cells(name) <= self.count:
                self._values[name] = self._gathered(self.box(name))
            else:
                self._values[name] = self._evaluated(name)
        return self._values[name]

    def stored(self, name: str) -> Array:
        """Values as they are stored: a choice as the positions of its names on their axis."""
        if name not in CHOICES:
            return self(name)
        dims = self.box.plan.dims[name]
        at = self.positions(dims[0]) if dims else np.zeros(self.count)
        return at.astype(np.int32)

    def into(self, name: str, out: Array) -> None:
        """Write values as they are stored into a buffer, without a copy on the way if possible."""
        if self.flat is None and name not in CHOICES:
            out.reshape(self.box.shape)[...] = self.box(name)
        else:
            out[...] = self.stored(name)

    def _evaluated(self, name: str) -> Array:
        graph = self.box.plan.graph
        arguments = {parent: self(parent) for parent in graph.parents(name)}
        return np.asarray(graph.formulas[name].function(**arguments))

    def _gathered(self, values: Array) -> Array:
        if self.flat is None:
            return np.broadcast_to(values, self.box.shape).reshape(-1)
        if values.size == 1:
            return np.broadcast_to(values.reshape(-1), (self.count,))
        return values.reshape(-1)[self._places_in(values.shape)]

    def _places_in(self, shape: tuple[int, ...]) -> Array:
        """Positions of these points in a flattened array that has length 1 on some axes."""
        assert self.flat is not None
        long = tuple(length > 1 for length in shape)
        if shape == self.box.shape:
            return self.flat
        if long not in self._places:
            places: Array | None = None
            for axis, length in enumerate(shape):
                if length > 1:
                    at = self._on_axis(axis)
                    places = at if places is None else places * length + at
            assert places is not None
            self._places[long] = places
        return self._places[long]

    def _on_axis(self, axis: int) -> Array:
        """Position of each point on one axis of the box."""
        shape = self.box.shape
        if self.flat is None:
            spread = np.arange(shape[axis]).reshape([-1] + [1] * len(shape[axis + 1 :]))
            return np.broadcast_to(spread, shape).reshape(-1)
        inner = math.prod(shape[axis + 1 :])
        places = self.flat if inner == 1 else self.flat // inner
        outermost = math.prod(shape[:axis]) == 1
        return places if outermost else places - places // shape[axis] * shape[axis]

    def positions(self, dim: str) -> Array:
        """Position of each point on one axis of the whole grid."""
        axis = self.box.plan.grid.dims.index(dim)
        start: int = self.box.slices[dim].start
        return self._on_axis(axis) + start


def _spread(mask: Array, shape: tuple[int, ...]) -> Array:
    """Positions in a flattened box at which an open mask holds, in order.

    The work is in proportion to the result, whatever the size of the box: cells of the mask are
    found on its own axes, and repeated along those on which it has length 1.
    """
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    held = np.nonzero(mask)
    flat = sum(
        (at * stride for at, stride in zip(held, strides, strict=True)), np.zeros(1, np.int64)
    )
    in_order = True
    for axis in range(len(shape)):
        if mask.shape[axis] == 1 and shape[axis] > 1:
            repeats = np.arange(shape[axis]) * strides[axis]
            flat = (flat[:, np.newaxis] + repeats).reshape(-1)
            in_order = in_order and all(n == 1 for n in mask.shape[axis + 1 :])
    return flat if in_order else np.sort(flat)
