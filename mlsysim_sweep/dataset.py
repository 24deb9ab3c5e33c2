"""A sweep as a set of Parquet parts that can be interrupted, resumed and checked.

A part covers a slab of the grid that depends on the spec alone, and is named after it, so that who
writes it, when and how often makes no difference. Where parts are kept is the business of a place.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from mlsysim_sweep.constraints import Funnel
from mlsysim_sweep.engine.budget import ROW_GROUP_ROWS
from mlsysim_sweep.engine.plan import Plan, Slices
from mlsysim_sweep.engine.pool import ordered, threads
from mlsysim_sweep.engine.run import Table, Walk, funnel, size, split
from mlsysim_sweep.errors import Mistake, OutputError
from mlsysim_sweep.grids.grid import Field
from mlsysim_sweep.place import Folder, Hashing, Place, Remote, at
from mlsysim_sweep.store import cannot_write, check_room, write_rows

PART_POINTS = 2**22


@dataclass(frozen=True)
class Part:
    """One part of a dataset: its number, its slab of the grid and its file."""

    number: int
    slab: Slices
    file: str


def parts(plan: Plan, part_points: int = PART_POINTS, partition: str | None = None) -> list[Part]:
    """The parts of a grid, in the order of rows (within each label of a partition axis).

    Raises
    ------
    Mistake
        If ``partition`` is not a text axis of the grid.
    """
    slabs = [(slab, "") for slab in split(plan.whole, part_points)]
    if partition is not None:
        slabs = list(_partitioned(plan, part_points, partition))
    return [
        Part(number, slab, f"{folder}part-{number:08d}.parquet")
        for number, (slab, folder) in enumerate(slabs)
    ]


def _partitioned(plan: Plan, part_points: int, partition: str) -> Iterator[tuple[Slices, str]]:
    axis = next((i for i, a in enumerate(plan.grid.axes) if partition in a.labels), None)
    if axis is None or plan.grid.axes[axis].labels[partition].dtype != object:
        texts = [n for a in plan.grid.axes for n, v in a.labels.items() if v.dtype == object]
        raise Mistake("partition", f'"{partition}" is not a text axis', f"one of {texts or 'none'}")
    for position, label in enumerate(plan.grid.axes[axis].labels[partition]):
        slab = (*plan.whole[:axis], slice(position, position + 1), *plan.whole[axis + 1 :])
        for piece in split(slab, part_points):
            yield piece, f"{partition}={_folder_name(str(label))}/"


def _folder_name(label: str) -> str:
    """A label as Hive readers expect it in a folder name: unsafe characters percent-encoded."""
    from urllib.parse import quote

    return quote(label, safe=" +()-_.")


# --- what was asked ------------------------------------------------------------------------------


def question(plan: Plan, part_points: int, partition: str | None) -> dict[str, Any]:
    """Everything that decides the rows, in base units, field by field.

    Comments, key order, the name of a sweep and the way a value is written are left out.
    """
    grid = plan.grid
    wanted = {*grid.columns, *(name for rule in grid.rules for name in rule.names)}
    used = plan.graph.upstream(wanted) | set(grid.axis_columns)
    inputs = {n: _digest(f) for n, f in sorted(grid.fields.items()) if n in used}
    return {
        "version": version("mlsysim-sweep"),
        "model": grid.model.name,
        "axes": list(grid.dims),
        "inputs": inputs,
        "rules": [rule.name for rule in grid.rules],
        "columns": list(grid.columns),
        "formulas": {
            name: _code_digest(formula.function)
            for name, formula in plan.graph.formulas.items()
            if name in used and not formula.function.__module__.startswith("mlsysim_sweep.")
        },
        "part_points": part_points,
        "parts": len(parts(plan, part_points, partition)),
        "partition": partition,
    }


def _digest(given: Field) -> Any:
    values = given.values.reshape(-1).tolist()
    if len(values) <= 64:
        return [repr(v) for v in values] if given.dims else repr(values[0])
    text = "\n".join(map(repr, values))
    return f"{len(values)} values, sha256 {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _code_digest(function: Callable[..., Any]) -> str:
    """What a user's formula computes; those of the package are covered by its version."""
    code = function.__code__
    text = f"{code.co_code!r} {code.co_consts!r} {code.co_names!r} {function.__defaults__!r}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def difference(before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Fields in which two questions differ, as ``field: before -> now``."""
    found = []
    for key in dict.fromkeys([*before, *now]):
        old, new = before.get(key), now.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found += difference(old, new, f"{prefix}{key}.")
        elif old != new:
            found.append(f"{prefix}{key}: {old} -> {new}")
    return found


