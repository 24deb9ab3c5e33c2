"""What if: where the best layout changes, how it fares when inputs are uncertain, what a target
needs, and what moved between two sweeps.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mlsysim_sweep import answers, sources, store
from mlsysim_sweep.answers import Names
from mlsysim_sweep.catalog import read_fact
from mlsysim_sweep.engine.evaluate import feasible
from mlsysim_sweep.engine.mesh import Array
from mlsysim_sweep.engine.plan import Plan
from mlsysim_sweep.errors import Mistake, shown, unknown
from mlsysim_sweep.grids.grid import Field
from mlsysim_sweep.sweep import Sweep
from mlsysim_sweep.vocabulary import VOCABULARY, Kind

if TYPE_CHECKING:
    import pandas

_PARTS = 32
"""Values between two known ones that are tried together when a crossover is narrowed down."""
_ROUNDS = 8
"""Narrowings: 32^8 parts of the distance between two values of an axis are below its rounding."""


def _list(names: Names) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _objective(minimize: str | None, maximize: str | None) -> tuple[str, bool]:
    """The one quantity to judge by, and whether the largest is the best."""
    if (minimize is None) == (maximize is None):
        given = "none given" if minimize is None else "two given"
        raise Mistake("minimize", given, "one of minimize and maximize", '"step_time"')
    return (minimize, False) if minimize is not None else (str(maximize), True)


def _stated(name: str, value: Any) -> Any:
    """A value in base units as a sweep takes it."""
    value = value.item() if isinstance(value, np.generic) else value
    unit = VOCABULARY[name].unit
    return value if isinstance(value, str) or unit == "1" else f"{value!r} {unit}"


def _layout(row: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: _stated(name, row[name]) for name in names}


_AROUND = re.compile(r"^(?:nominal |worst )|(?: before| after| a| b| at worst)$")


def _described(frame: pandas.DataFrame, like: pandas.DataFrame) -> pandas.DataFrame:
    """A frame with the units of another's columns, and of inputs, whatever stands around them."""
    known = like.attrs.get(store.METADATA_KEY, {})
    found = {}
    for column in frame.columns:
        name = _AROUND.sub("", column)
        if name in VOCABULARY:
            found[column] = {"unit": VOCABULARY[name].unit}
        if name in known:
            found[column] = known[name]
    frame.attrs[store.METADATA_KEY] = found
    return frame


# --- regimes -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Regimes:
    """The best layout for each value of one or two axes, and where it changes.

    ``crossovers`` has a row for each change between neighbours on the first axis: the value at
    which the layout of ``before`` loses to that of ``after``. A third layout may win in between.
    """

    best: pandas.DataFrame
    crossovers: pandas.DataFrame


def regimes(
    sweep: Sweep, over: Names, *, minimize: str | None = None, maximize: str | None = None
) -> Regimes:
    """The best layout as a function of one or two axes of a sweep, with the crossover values.

    Raises
    ------
    Mistake
        If ``over`` is no axis of the sweep, or the objective no column of numbers.

    >>> sweep = Sweep.load("gpt3-1k-h100").variant(
    ...     inputs={"accelerator": "H100", "microbatches": 32}, feasible={"where": []},
    ...     axes={"link_bandwidth": ["10 Gbps", "50 Gbps", "400 Gbps"]})
    >>> found = regimes(sweep, "link_bandwidth", minimize="step_time")
    >>> found.best[["link_bandwidth", "tp", "pp", "dp", "step_time"]].round(3)
       link_bandwidth  tp  pp  dp  step_time
    0    1.250000e+09   8  32   4      4.627
    1    6.250000e+09   8   8  16      2.963
    2    5.000000e+10   8   2  64      2.356
    >>> found.crossovers[["link_bandwidth", "pp before", "pp after"]]
       link_bandwidth  pp before  pp after
    0    2.827143e+09         32         8
    1    2.110933e+10          8         2
    """
    names, (by, largest) = _list(over), _objective(minimize, maximize)
    columns = sweep.grid.axis_columns
    for name in names:
        if name not in columns:
            raise unknown("over", name, columns)
    if not 1 <= len(names) <= 2:
        raise Mistake("over", f"{len(names)} axes given", "one or two")
    best = answers.top(sweep, 1, by=by, per=names, largest=largest)
    best = best.sort_values([*names[1:], names[0]], kind="stable", ignore_index=True)
    layout = [name for name in columns if name not in names]
    best = best[[*names, *layout, *(c for c in best.columns if c not in columns)]]
    crossovers = _crossovers(sweep, best, names, layout, by, largest)
    return Regimes(_described(best, best), _described(crossovers, best))


