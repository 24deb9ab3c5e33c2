"""A sweep as people use it: state it, look at it, evaluate it, save it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from mlsysim_sweep.constraints import Funnel
from mlsysim_sweep.engine.plan import Plan
from mlsysim_sweep.engine.run import Walk, explain
from mlsysim_sweep.grids.grid import Grid, build
from mlsysim_sweep.grids.spec import Spec, load

if TYPE_CHECKING:
    import pandas
    import pyarrow
    import xarray

Formulas = Sequence[ModuleType | Callable[..., Any]]


class Sweep:
    """A grid of layouts: immutable, checked when it is made.

    Parameters
    ----------
    inputs
        Inputs held fixed: text with units (``"400 Gbps"``), numbers where dimensionless, catalog
        names, pint quantities, catalog rows or mlsysim objects.
    axes
        Inputs that vary: lists of values, or forms such as ``{"powers_of_two": [1, 8]}``. The
        order of axes is the order of rows; the last one runs fastest.
    zip
        Groups of axes that are walked together, one mapping a group.
    feasible
        What a layout must satisfy: ``memory``, ``headroom``, ``devices``, ``tp_within_node``,
        ``where``.
    columns
        Quantities wanted, or ``"all"``.
    accelerator, workload, link
        Catalog rows of your own, by name.
    formulas
        Functions declared with :func:`mlsysim_sweep.output`, or modules of them.

    Raises
    ------
    Mistake
        For anything that cannot be meant, naming the field and a fix.

    >>> sweep = Sweep(
    ...     inputs={"workload": "GPT3", "accelerator": "H100", "dp": 32, "batch_tokens": 2e6,
    ...             "flops_per_param_token": 6, "local_efficiency": 0.5,
    ...             "link_bandwidth": "400 Gbps", "overlap_fraction": 0.75, "microbatches": 32},
    ...     axes={"tp": [4, 8], "pp": [2, 4]},
    ... )
    >>> sweep.table()[["tp", "pp", "n_devices", "step_time"]].round(3)
       tp  pp  n_devices  step_time
    0   8   2        512      4.596
    1   4   4        512      4.861
    2   8   4       1024      2.431
    """

    def __init__(
        self,
        *,
        name: str = "sweep",
        model: str = "parallel_layout",
        inputs: Mapping[str, Any] | None = None,
        axes: Mapping[str, Any] | None = None,
        zip: Mapping[str, Any] | Sequence[Mapping[str, Any]] = (),
        feasible: Mapping[str, Any] | None = None,
        columns: str | Sequence[str] = "all",
        accelerator: Mapping[str, Any] | None = None,
        workload: Mapping[str, Any] | None = None,
        link: Mapping[str, Any] | None = None,
        max_points: float | None = None,
        formulas: Formulas = (),
    ) -> None:
        limit = {} if max_points is None else {"max_points": max_points}
        own = {"accelerator": accelerator, "workload": workload, "link": link}
        spec = Spec.read(
            {
                "sweep": {"name": name, "model": model, **limit},
                "inputs": inputs or {},
                "axes": axes or {},
                "zip": zip,
                "feasible": feasible or {},
                "output": {"columns": columns},
                **{table: rows for table, rows in own.items() if rows},
            }
        )
        self._set(spec, formulas)

    def _set(self, spec: Spec, formulas: Formulas) -> None:
        self._formulas = tuple(formulas)
        self._grid = build(spec, self._formulas)

    @classmethod
    def _of(cls, spec: Spec, formulas: Formulas = ()) -> Sweep:
        made = cls.__new__(cls)
        made._set(spec, formulas)
        return made

    @classmethod
    def load(cls, source: str | Path, formulas: Formulas = ()) -> Sweep:
        """A sweep from a bundled name (``mlsysim-sweep list grids``) or the path of a TOML file.

        Raises
        ------
        Mistake
            If there is none, or it is not a valid spec.

        >>> Sweep.load("gpt3-1k-h100")
        Sweep('gpt3-1k-h100': 1,376,256 points = accelerator 4 x tp 4 x pp 12 x dp 1,024 x microbatches 7)
        """
        return cls._of(load(source), formulas)

    def variant(
        self,
        inputs: Mapping[str, Any] | None = None,
        axes: Mapping[str, Any] | None = None,
        feasible: Mapping[str, Any] | None = None,
        columns: str | Sequence[str] | None = None,
    ) -> Sweep:
        """A changed copy: what is named takes the place of the same input wherever it stood.

        >>> Sweep.load("gpt3-1k-h100").variant(inputs={"dp": 32}, axes={"tp": [8]}).points
        336
        """
        changed = self._grid.spec.variant(inputs, axes, feasible, columns=columns)
        return self._of(changed, self._formulas)

    @property
    def spec(self) -> dict[str, Any]:
        """The sweep in plain values, in the form of a spec file."""
        return self._grid.spec.as_dict()

    @property
    def name(self) -> str:
        """Name of the sweep."""
        return self._grid.spec.name

    @property
    def grid(self) -> Grid:
        """The checked grid in base units: what the engine sees."""
        return self._grid

    @property
    def points(self) -> int:
        """Number of layouts, before any is dropped."""
        return self._grid.points

    @property
    def sizes(self) -> dict[str, int]:
        """Length of each axis."""
        return dict(zip(self._grid.dims, self._grid.shape, strict=True))

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of a table of this sweep: axes first, then quantities."""
        return self._grid.axis_columns + self._grid.columns

    def __repr__(self) -> str:
        axes = " x ".join(f"{axis} {size:,}" for axis, size in self.sizes.items())
        return f"Sweep({self.name!r}: {self.points:,} points{' = ' + axes if axes else ''})"

    @functools.cached_property
    def _plan(self) -> Plan:
        return Plan(self._grid)

    def plan(self) -> dict[str, Any]:
        """What evaluating would do, in plain values: points, bytes, blocks, filters and their rank.

        >>> [f["rule"] for f in Sweep.load("gpt3-1k-h100").plan()["filters"]][-1]
        'efficiency > 0.5'
        """
        return self._plan.as_dict()

    def dataset(self) -> xarray.Dataset:
        """Every point, each variable on its own dimensions, with ``feasible`` beside them.

        Attributes hold units, so that ``ds.pint.quantify()`` works. A value that does not exist
        (no whole ``dp``, no such precision) is NaN, and its point is not feasible.

        Raises
        ------
        Mistake
            If it would not fit in memory.
        """
        from mlsysim_sweep import label

        return label.dataset(self._plan)

    def arrow(self) -> pyarrow.Table:
        """The feasible layouts as an Arrow table, in grid order."""
        from mlsysim_sweep import store

        return store.table(self._plan)

    def table(self) -> pandas.DataFrame:
        """The feasible layouts as a DataFrame, in grid order; units are in ``df.attrs``."""
        from mlsysim_sweep import store

        return store.to_pandas(self.arrow())

    def to_parquet(
        self,
        path: str | Path,
        *,
        overwrite: bool = False,
        progress: Callable[[Walk, int], None] | None = None,
    ) -> Funnel:
        """Stream the feasible layouts to a Parquet file, which appears only when it is complete.

        Returns the funnel: what each rule dropped. ``progress`` is called after each block with
        survivors, with the walk (``visited`` points) and the rows written so far.

        Raises
        ------
        OutputError
            If the file exists and ``overwrite`` is not set, or cannot be written.
        """
        from mlsysim_sweep import store

        return store.write(self._plan, Path(path), overwrite=overwrite, progress=progress)

    def funnel(self) -> Funnel:
        """Every rule against every point: what it rejects, alone and in order, and nearest misses."""
        return explain(self._plan)