# --- writing -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finished:
    """What is known of a finished part: rows and bytes, their hash, and what each rule left."""

    number: int
    file: str | None
    rows: int
    bytes: int
    sha256: str
    left: tuple[int, ...]

    def as_record(self) -> dict[str, Any]:
        """As the journal holds it."""
        return {"part": self.number, **{k: v for k, v in vars(self).items() if k != "number"}}

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Finished:
        """From a record of the journal."""
        kept = {k: v for k, v in record.items() if k != "part"}
        return cls(number=record["part"], **{**kept, "left": tuple(record["left"])})


@dataclass(frozen=True)
class Options:
    """How parts are written: rows of a row group, and the axis that folders are named after."""

    rows: int = ROW_GROUP_ROWS
    partition: str | None = None


def write_part(plan: Plan, table: Table, part: Part, where: Place, options: Options) -> Finished:
    """Evaluate one part and put its file into the dataset; a part without rows has no file.

    The first part always has one, so that a reader finds the schema. Writing a part twice gives the
    same file.
    """
    walk = Walk(plan, table, part.slab)
    rows = 0

    def encode(sink: Hashing) -> bool:
        nonlocal rows
        rows = write_rows(walk, sink, 1, options.rows, lambda: None, options.partition)
        return rows > 0 or part.number == 0

    stored = where.put(part.file, encode)
    left = tuple(walk.block_left)
    if stored is None:
        return Finished(part.number, None, 0, 0, "", left)
    size, sha256 = stored
    return Finished(part.number, part.file, rows, size, sha256, left)


Runner = Callable[[Plan, Table, Sequence[Part], Place, Options], Iterable[Finished]]
"""Writes parts into a place and reports each as it is done, in any order."""


def on_threads(workers: int) -> Runner:
    """A runner on threads of this process."""

    def run(
        plan: Plan, table: Table, todo: Sequence[Part], where: Place, options: Options
    ) -> Iterator[Finished]:
        def write(part: Part) -> Finished:
            return write_part(plan, table, part, where, options)

        with threads(workers) as pool:
            yield from ordered(pool, write, todo, workers)

    return run


def write_dataset(
    plan: Plan,
    path: str | Path,
    *,
    runner: Runner,
    resume: bool = False,
    overwrite: bool = False,
    force: bool = False,
    partition: str | None = None,
    part_points: int = PART_POINTS,
    rows: int = ROW_GROUP_ROWS,
    progress: Callable[[int], None] | None = None,
) -> Funnel:
    """Write the survivors of a grid as parts in a folder or at a URL.

    What is there is complete and journaled. ``force`` begins although the disk seems too small.

    Raises
    ------
    OutputError
        If the dataset exists and neither ``resume`` nor ``overwrite`` is given, is in use, holds
        the answer to another question, or cannot be written. Finished parts are kept.
    """
    where = at(path)
    if overwrite and isinstance(where, Folder) and where.path.exists():
        options = {"partition": partition, "part_points": part_points, "rows": rows, "force": force}
        return _replaced(plan, where.path, runner=runner, progress=progress, **options)
    if overwrite and isinstance(where, Remote) and where.exists():
        raise OutputError(where, "exists already", "remove it first, or name another")
    asked = question(plan, part_points, partition)
    todo = parts(plan, part_points, partition)
    table = Table.of(plan)
    if isinstance(where, Folder) and not (force or where.path.exists()):
        check_room(plan, table, where.path)
    try:
        with where.opened(resume=resume) as (log, records):
            if records:
                _same_question(where, records[0]["question"], asked)
            else:
                log.append({"question": asked})
            finished = _sound(where, records)
            left = [part for part in todo if part.number not in finished]
            seen = sum(size(part.slab) for part in todo if part.number in finished)
            slabs = {part.number: part.slab for part in left}
            for found in runner(plan, table, left, where, Options(rows, partition)):
                log.append(found.as_record())
                finished[found.number] = found
                seen += size(slabs[found.number])
                if progress:
                    progress(seen)
            total = _funnel(plan, table, finished.values())
            log.append({"complete": len(todo), "rows": total.feasible, "funnel": total.as_dict()})
            where.finish()
    except OSError as error:
        raise cannot_write(Path(path), error) from error
    return total


