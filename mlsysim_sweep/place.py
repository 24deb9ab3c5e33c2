"""Where the parts of a dataset are kept: a folder, or a URL of an object store.

A folder::

    out/data/part-00000000.parquet   what readers read; nothing else is ever in this folder
    out/staging/                     parts being written; gone when the dataset is complete
    out/journal.jsonl                what was asked, then one record for each finished part
    out/lock                         held while somebody writes; it dies with its owner

A URL has no lock and no appending, and what is put there appears whole::

    s3://…/out/data/part-00000000.parquet
    s3://…/out/journal/question.json, part-00000000.json, …, complete.json

Two writers of one question do no harm there: they write the same bytes under the same names. A
record of a part names the question that it answers, and counts for no other.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import hashlib
import os
import secrets
import shutil
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from mlsysim_sweep import journal, remote
from mlsysim_sweep.errors import OutputError
from mlsysim_sweep.store import sync

JOURNAL, _LOCK, _DATA, _STAGING = "journal.jsonl", "lock", "data", "staging"
_CHUNK = 2**20

Records = list[dict[str, Any]]
Encode = Callable[["Hashing"], bool]
"""Writes a file into a sink, and says whether the file is wanted."""


class Log(Protocol):
    """The record of a dataset, open for adding to it."""

    def append(self, *records: journal.Record) -> None:
        """Add records; they are safe when this returns."""


class Place(Protocol):
    """Somewhere to keep the parts of a dataset and their journal."""

    def opened(self, *, resume: bool) -> AbstractContextManager[tuple[Log, Records]]:
        """The journal, open for writing, and the records in it."""

    def put(self, file: str, encode: Encode) -> tuple[int, str] | None:
        """Write a part that appears whole: its bytes and SHA-256, or None where not wanted."""

    def records(self) -> Records:
        """The records of the journal, for readers."""

    def sizes(self) -> dict[str, int]:
        """Bytes of every file among the parts; -1 for what is no plain file."""

    def sha256(self, file: str) -> str | None:
        """What a part hashes to now; None where it cannot be read."""

    def address(self, file: str) -> Path | str:
        """Where a reader finds a part."""

    def absolute(self) -> Place:
        """The same place, as a process with another working folder would name it."""

    def finish(self) -> None:
        """Clear away what only writers need."""


class Hashing:
    """A sink that hashes what passes through it."""

    def __init__(self, sink: IO[bytes]) -> None:
        self.sink, self.hash, self.bytes = sink, hashlib.sha256(), 0

    def write(self, data: bytes | memoryview) -> None:
        """Hash, count and pass on."""
        self.hash.update(data)
        self.bytes += len(data)
        self.sink.write(data)


def at(where: str | Path) -> Folder | Remote:
    """The place that a path or URL names."""
    return Remote(str(where).rstrip("/")) if remote.is_url(where) else Folder(Path(where))


# --- on this machine -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Folder:
    """A folder that writer, workers and readers see."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    @contextlib.contextmanager
    def opened(self, *, resume: bool) -> Iterator[tuple[Log, Records]]:
        """Hold the folder's lock, and its journal.

        Raises
        ------
        OutputError
            If it is a file, exists and is not to be resumed, is in use, or its journal is damaged.
        """
        is_new = not self.path.exists()
        if not is_new and not self.path.is_dir():
            raise OutputError(self.path, "is a file", "name a folder")
        if not is_new and not resume:
            fix = "give --resume to go on, --overwrite to start again, or another name"
            raise OutputError(self.path, "exists already", fix)
        (self.path / _DATA).mkdir(parents=True, exist_ok=True)
        with locked(self.path):
            file = self.path / JOURNAL
            records, sound = journal.read(file) if file.exists() else ([], 0)
            shutil.rmtree(self.path / _STAGING, ignore_errors=True)
            (self.path / _STAGING).mkdir(exist_ok=True)
            log = journal.Journal(file, sound)
            try:
                yield log, records
            finally:
                log.close()

    def put(self, file: str, encode: Encode) -> tuple[int, str] | None:
        """Write beside the parts, and move in what is whole and on the disk."""
        # A worker may still write a part that an interrupted run asked of it when the run that
        # goes on asks it for the same part: each writing has a file of its own.
        staging = self.path / _STAGING / f"{file.replace('/', '%')}.{secrets.token_hex(8)}.tmp"
        with staging.open("wb") as raw:
            sink = Hashing(raw)
            is_wanted = encode(sink)
            sync(raw)
        if not is_wanted:
            staging.unlink()
            return None
        target = self.path / _DATA / file
        target.parent.mkdir(exist_ok=True)
        os.replace(staging, target)
        _sync_folder(target.parent)
        return sink.bytes, sink.hash.hexdigest()

    def records(self) -> Records:
        """The records of the journal.

        Raises
        ------
        OutputError
            If there is no journal, or it is damaged.
        """
        file = self.path / JOURNAL
        if not file.is_file():
            raise OutputError(self.path, "is not a dataset of mlsysim-sweep: it has no journal")
        return journal.read(file)[0]

    def sizes(self) -> dict[str, int]:
        """Bytes of every file among the parts; -1 for a link or a device."""
        data = self.path / _DATA
        files = ((p, p.lstat()) for p in data.rglob("*") if p.is_symlink() or not p.is_dir())
        return {
            str(p.relative_to(data)): found.st_size if stat.S_ISREG(found.st_mode) else -1
            for p, found in files
        }

    def sha256(self, file: str) -> str | None:
        """What a part hashes to now; None where it cannot be read."""
        try:
            with (self.path / _DATA / file).open("rb") as found:
                return hashlib.file_digest(found, "sha256").hexdigest()
        except OSError:
            return None

    def address(self, file: str) -> Path:
        """The path of a part."""
        return self.path / _DATA / file

    def absolute(self) -> Folder:
        """The folder by its full path."""
        return Folder(self.path.absolute())

    def finish(self) -> None:
        """Remove the staging folder."""
        shutil.rmtree(self.path / _STAGING, ignore_errors=True)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder's lock: the kernel drops it when we die, however we die.

    Raises
    ------
    OutputError
        If another process holds it.
    """
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


# --- elsewhere -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Remote:
    """A URL that fsspec can write to. Only the URL travels; each process connects for itself."""

    url: str

    def __str__(self) -> str:
        return self.url

    @contextlib.contextmanager
    def opened(self, *, resume: bool) -> Iterator[tuple[Log, Records]]:
        """The journal of the URL.

        Raises
        ------
        OutputError
            If there is something already and it is not to be resumed, the journal is damaged, or
            the URL cannot be read.
        """
        if not resume and self.exists():
            raise OutputError(self.url, "exists already", "give --resume to go on, or another name")
        records = self._read()
        if not records:
            self._find_bucket()
        yield _Objects(self, records), records

    def _find_bucket(self) -> None:
        """Refuse a bucket that does not exist: some stores would make one of a misspelt name.

        Raises
        ------
        OutputError
            If there is none of that name.
        """
        system, path = self._connected()
        bucket, slash, _ = path.partition("/")
        if bucket and slash:
            with remote.said(self.url), contextlib.suppress(PermissionError):
                system.info(bucket)

    def exists(self) -> bool:
        """Whether anything is there."""
        system, path = self._connected()
        return bool(self._listed(system, path))

    def put(self, file: str, encode: Encode) -> tuple[int, str] | None:
        """Write to a file of this machine's, and upload that in one piece."""
        with tempfile.NamedTemporaryFile(prefix="mlsysim-sweep-", suffix=".parquet") as raw:
            sink = Hashing(raw)
            is_wanted = encode(sink)
            raw.flush()
            if not is_wanted:
                return None
            system, path = self._connected()
            with remote.said(self.url):
                target = f"{path}/{_DATA}/{file}"
                system.makedirs(target.rpartition("/")[0], exist_ok=True)
                system.put_file(raw.name, target)
        return sink.bytes, sink.hash.hexdigest()

    def records(self) -> Records:
        """The records of the journal.

        Raises
        ------
        OutputError
            If there is no journal, or it is damaged or cannot be read.
        """
        records = self._read()
        if not records:
            raise OutputError(self.url, "is not a dataset of mlsysim-sweep: it has no journal")
        return records

    def sizes(self) -> dict[str, int]:
        """Bytes of every object among the parts."""
        system, path = self._connected()
        data = f"{path}/{_DATA}"
        found = self._listed(system, data)
        return {name.removeprefix(f"{data}/"): size for name, size in found.items()}

    def sha256(self, file: str) -> str | None:
        """What a part hashes to now; None where it is gone."""
        system, path = self._connected()
        found = hashlib.sha256()
        with remote.said(self.url):
            try:
                with system.open(f"{path}/{_DATA}/{file}", "rb") as there:
                    while chunk := there.read(_CHUNK):
                        found.update(chunk)
            except FileNotFoundError:
                return None
        return found.hexdigest()

    def address(self, file: str) -> str:
        """The URL of a part."""
        return f"{self.url}/{_DATA}/{file}"

    def absolute(self) -> Remote:
        """The URL: it is the same everywhere."""
        return self

    def finish(self) -> None:
        """Nothing is there but parts and their journal."""

    def _connected(self) -> tuple[Any, str]:
        """The file system and our path in it; what others have written since is seen."""
        system, path = remote.resolve(self.url)
        system.invalidate_cache()
        return system, path.rstrip("/")

    def _listed(self, system: Any, folder: str) -> dict[str, int]:
        """Bytes of every object under a folder.

        Not ``exists`` or ``find``: of some stores they take a failure for an empty folder.
        """
        with remote.said(self.url):
            try:
                entries = system.ls(folder, detail=True)
            except FileNotFoundError:
                return {}
        found: dict[str, int] = {}
        for entry in entries:
            name = entry["name"].rstrip("/")
            if entry["type"] != "directory":
                found[name] = entry["size"]
            elif name != folder:
                found |= self._listed(system, name)
        return found

    def _read(self) -> Records:
        """The question, then all records that answer it; a damaged one is as good as none."""
        system, path = self._connected()
        names = sorted(self._listed(system, f"{path}/journal"))
        with remote.said(self.url):
            texts = system.cat(names) if names else {}
        found = {n.rpartition("/")[2]: journal.decoded(texts[n].rstrip(b"\n")) for n in names}
        question = found.pop(_QUESTION, None)
        if question is None:
            return []
        mark = _fingerprint(question)
        answers = [record for record in found.values() if record and record.pop("of") == mark]
        return [question, *answers]


