"""Which formulas, in which order, on which axes; the cheapest filter first.

Rank is declared by the graph: a quantity depends on the axes that its inputs depend on, whatever
their length.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from mlsysim_sweep.constraints import Rule
from mlsysim_sweep.declare import Graph
from mlsysim_sweep.grids.grid import Grid

BLOCK_POINTS = 2**17
"""Points of one block: its temporaries, a megabyte each, are of the size of the L2 cache.

Million points a second of all outputs for 2**14, 15, 16, 17, 18: 116, 159, 199, 230, 234 on one
grid and 114, 146, 172, 207, 237 on another. Small blocks cost calls; two processors of 2**18 have
their temporaries in the L3 cache that they share.
"""

ONCE_CELLS = 2**18
"""Quantities with at most this many values in the whole grid are evaluated once, for all blocks."""

TABLE_CELLS = 2**24
"""Filters whose axes span at most this many cells together are decided once, before any block."""

Slices = tuple[slice, ...]


@dataclass(frozen=True, eq=False)
class Plan:
    """How a grid is evaluated."""

    grid: Grid
    block_points: int = BLOCK_POINTS

    @functools.cached_property
    def graph(self) -> Graph:
        """The formulas that can be evaluated, in order."""
        return self.grid.graph

    @functools.cached_property
    def dims(self) -> dict[str, tuple[str, ...]]:
        """The axes that each input and each quantity depends on, in the order of the grid."""
        found = {name: set(given.dims) for name, given in self.grid.fields.items()}
        for name in self.graph.formulas:
            found[name] = set().union(*(found[parent] for parent in self.graph.parents(name)))
        return {name: self._ordered(dims) for name, dims in found.items()}

    def _ordered(self, dims: Iterable[str]) -> tuple[str, ...]:
        wanted = set(dims)
        return tuple(dim for dim in self.grid.dims if dim in wanted)

    def rule_dims(self, rules: Iterable[Rule]) -> tuple[str, ...]:
        """The axes that any of several rules depends on."""
        names = itertools.chain.from_iterable(rule.names for rule in rules)
        return self._ordered(itertools.chain.from_iterable(self.dims[name] for name in names))

    def cells(self, dims: Iterable[str]) -> int:
        """Number of points on some of the axes."""
        sizes = dict(zip(self.grid.dims, self.grid.shape, strict=True))
        return math.prod(sizes[dim] for dim in dims)

    @functools.cached_property
    def once(self) -> frozenset[str]:
        """Quantities on few axes, evaluated once for the whole grid and not block by block."""
        most = min(ONCE_CELLS, self.grid.points // 16)
        return frozenset(n for n in self.graph.formulas if self.cells(self.dims[n]) <= most)

    @functools.cached_property
    def rules(self) -> tuple[Rule, ...]:
        """The rules, smallest box first, as asked where boxes are equal."""
        return tuple(sorted(self.grid.rules, key=lambda rule: self.cells(self.rule_dims([rule]))))

    @functools.cached_property
    def table_rules(self) -> tuple[Rule, ...]:
        """The leading rules that are decided once on their own axes, before any block is built."""
        count = 0
        for count in range(len(self.rules), 0, -1):
            cells = self.cells(self.rule_dims(self.rules[:count]))
            if cells <= TABLE_CELLS and (cells < self.grid.points or self.grid.points == 1):
                return self.rules[:count]
        return ()

    @functools.cached_property
    def block_rules(self) -> tuple[Rule, ...]:
        """The rules that are decided block by block."""
        return self.rules[len(self.table_rules) :]

    @property
    def whole(self) -> Slices:
        """The slab that is the whole grid."""
        return tuple(slice(0, n) for n in self.grid.shape)

    def corner(self, dims: Iterable[str]) -> tuple[int, ...]:
        """The grid's shape with length 1 on all axes but the given ones."""
        wanted = set(dims)
        pairs = zip(self.grid.dims, self.grid.shape, strict=True)
        return tuple(n if d in wanted else 1 for d, n in pairs)

    @functools.cached_property
    def block_shape(self) -> tuple[int, ...]:
        """Shape of one block: trailing axes whole, one split evenly, leading axes one by one."""
        shape: list[int] = []
        room = self.block_points
        for size in reversed(self.grid.shape):
            pieces = -(-size // max(1, room))
            length = -(-size // pieces)
            shape.append(length)
            room = room // length if length == size else 0
        return tuple(reversed(shape))

    def blocks(self) -> Iterator[Slices]:
        """The blocks in the order of rows; together they are the grid."""
        steps = [
            [slice(start, min(start + length, size)) for start in range(0, size, length)]
            for size, length in zip(self.grid.shape, self.block_shape, strict=True)
        ]
        return itertools.product(*steps)

    @property
    def block_count(self) -> int:
        """Number of blocks."""
        pairs = zip(self.grid.shape, self.block_shape, strict=True)
        return math.prod(-(-size // length) for size, length in pairs)

    def as_dict(self) -> dict[str, Any]:
        """What will be done, in plain values: the answer to a dry run."""
        columns = len(self.grid.axis_columns) + len(self.grid.columns)
        points = self.grid.points
        return {
            "points": points,
            "axes": dict(zip(self.grid.dims, self.grid.shape, strict=True)),
            "columns": columns,
            "bytes_if_all_feasible": points * 8 * columns,
            "blocks": self.block_count,
            "block_points": math.prod(self.block_shape),
            "filters": [
                {
                    "rule": rule.name,
                    "text": rule.text,
                    "axes": list(self.rule_dims([rule])),
                    "rank": len(self.rule_dims([rule])),
                    "cells": self.cells(self.rule_dims([rule])),
                    "decided": "once" if rule in self.table_rules else "block by block",
                }
                for rule in self.rules
            ],
            "quantities": {
                name: {"axes": list(self.dims[name]), "cells": self.cells(self.dims[name])}
                for name in self.grid.columns
            },
        }
