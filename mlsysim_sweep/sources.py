"""Whatever holds rows, read the same way: numbers batch by batch, then a few rows in full.

A source is a sweep that is not evaluated yet, a Dataset, a DataFrame, an Arrow table, or Parquet:
a file, a folder that this package wrote, or any folder of Parquet files. The id of a row is its
position: in the grid for a sweep or Dataset, from the first row on for all else.
"""

from __future__ import annotations

import functools
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from mlsysim_sweep import dataset, store
from mlsysim_sweep.engine.mesh import Array, Points
from mlsysim_sweep.engine.plan import Plan
from mlsysim_sweep.engine.run import Walk, split
from mlsysim_sweep.errors import Mistake, OutputError, shown, unknown
from mlsysim_sweep.label import FEASIBLE
from mlsysim_sweep.place import JOURNAL
from mlsysim_sweep.remote import is_url
from mlsysim_sweep.vocabulary import CHOICES

BATCH_ROWS = 2**20
"""Rows of a batch: enough for a front of its own to drop most, few enough to fit in memory."""


@dataclass(frozen=True)
class Batch:
    """Some rows of a source, in order: their ids, numbers, and labels as codes.

    A number that is missing is NaN; ``labels`` holds for each name the codes of the rows and the
    values that the codes stand for.
    """

    ids: Array
    numbers: Mapping[str, Array]
    labels: Mapping[str, tuple[Array, list[Any]]]


class Source(Protocol):
    """Rows that can be read batch by batch."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""

    def batches(self, numbers: Sequence[str], labels: Sequence[str] = ()) -> Iterator[Batch]:
        """The rows in order, no more columns of them than are named."""

    def take(self, ids: Array) -> pa.Table:
        """Some rows in full, in the order given, with units in the metadata."""


def opened(x: Any) -> Source:
    """The source that something is.

    Raises
    ------
    Mistake
        If it is nothing that holds rows.
    OutputError
        If it is a path, and there is no Parquet or a part of it is damaged.
    """
    plan = getattr(x, "_plan", x)
    if isinstance(plan, Plan):
        return Grid(plan)
    if isinstance(x, pa.Table):
        return Rows(x)
    if isinstance(x, pa.RecordBatch):
        return Rows(pa.Table.from_batches([x]))
    if isinstance(x, str | os.PathLike):
        return _parquet(os.fspath(x))
    kind = f"{type(x).__module__.partition('.')[0]}.{type(x).__name__}"
    if kind == "pandas.DataFrame":
        return Rows(pa.Table.from_pandas(x))
    if kind == "xarray.Dataset":
        return Labelled(x)
    if hasattr(x, "__arrow_c_stream__"):  # polars, duckdb and others
        return Rows(pa.table(x))
    raise Mistake(
        "x",
        f"{shown(x)} given",
        "a Sweep, Dataset, DataFrame, Arrow table, or the path of Parquet",
    )


def check_columns(source: Source, field: str, names: Sequence[str]) -> None:
    """Refuse a name that is no column.

    Raises
    ------
    Mistake
        With the names that there are.
    """
    for name in names:
        if name not in source.columns:
            raise unknown(field, name, source.columns)


# --- sweeps --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Grid:
    """The feasible points of a sweep, evaluated block by block and kept nowhere."""

    plan: Plan

    @property
    def columns(self) -> tuple[str, ...]:
        """Axes, then quantities."""
        return store.columns(self.plan)

    def batches(self, numbers: Sequence[str], labels: Sequence[str] = ()) -> Iterator[Batch]:
        """Blocks as the engine makes them."""
        for name in numbers:
            check_number(self.plan, name)
        for points in Walk(self.plan):
            with np.errstate(all="ignore"):
                values = {name: points(name) for name in numbers}
                codes = {name: self._coded(points, name) for name in labels}
            yield Batch(ids_of(points), values, codes)

    def _coded(self, points: Points, name: str) -> tuple[Array, list[Any]]:
        for axis in self.plan.grid.axes:
            if name in axis.labels:
                return points.positions(axis.name), axis.labels[name].tolist()
        if name in CHOICES:
            only = self.plan.grid.fields[name].values.reshape(-1).tolist()
            return np.zeros(points.count, np.int64), only
        values, codes = np.unique(points(name), return_inverse=True)
        return codes, values.tolist()

    def take(self, ids: Array) -> pa.Table:
        """Evaluate some points in full."""
        return store.rows_at(self.plan, ids)


def check_number(plan: Plan, name: str) -> None:
    """Refuse the name of a choice where numbers are needed.

    Raises
    ------
    Mistake
        If it is one.
    """
    if name in CHOICES:
        raise _not_numbers(name, "text")


def ids_of(points: Points) -> Array:
    """Positions in the grid of some points of a block."""
    flat = np.arange(points.count) if points.flat is None else points.flat
    return _in_whole(flat, tuple(points.box.slices.values()), points.box.plan.grid.shape)


def _in_whole(flat: Array, slab: tuple[slice, ...], shape: tuple[int, ...]) -> Array:
    """Positions in a flattened array of what has some positions in a flattened slab of it."""
    if not shape:
        return flat
    at = np.unravel_index(flat, tuple(s.stop - s.start for s in slab))
    places = tuple(a + s.start for a, s in zip(at, slab, strict=True))
    return np.asarray(np.ravel_multi_index(places, shape), np.int64)


# --- tables --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rows:
    """A table in memory."""

    table: pa.Table

    @property
    def columns(self) -> tuple[str, ...]:
        """As in the table, without what pandas keeps of its index."""
        names = self.table.column_names
        return tuple(name for name in names if not name.startswith("__index_level_"))

    def batches(self, numbers: Sequence[str], labels: Sequence[str] = ()) -> Iterator[Batch]:
        """Slices of the table."""
        for start in range(0, self.table.num_rows, BATCH_ROWS):
            part = self.table.slice(start, BATCH_ROWS)
            yield _batch(part, start, numbers, labels)

    def take(self, ids: Array) -> pa.Table:
        """Rows by position."""
        return self.table.take(pa.array(ids))


def _batch(part: pa.Table, start: int, numbers: Sequence[str], labels: Sequence[str]) -> Batch:
    return Batch(
        np.arange(start, start + part.num_rows),
        {name: _numbers(name, part.column(name)) for name in numbers},
        {name: _codes(part.column(name)) for name in labels},
    )


def _numbers(name: str, column: pa.ChunkedArray) -> Array:
    """A column as numbers in its own type; one with missing values as floats."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    if not is_number:
        raise _not_numbers(name, str(kind))
    if column.null_count and not pa.types.is_floating(kind):
        try:
            column = column.cast(pa.float64())
        except pa.ArrowInvalid as error:  # beside a missing value numbers can only be floats
            raise Mistake(name, f"has missing values; {error}", "whole numbers to 2^53") from None
    return np.asarray(column.to_numpy())


