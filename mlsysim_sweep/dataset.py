"""A sweep as a folder of Parquet parts that can be interrupted, resumed and checked.

    out/data/part-00000000.parquet   what readers read; nothing else is ever in this folder
    out/staging/                     parts being written; gone when the dataset is complete
    out/journal.jsonl                what was asked, then one record for each finished part
    out/lock                         held while somebody writes; it dies with its owner

A part covers a slab of the grid that depends on the spec alone, and is named after it, so that who
writes it, when and how often makes no difference.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import hashlib
import json
import os
import shutil
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from mlsysim_sweep import journal
from mlsysim_sweep.constraints import Funnel
from mlsysim_sweep.engine.budget import ROW_GROUP_ROWS
from mlsysim_sweep.engine.plan import Plan, Slices
from mlsysim_sweep.engine.pool import ordered, threads
from mlsysim_sweep.engine.run import Table, Walk, funnel, size, split
from mlsysim_sweep.errors import Mistake, OutputError
from mlsysim_sweep.grids.grid import Field
from mlsysim_sweep.store import cannot_write, check_room, sync, write_rows

PART_POINTS = 2**22
_JOURNAL, _LOCK, _DATA, _STAGING = "journal.jsonl", "lock", "data", "staging"
_FIX = "give --resume to go on, --overwrite to start again, or another name"


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


class _Hashing:
    """A sink that hashes what passes through it."""

    def __init__(self, sink: BinaryIO) -> None:
        self.sink, self.hash, self.bytes = sink, hashlib.sha256(), 0

    def write(self, data: bytes | memoryview) -> None:
        self.hash.update(data)
        self.bytes += len(data)
        self.sink.write(data)


def write_part(plan: Plan, table: Table, part: Part, folder: Path, options: Options) -> Finished:
    """Evaluate one part and move its file into the dataset; a part without rows has no file.

    The first part always has one, so that a reader finds the schema. Writing a part twice gives the
    same file.
    """
    walk = Walk(plan, table, part.slab)
    name = part.file.replace("/", "%")
    staging = folder / _STAGING / f"{name}.{socket.gethostname()}-{os.getpid()}.tmp"
    with staging.open("wb") as raw:
        sink = _Hashing(raw)
        rows = write_rows(walk, sink, 1, options.rows, lambda: None, options.partition)
        sync(raw)
    left = tuple(walk.block_left)
    if not rows and part.number:
        staging.unlink()
        return Finished(part.number, None, 0, 0, "", left)
    target = folder / _DATA / part.file
    target.parent.mkdir(exist_ok=True)
    os.replace(staging, target)
    _sync_folder(target.parent)
    return Finished(part.number, part.file, rows, sink.bytes, sink.hash.hexdigest(), left)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


Runner = Callable[[Plan, Table, Sequence[Part], Path, Options], Iterable[Finished]]
"""Writes parts into a folder and reports each as it is done, in any order."""


def on_threads(workers: int) -> Runner:
    """A runner on threads of this process."""

    def run(
        plan: Plan, table: Table, todo: Sequence[Part], folder: Path, options: Options
    ) -> Iterator[Finished]:
        def write(part: Part) -> Finished:
            return write_part(plan, table, part, folder, options)

        with threads(workers) as pool:
            yield from ordered(pool, write, todo, workers)

    return run


def write_dataset(
    plan: Plan,
    folder: Path,
    *,
    runner: Runner,
    resume: bool = False,
    overwrite: bool = False,
    partition: str | None = None,
    part_points: int = PART_POINTS,
    rows: int = ROW_GROUP_ROWS,
    progress: Callable[[int], None] | None = None,
) -> Funnel:
    """Write the survivors of a grid as a folder of parts; what is there is complete and journaled.

    Raises
    ------
    OutputError
        If the folder exists and neither ``resume`` nor ``overwrite`` is given, is in use, holds the
        answer to another question, or cannot be written. Finished parts are kept.
    """
    asked = question(plan, part_points, partition)
    todo = parts(plan, part_points, partition)
    target = folder
    if overwrite and folder.exists():
        folder = folder.with_name(f".{folder.name}.new")
        shutil.rmtree(folder, ignore_errors=True)
    try:
        with _opened(folder, asked, resume=resume) as (log, done):
            table = Table.of(plan)
            check_room(plan, table, folder)
            finished = {n: f for n, f in done.items() if _is_sound(folder, f)}
            left = [part for part in todo if part.number not in finished]
            seen = sum(size(part.slab) for part in todo if part.number in finished)
            slabs = {part.number: part.slab for part in left}
            for found in runner(plan, table, left, folder, Options(rows, partition)):
                log.append(found.as_record())
                finished[found.number] = found
                seen += size(slabs[found.number])
                if progress:
                    progress(seen)
            total = _funnel(plan, table, finished.values())
            log.append({"complete": len(todo), "rows": total.feasible, "funnel": total.as_dict()})
            shutil.rmtree(folder / _STAGING, ignore_errors=True)
    except OSError as error:
        raise cannot_write(folder, error) from error
    if folder != target:
        _exchange(folder, target)
    return total


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


@contextlib.contextmanager
def _opened(
    folder: Path, asked: Mapping[str, Any], *, resume: bool
) -> Iterator[tuple[journal.Journal, dict[int, Finished]]]:
    """The journal of a dataset, held by us alone, and the parts that it lists."""
    is_new = not folder.exists()
    if not is_new and not folder.is_dir():
        raise OutputError(folder, "is a file", "name a folder")
    if not is_new and not resume:
        raise OutputError(folder, "exists already", _FIX)
    (folder / _DATA).mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        path = folder / _JOURNAL
        records, sound = journal.read(path) if path.exists() else ([], 0)
        if records:
            _same_question(folder, records[0]["question"], asked)
        shutil.rmtree(folder / _STAGING, ignore_errors=True)
        (folder / _STAGING).mkdir()
        log = journal.Journal(path, sound)
        try:
            if not records:
                log.append({"question": dict(asked)})
            yield log, {r["part"]: Finished.of(r) for r in records if "part" in r}
        finally:
            log.close()


def _same_question(folder: Path, before: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    changed = difference(before, json.loads(json.dumps(asked)))
    if changed:
        raise OutputError(
            folder,
            "holds the answer to another question: " + "; ".join(changed),
            "write to another folder, or give --overwrite",
        )


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the dataset's lock: the kernel drops it when we die, however we die."""
    with (folder / _LOCK).open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            owner = file.read().strip() or "another process"
            raise OutputError(
                folder, f"is being written by {owner}", "wait, or name another"
            ) from None
        file.truncate(0)
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        file.write(f"process {os.getpid()} on {socket.gethostname()} since {now}")
        file.flush()
        yield


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


