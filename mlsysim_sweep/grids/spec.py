"""A sweep as it is asked for: from TOML or keywords, the same words in both, shape checked.

Values are read later, with the model at hand (:mod:`mlsysim_sweep.grids.grid`).
"""

from __future__ import annotations

import copy
import functools
import hashlib
import math
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from mlsysim_sweep.catalog import FACTS, Catalog, Row, clean_name, read_file, read_toml
from mlsysim_sweep.errors import Mistake, shown, unknown
from mlsysim_sweep.kernels import MODELS
from mlsysim_sweep.vocabulary import VOCABULARY

MOST_POINTS = 10**12
"""Grids with more points are refused unless ``max_points`` says otherwise."""

_SECTIONS = ("sweep", "inputs", "axes", "zip", "feasible", "output", *FACTS)
_SWEEP_KEYS = ("name", "model", "catalog", "max_points")
MEMORY_RULES: Mapping[str, str | None] = {
    "plain": "state_per_device",
    "zero1": "zero1_state_per_device",
    "off": None,
}
DEVICE_RULES: Mapping[str, str] = {
    "equal": "n_devices == {}",
    "max": "n_devices <= {}",
    "min": "n_devices >= {}",
    "multiple_of": "n_devices % {} == 0",
    "one_of": "n_devices in {}",
}

INSTEAD_OF: Mapping[str, str] = {
    "devices": "dp",
    "microbatch_tokens": "microbatches",
    "microbatch_size": "microbatch_tokens",
    "link": "link_bandwidth",
}
"""Inputs that are given instead of another, which then follows from them."""


def replacements() -> list[tuple[str, str]]:
    """Pairs of inputs that cannot be given together: the second follows from the first."""
    direct = list(INSTEAD_OF.items())
    return direct + [(name, INSTEAD_OF[other]) for name, other in direct if other in INSTEAD_OF]


@dataclass(frozen=True)
class Feasible:
    """What a layout must satisfy."""

    memory: str = "zero1"
    headroom: float = 1.0
    devices: Mapping[str, Any] = field(default_factory=dict)
    tp_within_node: bool = True
    where: tuple[str, ...] = ()

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Feasible:
        """Check the ``[feasible]`` table.

        Raises
        ------
        Mistake
            Naming the key.
        """
        for key in given:
            if key not in cls.__dataclass_fields__:
                raise unknown("feasible", key, cls.__dataclass_fields__)
        where = _texts("feasible.where", given.get("where", ()))
        asked = cls(**{**given, "where": where})
        if not isinstance(asked.memory, str) or asked.memory not in MEMORY_RULES:
            raise unknown("feasible.memory", asked.memory, MEMORY_RULES)
        share = asked.headroom
        if isinstance(share, bool) or not isinstance(share, int | float) or not 1e-30 <= share <= 1:
            needed = "usable share of device memory in (0, 1]"
            raise Mistake("feasible.headroom", f"{shown(share)} given", needed, "headroom = 0.9")
        if not isinstance(asked.tp_within_node, bool):
            raise Mistake(
                "feasible.tp_within_node", f"{shown(asked.tp_within_node)} given", "true or false"
            )
        _check_devices(asked.devices)
        return asked


FEASIBLE_KEYS = tuple(Feasible.__dataclass_fields__)
"""Keys of the ``[feasible]`` table."""


def _check_devices(devices: object) -> None:
    if not isinstance(devices, Mapping):
        raise Mistake(
            "feasible.devices", f"{shown(devices)} given", "a table", "devices = { equal = 1024 }"
        )
    for key, value in devices.items():
        if key not in DEVICE_RULES:
            raise unknown("feasible.devices", key, DEVICE_RULES)
        values = value if key == "one_of" and isinstance(value, list | tuple) else [value]
        if not values or any(
            isinstance(v, bool) or not isinstance(v, int) or v < 1 for v in values
        ):
            raise Mistake(
                f"feasible.devices.{key}",
                f"{shown(value)} given",
                "a whole number from 1" + (", or several" if key == "one_of" else ""),
                f"{key} = {'[512, 1024]' if key == 'one_of' else '1024'}",
            )


