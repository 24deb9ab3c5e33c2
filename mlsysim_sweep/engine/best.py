"""The best few survivors of a walk, kept while it streams by."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mlsysim_sweep.engine.mesh import Points
from mlsysim_sweep.engine.plan import Plan


class Best:
    """The ``k`` points with the smallest value of a quantity; the first in the grid where equal.

    Call it with the survivors of each block, in order.
    """

    def __init__(self, plan: Plan, k: int, by: str) -> None:
        self.k = max(k, 0)
        self.by = by
        self._columns = plan.grid.axis_columns + plan.grid.columns
        self._rows: list[tuple[float, dict[str, Any]]] = []

    def __call__(self, points: Points) -> None:
        """Take note of the survivors of one block."""
        if not self.k:
            return
        values = np.asarray(points(self.by), float)
        full = len(self._rows) == self.k
        candidates = np.flatnonzero(values < self._rows[-1][0]) if full else np.arange(len(values))
        if not len(candidates):
            return
        order = candidates[np.argsort(values[candidates], kind="stable")[: self.k]]
        found = [(float(values[i]), row(points, int(i), self._columns)) for i in order]
        self._rows = sorted(self._rows + found, key=lambda pair: pair[0])[: self.k]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows, best first, as plain Python values."""
        return [dict(found) for _, found in self._rows]


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