def _is_sound(folder: Path, found: Finished) -> bool:
    """Whether a finished part's file is there, whole and unchanged."""
    if found.file is None:
        return True
    path = folder / _DATA / found.file
    try:
        if path.stat().st_size != found.bytes or path.is_symlink():
            return False
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == found.sha256
    except OSError:
        return False


def _records(folder: Path) -> list[dict[str, Any]]:
    path = folder / _JOURNAL
    if not path.is_file():
        raise OutputError(folder, "is not a dataset of mlsysim-sweep: it has no journal")
    records, _ = journal.read(path)
    if not records or "question" not in records[0]:
        raise OutputError(folder, "its journal is empty", "run it again with --resume")
    return records


def status(folder: Path, *, hashes: bool = False) -> Status:
    """How far a dataset is; with ``hashes`` every part is read and compared with the journal.

    Raises
    ------
    OutputError
        If there is no journal, or it is damaged.
    """
    records = _records(folder)
    finished = {r["part"]: Finished.of(r) for r in records if "part" in r}
    ends = [r for r in records if "complete" in r]
    sound = _is_sound if hashes else _is_present
    damaged = tuple(f.file or "" for f in finished.values() if not sound(folder, f))
    listed = {f.file for f in finished.values()}
    there = {
        str(p.relative_to(folder / _DATA)) for p in (folder / _DATA).rglob("*") if not p.is_dir()
    }
    return Status(
        parts=ends[-1]["complete"] if ends else records[0]["question"]["parts"],
        finished=len(finished),
        rows=sum(f.rows for f in finished.values()),
        bytes=sum(f.bytes for f in finished.values()),
        complete=bool(ends) and not damaged,
        damaged=damaged,
        strangers=tuple(sorted(there - listed)),
    )


def _is_present(folder: Path, found: Finished) -> bool:
    path = folder / _DATA / (found.file or "")
    return found.file is None or (
        path.is_file() and not path.is_symlink() and path.stat().st_size == found.bytes
    )


def files(folder: Path, *, partial: bool = False) -> list[Path]:
    """The journaled files of a dataset, and no others.

    Raises
    ------
    OutputError
        If a part is damaged, or, unless ``partial``, if some are not written yet.
    """
    found = status(folder)
    if found.damaged:
        raise OutputError(
            folder, f"damaged: {', '.join(found.damaged)}", "run it again with --resume"
        )
    if not found.complete and not partial:
        raise OutputError(
            folder,
            f"{found.finished} parts are finished, and more are to come",
            "run it again with --resume, or read it as partial",
        )
    records = (Finished.of(r) for r in _records(folder) if "part" in r)
    listed = {f.number: f.file for f in records}
    return [folder / _DATA / file for _, file in sorted(listed.items()) if file]