@dataclass(frozen=True)
class Spec:
    """What is asked of a sweep, immutable; :meth:`variant` gives a changed one."""

    name: str = "sweep"
    model: str = "parallel_layout"
    inputs: Mapping[str, Any] = field(default_factory=dict)
    axes: Mapping[str, Any] = field(default_factory=dict)
    zips: tuple[Mapping[str, Any], ...] = ()
    feasible: Feasible = field(default_factory=Feasible)
    columns: tuple[str, ...] | None = None
    rows: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    max_points: int = MOST_POINTS

    @classmethod
    def read(cls, given: Mapping[str, Any], folder: Path | None = None) -> Spec:
        """Check the sections of a spec and the keys in them.

        ``folder`` is where a ``catalog`` file is looked for.

        Raises
        ------
        Mistake
            Naming the section and the key, with the closest known one.
        """
        for section in given:
            if section not in _SECTIONS:
                raise unknown("", section, _SECTIONS)
        sweep, output = _table(given, "sweep"), _table(given, "output")
        _check_keys("sweep", sweep, _SWEEP_KEYS)
        _check_keys("output", output, ("columns",))
        rows = {table: dict(_table(given, table)) for table in FACTS if table in given}
        for file in _texts("sweep.catalog", sweep.get("catalog", ())):
            for table, found in read_file((folder or Path()) / file).items():
                rows[table] = {**found, **rows.get(table, {})}
        spec = cls(
            name=clean_name(sweep.get("name", "sweep"), "sweep.name"),
            model=sweep.get("model", "parallel_layout"),
            inputs=dict(_table(given, "inputs")),
            axes=_kept(_table(given, "axes")),
            zips=tuple(_kept(group) for group in _groups(given.get("zip", ()))),
            feasible=Feasible.read(_table(given, "feasible")),
            columns=read_columns(output.get("columns", "all")),
            rows=rows,
            max_points=read_max_points(sweep.get("max_points", MOST_POINTS)),
        )
        spec.check_names()
        return spec

    def check_names(self) -> None:
        """Refuse unknown inputs, an input given twice, and two that decide the same thing."""
        if self.model not in MODELS:
            raise unknown("sweep.model", self.model, MODELS)
        places: dict[str, str] = {}
        sections = [("inputs", self.inputs), ("axes", self.axes), *(("zip", z) for z in self.zips)]
        for section, entries in sections:
            for name in entries:
                if name not in VOCABULARY:
                    raise unknown(section, name, VOCABULARY)
                if name in places:
                    raise Mistake(
                        f"{section}.{name}", f"also given in [{places[name]}]", "one of them"
                    )
                places[name] = section
        for name, other in replacements():
            if name in places and other in places:
                problem = f"given together with {other}, which follows from it"
                raise Mistake(f"{places[name]}.{name}", problem, "one of them")

    def variant(
        self,
        inputs: Mapping[str, Any] | None = None,
        axes: Mapping[str, Any] | None = None,
        feasible: Mapping[str, Any] | None = None,
        **changes: Any,
    ) -> Spec:
        """A copy with inputs fixed, axes replaced, feasibility keys set or other fields changed.

        What is named takes the place of the same input wherever it stood, and of an input that it
        is given instead of (``dp`` takes the place of ``devices``).
        """
        inputs, axes = dict(inputs or {}), _kept(axes or {})
        gone = {*inputs, *axes}
        pairs = replacements()
        gone |= {b for a, b in pairs if a in gone} | {a for a, b in pairs if b in gone}
        gone -= {*inputs, *axes}

        def kept(entries: Mapping[str, Any]) -> dict[str, Any]:
            return {n: v for n, v in entries.items() if n not in gone and n not in inputs}

        zips = [{n: v for n, v in kept(z).items() if n not in axes} for z in self.zips]
        held = {n: v for n, v in kept(self.inputs).items() if n not in axes}
        rules = {**vars(self.feasible), **(feasible or {})}
        spec = replace(
            self,
            inputs={**held, **inputs},
            axes={**kept(self.axes), **axes},
            zips=tuple(z for z in zips if z),
            feasible=Feasible.read(rules),
            **changes,
        )
        spec.check_names()
        return spec

    @functools.cached_property
    def catalog(self) -> Catalog:
        """The bundled catalog and this spec's own rows."""
        return Catalog.with_rows(self.rows)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON, in the form of a spec file."""
        return {
            "sweep": {"name": self.name, "model": self.model},
            "inputs": {n: _plain(v) for n, v in self.inputs.items()},
            "axes": {n: _plain(v) for n, v in self.axes.items()},
            "zip": [{n: _plain(v) for n, v in z.items()} for z in self.zips],
            "feasible": {n: _plain(v) for n, v in vars(self.feasible).items()},
            "output": {"columns": "all" if self.columns is None else list(self.columns)},
            **{table: {n: _plain(r) for n, r in rows.items()} for table, rows in self.rows.items()},
        }


def _table(given: Mapping[str, Any], section: str) -> Mapping[str, Any]:
    found = given.get(section, {})
    if not isinstance(found, Mapping):
        raise Mistake(section, f"{shown(found)} given", f"a table, [{section}]")
    return found


def _kept(axes: Mapping[str, Any]) -> dict[str, Any]:
    """Axes as they are now: a list or an array may change after it was given."""
    return {
        name: tuple(given) if isinstance(given, list) else copy.copy(given)
        for name, given in axes.items()
    }


def _check_keys(section: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in given:
        if key not in known:
            raise unknown(section, key, known)


def _texts(field_name: str, given: object) -> tuple[str, ...]:
    values = (given,) if isinstance(given, str) else given
    if not isinstance(values, list | tuple) or not all(isinstance(v, str) for v in values):
        raise Mistake(field_name, f"{shown(given)} given", "text, or a list of texts")
    return tuple(values)


def _groups(given: object) -> list[Mapping[str, Any]]:
    groups = [given] if isinstance(given, Mapping) else given
    if not isinstance(groups, list | tuple) or not all(
        isinstance(g, Mapping) and g for g in groups
    ):
        raise Mistake("zip", f"{shown(given)} given", "[[zip]] tables of axes of equal length")
    return list(groups)


def read_columns(given: object) -> tuple[str, ...] | None:
    """The quantities wanted; None stands for all of them."""
    if isinstance(given, str):
        if given != "all":
            raise Mistake(
                "output.columns",
                f"{shown(given)} given",
                '"all" or a list of quantities',
                'columns = ["step_time", "n_devices"]',
            )
        return None
    columns = _texts("output.columns", given)
    if len(set(columns)) < len(columns) or not columns:
        problem = "a quantity is listed twice" if columns else "an empty list"
        raise Mistake("output.columns", problem, "each quantity once, or all", 'columns = "all"')
    return columns


def read_max_points(given: object) -> int:
    """The largest grid accepted, in points.

    Raises
    ------
    Mistake
        If it is no number from 1.
    """
    if isinstance(given, bool) or not isinstance(given, int | float) or not 1 <= given < math.inf:
        raise Mistake("sweep.max_points", f"{shown(given)} given", "a whole number from 1")
    return int(given)


_LONG = 1000


def _plain(value: Any) -> Any:
    """A given value as JSON holds it; long lists by their ends, length and hash."""
    if isinstance(value, Row):
        return value.name
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if hasattr(value, "magnitude") and hasattr(value, "units"):
        return {"magnitude": _plain(value.magnitude), "unit": str(value.units)}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list | tuple | range | np.ndarray):
        if isinstance(value, np.ndarray) and value.ndim == 0:
            return value.item()
        if len(value) > _LONG:
            ends = {"first": _plain(value[0]), "last": _plain(value[-1])}
            return {"values": len(value), **ends, "sha256": _digest(value)}
        return [_plain(v) for v in (value.tolist() if isinstance(value, np.ndarray) else value)]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(getattr(value, "name", value))


def _digest(values: Any) -> str:
    """Hash of a long list: its numbers or texts as they lie in memory, others as they read."""
    is_array = isinstance(values, range | np.ndarray)
    array = np.asarray(values if is_array else [_plain(value) for value in values])
    content = array.tobytes() if array.dtype != object else repr(array.tolist()).encode()
    return hashlib.sha256(content).hexdigest()


# --- where specs are found -----------------------------------------------------------------------


def bundled() -> dict[str, str]:
    """Names of the ready-made specs and what each is for: the first comment line of its file."""
    found = {}
    for file in sorted(resources.files(__package__).iterdir(), key=lambda f: f.name):
        if file.name.endswith(".toml"):
            first = file.read_text(encoding="utf-8").splitlines()[0]
            found[file.name.removesuffix(".toml")] = first.lstrip("# ")
    return found


def load(source: str | Path) -> Spec:
    """A spec from a bundled name or a path.

    Raises
    ------
    Mistake
        If there is neither, or the file is not a valid spec; the message names the file.
    """
    path = Path(source)
    if str(source) in bundled() and not path.suffix:
        text = resources.files(__package__).joinpath(f"{source}.toml").read_text(encoding="utf-8")
        return Spec.read(tomllib.loads(text))
    if not os.path.isfile(path):  # unlike Path.is_file, false for a name that no file can have
        raise unknown("spec", str(source), bundled(), "mlsysim-sweep list grids")
    return Spec.read(read_toml(path), path.parent)