def _crossovers(
    sweep: Sweep,
    best: pandas.DataFrame,
    names: Sequence[str],
    layout: Sequence[str],
    by: str,
    largest: bool,
) -> pandas.DataFrame:
    import pandas

    axis, others = names[0], names[1:]
    found = []
    for here, after in itertools.pairwise(best.to_dict("records")):
        is_same_line = all(here[name] == after[name] for name in others)
        if not is_same_line or all(here[name] == after[name] for name in layout):
            continue
        value = after[axis]
        if VOCABULARY[axis].kind is Kind.REAL:
            fixed = _layout(here, others)
            pair = [sweep.variant(inputs={**fixed, **_layout(r, layout)}) for r in (here, after)]
            value = _narrowed(pair, axis, here[axis], after[axis], by, largest)
        found.append(
            {axis: value, **{name: here[name] for name in others}}
            | {f"{name} before": here[name] for name in layout}
            | {f"{name} after": after[name] for name in layout}
        )
    heads = [axis, *others, *(f"{name} {when}" for when in ("before", "after") for name in layout)]
    return pandas.DataFrame(found, columns=heads)


def _narrowed(
    pair: Sequence[Sweep], axis: str, low: float, high: float, by: str, largest: bool
) -> float:
    """The smallest value of an axis found at which the second of two layouts wins."""
    for _ in range(_ROUNDS):
        values = np.unique(np.linspace(low, high, _PARTS + 1))
        if len(values) < 3:
            break
        (first, can_first), (second, can_second) = (
            _along(one, axis, values[1:-1], by) for one in pair
        )
        better = second > first if largest else second < first
        wins = np.append(can_second & (~can_first | better), True)
        at = int(np.argmax(wins)) + 1
        low, high = float(values[at - 1]), float(values[at])
    return high


def _along(layout: Sweep, axis: str, values: Array, by: str) -> tuple[Array, Array]:
    """A quantity of one layout along an axis, and where the layout is feasible."""
    stated = [_stated(axis, value) for value in values]
    found = layout.variant(axes={axis: stated}, columns=[by]).dataset()
    return tuple(
        np.broadcast_to(found[name].values.reshape(-1), len(values))  # type: ignore[return-value]
        for name in (by, "feasible")
    )


# --- robustness ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Robust:
    """How the best layouts fare over all combinations of uncertain inputs.

    ``layouts`` has a row for each layout, best first in the nominal case: its nominal value, its
    worst, the share of cases in which it is feasible, and its regret: by what share it is worse
    than the best in hindsight, on average and at most, with the case of the latter. A case in which
    the layout is not feasible and another is counts as infinite regret. ``cases`` has the best
    layout of each case. ``neighbours`` has, for each layout, those one step away on one axis.
    """

    layouts: pandas.DataFrame
    cases: pandas.DataFrame
    neighbours: pandas.DataFrame


