"""From a spec to arrays: axes, inputs on an open mesh, rules; everything checked at this door.

After it, the engine sees plain arrays in base units and names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np

from mlsysim_sweep import units
from mlsysim_sweep.catalog import FACTS, Catalog, Row, choice_rows, example
from mlsysim_sweep.catalog.objects import adopt
from mlsysim_sweep.constraints import Rule, parse
from mlsysim_sweep.constraints import names as names_in
from mlsysim_sweep.declare import Graph, Model, graph
from mlsysim_sweep.errors import Mistake, shown, unknown
from mlsysim_sweep.grids.axes import (
    Array,
    AxisValues,
    is_axis_form,
    make_labels,
    read_axis,
    read_value,
)
from mlsysim_sweep.grids.spec import DEVICE_RULES, INSTEAD_OF, MEMORY_RULES, Spec
from mlsysim_sweep.kernels import model as named_model
from mlsysim_sweep.vocabulary import CHOICES, PRECISIONS, VOCABULARY, Kind

_SUPPLIED_BY = {
    "peak_flops": 'accelerator = "H100"',
    "parameters": 'workload = "GPT3"',
    "counted_parameters": 'workload = "GPT3"',
    "device_memory": 'accelerator = "H100"',
    "devices_per_node": "devices_per_node = 8",
    "active_parameters": "active_parameters = 37e9",
    "dp": "dp = 16, or devices = 1024 from which it follows",
}
# Products of whole numbers that kernels form in int64.
_PRODUCTS = (("tp", "pp", "dp"), ("dp", "microbatch_tokens"), ("dp", "microbatch_size", "seq_len"))


@dataclass(frozen=True, eq=False)
class Field:
    """Values of one input on the axes it depends on, in the order of the grid's axes."""

    dims: tuple[str, ...]
    values: Array


@dataclass(frozen=True, eq=False)
class Axis:
    """One dimension of a grid, and the inputs that walk along it (several when zipped)."""

    name: str
    labels: Mapping[str, Array]

    @property
    def size(self) -> int:
        """Number of positions."""
        return len(self.labels[self.name])


