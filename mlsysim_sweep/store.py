"""The only place that touches Parquet files.

A file is written beside its target under another name and takes its place only after a clean
close: what is visible is complete. (A ``ParquetWriter`` that an exception passes through still
writes a footer and leaves a readable, short file.)
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mlsysim_sweep import remote
from mlsysim_sweep.constraints import Funnel
from mlsysim_sweep.engine.budget import ROW_GROUP_ROWS, group_rows, rows_at_most
from mlsysim_sweep.engine.mesh import Array as Values
from mlsysim_sweep.engine.mesh import Points, whole
from mlsysim_sweep.engine.plan import Plan
from mlsysim_sweep.engine.pool import Here, threads
from mlsysim_sweep.engine.rows import RowGroup, row_groups
from mlsysim_sweep.engine.run import Table, Walk
from mlsysim_sweep.errors import Mistake, OutputError
from mlsysim_sweep.grids.grid import notes, resolved_inputs
from mlsysim_sweep.splice import Sink, Splicer
from mlsysim_sweep.vocabulary import CHOICES, VOCABULARY, Kind

METADATA_KEY = "mlsysim_sweep"
DICTIONARY_CELLS = 2**16
"""A quantity with at most this many values in the whole grid is dictionary-encoded.

Bytes a row of 3,145,728 layouts (`benchmarks/bench_parquet.py`): 28.51 with no quantity encoded so,
28.47 up to 2**12 values, 28.30 up to 2**14, 28.09 from 2**16, and 32.87 with all of them, which
takes half as long again to write. Level 6 of zstd saves 0.1 % more for a third more time, or worse.
"""


LEAST_BYTES = 2
"""Bytes a row that a full-rank float column takes at the very least; about five are usual."""


def check_room(plan: Plan, table: Table, path: Path) -> None:
    """Refuse, before any work, what cannot fit on the disk even if it compresses very well.

    Raises
    ------
    OutputError
        With the bytes needed and free; only where the number of rows is known beforehand.
    """
    if plan.block_rules:
        return
    full = [n for n in plan.grid.columns if plan.dims[n] == plan.grid.dims]
    least = rows_at_most(plan, table) * LEAST_BYTES * len(full)
    folder = next(p for p in (path, *path.absolute().parents) if p.is_dir())
    free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
    if least > free:
        raise OutputError(
            path,
            f"no room to write: at least {least:,} bytes needed, {free:,} bytes free",
            "ask for fewer columns, filter more, write elsewhere, or go on with --force",
        )


def describe(plan: Plan, name: str) -> dict[str, str]:
    """``unit``, ``description`` and ``source`` of a column."""
    if name in CHOICES:
        return {"unit": "", "description": VOCABULARY[name].meaning, "source": "input"}
    unit, description = plan.graph.model.describe(name)
    formula = plan.graph.formulas.get(name)
    source = formula.source if formula else "input"
    return {"unit": unit, "description": description, "source": source}


def columns(plan: Plan) -> tuple[str, ...]:
    """Axis columns first, then the quantities."""
    return plan.grid.axis_columns + plan.grid.columns


def schema(plan: Plan, without: str | None = None) -> pa.Schema:
    """Arrow schema of a sweep's rows, fixed by the spec alone, ``without`` a partition column."""
    fields = [
        pa.field(name, kind, nullable=_may_be_null(plan, name, kind), metadata=describe(plan, name))
        for name, kind in ((name, _type(plan, name)) for name in columns(plan))
        if name != without
    ]
    return pa.schema(fields)


def _may_be_null(plan: Plan, name: str, kind: pa.DataType) -> bool:
    """Only whole quantities: a float that does not exist is NaN, and inputs always exist."""
    return pa.types.is_integer(kind) and name not in plan.grid.fields


def _type(plan: Plan, name: str) -> pa.DataType:
    given = plan.grid.fields.get(name)
    if name in CHOICES:
        return pa.dictionary(pa.int32(), pa.string())
    if given is not None and VOCABULARY[name].kind is Kind.WHOLE:
        return pa.int32() if given.values.max() < 2**31 else pa.int64()
    formula = plan.graph.formulas.get(name)
    return pa.int64() if formula is not None and formula.whole else pa.float64()


