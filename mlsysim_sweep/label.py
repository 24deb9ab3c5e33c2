"""The only place that builds xarray objects: values get their axes, names and units back."""

from __future__ import annotations

import functools
import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from mlsysim_sweep import units
from mlsysim_sweep.engine.evaluate import bytes_needed, evaluate, feasible
from mlsysim_sweep.engine.plan import Plan
from mlsysim_sweep.errors import Mistake
from mlsysim_sweep.grids.grid import notes
from mlsysim_sweep.vocabulary import CHOICES, VOCABULARY

if TYPE_CHECKING:
    import xarray


def attributes(plan: Plan, name: str) -> dict[str, str]:
    """``units``, ``long_name`` and ``source`` of a quantity; choices have no unit."""
    if name in CHOICES:
        return {"long_name": VOCABULARY[name].meaning}
    unit, description = plan.graph.model.describe(name)
    found = {"units": "dimensionless" if unit == "1" else unit, "long_name": description}
    if name in plan.graph.formulas:
        found["source"] = plan.graph.formulas[name].source
    return found


def dataset(plan: Plan) -> xarray.Dataset:
    """Every point of a grid as an :class:`xarray.Dataset`.

    Each variable has the dimensions that it depends on and no others. ``feasible`` is true where
    every rule holds. ``ds.pint.quantify()`` gives quantities.

    Raises
    ------
    Mistake
        If the Dataset would not fit in memory.
    """
    import xarray

    bind_pint_xarray()
    grid = plan.grid
    _check_memory(bytes_needed(plan, grid.columns))
    coords = {
        name: xarray.Variable(axis.name, _labels(labels), attributes(plan, name))
        for axis in grid.axes
        for name, labels in axis.labels.items()
    }
    variables = {
        name: xarray.Variable(plan.dims[name], values, attributes(plan, name))
        for name, values in evaluate(plan, grid.columns).items()
    }
    variables["feasible"] = xarray.Variable(
        plan.rule_dims(plan.rules), feasible(plan), {"long_name": "Whether every rule holds"}
    )
    attrs = {
        "title": grid.spec.name,
        "model": grid.model.name,
        "spec": json.dumps(grid.spec.as_dict(), ensure_ascii=False),
        "notes": "\n".join(notes(grid)),
    }
    return xarray.Dataset(variables, coords, attrs)


def _labels(labels: Any) -> Any:
    return labels.astype(str) if labels.dtype == object else labels


def _check_memory(needed: int) -> None:
    available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > available // 2:
        raise Mistake(
            "dataset",
            f"needs {units.human(float(needed), 'byte')}, and this machine has "
            f"{units.human(float(available), 'byte')}",
            "to_parquet(), which streams, a list of columns, or smaller axes",
        )


@functools.cache
def bind_pint_xarray() -> None:
    """Make ``ds.pint`` use our registry, in which bytes, FLOPs and tokens are units.

    pint-xarray takes pint's application registry when it is imported and makes that registry turn
    scalars into arrays. Ours stands in for it during the import, so that no other library's
    registry is changed, and stays pint-xarray's default afterwards.
    """
    import pint

    ours = units.array_registry()
    application: Any = pint.application_registry
    before = application.get()
    application.set(ours)
    try:
        import pint_xarray
        import pint_xarray.accessors
    finally:
        application.set(before)
    pint_xarray.accessors.default_registry = ours
    pint_xarray.unit_registry = ours


def scalar(value: Any) -> Any:
    """A NumPy scalar or 0-d array as a plain Python value."""
    return value.item() if isinstance(value, np.generic | np.ndarray) else value
