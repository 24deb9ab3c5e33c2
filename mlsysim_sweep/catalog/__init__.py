"""Facts with their sources: accelerators, workloads, links, and what the choices stand for.

Rows are TOML; values are converted to base units as they are read. A fact that has no source is
absent, never invented.
"""

from __future__ import annotations

import functools
import re
import tomllib
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from mlsysim_sweep import units
from mlsysim_sweep.errors import Mistake, shown, unknown
from mlsysim_sweep.vocabulary import PRECISIONS, VOCABULARY, Kind

FACTS: Mapping[str, tuple[str, ...]] = {
    "accelerator": (
        "device_memory",
        "memory_bandwidth",
        "scaleup_bandwidth",
        "scaleout_bandwidth",
        "devices_per_node",
        "tdp",
    ),
    "workload": (
        "parameters",
        "active_parameters",
        "layers",
        "hidden",
        "heads",
        "kv_heads",
        "head_dim",
        "ffn_hidden",
        "vocabulary",
        "context_length",
        "experts",
        "experts_per_token",
        "expert_ffn_hidden",
    ),
    "link": ("link_bandwidth",),
}
"""The inputs that a row of each table can give."""

_NEEDED = {"accelerator": ("peak_flops",), "workload": ("parameters",), "link": ("link_bandwidth",)}
_REMARKS: Mapping[str, type] = {
    "title": str,
    "vendor": str,
    "year": int,
    "note": str,
    "scope": str,
    "gated_mlp": bool,
    "tied_embeddings": bool,
    "sources": list,
}
_REMARK_KINDS = {
    str: "text",
    int: "a whole number",
    bool: "true or false",
    list: "a list of tables",
}
_NAME_LENGTH = 80
_RESERVED = re.compile(r"[\u202a-\u202e\u2066-\u2069\u200b-\u200f\ufeff]")


@dataclass(frozen=True)
class Row:
    """One catalog row: facts in base units, dense peaks by precision, and where they come from."""

    table: str
    name: str
    facts: Mapping[str, float]
    peaks: Mapping[str, float] = field(default_factory=dict)
    remarks: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        row: dict[str, Any] = {"name": self.name, **self.facts}
        if self.peaks:
            row["peak_flops"] = dict(self.peaks)
        sources = [
            {
                k: [str(part) for part in v] if isinstance(v, list) else str(v)
                for k, v in source.items()
            }
            for source in self.remarks.get("sources", ())
        ]
        return {**row, **self.remarks, **({"sources": sources} if sources else {})}


Table = Mapping[str, Row]


def clean_name(name: object, place: str) -> str:
    """A name in NFC, refused when empty, too long or with characters that hide or reorder text.

    Raises
    ------
    Mistake
        Naming ``place``.
    """
    if not isinstance(name, str) or not name.strip():
        raise Mistake(place, f"{shown(name)} given", "a name that is not empty")
    normal = unicodedata.normalize("NFC", name)
    if len(normal) > _NAME_LENGTH:
        raise Mistake(place, f"a name of {len(normal)} characters", f"at most {_NAME_LENGTH}")
    if not normal.isprintable() or _RESERVED.search(normal):
        raise Mistake(place, f"{shown(name)} has control characters", "printable characters")
    return normal


def read_row(table: str, name: str, given: Mapping[str, Any]) -> Row:
    """Check one row and convert it to base units.

    Raises
    ------
    Mistake
        Naming the table, the row and the field.
    """
    name = clean_name(name, table)
    place = f"{table}.{name}"
    if not isinstance(given, Mapping):
        raise Mistake(place, f"{shown(given)} given", f"a table of facts, [{place}]")
    known = {*FACTS[table], *_REMARKS, *(("peak_flops",) if table == "accelerator" else ())}
    for key in given:
        if key not in known:
            raise unknown(place, key, sorted(known))
    for needed in _NEEDED[table]:
        if needed not in given:
            raise Mistake(f"{place}.{needed}", "missing", "a value", _row_example(needed))
    for key, kind in _REMARKS.items():
        if key in given and not _is_remark(given[key], kind):
            raise Mistake(f"{place}.{key}", f"{shown(given[key])} given", _REMARK_KINDS[kind])
    facts = {k: read_fact(f"{place}.{k}", k, given[k]) for k in FACTS[table] if k in given}
    peaks = _read_peaks(place, given["peak_flops"]) if table == "accelerator" else {}
    if table == "workload":
        facts.setdefault("active_parameters", facts["parameters"])
    return Row(table, name, facts, peaks, {k: v for k, v in given.items() if k in _REMARKS})


def _is_remark(given: object, kind: type) -> bool:
    if kind is list:
        return isinstance(given, list) and all(isinstance(source, Mapping) for source in given)
    return type(given) is kind


def _row_example(key: str) -> str:
    if key == "peak_flops":
        return 'peak_flops = { bf16 = "989 TFLOP/s" }'
    return example(key)


def example(name: str) -> str:
    """A value that an input accepts, as a spec states it.

    >>> example("tp"), example("tdp")
    ('tp = 8', 'tdp = "700 W"')
    """
    entry = VOCABULARY[name]
    return f"{name} = {'8' if entry.kind is Kind.WHOLE else units.example(entry.unit)}"