def _array(plan: Plan, group: RowGroup, field: pa.Field) -> pa.Array:
    """One column as an Arrow array; the memory is shared where types agree."""
    values = group[field.name]
    if pa.types.is_dictionary(field.type):
        names = plan.grid.fields[field.name].values.reshape(-1).tolist()
        codes = values.astype(np.int32, copy=False)
        return pa.DictionaryArray.from_arrays(codes, pa.array(names, pa.string()))
    if pa.types.is_integer(field.type) and values.dtype.kind == "f":
        return _whole(field, values)
    return pa.array(values.astype(field.type.to_pandas_dtype(), copy=False))


def _whole(field: pa.Field, values: Values) -> pa.Array:
    """Whole numbers that come as floats; one that does not exist (NaN) is null."""
    with np.errstate(invalid="ignore"):
        whole = values.astype(np.int64)
    if np.array_equal(whole, values):  # the usual case, much faster than Arrow's own conversion
        return pa.array(whole)
    try:
        return pa.array(values, field.type, from_pandas=True)
    except pa.ArrowInvalid as error:
        raise Mistake(field.name, f"{error}", "whole numbers below 2^63") from None


def table(plan: Plan) -> pa.Table:
    """All survivors as an Arrow table, with the same metadata as a file."""
    walk, shape = Walk(plan), schema(plan)
    most = min(ROW_GROUP_ROWS, max(1, rows_at_most(plan, walk.table)))
    batches = [
        pa.RecordBatch.from_arrays([_array(plan, group, field) for field in shape], schema=shape)
        for group in row_groups(walk, Here(), shape.names, most)
    ]
    rows = pa.Table.from_batches(batches, shape)
    return rows.replace_schema_metadata(metadata(plan, walk.funnel()))


def rows_at(plan: Plan, ids: Values) -> pa.Table:
    """Some points of a grid in full, by their positions in it, in the order given."""
    shape, points = schema(plan), Points(whole(plan), ids)
    group = RowGroup(plan, shape.names, len(ids))
    group.fill(points, group.take(points))
    arrays = [_array(plan, group, field) for field in shape]
    return pa.Table.from_arrays(arrays, schema=shape.with_metadata(metadata(plan, None)))


# --- metadata ------------------------------------------------------------------------------------


def document(plan: Plan, funnel: Funnel | None) -> dict[str, Any]:
    """What a file says about itself: the question, how much was dropped, and the facts used.

    One part of a dataset has no funnel of its own.
    """
    grid = plan.grid
    found = {
        "package": "mlsysim-sweep",
        "version": version("mlsysim-sweep"),
        "model": grid.model.name,
        "spec": grid.spec.as_dict(),
        "inputs": resolved_inputs(grid),
        "axes": dict(zip(grid.dims, grid.shape, strict=True)),
        "points": grid.points,
        "columns": {name: describe(plan, name) for name in columns(plan)},
        "notes": list(notes(grid)),
        "catalog": [{"table": row.table, **row.as_dict()} for row in grid.rows],
    }
    if funnel is not None:
        found |= {"survivors": funnel.feasible, "funnel": funnel.as_dict()}
    return found


def metadata(plan: Plan, funnel: Funnel | None) -> dict[str, str]:
    """Schema metadata of a table or file: our document, and what pandas reads.

    pandas takes column types from ``pandas``, and units and descriptions into ``df.attrs``.
    """
    empty = schema(plan).empty_table().to_pandas()
    pandas_schema = pa.Schema.from_pandas(empty, preserve_index=False)
    attrs = {METADATA_KEY: {name: describe(plan, name) for name in columns(plan)}}
    return {
        "pandas": pandas_schema.metadata[b"pandas"].decode(),
        "PANDAS_ATTRS": json.dumps(attrs, ensure_ascii=False),
        METADATA_KEY: json.dumps(document(plan, funnel), ensure_ascii=False, allow_nan=False),
    }


def read_document(path: str | Path) -> dict[str, Any]:
    """The metadata document of a file that this package wrote.

    Raises
    ------
    OutputError
        If the file is not Parquet, or carries no such document.
    """
    try:
        metadata = pq.read_metadata(path).metadata or {}
        found: dict[str, Any] = json.loads(metadata.get(METADATA_KEY.encode(), b"{}"))
    except (ValueError, OSError, RecursionError) as error:  # Arrow's are of the first two kinds
        raise OutputError(path, f"cannot be read as Parquet: {error}") from None
    if not found:
        raise OutputError(path, "was not written by mlsysim-sweep")
    return found