@dataclass(frozen=True, eq=False)
class Grid:
    """A checked sweep in base units.

    ``fields`` holds every input that has a value, names of choices included. ``rules`` are in the
    order asked; ``columns`` are the quantities wanted of each survivor, axes excluded.
    """

    spec: Spec
    model: Model
    axes: tuple[Axis, ...]
    fields: Mapping[str, Field]
    rules: tuple[Rule, ...]
    columns: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each axis."""
        return tuple(axis.size for axis in self.axes)

    @property
    def dims(self) -> tuple[str, ...]:
        """Name of each axis."""
        return tuple(axis.name for axis in self.axes)

    @property
    def points(self) -> int:
        """Number of layouts, counted in whole numbers of any size."""
        return math.prod(self.shape)

    @property
    def graph(self) -> Graph:
        """The formulas that can be evaluated here."""
        return graph(self.model, frozenset(self.fields))

    @property
    def axis_columns(self) -> tuple[str, ...]:
        """Inputs that vary along axes: the first columns of every table."""
        return tuple(name for axis in self.axes for name in axis.labels)


def build(spec: Spec, formulas: Sequence[ModuleType | Callable[..., Any]] = ()) -> Grid:
    """Check every value of a spec and lay the inputs out on the grid's axes.

    Raises
    ------
    Mistake
        Naming the field, what was given, what is needed and a fix; before any large allocation.
    """
    model = named_model(spec.model)
    if formulas:
        model = model.extended(*formulas)
    spec, catalog = _adopt_objects(spec)
    axes = _axes(spec)
    given = _given(spec, axes)
    _check_products(given)
    resolver = _Resolver(catalog, tuple(axis.name for axis in axes), given)
    fields = resolver.resolve()
    found = graph(model, frozenset(fields))
    columns = _columns(spec, found)
    rules = _rules(spec, found, resolver)
    resolver.check_complete(found, columns, rules)
    _refuse_idle_axes(axes, fields, found, rules)
    return Grid(spec, model, axes, fields, rules, columns, tuple(resolver.rows.values()))


def _adopt_objects(spec: Spec) -> tuple[Spec, Catalog]:
    """Put catalog rows and mlsysim objects that stand for names into the catalog."""
    catalog = spec.catalog

    def names(entries: Mapping[str, Any]) -> dict[str, Any]:
        nonlocal catalog
        named = dict(entries)
        for table in ("accelerator", "workload", "link"):
            if table not in entries or isinstance(entries[table], str):
                continue
            values = entries[table]
            single = not is_axis_form(values)
            out = []
            for value in [values] if single else values:
                row = value if isinstance(value, str) else adopt(table, value)
                if isinstance(row, Row):
                    catalog = catalog.added(row)
                out.append(row.name if isinstance(row, Row) else row)
            named[table] = out[0] if single else out
        return named

    zips = tuple(names(z) for z in spec.zips)
    spec = replace(spec, inputs=names(spec.inputs), axes=names(spec.axes), zips=zips)
    return spec, catalog


def _axes(spec: Spec) -> tuple[Axis, ...]:
    """Axes in the order asked, zipped groups last; counted before any is made."""
    groups = [_read_group("axes", {n: given}) for n, given in spec.axes.items()]
    groups += [_read_group("zip", entries) for entries in spec.zips]
    _check_count(spec, groups)
    return tuple(Axis(group[0].name, make_labels(group)) for group in groups)


def _read_group(section: str, entries: Mapping[str, Any]) -> list[AxisValues]:
    try:
        group = [read_axis(name, given) for name, given in entries.items()]
    except Mistake as error:
        raise error if error.field.startswith(section) else error.within(section) from None
    lengths = {axis.name: axis.count for axis in group}
    if len(set(lengths.values())) > 1:
        raise Mistake("zip", f"axes of different lengths: {lengths}", "equally many values in each")
    return group


def _check_count(spec: Spec, groups: Sequence[Sequence[AxisValues]]) -> None:
    """Refuse a grid that nobody could evaluate, with the exact count."""
    points = math.prod(group[0].count for group in groups)
    if points <= spec.max_points:
        return
    longest = max(groups, key=lambda group: group[0].count)[0]
    years = points / _POINTS_PER_SECOND / (365.25 * 86400)
    columns = len(spec.columns) if spec.columns is not None else 20 + sum(map(len, groups))
    size = units.human(float(points) * 8 * columns, "byte")
    raise Mistake(
        "axes",
        f"{points:,} points ({' x '.join(f'{g[0].name} {g[0].count:,}' for g in groups)}), "
        f"{size} of results and about {years:,.2g} years of evaluation",
        f"at most {spec.max_points:,} points: cut {longest.name} ({longest.count:,} values) first, "
        f"or raise max_points in [sweep], or give --force",
    )


# Full evaluation on one core of a small machine; only to say how absurd a refused grid is.
_POINTS_PER_SECOND = 2e7


def _given(spec: Spec, axes: Iterable[Axis]) -> dict[str, Field]:
    given = {n: Field((), _input_value(n, value)) for n, value in spec.inputs.items()}
    for axis in axes:
        given |= {name: Field((axis.name,), labels) for name, labels in axis.labels.items()}
    replaced = {other for name, other in INSTEAD_OF.items() if name in given}
    replaced |= {INSTEAD_OF[n] for n in replaced if n in INSTEAD_OF}
    for name, entry in VOCABULARY.items():
        if entry.default is not None and name not in given and name not in replaced:
            given[name] = Field((), read_value(name, entry.default))
    return given


def _input_value(name: str, value: object) -> Array:
    try:
        if is_axis_form(value):
            raise Mistake(
                name, f"{shown(value)} given", "one value; several make an axis, in [axes]"
            )
        return read_value(name, value)
    except Mistake as error:
        raise error.within("inputs") from None


def _check_products(given: Mapping[str, Field]) -> None:
    """Refuse sizes whose product leaves int64, where NumPy would wrap without a word."""
    for names in _PRODUCTS:
        present = [name for name in names if name in given]
        largest = math.prod(int(given[name].values.max()) for name in present)
        if largest >= 2**63:
            raise Mistake(
                " x ".join(present),
                f"a product of {largest:,}, which exceeds 2^63 - 1",
                "sizes whose product is a 64-bit whole number",
            )


# --- choices -------------------------------------------------------------------------------------


class _Resolver:
    """Turns names of choices into the inputs that they stand for.

    An input that is given itself is never overridden.
    """

    def __init__(self, catalog: Catalog, dims: tuple[str, ...], given: dict[str, Field]) -> None:
        self.catalog = catalog
        self.dims = dims
        self.fields = dict(given)
        self.rows: dict[tuple[str, str], Row] = {}

    def resolve(self) -> dict[str, Field]:
        """Every input with a value, choices included."""
        for label in self._labels("precision"):
            if label not in PRECISIONS:
                raise unknown("precision", label, PRECISIONS)
        for table in ("accelerator", "workload", "link"):
            if table in self.fields:
                self._facts(table)
        if "accelerator" in self.fields and "peak_flops" not in self.fields:
            self._peaks()
        self._gradients()
        for choice in ("gradient_precision", "collective", "parameter_count"):
            self._choice(choice)
        return self.fields

    def known_names(self, choice: str) -> set[str]:
        """Every name that a choice can have."""
        if choice in FACTS:
            return set(self.catalog.table(choice))
        names = PRECISIONS if choice == "precision" else choice_rows(choice)
        return {*names, *self._labels(choice)}

    def _labels(self, name: str) -> list[str]:
        return [str(label) for label in self.fields[name].values.reshape(-1)]

    def _facts(self, table: str) -> None:
        """Each fact of the rows as a field on the axis of the names; NaN where one row lacks it."""
        names = self.fields[table]
        rows = [self.catalog.row(table, name) for name in self._labels(table)]
        self.rows |= {(table, row.name): row for row in rows}
        for fact in {fact: None for row in rows for fact in row.facts}:
            if fact in self.fields:
                continue
            values = np.array([row.facts.get(fact, np.nan) for row in rows], float)
            whole = VOCABULARY[fact].kind is Kind.WHOLE and np.isfinite(values).all()
            values = values.astype(np.int64) if whole else values
            self.fields[fact] = Field(names.dims, values.reshape(names.values.shape))

    def _combined(self, function: Callable[..., float], *names: str) -> Field:
        """A field on the axes of several choices, from a function of their names."""
        sources = [self.fields[name] for name in names]
        dims = tuple(d for d in self.dims if any(d in source.dims for source in sources))
        spread = [
            source.values.reshape(
                [source.values.shape[source.dims.index(d)] if d in source.dims else 1 for d in dims]
            )
            for source in sources
        ]
        return Field(dims, np.asarray(np.frompyfunc(function, len(names), 1)(*spread), float))

    def _peaks(self) -> None:
        precisions = sorted(
            {p for (t, _), row in self.rows.items() if t == "accelerator" for p in row.peaks}
        )
        for precision in self._labels("precision"):
            having = [row for (t, _), row in self.rows.items() if t == "accelerator"]
            if not any(precision in row.peaks for row in having):
                names = ", ".join(row.name for row in having)
                raise Mistake(
                    "precision",
                    f"{shown(precision)}: no peak for it on {names}",
                    f"one of {', '.join(precisions)}",
                )

        def peak(accelerator: str, precision: str) -> float:
            return self.rows["accelerator", accelerator].peaks.get(precision, np.nan)

        self.fields["peak_flops"] = self._combined(peak, "accelerator", "precision")

    def _choice(self, choice: str) -> None:
        """The inputs that the names of a choice stand for.

        A coefficient that is 0 for every name asked for is left out: it changes nothing, and its
        absence keeps formulas off axes that do not matter.
        """
        rows = choice_rows(choice)
        for label in self._labels(choice):
            if label.casefold() not in rows:
                raise unknown(choice, label, rows)
        for name in next(iter(rows.values())):
            found = self._combined(lambda label, n=name: rows[label.casefold()][n], choice)
            if found.values.any():
                self.fields.setdefault(name, found)

    def _gradients(self) -> None:
        """Gradient width, which a workload with a size of its own sets for 16-bit formats."""
        own = {
            name: row.remarks["model_size"] / row.facts["parameters"]
            for (_, name), row in self.rows.items()
            if "model_size" in row.remarks
        }
        if "gradient_bytes_per_param" not in self.fields and own:
            rows = choice_rows("gradient_precision")

            def width(label: str, workload: str) -> float:
                # The reference looks for these two as written: "FP16" is two bytes a parameter.
                if label in ("fp16", "bf16") and workload in own:
                    return float(own[workload])
                return float(rows[label.casefold()]["gradient_bytes_per_param"])

            self._choice("gradient_precision")
            found = self._combined(width, "gradient_precision", "workload")
            self.fields["gradient_bytes_per_param"] = found

    def check_complete(self, found: Graph, columns: Iterable[str], rules: Iterable[Rule]) -> None:
        """Refuse a catalog row that lacks a fact which a column or a rule needs."""
        lacking = {
            name
            for name, field in self.fields.items()
            if name != "peak_flops"
            and field.values.dtype.kind == "f"
            and np.isnan(field.values).any()
        }
        if not lacking:
            return
        wanted = dict.fromkeys(columns, "output.columns")
        wanted |= {name: f"the rule {rule.name}" for rule in rules for name in rule.names}
        for name, needed_by in wanted.items():
            for leaf in sorted(found.upstream([name]) & lacking):
                raise self._lacking(leaf, needed_by)

    def _lacking(self, fact: str, needed_by: str) -> Mistake:
        table, name = next(
            key for key, row in self.rows.items() if fact not in row.facts and _gives(key[0], fact)
        )
        fix = "tp_within_node = false" if fact == "devices_per_node" else ""
        return Mistake(
            f"{table}.{name}.{fact}",
            f"the catalog has no value, and {needed_by} needs it",
            f"{fact} in [inputs], or in a row of your own [{table}.NAME]",
            fix,
        )


def _gives(table: str, fact: str) -> bool:
    return fact in FACTS[table]


def _refuse_idle_axes(
    axes: Sequence[Axis], fields: Mapping[str, Field], found: Graph, rules: Iterable[Rule]
) -> None:
    """Refuse an axis on which nothing depends: it would repeat every row."""
    mentioned = {name for rule in rules for name in rule.names}
    used = found.upstream([*(n for n in found.model.outputs if found.has(n)), *mentioned])
    varied = {dim for name in used & set(fields) for dim in fields[name].dims}
    for axis in axes:
        if axis.size > 1 and axis.name not in varied:
            raise Mistake(
                f"axes.{axis.name}",
                "changes nothing here: what it stands for is given itself, or no quantity needs it",
                "an axis that some quantity depends on",
            )


# --- columns and rules ---------------------------------------------------------------------------


def _columns(spec: Spec, found: Graph) -> tuple[str, ...]:
    """Quantities wanted of each survivor; all that exist, or those asked for."""
    outputs = found.model.outputs
    identities = found.model.identities
    derived = tuple(n for n in found.formulas if n in identities and identities[n].whole)
    if spec.columns is None:
        for name in outputs:
            _require(name, found, optional=True)
        return derived + tuple(name for name in outputs if found.has(name))
    for name in spec.columns:
        if name not in outputs and name not in VOCABULARY:
            raise unknown(
                "output.columns", name, [*outputs, *VOCABULARY], "mlsysim-sweep list quantities"
            )
        _require(name, found, optional=False)
    asked = (*derived, *(name for name in spec.columns if name not in derived))
    axes = {*spec.axes, *(name for group in spec.zips for name in group)}
    return tuple(name for name in asked if name not in axes)


def _require(name: str, found: Graph, *, optional: bool) -> None:
    """Refuse a quantity whose inputs are missing; optional inputs may be, if ``optional``."""
    for leaf in found.missing(name):
        if optional and VOCABULARY[leaf].optional:
            continue
        fix = _SUPPLIED_BY.get(leaf) or example(leaf)
        supplier = fix.split(" ")[0]
        asked = leaf if found.has(supplier) else supplier
        why = "missing" if name == leaf else f"missing, and {name} depends on it"
        needed = f"a value in [inputs] or [axes]: {VOCABULARY[asked].meaning.lower()}"
        raise Mistake(asked, why, needed, fix)


def _rules(spec: Spec, found: Graph, resolver: _Resolver) -> tuple[Rule, ...]:
    """Every rule of a sweep, the implied ones first, split into parts that must all hold."""
    unit_of = _unit_of(found)
    labels = {choice: resolver.known_names(choice) for choice in CHOICES if choice in found.given}
    rules: list[Rule] = []
    for name, place, text in _rule_texts(spec, found, resolver.fields):
        try:
            for mentioned in sorted(names_in(parse(text))):
                if mentioned in VOCABULARY or mentioned in found.model.outputs:
                    _require(mentioned, found, optional=False)
            rules += Rule.read(name, text, unit_of, labels).split()
        except Mistake as error:
            raise error.within(place) if not error.field else _in_rule(error, place) from None
    return tuple(rules)


def _in_rule(error: Mistake, place: str) -> Mistake:
    return Mistake(error.field, error.problem, f"{error.needed} (for {place})", error.fix)


def _unit_of(found: Graph) -> dict[str, str | None]:
    available = [*found.model.outputs, *found.formulas, *found.given]
    return {
        name: None if name in CHOICES else found.model.describe(name)[0]
        for name in available
        if found.has(name) or name in found.model.outputs
    }


def _rule_texts(
    spec: Spec, found: Graph, fields: Mapping[str, Field]
) -> Iterable[tuple[str, str, str]]:
    """Name, place in the spec and text of each rule."""
    feasible = spec.feasible
    for name in found.formulas:
        if name in found.model.identities and name in ("dp", "microbatches"):
            yield f"whole {name}", name, f"{name} >= 1"
    if "peak_flops" in fields and np.isnan(fields["peak_flops"].values).any():
        yield "precision on accelerator", "precision", "peak_flops > 0 FLOP/s"
    if feasible.tp_within_node and {"accelerator", "devices_per_node"} & found.given:
        yield "tp_within_node", "feasible.tp_within_node", "tp <= devices_per_node"
    for key, value in feasible.devices.items():
        text = DEVICE_RULES[key].format(_listed(value) if key == "one_of" else value)
        yield f"devices {key}", f"feasible.devices.{key}", text
    state = MEMORY_RULES[feasible.memory]
    if state is not None:
        share = "" if feasible.headroom == 1 else f"{feasible.headroom!r} * "
        yield f"memory {feasible.memory}", "feasible.memory", f"{state} <= {share}device_memory"
    if {"window_resolution", "finite_ring"} <= found.given and found.has("step_time"):
        yield "step takes time", "window_resolution", "step_time > 0 s"
    for i, text in enumerate(feasible.where):
        yield "", f"feasible.where[{i}]", text


def _listed(value: object) -> str:
    return str(list(value) if isinstance(value, list | tuple) else [value])


# --- what people should know ---------------------------------------------------------------------


def notes(grid: Grid) -> tuple[str, ...]:
    """What a reader of the results must know: what the model leaves out, and doubtful inputs."""
    found = list(grid.model.leaves_out)
    if "step_flops" in grid.graph.formulas and "active_share" not in grid.fields:
        found += [
            f"step_flops counts all {row.facts['parameters']:.3g} parameters of {row.name}; a "
            f"token passes through {row.facts['active_parameters']:.3g}: parameter_count = "
            '"active" counts those.'
            for row in grid.rows
            if row.table == "workload" and row.facts["active_parameters"] < row.facts["parameters"]
        ]
    if {"precision", "peak_flops"} <= grid.fields.keys() and _is_silent(grid, "precision"):
        found.append('precision is not given: "fp8", as in the reference.')
    dp = grid.fields.get("dp")
    if "finite_ring" not in grid.fields and dp is not None and dp.values.min() == 1:
        found.append(
            'allreduce_time is its bound for many replicas, also at dp = 1: collective = "ring" '
            "prices the exact ring."
        )
    if _rounds_to_zero(grid):
        found.append(
            "window_resolution rounds compute_time to 0 on the largest layouts: their efficiency "
            "is 0 and their step is all communication."
        )
    return tuple(found)


def _is_silent(grid: Grid, name: str) -> bool:
    """Whether a default decides an input that nobody gave, and that supplies something."""
    spec = grid.spec
    given = [spec.inputs, spec.axes, *spec.zips]
    return not any(name in entries or "peak_flops" in entries for entries in given)


def resolved_inputs(grid: Grid) -> dict[str, Any]:
    """Every input that is the same at all points and decides a column or a rule, in base units."""
    wanted = {*grid.columns, *(name for rule in grid.rules for name in rule.names)}
    used = grid.graph.upstream(wanted)
    names = [n for n in grid.fields if n in used or n in CHOICES]
    return {n: grid.fields[n].values.item() for n in names if not grid.fields[n].dims}


def _rounds_to_zero(grid: Grid) -> bool:
    """Whether the shortest compute time of the grid may round to nothing."""
    fields = grid.fields
    if not {"window_resolution", "peak_flops"} <= fields.keys() or not grid.graph.has(
        "compute_time"
    ):
        return False
    least = math.prod(
        float(np.nanmin(fields[n].values)) for n in ("flops_per_param_token", "batch_tokens")
    ) * min(
        float(np.nanmin(fields[n].values))
        for n in ("parameters", "counted_parameters", "active_parameters")
        if n in fields
    )
    sizes = ("devices",) if "devices" in fields else ("tp", "pp", "dp")
    most = math.prod(
        float(np.nanmax(fields[n].values)) for n in (*sizes, "peak_flops", "local_efficiency")
    )
    return least / most < float(np.nanmax(fields["window_resolution"].values)) / 2