def _replaced(plan: Plan, folder: Path, **options: Any) -> Funnel:
    """Write a new dataset beside an old one, and put it in its place once it is complete."""
    beside = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(beside, ignore_errors=True)
    found = write_dataset(plan, beside, **options)
    _exchange(beside, folder)
    return found


def _funnel(plan: Plan, table: Table, finished: Iterable[Finished]) -> Funnel:
    sums = np.sum([found.left for found in finished], axis=0, dtype=object)
    return funnel(plan, (*table.left, *(int(n) for n in np.atleast_1d(sums))))


def _exchange(new: Path, old: Path) -> None:
    """Put a complete dataset in the place of an old one."""
    aside = old.with_name(f".{old.name}.old")
    shutil.rmtree(aside, ignore_errors=True)
    os.rename(old, aside)
    os.rename(new, old)
    shutil.rmtree(aside, ignore_errors=True)


def _same_question(where: Place, before: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    changed = difference(before, json.loads(json.dumps(asked)))
    if changed:
        raise OutputError(
            where,
            "holds the answer to another question: " + "; ".join(changed),
            "write to another folder, or give --overwrite",
        )


# --- reading -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Status:
    """How far a dataset is, and what is wrong with it."""

    parts: int
    finished: int
    rows: int
    bytes: int
    complete: bool
    damaged: tuple[str, ...] = ()
    strangers: tuple[str, ...] = ()


def _present(where: Place, records: Iterable[Mapping[str, Any]]) -> dict[int, bool]:
    """For each finished part, whether its file is there and as long as it was."""
    sizes = where.sizes()
    found = (Finished.of(record) for record in records if "part" in record)
    return {f.number: f.file is None or sizes.get(f.file) == f.bytes for f in found}


def _sound(where: Place, records: Sequence[Mapping[str, Any]]) -> dict[int, Finished]:
    """The finished parts whose files are there, whole and unchanged."""
    present = _present(where, records)
    found = {r["part"]: Finished.of(r) for r in records if "part" in r and present[r["part"]]}
    return {
        number: part
        for number, part in found.items()
        if part.file is None or where.sha256(part.file) == part.sha256
    }


def _records(where: Place) -> list[dict[str, Any]]:
    records = where.records()
    if not records or "question" not in records[0]:
        raise OutputError(where, "its journal is empty", "run it again with --resume")
    return records


def status(path: str | Path, *, hashes: bool = False) -> Status:
    """How far a dataset is; with ``hashes`` every part is read and compared with the journal.

    Raises
    ------
    OutputError
        If there is no journal, or it is damaged.
    """
    where = at(path)
    records = _records(where)
    finished = {r["part"]: Finished.of(r) for r in records if "part" in r}
    ends = [r for r in records if "complete" in r]
    present = _present(where, records)
    sound = _sound(where, records) if hashes else [n for n in finished if present[n]]
    damaged = tuple(f.file or "" for n, f in finished.items() if n not in sound)
    listed = {f.file for f in finished.values()}
    return Status(
        parts=ends[-1]["complete"] if ends else records[0]["question"]["parts"],
        finished=len(finished),
        rows=sum(f.rows for f in finished.values()),
        bytes=sum(f.bytes for f in finished.values()),
        complete=bool(ends) and not damaged,
        damaged=damaged,
        strangers=tuple(sorted(where.sizes().keys() - listed)),
    )


def files(path: str | Path, *, partial: bool = False) -> list[Any]:
    """Paths, or URLs, of the journaled files of a dataset, and no others.

    Raises
    ------
    OutputError
        If a part is damaged, or, unless ``partial``, if some are not written yet.
    """
    found = status(path)
    if found.damaged:
        raise OutputError(
            path, f"damaged: {', '.join(found.damaged)}", "run it again with --resume"
        )
    if not found.complete and not partial:
        raise OutputError(
            path,
            f"{found.finished} parts are finished, and more are to come",
            "run it again with --resume, or read it as partial",
        )
    where = at(path)
    records = (Finished.of(r) for r in _records(where) if "part" in r)
    listed = {f.number: f.file for f in records}
    return [where.address(file) for _, file in sorted(listed.items()) if file]
