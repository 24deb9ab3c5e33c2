"""A sweep as people use it: state it, look at it, evaluate it, save it."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from mlsysim_sweep.catalog import read_fact
from mlsysim_sweep.constraints import Comparison, Funnel, Rule, margin, mask, unit_of_comparison
from mlsysim_sweep.engine.budget import group_rows, peak_bytes, rows_at_most
from mlsysim_sweep.engine.evaluate import row
from mlsysim_sweep.engine.mesh import Points, whole
from mlsysim_sweep.engine.plan import Plan
from mlsysim_sweep.engine.run import Table, explain
from mlsysim_sweep.errors import Mistake, OutputError
from mlsysim_sweep.grids.grid import Grid, build, notes, resolved_inputs
from mlsysim_sweep.grids.spec import Spec, load, read_columns, read_max_points
from mlsysim_sweep.remote import is_url

if TYPE_CHECKING:
    import pandas
    import pyarrow
    import xarray

Formulas = Sequence[ModuleType | Callable[..., Any]]


def is_folder(path: str | Path) -> bool:
    """Whether a path stands for a folder of parts: it is one, ends in ``/``, or has no suffix.

    Raises
    ------
    Mistake
        If it is a single file at a URL.
    """
    if is_url(path) and str(path).endswith(".parquet"):
        raise Mistake("path", f"{path} is a single file at a URL", "a folder", "s3://bucket/out")
    return is_url(path) or str(path).endswith("/") or Path(path).is_dir() or not Path(path).suffix


def _runner(threads: int, client: Any) -> Any:
    """Who writes the parts of a folder: threads of this process, or the workers of a cluster."""
    if client is None:
        from mlsysim_sweep.dataset import on_threads

        return on_threads(threads)
    from mlsysim_sweep.cluster import on_dask

    return on_dask(client)


def _refuse_for_file(**options: Any) -> None:
    for name, given in options.items():
        if given:
            raise Mistake(name, "given for a single file", "a folder", 'path "out/"')


@contextlib.contextmanager
def _memory_said(path: str | Path) -> Iterator[None]:
    try:
        yield
    except MemoryError:
        raise OutputError(path, "memory ran out", 'give a smaller memory="1 GB"') from None


@dataclass(frozen=True)
class Saved:
    """A finished file: how many rows, what was dropped, and the best few by ``ranked_by``."""

    path: Path | str
    rows: int
    bytes: float
    funnel: Funnel
    ranked_by: str
    best: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class Verdict:
    """What one rule says of one layout: ``margin`` is the room to spare, in ``unit``."""

    rule: str
    text: str
    holds: bool
    margin: float | None
    unit: str


@dataclass(frozen=True)
class Layout:
    """One layout in full: its inputs, every quantity, and what each rule says of it."""

    inputs: Mapping[str, Any]
    quantities: Mapping[str, Any]
    verdicts: tuple[Verdict, ...]

    @property
    def feasible(self) -> bool:
        """Whether every rule holds."""
        return all(verdict.holds for verdict in self.verdicts)


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
    0   4   4        512      4.752
    1   8   2        512      4.493
    2   8   4       1024      2.376
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
        self._spec = spec  # with mlsysim's objects in it; the grid's has their names
        self._grid = build(spec, self._formulas)

    @classmethod
    def _of(cls, spec: Spec, formulas: Formulas = ()) -> Sweep:
        made = cls.__new__(cls)
        made._set(spec, formulas)
        return made

    @classmethod
    def load(
        cls,
        source: str | Path,
        formulas: Formulas = (),
        *,
        inputs: Mapping[str, Any] | None = None,
        axes: Mapping[str, Any] | None = None,
        feasible: Mapping[str, Any] | None = None,
        max_points: float | None = None,
    ) -> Sweep:
        """A sweep from a bundled name (``mlsysim-sweep list grids``) or the path of a TOML file.

        ``inputs``, ``axes`` and ``feasible`` change it before it is checked, as :meth:`variant`
        does: they may give what the file lacks. ``max_points`` takes the place of the file's.

        Raises
        ------
        Mistake
            If there is none, or it is not a valid spec.

        >>> Sweep.load("gpt3-1k-h100")
        Sweep('gpt3-1k-h100': 1,376,256 points = accelerator 4 x tp 4 x pp 12 x dp 1,024 x
              microbatches 7)
        """
        changes = {} if max_points is None else {"max_points": read_max_points(max_points)}
        return cls._of(load(source).variant(inputs, axes, feasible, **changes), formulas)

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
        changes = {} if columns is None else {"columns": read_columns(columns)}
        changed = self._spec.variant(inputs, axes, feasible, **changes)
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
        workers = len(os.sched_getaffinity(0))
        return {
            **self._plan.as_dict(),
            "rows_at_most": rows_at_most(self._plan, Table.of(self._plan)),
            "peak_memory_bytes": peak_bytes(self._plan, None, 1 if workers == 1 else 2),
        }

    def dataset(self, chunks: int | Mapping[str, int] | None = None) -> xarray.Dataset:
        """Every point, each variable on its own dimensions, with ``feasible`` beside them.

        With ``chunks`` (a length for all axes, or one by axis) the variables are Dask arrays, which
        the same kernels fill when they are asked for.

        Attributes hold units, so that ``ds.pint.quantify()`` works. A value that does not exist
        (no whole ``dp``, no such precision) is NaN, and its point is not feasible.

        Raises
        ------
        Mistake
            If it would not fit in memory.
        """
        from mlsysim_sweep import label

        return label.dataset(self._plan, chunks)

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
        resume: bool = False,
        partition: str | None = None,
        workers: int | None = None,
        client: Any = None,
        memory: str | float | None = None,
        force: bool = False,
        progress: Callable[[int], None] | None = None,
        best: int = 5,
    ) -> Saved:
        """Stream the feasible layouts to Parquet; what is visible is complete.

        Parameters
        ----------
        path
            A file (``out.parquet``), which appears when it is whole; or a folder (``out/``, a name
            without suffix, or a URL that fsspec can write to, such as ``s3://bucket/out``), which
            can be interrupted and resumed.
        overwrite
            Replace what is there, once the new one is complete.
        resume
            Go on with a folder: only what is missing or damaged is written.
        partition
            A text axis that splits a folder into Hive partitions (``accelerator=H100/``).
        workers
            Threads; by default one for each processor that we may use.
        client
            A ``dask.distributed.Client`` whose workers write the parts of a folder that they share.
        memory
            Memory to stay within, such as ``"2 GB"``; by default an eighth of the machine's.
        force
            Begin although the disk seems too small for the result.
        progress
            Called with the number of points visited.
        best
            How many of the best layouts come back with the funnel, by step time (by the first
            quantity, where there is none).

        Raises
        ------
        OutputError
            If the target exists, is in use or damaged, holds the answer to another question, or
            cannot be written. Nothing already written is lost.
        """
        from mlsysim_sweep import store

        threads = workers or len(os.sched_getaffinity(0))
        budget = None if memory is None else read_fact("memory", "device_memory", memory)
        with _memory_said(path):
            if is_folder(path):
                rows = group_rows(self._plan, budget, groups=threads)
                runner = _runner(threads, client)
                options = {
                    "resume": resume,
                    "overwrite": overwrite,
                    "partition": partition,
                    "force": force,
                }
                funnel, files, size = self._to_folder(path, runner, rows, progress, options)
            else:
                _refuse_for_file(resume=resume, partition=partition, client=client)
                funnel = store.write(
                    self._plan,
                    Path(path),
                    overwrite=overwrite,
                    workers=threads,
                    memory=budget,
                    force=force,
                    progress=progress,
                )
                files, size = [Path(path)], Path(path).stat().st_size
            found = store.best(files, self._ranked_by, best, partition)
        target = path if is_url(path) else Path(path)
        return Saved(target, funnel.feasible, float(size), funnel, self._ranked_by, tuple(found))

    def _to_folder(
        self,
        path: str | Path,
        runner: Any,
        rows: int,
        progress: Callable[[int], None] | None,
        options: Mapping[str, Any],
    ) -> tuple[Funnel, list[Any], int]:
        from mlsysim_sweep import dataset

        funnel = dataset.write_dataset(
            self._plan, path, runner=runner, rows=rows, progress=progress, **options
        )
        return funnel, dataset.files(path), dataset.status(path).bytes

    def pareto(
        self,
        *,
        minimize: str | Sequence[str] = (),
        maximize: str | Sequence[str] = (),
        by: str | Sequence[str] = (),
        rank: int = 1,
        distinct: bool = False,
        epsilon: float | None = None,
    ) -> pandas.DataFrame:
        """The feasible layouts that no other beats, as :func:`mlsysim_sweep.pareto_front`.

        The grid is evaluated block by block, and only the front is kept.

        >>> sweep = Sweep.load("gpt3-million").variant(inputs={"accelerator": "H100"})
        >>> front = sweep.pareto(minimize=["step_time", "n_devices"])
        >>> front[["tp", "pp", "dp", "microbatches", "n_devices", "step_time"]].round(3).head(3)
           tp  pp  dp  microbatches  n_devices  step_time
        0   8  32  64           512      16384      0.151
        1   8  48  42           512      16128      0.153
        2   8  32  62           512      15872      0.155
        """
        from mlsysim_sweep import answers

        return answers.pareto_front(
            self,
            minimize=minimize,
            maximize=maximize,
            by=by,
            rank=rank,
            distinct=distinct,
            epsilon=epsilon,
        )

    def top(
        self, k: int, *, by: str, per: str | Sequence[str] = (), largest: bool = False
    ) -> pandas.DataFrame:
        """The ``k`` best feasible layouts, as :func:`mlsysim_sweep.top`.

        >>> sweep = Sweep.load("gpt3-1k-h100")
        >>> best = sweep.top(1, by="step_time", per="accelerator")
        >>> best[["accelerator", "tp", "pp", "dp", "microbatches", "step_time"]].round(3)
          accelerator  tp  pp  dp  microbatches  step_time
        0        H100   8   4  32            64      2.279
        1        H200   8   4  32            64      2.279
        2        B200   8   4  32            64      1.064
        3      MI300X   8   4  32            64      1.751
        """
        from mlsysim_sweep import answers

        return answers.top(self, k, by=by, per=per, largest=largest)

    @property
    def _ranked_by(self) -> str:
        has_step_time = self._grid.graph.has("step_time")
        return "step_time" if has_step_time else (self._grid.columns + self._grid.axis_columns)[0]

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the results must know: what the model leaves out, doubtful inputs."""
        return notes(self._grid)

    def point(self, **given: Any) -> Layout:
        """One layout in full, on the grid or off it: every quantity, and every rule's margin.

        Raises
        ------
        Mistake
            If an axis of the sweep is not given a value.

        >>> layout = Sweep.load("gpt3-1k-h100").point(
        ...     accelerator="H100", tp=8, pp=4, dp=32, microbatches=32)
        >>> layout.feasible, round(layout.quantities["step_time"], 3)
        (True, 2.376)
        """
        chosen = self.variant(inputs=given)
        if chosen.grid.axes:
            axis = chosen.grid.axes[0]
            example = next(iter(axis.labels[axis.name].tolist()))
            raise Mistake(
                axis.name,
                f"an axis of {axis.size:,} values, and none is chosen",
                "one value for each axis",
                f"{axis.name}={example}",
            )
        box = whole(chosen._plan)
        found = chosen._grid
        with np.errstate(all="ignore"):
            point = Points(box, None)
            present = [name for name in found.model.formulas if name in found.graph.formulas]
            quantities = row(point, 0, tuple(present))
            verdicts = tuple(chosen._verdict(rule, point) for rule in chosen._plan.rules)
        return Layout(resolved_inputs(found), quantities, verdicts)

    def _verdict(self, rule: Rule, point: Points) -> Verdict:
        holds = bool(np.all(mask(rule.predicate, point)))
        if not isinstance(rule.predicate, Comparison):
            return Verdict(rule.name, rule.text, holds, None, "1")
        room = float(np.ravel(margin(rule.predicate, point))[0])
        unit = unit_of_comparison(rule.predicate, self._grid.model.describe)
        return Verdict(rule.name, rule.text, holds, room if np.isfinite(room) else None, unit)

    def funnel(self) -> Funnel:
        """Every rule against every point: what it rejects, alone and in order; nearest misses."""
        return explain(self._plan)