def _not_numbers(name: str, kind: str) -> Mistake:
    return Mistake(name, f"holds {kind}", "a column of numbers")


def _codes(column: pa.ChunkedArray) -> tuple[Array, list[Any]]:
    coded = column.combine_chunks()
    if not pa.types.is_dictionary(coded.type):
        coded = coded.dictionary_encode(null_encoding="encode")
    codes = coded.indices.fill_null(len(coded.dictionary)).to_numpy(zero_copy_only=False)
    return codes, [*coded.dictionary.to_pylist(), None]


# --- Parquet -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class File:
    """A Parquet file, and what the folders that it lies in say of all its rows."""

    path: Path | str
    partition: Mapping[str, str]


@dataclass(frozen=True)
class Parquet:
    """Files of Parquet, read row group by row group."""

    files: tuple[File, ...]

    @functools.cached_property
    def _schema(self) -> pa.Schema:
        with store.opened(self.files[0].path) as file:
            return file.schema_arrow

    @property
    def columns(self) -> tuple[str, ...]:
        """Those of the first file, then those of the folders."""
        return (*self._schema.names, *self.files[0].partition)

    def batches(self, numbers: Sequence[str], labels: Sequence[str] = ()) -> Iterator[Batch]:
        """Row groups."""
        wanted = list(dict.fromkeys([*numbers, *labels]))
        start = 0
        for file, _, part in self._groups(wanted):
            found = _with_partition(part, file, wanted)
            yield _batch(found, start, numbers, labels)
            start += part.num_rows

    def _groups(self, names: Sequence[str]) -> Iterator[tuple[File, int, pa.Table]]:
        for file in self.files:
            inside = [name for name in names if name not in file.partition]
            with store.opened(file.path) as parquet:
                for group in range(parquet.metadata.num_row_groups):
                    yield file, group, store.read_group(parquet, group, inside)

    def take(self, ids: Array) -> pa.Table:
        """Read the row groups that hold the rows, and no others."""
        order = np.argsort(ids, kind="stable")
        ordered, parts, start = ids[order], [], 0
        for file in self.files:
            with store.opened(file.path) as parquet:
                for group in range(parquet.metadata.num_row_groups):
                    stop = start + parquet.metadata.row_group(group).num_rows
                    first, last = np.searchsorted(ordered, [start, stop])
                    if last > first:
                        rows = store.read_group(parquet, group).take(
                            pa.array(ordered[first:last] - start)
                        )
                        parts.append(_with_partition(rows, file, self.columns))
                    start = stop
        if not parts:
            parts = [_with_partition(self._schema.empty_table(), self.files[0], self.columns)]
        found = pa.concat_tables(parts, promote_options="permissive").unify_dictionaries()
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return found.take(pa.array(back))