def robust(
    sweep: Sweep,
    uncertain: Mapping[str, Any],
    *,
    minimize: str | None = None,
    maximize: str | None = None,
    k: int = 5,
) -> Robust:
    """How the ``k`` best layouts fare when inputs vary: worst case, regret, neighbours.

    ``uncertain`` gives the inputs that the sweep holds fixed and may come out otherwise, as axes:
    ``{"local_efficiency": [0.3, 0.4, 0.5], "link_bandwidth": ["200 Gbps", "400 Gbps"]}``.

    Raises
    ------
    Mistake
        If an uncertain input is an axis of the sweep, or nothing is uncertain.
    """
    import pandas

    by, largest = _objective(minimize, maximize)
    names = list(uncertain)
    layout = list(sweep.grid.axis_columns)
    for name in names:
        if name in layout:
            raise Mistake("uncertain", f"{name} is an axis of the sweep", "inputs held fixed")
    if not names:
        raise Mistake("uncertain", "nothing given", "inputs and their values")
    best = answers.top(sweep, k, by=by, largest=largest)
    wide = sweep.variant(axes=uncertain)
    cases = answers.top(wide, 1, by=by, per=names, largest=largest)[[*names, *layout, by]]
    grid = _cases(wide, names)
    hindsight = _of_cases(grid, cases, by)
    rows, steps = [], []
    for row in best.to_dict("records"):
        chosen = sweep.variant(inputs=_layout(row, layout), axes=uncertain, columns=[by])
        values, can = _in_cases(chosen, names, by)
        rows.append(
            {name: row[name] for name in layout}
            | {f"nominal {by}": row[by]}
            | _fared(values, can, hindsight, grid, by, largest)
        )
        steps += _steps(sweep, row, layout, by)
    frames = (pandas.DataFrame(rows), cases, pandas.DataFrame(steps))
    return Robust(*(_described(frame, best) for frame in frames))


def _cases(wide: Sweep, names: Sequence[str]) -> dict[str, Array]:
    """Values of the uncertain inputs in each case, in the order of their axes."""
    axes = {n: axis.labels[n] for axis in wide.grid.axes for n in axis.labels if n in names}
    mesh = np.meshgrid(*(axes[name] for name in names), indexing="ij")
    return {name: values.reshape(-1) for name, values in zip(names, mesh, strict=True)}


def _of_cases(grid: Mapping[str, Array], found: pandas.DataFrame, by: str) -> Array:
    """The best value of each case; NaN where nothing is feasible."""
    names = list(grid)
    known = {tuple(row): value for *row, value in found[[*names, by]].itertuples(index=False)}
    return np.array([known.get(case, np.nan) for case in zip(*grid.values(), strict=True)], float)


def _in_cases(chosen: Sweep, names: Sequence[str], by: str) -> tuple[Array, Array]:
    import xarray

    found = xarray.broadcast(*(chosen.dataset()[n] for n in (by, "feasible")))
    sizes = chosen.sizes
    return tuple(  # type: ignore[return-value]
        values.expand_dims({n: sizes[n] for n in names if n not in values.dims})
        .transpose(*names)
        .values.reshape(-1)
        for values in found
    )


def _fared(
    values: Array, can: Array, hindsight: Array, grid: Mapping[str, Array], by: str, largest: bool
) -> dict[str, Any]:
    there = ~np.isnan(hindsight)
    with np.errstate(all="ignore"):
        ratio = hindsight / values if largest else values / hindsight
    regret = np.where(there, np.where(can, ratio - 1, np.inf), 0.0)
    worst = int(np.argmax(regret))
    good = values[can]
    least = (np.min if largest else np.max)(good) if len(good) else np.nan
    return {
        f"worst {by}": float(least),
        "feasible_share": float(np.mean(can)),
        "mean_regret": float(np.mean(regret)),
        "max_regret": float(regret[worst]),
        **{f"{name} at worst": column[worst] for name, column in grid.items()},
    }


def _steps(
    sweep: Sweep, row: Mapping[str, Any], layout: Sequence[str], by: str
) -> list[dict[str, Any]]:
    """The layouts one step away from one of them, on each axis in both directions."""
    found = []
    for axis in sweep.grid.axes:
        labels = axis.labels[axis.name].tolist()
        at = labels.index(row[axis.name])
        for place in (at - 1, at + 1):
            if 0 <= place < axis.size:
                moved = {name: values[place] for name, values in axis.labels.items()}
                there = sweep.point(**_layout({**row, **moved}, layout))
                found.append(
                    {name: row[name] for name in layout}
                    | {"step": axis.name, "to": labels[place], by: there.quantities[by]}
                    | {"ratio": there.quantities[by] / row[by], "feasible": there.feasible}
                )
    return found


# --- inversion -----------------------------------------------------------------------------------