def best(
    paths: Iterable[Path | str], by: str, k: int, partition: str | None = None
) -> list[dict[str, Any]]:
    """The ``k`` rows with the smallest value of a column, the first where equal, best first.

    Only that column is read in full; that of a ``partition`` stands in the name of the folder.
    """
    ranked: list[tuple[float, Path | str, int, int]] = []
    for path in paths if k > 0 else ():
        with opened(path) as file:
            for group in range(file.metadata.num_row_groups):
                values = read_group(file, group, [by]).column(by).to_numpy()
                found = [(float(values[i]), path, group, int(i)) for i in _smallest(values, k)]
                ranked = sorted(ranked + found, key=lambda row: row[0])[:k]
    return [{**_in_folder(path, partition), **_row(path, group, i)} for _, path, group, i in ranked]


def _in_folder(path: Path | str, partition: str | None) -> dict[str, str]:
    if partition is None:
        return {}
    folder = str(path).split("/")[-2]
    return {partition: unquote(folder.removeprefix(f"{partition}="))}


def _smallest(values: Values, k: int) -> Values:
    """Positions of the ``k`` smallest values in order; the first where equal."""
    if k >= len(values):
        return np.argsort(values, kind="stable")[:k]
    near = np.flatnonzero(values <= np.partition(values, k)[k])
    return near[np.argsort(values[near], kind="stable")[:k]]


def _row(path: Path | str, group: int, i: int) -> dict[str, Any]:
    with opened(path) as file:
        found: dict[str, Any] = read_group(file, group).slice(i, 1).to_pylist()[0]
    return found


@contextlib.contextmanager
def opened(path: Path | str) -> Iterator[pq.ParquetFile]:
    """A Parquet file that no thread of Arrow's reads ahead.

    One that still holds the Python file when Python ends aborts the process.

    Raises
    ------
    OutputError
        If it cannot be read as Parquet, when it is opened or later.
    """
    try:
        with remote.opened(path) as raw, pq.ParquetFile(raw, pre_buffer=False) as file:
            yield file
    except (pa.ArrowInvalid, OSError) as error:
        raise OutputError(path, f"cannot be read as Parquet: {error}") from None


def read_group(file: pq.ParquetFile, group: int, columns: list[str] | None = None) -> pa.Table:
    """A row group, read by this thread alone."""
    return file.read_row_group(group, columns, use_threads=False)


# --- writing -------------------------------------------------------------------------------------


