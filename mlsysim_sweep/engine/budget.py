"""What a run takes: memory, and rows at most. Nothing is evaluated but the table of filters."""

from __future__ import annotations

import os

from mlsysim_sweep import units
from mlsysim_sweep.engine.plan import Plan
from mlsysim_sweep.engine.run import Table
from mlsysim_sweep.errors import Mistake

ROW_GROUP_ROWS = 2**20
LEAST_ROWS = 2**14
BASE_BYTES = 250e6
"""Memory of the interpreter, the libraries, a table of filters and the blocks under way."""


def group_rows(plan: Plan, memory: float | None, groups: int) -> int:
    """Rows of a row group, so that ``groups`` of them fit in memory; about a million if they can.

    Raises
    ------
    Mistake
        If even small row groups do not fit.
    """
    each = _row_bytes(plan) * groups
    available = memory or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 8
    rows = int((available - BASE_BYTES) / each)
    if rows < LEAST_ROWS:
        least = units.human(BASE_BYTES + LEAST_ROWS * each, "byte")
        raise Mistake("memory", f"{units.human(available, 'byte')} given", f"at least {least}")
    return min(rows, ROW_GROUP_ROWS)


def peak_bytes(plan: Plan, memory: float | None, groups: int) -> float:
    """Memory that a run takes at most."""
    return BASE_BYTES + group_rows(plan, memory, groups) * _row_bytes(plan) * groups


def _row_bytes(plan: Plan) -> float:
    """Bytes of one row in its buffer, and of what it becomes when encoded."""
    return 8 * (len(plan.grid.axis_columns) + len(plan.grid.columns)) * 1.5


def rows_at_most(plan: Plan, table: Table) -> int:
    """Rows that are left after the filters that are decided once; exact if there are no others."""
    return table.left[-1] if table.left else plan.grid.points