def invert(sweep: Sweep, name: str, where: Names, between: tuple[Any, Any]) -> pandas.DataFrame:
    """The smallest value of an input at which each layout meets a target and all other rules.

    The input is looked for between two values, over the whole grid at once: it need not be the same
    for two layouts. Layouts that meet the target nowhere between are left out. The rows are those
    of the sweep at the values found, with the input as a column, smallest first.

    A rule that holds, fails and holds again as the input grows is followed to its first stretch
    wider than a thirty-second of the way.

    Raises
    ------
    Mistake
        If the input is an axis of the sweep or takes no fractions, or no rule depends on it.

    >>> sweep = Sweep.load("gpt3-1k-h100").variant(inputs={"accelerator": "H100"})
    >>> need = invert(sweep, "link_bandwidth", "step_time < 2.5 s", ("10 Gbps", "10 Tbps"))
    >>> need[["tp", "pp", "dp", "microbatches", "link_bandwidth", "step_time"]].head(2).round(3)
       tp  pp  dp  microbatches  link_bandwidth  step_time
    0   8   8  16            64    1.361926e+10        2.5
    1   8   4  32            64    1.655659e+10        2.5
    """
    if name in sweep.grid.axis_columns:
        raise Mistake(name, "an axis of the sweep", "an input held fixed; of an axis, see top()")
    if name not in VOCABULARY or VOCABULARY[name].kind is not Kind.REAL:
        known = [n for n, entry in VOCABULARY.items() if entry.kind is Kind.REAL]
        raise unknown("input", name, known)
    low, high = (read_fact(f"between[{i}]", name, value) for i, value in enumerate(between))
    if not low < high:
        raise Mistake("between", f"{shown(list(between))} given", "a smaller and a larger value")
    rules = [*sweep.spec["feasible"].get("where", []), *_list(where)]
    asked = sweep.variant(inputs={name: _stated(name, low)}, feasible={"where": rules})
    plan = Plan(asked.grid)
    if not any(name in rule.names or name in _upstream(plan, rule.names) for rule in plan.rules):
        raise Mistake(
            name, "no rule depends on it", "a target that does", 'where="step_time < 2 s"'
        )
    values = _smallest(plan, name, low, high)
    ids = np.flatnonzero(~np.isnan(values.reshape(-1)))
    ids = ids[np.argsort(values.reshape(-1)[ids], kind="stable")]
    frame = store.to_pandas(store.rows_at(_given(plan, name, values), ids))
    frame.insert(len(asked.grid.axis_columns), name, values.reshape(-1)[ids])
    unit, description = VOCABULARY[name].unit, VOCABULARY[name].meaning
    described = frame.attrs.setdefault(store.METADATA_KEY, {})
    described[name] = {"unit": unit, "description": description, "source": "inverted"}
    return frame


def _upstream(plan: Plan, names: Iterable[str]) -> frozenset[str]:
    return frozenset(plan.graph.upstream([n for n in names if n in plan.graph.formulas]))


def _given(plan: Plan, name: str, values: Array) -> Plan:
    """The same plan with a value of its own of an input at every point of the grid."""
    fields = {**plan.grid.fields, name: Field(plan.grid.dims, values)}
    return replace(plan, grid=replace(plan.grid, fields=fields))


def _meets(plan: Plan, name: str, values: Array) -> Array:
    """Where every rule holds with those values of an input, on the whole grid."""
    there = _given(plan, name, values)
    holds = feasible(there)
    dims = there.rule_dims(there.rules)
    return np.broadcast_to(holds.reshape(there.corner(dims)), plan.grid.shape)


def _smallest(plan: Plan, name: str, low: float, high: float) -> Array:
    """The smallest value that meets all rules at each point; NaN where none does."""
    geometric = low > 0
    space = np.geomspace if geometric else np.linspace
    shape = plan.grid.shape
    below, found = np.full(shape, low), np.full(shape, np.nan)
    for i, value in enumerate(space(low, high, _PARTS + 1)):
        new = np.isnan(found) & _meets(plan, name, np.full(shape, value))
        found[new] = value
        still = np.isnan(found)
        below[still] = value
        if i == 0:
            below[new] = value
    there = ~np.isnan(found)
    for _ in range(60):
        middle = np.sqrt(below) * np.sqrt(found) if geometric else (below + found) / 2
        meets = _meets(plan, name, np.where(there, middle, low))
        found = np.where(there & meets, middle, found)
        below = np.where(there & ~meets, middle, below)
    return found


