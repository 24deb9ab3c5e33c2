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
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mlsysim_sweep.constraints import Funnel
from mlsysim_sweep.engine.mesh import Array, Points
from mlsysim_sweep.engine.plan import Plan
from mlsysim_sweep.engine.run import Walk
from mlsysim_sweep.errors import Mistake, OutputError
from mlsysim_sweep.grids.grid import notes, resolved_inputs
from mlsysim_sweep.vocabulary import CHOICES, VOCABULARY, Kind

METADATA_KEY = "mlsysim_sweep"
ROW_GROUP_ROWS = 2**20
DICTIONARY_CELLS = 2**16
"""A quantity with at most this many values in the whole grid is dictionary-encoded.

Bytes a row of 3,145,728 layouts (`benchmarks/bench_parquet.py`): 28.51 with no quantity encoded so,
28.47 up to 2**12 values, 28.30 up to 2**14, 28.09 from 2**16, and 32.87 with all of them, which
takes half as long again to write. Level 6 of zstd saves 0.1 % more for a third more time, or worse.
"""

Watcher = Callable[[Points], None]


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


def schema(plan: Plan) -> pa.Schema:
    """Arrow schema of a sweep's rows, fixed by the spec alone."""
    fields = [
        pa.field(name, kind, nullable=_may_be_null(plan, name, kind), metadata=describe(plan, name))
        for name, kind in ((name, _type(plan, name)) for name in columns(plan))
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


def batches(
    plan: Plan, walk: Iterable[Points], watchers: Iterable[Watcher] = ()
) -> Iterator[pa.RecordBatch]:
    """The survivors of each block as Arrow record batches; ``watchers`` see them first."""
    shape = schema(plan)
    for points in walk:
        with np.errstate(all="ignore"):
            for watcher in watchers:
                watcher(points)
            arrays = [_array(plan, points, field) for field in shape]
        yield pa.RecordBatch.from_arrays(arrays, schema=shape)


def _array(plan: Plan, points: Points, field: pa.Field) -> pa.Array:
    if pa.types.is_dictionary(field.type):
        return _names(plan, points, field)
    values = points(field.name)
    if pa.types.is_integer(field.type) and values.dtype.kind == "f":
        return _whole(field, values)
    return pa.array(values.astype(field.type.to_pandas_dtype(), copy=False))


def _whole(field: pa.Field, values: Array) -> pa.Array:
    """Whole numbers that come as floats; one that does not exist (NaN) is null."""
    try:
        return pa.array(values, field.type, from_pandas=True)
    except pa.ArrowInvalid as error:
        raise Mistake(field.name, f"{error}", "whole numbers below 2^63") from None


def _names(plan: Plan, points: Points, field: pa.Field) -> pa.Array:
    """Names of a choice as a dictionary array; along an axis the positions are the codes."""
    given = plan.grid.fields[field.name]
    if given.dims:
        codes = points.positions(given.dims[0]).astype(np.int32)
        labels = given.values
    else:
        codes, labels = np.zeros(points.count, np.int32), given.values.reshape(1)
    return pa.DictionaryArray.from_arrays(codes, pa.array(labels.tolist(), pa.string()))


def table(plan: Plan) -> pa.Table:
    """All survivors as an Arrow table, with the same metadata as a file."""
    walk = Walk(plan)
    found = pa.Table.from_batches(list(batches(plan, walk)), schema(plan))
    return found.replace_schema_metadata(
        {**_pandas_metadata(plan), **_document(plan, walk.funnel())}
    )


# --- metadata ------------------------------------------------------------------------------------


def document(plan: Plan, funnel: Funnel) -> dict[str, Any]:
    """What a file says about itself: the question, how much was dropped, and the facts used."""
    grid = plan.grid
    return {
        "package": "mlsysim-sweep",
        "version": version("mlsysim-sweep"),
        "model": grid.model.name,
        "spec": grid.spec.as_dict(),
        "inputs": resolved_inputs(grid),
        "axes": dict(zip(grid.dims, grid.shape, strict=True)),
        "points": grid.points,
        "survivors": funnel.feasible,
        "funnel": funnel.as_dict(),
        "columns": {name: describe(plan, name) for name in columns(plan)},
        "notes": list(notes(grid)),
        "catalog": [{"table": row.table, **row.as_dict()} for row in grid.rows],
    }


def _document(plan: Plan, funnel: Funnel) -> dict[str, str]:
    return {METADATA_KEY: json.dumps(document(plan, funnel), ensure_ascii=False, allow_nan=False)}


def _pandas_metadata(plan: Plan) -> dict[str, str]:
    """What pandas reads: column types, and units and descriptions as ``df.attrs``."""
    empty = schema(plan).empty_table().to_pandas()
    pandas_schema = pa.Schema.from_pandas(empty, preserve_index=False)
    attrs = {METADATA_KEY: {name: describe(plan, name) for name in columns(plan)}}
    return {
        "pandas": pandas_schema.metadata[b"pandas"].decode(),
        "PANDAS_ATTRS": json.dumps(attrs, ensure_ascii=False),
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


# --- writing -------------------------------------------------------------------------------------


def write(
    plan: Plan,
    path: Path,
    *,
    overwrite: bool,
    watchers: Iterable[Watcher] = (),
    progress: Callable[[int], None] | None = None,
) -> Funnel:
    """Stream the survivors of a grid to one Parquet file, which appears only when it is complete.

    ``watchers`` are called with the survivors of each block, ``progress`` with the points visited.

    Raises
    ------
    OutputError
        If the file exists and ``overwrite`` is not set, or cannot be written; an existing file is
        then as it was.
    """
    walk = Walk(plan, progress)
    with _staged(path, overwrite=overwrite) as staging:
        # Pandas looks for its keys in the Arrow schema that a file carries, and only there.
        shape = schema(plan).with_metadata(_pandas_metadata(plan))
        writer = pq.ParquetWriter(staging, shape, **_settings(plan))
        try:
            _write_groups(batches(plan, walk, watchers), writer)
            writer.add_key_value_metadata(_document(plan, walk.funnel()))
        finally:
            writer.close()
    return walk.funnel()


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


def _write_groups(found: Iterable[pa.RecordBatch], writer: pq.ParquetWriter) -> None:
    """Gather batches into row groups of about a million rows."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in found:
        if rows + batch.num_rows > ROW_GROUP_ROWS and waiting:
            writer.write_table(pa.Table.from_batches(waiting), ROW_GROUP_ROWS)
            waiting, rows = [], 0
        waiting.append(batch)
        rows += batch.num_rows
    if waiting:
        writer.write_table(pa.Table.from_batches(waiting), ROW_GROUP_ROWS)


@contextlib.contextmanager
def _staged(path: Path, *, overwrite: bool) -> Iterator[Path]:
    """A name beside ``path`` to write to; it takes the place of ``path`` on a clean exit only."""
    staging = path.parent / f".{path.name[:40]}.{os.getpid()}-{secrets.token_hex(4)}.tmp"
    try:
        _refuse_target(path, overwrite=overwrite)
        try:
            staging.touch(exist_ok=False)
            yield staging
            _sync(staging)
            _publish(staging, path, overwrite=overwrite)
        finally:
            staging.unlink(missing_ok=True)
    except OSError as error:
        raise _cannot_write(path, error) from error


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


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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


def _cannot_write(path: Path, error: OSError) -> OutputError:
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
