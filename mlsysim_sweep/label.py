"""The only place that builds xarray objects: values get their axes, names and units back."""

from __future__ import annotations

import functools
import json
import os
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from mlsysim_sweep import units
from mlsysim_sweep.engine.evaluate import OnDemand, bytes_needed, evaluate, feasible
from mlsysim_sweep.engine.plan import Plan
from mlsysim_sweep.errors import Mistake
from mlsysim_sweep.grids.grid import notes
from mlsysim_sweep.vocabulary import CHOICES, VOCABULARY

if TYPE_CHECKING:
    import xarray


FEASIBLE = "feasible"


def attributes(plan: Plan, name: str) -> dict[str, str]:
    """``units``, ``long_name`` and ``source`` of a quantity; choices have no unit."""
    if name == FEASIBLE:
        return {"long_name": "Whether every rule holds"}
    if name in CHOICES:
        return {"long_name": VOCABULARY[name].meaning}
    unit, description = plan.graph.model.describe(name)
    found = {"units": "dimensionless" if unit == "1" else unit, "long_name": description}
    if name in plan.graph.formulas:
        found["source"] = plan.graph.formulas[name].source
    return found


def dataset(plan: Plan, chunks: int | Mapping[str, int] | None = None) -> xarray.Dataset:
    """Every point of a grid as an :class:`xarray.Dataset`.

    Each variable has the dimensions that it depends on and no others. ``feasible`` is true where
    every rule holds. ``ds.pint.quantify()`` gives quantities. With ``chunks``, a length for all
    axes or one by axis, variables are Dask arrays.

    Raises
    ------
    Mistake
        If the Dataset would not fit in memory.
    """
    import xarray

    bind_pint_xarray()
    grid = plan.grid
    coords = {
        name: xarray.Variable(axis.name, _labels(labels), attributes(plan, name))
        for axis in grid.axes
        for name, labels in axis.labels.items()
    }
    found = _filled(plan) if chunks is None else _lazy(plan, chunks)
    variables = {
        name: xarray.Variable(dims, values, attributes(plan, name))
        for name, (dims, values) in found.items()
    }
    attrs = {
        "title": grid.spec.name,
        "model": grid.model.name,
        "spec": json.dumps(grid.spec.as_dict(), ensure_ascii=False),
        "notes": "\n".join(notes(grid)),
    }
    return xarray.Dataset(variables, coords, attrs)


def _filled(plan: Plan) -> dict[str, tuple[tuple[str, ...], Any]]:
    """Dimensions and values of every variable, evaluated now."""
    columns = plan.grid.columns
    _check_memory(bytes_needed(plan, columns))
    found = {name: (plan.dims[name], v) for name, v in evaluate(plan, columns).items()}
    return {**found, FEASIBLE: (plan.rule_dims(plan.rules), feasible(plan))}


def _lazy(plan: Plan, chunks: int | Mapping[str, int]) -> dict[str, tuple[tuple[str, ...], Any]]:
    """Dimensions and Dask array of every variable, evaluated by the same kernels when asked for."""
    import dask.array

    def array(name: str) -> tuple[tuple[str, ...], Any]:
        source = OnDemand(plan, name)
        lengths = [chunks if isinstance(chunks, int) else chunks.get(d, -1) for d in source.dims]
        found = dask.array.from_array(
            source,
            chunks=tuple(lengths),
            asarray=False,
            name=f"{name}-{uuid.uuid4().hex}",
            meta=np.empty((0,) * source.ndim, source.dtype),
        )
        return source.dims, found

    return {name: array(name) for name in (*plan.grid.columns, FEASIBLE)}


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