def write(
    plan: Plan,
    path: Path,
    *,
    overwrite: bool,
    workers: int = 1,
    memory: float | None = None,
    force: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Funnel:
    """Stream the survivors of a grid to one Parquet file, which appears only when it is complete.

    ``memory`` bounds the bytes of memory used; ``force`` begins although the disk seems too small;
    ``progress`` is called with the points visited, after each block.

    Raises
    ------
    OutputError
        If the file exists and ``overwrite`` is not set, or cannot be written; an existing file is
        then as it was.
    """
    rows = group_rows(plan, memory, groups=1 if workers == 1 else 2)
    with staged(path, overwrite=overwrite) as staging:
        walk = Walk(plan, progress=progress)
        if not force:
            check_room(plan, walk.table, path)
        with staging.open("wb") as sink:
            write_rows(walk, sink, workers, rows, walk.funnel)
            sync(sink)
    return walk.funnel()


def write_rows(
    walk: Walk,
    sink: Sink,
    workers: int,
    rows: int,
    funnel: Callable[[], Funnel | None],
    without: str | None = None,
) -> int:
    """Evaluate and encode a walk on several threads, and write one Parquet file; returns its rows.

    While one row group of at most ``rows`` rows is encoded column by column, the next is evaluated.
    """
    plan, splicer, settings = walk.plan, Splicer(sink), _settings(walk.plan)
    fields = list(schema(plan, without))
    constants: dict[tuple[int, int], memoryview] = {}

    def encode(group: RowGroup, column: int) -> memoryview:
        """One column of a row group; what is the same in all row groups is encoded once."""
        field, key = fields[column], (column, group.rows)
        if key in constants:
            return constants[key]
        array = _array(plan, group, field)
        encoded = _encoded(pa.Table.from_arrays([array], schema=pa.schema([field])), settings)
        if not plan.dims[field.name]:
            constants[key] = encoded
        return encoded

    with threads(workers) as pool:
        under_way: list[Future[memoryview]] = []
        names = [field.name for field in fields]
        for group in row_groups(walk, pool, names, rows, buffers=1 if workers == 1 else 2):
            started = [pool.submit(encode, group, column) for column in range(len(fields))]
            if workers > 1:  # these columns are encoded while the next row group is evaluated
                started, under_way = under_way, started
            _splice(splicer, started)
        _splice(splicer, under_way)
    described = schema(plan, without).with_metadata(metadata(plan, funnel()))
    splicer.close(_encoded(described.empty_table(), settings))
    return splicer.rows


def _splice(splicer: Splicer, encoded: list[Future[memoryview]]) -> None:
    if encoded:
        splicer.add([column.result() for column in encoded])


def _encoded(table: pa.Table, settings: Mapping[str, Any]) -> memoryview:
    """A table as a Parquet file in memory, of one row group or none."""
    names = set(table.column_names)
    own = {
        k: [n for n in v if n in names] if isinstance(v, list) else v for k, v in settings.items()
    }
    with pa.BufferOutputStream() as sink:
        with pq.ParquetWriter(sink, table.schema, **own) as writer:
            if table.num_rows:
                writer.write_table(table, table.num_rows)
        return memoryview(sink.getvalue())


def _settings(plan: Plan) -> dict[str, Any]:
    """Encodings by what a column holds: few distinct values, or smooth floats."""
    few = [name for name in columns(plan) if not _is_wide(plan, name)]
    wide = [name for name in columns(plan) if _is_wide(plan, name)]
    return {
        "compression": "zstd",
        "compression_level": 3,
        "use_dictionary": few,
        "use_byte_stream_split": wide,
        "write_page_checksum": True,
    }


def _is_wide(plan: Plan, name: str) -> bool:
    is_float = pa.types.is_floating(_type(plan, name))
    return is_float and plan.cells(plan.dims[name]) > DICTIONARY_CELLS


@contextlib.contextmanager
def staged(path: Path, *, overwrite: bool) -> Iterator[Path]:
    """A name beside ``path`` to write to; it takes the place of ``path`` on a clean exit only."""
    staging = path.parent / f".{path.name[:40]}.{os.getpid()}-{secrets.token_hex(4)}.tmp"
    try:
        _refuse_target(path, overwrite=overwrite)
        try:
            staging.touch(exist_ok=False)
            yield staging
            _publish(staging, path, overwrite=overwrite)
        finally:
            staging.unlink(missing_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from error


def sync(sink: BinaryIO) -> None:
    """Have what was written reach the disk before it gets its name."""
    sink.flush()
    os.fsync(sink.fileno())


def _refuse_target(path: Path, *, overwrite: bool) -> None:
    """Refuse, before any work, a name that a file cannot have or that must not be taken."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return
    except ValueError as error:
        raise OutputError(path, f"cannot be a file's name: {error}") from None
    if os.path.isdir(path):
        raise OutputError(path, "is a directory", "name a file, such as out.parquet")
    if not overwrite:
        raise OutputError(path, "exists already", "give --overwrite, or another name")
    if os.path.exists(path) and not os.path.isfile(path):
        raise OutputError(path, "is a device or a pipe", "name a file, such as out.parquet")


def _publish(staging: Path, path: Path, *, overwrite: bool) -> None:
    """Give the finished file its name; without ``overwrite`` a file that has come since stays."""
    if overwrite:
        os.replace(staging, path)
        return
    try:
        os.link(staging, path)
    except FileExistsError:
        raise OutputError(
            path, "was written by someone else meanwhile", "choose another name"
        ) from None
    except OSError:
        # No hard links on this file system: a plain rename, after one more look.
        if os.path.lexists(path):
            raise OutputError(path, "exists already", "choose another name") from None
        os.rename(staging, path)


_NO_ROOM = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


def cannot_write(path: Path, error: OSError) -> OutputError:
    """What to tell a person of a failed write: no room, or no way."""
    if not path.parent.is_dir():
        return OutputError(path, f"the folder {path.parent} does not exist", "make it first")
    reason = os.strerror(error.errno) if error.errno else str(error)
    if error.errno in _NO_ROOM:
        free = os.statvfs(path.parent).f_bavail * os.statvfs(path.parent).f_frsize
        return OutputError(
            path,
            f"no room to write: {reason} ({free:,} bytes free)",
            "free some space, or write elsewhere",
        )
    return OutputError(path, f"cannot be written: {reason}", "check the folder and its permissions")


def to_pandas(found: pa.Table) -> Any:
    """An Arrow table as a DataFrame, choices as categories, column metadata in ``df.attrs``."""
    frame = found.to_pandas()
    attrs = json.loads((found.schema.metadata or {}).get(b"PANDAS_ATTRS", b"{}"))
    frame.attrs.update(attrs)
    return frame