def read_fact(place: str, name: str, given: object) -> float:
    """One value of an input in base units, its range checked.

    Raises
    ------
    Mistake
        Naming ``place``, what was given and what is allowed.
    """
    entry = VOCABULARY[name]
    if isinstance(given, bool):
        raise Mistake(place, f"{shown(given)} given", entry.allowed, example(name))
    try:
        value = units.to_si(given, entry.unit)
    except units.UnitError as error:
        raise Mistake(place, f"{shown(given)}: {error.reason}", "", example(name)) from None
    whole_needed = entry.kind is Kind.WHOLE
    too_low = value < entry.low or (value == entry.low and not entry.low_allowed)
    if too_low or value > entry.high or (whole_needed and value != int(value)):
        raise Mistake(place, f"{shown(given)} given", entry.allowed, example(name))
    return int(value) if whole_needed else value


def _read_peaks(place: str, given: object) -> dict[str, float]:
    if not isinstance(given, Mapping) or not given:
        fix = _row_example("peak_flops")
        raise Mistake(f"{place}.peak_flops", f"{shown(given)} given", "a peak a precision", fix)
    for precision in given:
        if precision not in PRECISIONS:
            raise unknown(f"{place}.peak_flops", precision, PRECISIONS)
    return {
        precision: read_fact(f"{place}.peak_flops.{precision}", "peak_flops", value)
        for precision, value in given.items()
    }


@functools.cache
def _bundled(file: str) -> Mapping[str, Any]:
    text = resources.files(__name__).joinpath(file).read_text(encoding="utf-8")
    return tomllib.loads(text)


@functools.cache
def bundled_table(table: str) -> Table:
    """The rows that come with the package: ``accelerator``, ``workload`` or ``link``."""
    rows = _bundled(f"{table}s.toml")
    return {name: read_row(table, name, given) for name, given in rows.items()}


def choice_rows(choice: str) -> Mapping[str, Mapping[str, Any]]:
    """What each name of a choice stands for: ``collective``, ``gradient_precision``, ..."""
    rows: Mapping[str, Mapping[str, Any]] = _bundled("choices.toml")[choice]
    return rows


@dataclass(frozen=True)
class Catalog:
    """The bundled rows and a user's own."""

    own: Mapping[str, Table] = field(default_factory=dict)

    @classmethod
    def with_rows(cls, given: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Catalog:
        """The bundled catalog with more rows, as a spec or a file states them.

        Raises
        ------
        Mistake
            For a bad row, or one whose name differs from a known name only in case.
        """
        own: dict[str, Table] = {}
        for table, rows in given.items():
            if not isinstance(rows, Mapping):
                raise Mistake(table, f"{shown(rows)} given", f"tables such as [{table}.MyName]")
            read = [read_row(table, name, row) for name, row in rows.items()]
            _refuse_twins(table, [row.name for row in read])
            own[table] = {row.name: row for row in read}
        return cls(own)

    def table(self, table: str) -> Table:
        """Rows of one table by name; a user's row hides a bundled one of the same name."""
        return {**bundled_table(table), **self.own.get(table, {})}

    def row(self, table: str, name: object) -> Row:
        """One row.

        Raises
        ------
        Mistake
            For an unknown name, with the closest known one.
        """
        rows = self.table(table)
        if not isinstance(name, str) or name not in rows:
            raise unknown(table, name, rows, f"mlsysim-sweep list {table}s")
        return rows[name]

    def added(self, row: Row) -> Catalog:
        """This catalog with one more row."""
        return Catalog({**self.own, row.table: {**self.own.get(row.table, {}), row.name: row}})


def _refuse_twins(table: str, names: Sequence[str]) -> None:
    folded = {name.casefold(): name for name in bundled_table(table)}
    for i, name in enumerate(names):
        twin = folded.setdefault(name.casefold(), name)
        if twin != name:
            raise Mistake(f"{table}.{name}", f'differs from "{twin}" only in case', "another name")
        if name in names[:i]:
            raise Mistake(f"{table}.{name}", "given twice, in two Unicode forms", "another name")


def read_file(path: Path) -> Mapping[str, Any]:
    """Read a TOML file of ``[accelerator.X]``, ``[workload.X]`` and ``[link.X]`` tables.

    Raises
    ------
    Mistake
        If the file is missing, is not TOML, or has other tables.
    """
    rows = read_toml(path)
    for table in rows:
        if table not in FACTS:
            raise unknown(path.name, table, FACTS)
        if not isinstance(rows[table], Mapping):
            given = f"{shown(rows[table])} given"
            raise Mistake(f"{path.name}: {table}", given, f"tables such as [{table}.MyName]")
    return rows


_LARGEST_TOML = 256 * 2**20


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file, with a message that names the file and the line.

    Raises
    ------
    Mistake
        If the file cannot be read or is not TOML.
    """
    try:
        size = path.stat().st_size
        text = path.read_text(encoding="utf-8-sig") if size <= _LARGEST_TOML else None
        found = None if text is None else tomllib.loads(text)
    except ValueError as error:  # its own error, bytes that are not UTF-8, a number of 5,000 digits
        raise Mistake(str(path), f"not valid TOML: {error}") from None
    except RecursionError:
        raise Mistake(str(path), "not valid TOML: nested too deeply") from None
    except OSError as error:
        raise Mistake(str(path), f"cannot be read: {error.strerror}", "a TOML file") from None
    if found is None:
        raise Mistake(str(path), "larger than 256 MiB", "a spec or catalog file")
    return found