# --- difference ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    """What moved between two sweeps.

    ``rows`` has the layouts of both, the values of each as ``name a`` and ``name b``, and their
    ratio ``b / a``. ``columns`` has a row for each quantity: how many layouts moved, and the
    smallest, middle and largest ratio. ``only_a`` and ``only_b`` count the layouts of one alone.
    ``winners`` has the best layout of each, for each value of ``per``, and whether it changed.
    """

    rows: pandas.DataFrame
    columns: pandas.DataFrame
    winners: pandas.DataFrame
    only_a: int
    only_b: int


def diff(a: Any, b: Any, *, by: str = "step_time", per: Names = ()) -> Difference:
    """Two sweeps, or the rows of two, layout by layout: two fabrics, two versions of a catalog.

    Layouts are aligned by the inputs that both have as columns. ``by`` is what the winners are
    judged by, smallest first.

    Raises
    ------
    Mistake
        If the two have no input in common, or one has two rows for one layout.
    """
    frames = [_rows(x) for x in (a, b)]
    keys = [n for n in frames[0].columns if n in frames[1].columns and n in VOCABULARY]
    if not keys:
        raise Mistake("b", "has no input in common with a", "rows of the same layouts")
    frames = [_keyed(name, frame, keys) for name, frame in zip("ab", frames, strict=True)]
    values = [
        n
        for n in frames[0].columns
        if n in frames[1].columns and n not in keys and frames[0][n].dtype.kind in "iuf"
    ]
    both = frames[0][[*keys, *values]].merge(
        frames[1][[*keys, *values]], on=keys, how="inner", suffixes=(" a", " b"), validate="1:1"
    )
    for name in values:
        with np.errstate(all="ignore"):
            both[f"{name} ratio"] = both[f"{name} b"] / both[f"{name} a"]
    counts = [len(frame) - len(both) for frame in frames]
    winners = _described(_winners(frames, by, _list(per), keys), frames[0])
    return Difference(
        _described(both, frames[0]), _moved(both, values), winners, counts[0], counts[1]
    )


def _rows(x: Any) -> pandas.DataFrame:
    source = sources.opened(x)
    ids = [batch.ids for batch in source.batches([])]
    return store.to_pandas(source.take(np.concatenate([np.empty(0, np.int64), *ids])))


def _keyed(name: str, frame: pandas.DataFrame, keys: Sequence[str]) -> pandas.DataFrame:
    text = {key: str for key in keys if VOCABULARY[key].kind is Kind.CHOICE}
    frame = frame.astype(text)
    if frame.duplicated(list(keys)).any():
        raise Mistake(name, f"has two rows for one combination of {', '.join(keys)}", "one each")
    return frame


def _moved(both: pandas.DataFrame, values: Sequence[str]) -> pandas.DataFrame:
    import pandas

    found = []
    for name in values:
        before, after = both[f"{name} a"].to_numpy(), both[f"{name} b"].to_numpy()
        moved = ~((before == after) | ((before != before) & (after != after)))
        ratios = both[f"{name} ratio"].to_numpy()[moved]
        ratios = ratios[~np.isnan(ratios)]
        middle = [pick(ratios) if len(ratios) else math.nan for pick in (np.min, np.median, np.max)]
        found.append([name, int(moved.sum()), *middle])
    heads = ["quantity", "moved", "least ratio", "median ratio", "largest ratio"]
    return pandas.DataFrame(found, columns=heads)


def _winners(
    frames: Sequence[pandas.DataFrame], by: str, per: Sequence[str], keys: Sequence[str]
) -> pandas.DataFrame:
    best = [answers.top(frame, 1, by=by, per=per)[[*keys, by]] for frame in frames]
    others = [key for key in keys if key not in per]
    if per:
        found = best[0].merge(best[1], on=list(per), how="outer", suffixes=(" a", " b"))
    else:
        found = best[0].merge(best[1], how="cross", suffixes=(" a", " b"))
    found["changed"] = False
    for name in others:
        found["changed"] |= found[f"{name} a"].astype(object) != found[f"{name} b"].astype(object)
    return found