_QUESTION = "question.json"


def _fingerprint(question: journal.Record) -> str:
    return hashlib.sha256(journal.encoded(question)).hexdigest()[:16]


class _Objects:
    """A journal of one object for each record."""

    def __init__(self, place: Remote, records: Sequence[journal.Record]) -> None:
        self._place = place
        self._mark = _fingerprint(records[0]) if records else ""

    def append(self, *records: journal.Record) -> None:
        """Put each record; a question is read back, as somebody else may have put one too.

        Raises
        ------
        OutputError
            If it cannot be put, or another question took its place.
        """
        for record in records:
            if "question" in record:
                self._mark = _fingerprint(record)
                self._put(_QUESTION, record)
                if _fingerprint(self._place.records()[0]) != self._mark:
                    raise OutputError(
                        self._place, "is being written by somebody else", "name another"
                    )
            else:
                self._put(_name(record), {**record, "of": self._mark})

    def _put(self, name: str, record: journal.Record) -> None:
        system, path = self._place._connected()
        with remote.said(self._place.url):
            system.makedirs(f"{path}/journal", exist_ok=True)
            system.pipe_file(f"{path}/journal/{name}", journal.encoded(record))


def _name(record: Mapping[str, Any]) -> str:
    return "complete.json" if "complete" in record else f"part-{record['part']:08d}.json"