def _with_partition(part: pa.Table, file: File, names: Sequence[str]) -> pa.Table:
    for name, value in file.partition.items():
        if name in names:
            column = pa.array([value]).dictionary_encode().take(pa.array(np.zeros(len(part), int)))
            part = part.append_column(name, column)
    return part


def _parquet(path: str) -> Parquet:
    """Parquet at a path or URL; of a folder that this package wrote only what is journaled."""
    if not is_url(path) and not os.path.exists(path):
        raise OutputError(path, "there is no such file or folder")
    if not is_url(path) and not os.path.isdir(path):
        found = [path]
    elif is_url(path) or (Path(path) / JOURNAL).exists():
        found = [str(file) for file in dataset.files(path)]
    else:
        found = sorted(str(file) for file in Path(path).rglob("*.parquet") if _is_public(file))
    if not found:
        raise OutputError(path, "holds no Parquet files")
    return Parquet(tuple(File(file, _partition(path, file)) for file in found))


def _is_public(file: Path) -> bool:
    return file.is_file() and not file.name.startswith((".", "_"))


def _partition(folder: str, file: str) -> dict[str, str]:
    """Names and values of the folders ``name=value/`` between a folder and a file of it."""
    inside = file.removeprefix(folder).split("/")[:-1]
    pairs = (part.partition("=") for part in inside if "=" in part)
    return {name: unquote(value) for name, _, value in pairs}


# --- Datasets ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Labelled:
    """An xarray Dataset: each variable on its own dimensions, rows in the order of all of them.

    Where it has a variable ``feasible``, only rows at which that is true are read.
    """

    dataset: Any

    @property
    def columns(self) -> tuple[str, ...]:
        """Coordinates, then variables."""
        names = [*self.dataset.coords, *self.dataset.data_vars]
        return tuple(str(name) for name in names if name != FEASIBLE)

    @property
    def _dims(self) -> tuple[str, ...]:
        return tuple(str(dim) for dim in self.dataset.sizes)

    @property
    def _shape(self) -> tuple[int, ...]:
        return tuple(self.dataset.sizes.values())

    def batches(self, numbers: Sequence[str], labels: Sequence[str] = ()) -> Iterator[Batch]:
        """Slabs of the Dataset."""
        slab = tuple(slice(0, n) for n in self._shape)
        for piece in split(slab, BATCH_ROWS) if math.prod(self._shape) else ():
            places = np.arange(math.prod(s.stop - s.start for s in piece))
            if FEASIBLE in self.dataset:
                places = np.flatnonzero(self._flat(FEASIBLE, piece))
            found = {name: self._flat(name, piece)[places] for name in numbers}
            for name, values in found.items():
                if values.dtype.kind not in "iufb":
                    raise _not_numbers(name, str(values.dtype))
            codes = {name: _unique(self._flat(name, piece)[places]) for name in labels}
            yield Batch(_in_whole(places, piece, self._shape), found, codes)

    def _flat(self, name: str, slab: tuple[slice, ...]) -> Array:
        variable = self.dataset[name].variable
        at = dict(zip(self._dims, slab, strict=True))
        part = variable.isel({dim: at[dim] for dim in variable.dims})
        sizes = {dim: s.stop - s.start for dim, s in at.items()}
        return np.asarray(part.set_dims(sizes).transpose(*self._dims).values).reshape(-1)

    def take(self, ids: Array) -> pa.Table:
        """Gather each variable on its own dimensions."""
        places = dict(
            zip(self._dims, np.unravel_index(ids, self._shape) if self._shape else (), strict=True)
        )
        arrays, fields = [], []
        for name in self.columns:
            variable = self.dataset[name].variable
            values = np.asarray(variable.values)
            if variable.dims:
                values = values[tuple(places[str(dim)] for dim in variable.dims)]
            else:
                values = np.broadcast_to(values, (len(ids),))
            array = pa.array(values)
            about = {"unit": "units", "description": "long_name", "source": "source"}
            given = {key: str(variable.attrs.get(attr, "")) for key, attr in about.items()}
            arrays.append(array)
            fields.append(pa.field(name, array.type, metadata=given))
        described = {
            store.METADATA_KEY: {f.name: _described(f) for f in fields},
        }
        metadata = {"PANDAS_ATTRS": json.dumps(described, ensure_ascii=False)}
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields, metadata))


def _described(field: pa.Field) -> dict[str, str]:
    return {key.decode(): value.decode() for key, value in (field.metadata or {}).items()}


def _unique(values: Array) -> tuple[Array, list[Any]]:
    found, codes = np.unique(values, return_inverse=True)
    return codes, found.tolist()
