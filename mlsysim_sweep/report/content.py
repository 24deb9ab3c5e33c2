"""What a report says, gathered from a sweep or its rows in bounded memory."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mlsysim_sweep import answers, sources, store, tables, units
from mlsysim_sweep.constraints import Funnel, miss_text
from mlsysim_sweep.errors import Mistake, NothingFeasible, OutputError
from mlsysim_sweep.sources import Batch, Source
from mlsysim_sweep.vocabulary import CHOICES, VOCABULARY

if TYPE_CHECKING:
    import pandas

Array = np.ndarray[Any, Any]

FRONT_ROWS = 400
"""Rows of the front's table; a longer front is thinned until it has no more."""
BINS = (96, 64)
SAMPLE_ROWS = 600
HEAT_VALUES = 40
_EPSILONS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 3.0)
_OBJECTIVES = ("step_time", "n_devices")
_TELLING = ("n_devices", "step_time", "efficiency", "bubble", "zero1_state_per_device")


@dataclass(frozen=True)
class Scale:
    """How the values of a column are laid out: its ends, and whether by their logarithm."""

    name: str
    unit: str
    low: float
    high: float
    log: bool

    def place(self, values: Array) -> Array:
        """Where values lie between the ends, from 0 to 1."""
        ends = np.array([self.low, self.high], float)
        if self.log:
            values, ends = np.log(values), np.log(ends)
        found: Array = (values - ends[0]) / ((ends[1] - ends[0]) or 1.0)
        return found

    def as_dict(self) -> dict[str, Any]:
        """In plain values, with a few ticks as people read them."""
        ticks = _ticks(self.low, self.high, self.log)
        return {
            "name": self.name,
            "ticks": [float(at) for at in self.place(np.array(ticks))],
            "labels": [_label(tick, self.unit) for tick in ticks],
            "ends": [_label(end, self.unit) for end in (self.low, self.high)],
        }


def _ticks(low: float, high: float, log: bool) -> list[float]:
    """Round values between two ends, four to ten of them where there is room."""
    if not high > low:
        return [low]
    if log:
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for steps in ((1,), (1, 3), (1, 2, 5)):
            found = [m * 10.0**d for d in decades for m in steps if low <= m * 10.0**d <= high]
            if len(found) >= 4:
                return found[:: len(found) // 8 + 1]
        return found or [low, high]
    size = 10.0 ** math.floor(math.log10((high - low) / 4))
    step = next(m * size for m in (10, 5, 2, 1) if (high - low) / (m * size) >= 3 or m == 1)
    first = math.ceil(low / step)
    return [step * k for k in range(first, math.floor(high / step) + 1)]


def _label(value: float, unit: str) -> str:
    if unit in ("", "1") and (value == 0 or 1 <= abs(value) < 1e9):
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    return units.human(value, unit or "1", 3)


@dataclass(frozen=True)
class Content:
    """All that a page shows; the pictures in plain values."""

    title: str
    rows: int
    question: tuple[tuple[str, str], ...]
    rules: tuple[str, ...]
    notes: tuple[str, ...]
    funnel: tuple[tuple[str, str, str, str], ...]
    objectives: tuple[tuple[str, str], ...]
    front: pandas.DataFrame
    front_columns: tuple[str, ...]
    front_size: int
    thinned: float | None
    columns: Mapping[str, Mapping[str, str]]
    facts: tuple[tuple[str, str], ...]
    version: str
    pictures: Mapping[str, Any]


def gather(
    x: Any, minimize: Sequence[str] = (), maximize: Sequence[str] = (), by: str | None = None
) -> Content:
    """What there is to say about a sweep, or about rows that one wrote.

    Without objectives, step time and the number of devices are minimised. ``by`` colours the
    pictures and has a front of its own for each value; by default the accelerator.

    Raises
    ------
    Mistake
        If there is no feasible row, or a name is no column.
    """
    source = sources.opened(x)
    if not minimize and not maximize:
        minimize = [name for name in _OBJECTIVES if name in source.columns]
        if not minimize:
            raise Mistake("minimize", "no objective given", "a column of numbers")
    color = by or next((n for n in ("accelerator", *CHOICES) if n in source.columns), None)
    front, size, thinned = _front(x, minimize, maximize, color)
    if not len(front):
        raise NothingFeasible("report", "no feasible row", "looser rules; `explain` says which")
    document, funnel = _document(x)
    objectives = [*((n, "least") for n in minimize), *((n, "most") for n in maximize)]
    shown = _shown_columns(front, [n for n, _ in objectives], color)
    scales, count = _scales(source, _numeric(front, shown), tables.units_of(front))
    pictures = _pictures(source, front, objectives, scales, color, shown, count)
    return Content(
        title=str(document.get("spec", {}).get("sweep", {}).get("name", "") or _name(x)),
        rows=count,
        question=tuple(_question(document)),
        rules=tuple(row["text"] for row in (funnel or {}).get("rules", [])),
        notes=tuple(document.get("notes", ())),
        funnel=tuple(_funnel(funnel)),
        objectives=tuple(objectives),
        front=front,
        front_columns=tuple(shown),
        front_size=size,
        thinned=thinned,
        columns={**document.get("columns", {})},
        facts=tuple(_facts(document)),
        version=str(document.get("version", "")),
        pictures=pictures,
    )


def _name(x: Any) -> str:
    return os.path.basename(os.fspath(x)) if isinstance(x, str | os.PathLike) else "rows"


def _front(
    x: Any, minimize: Sequence[str], maximize: Sequence[str], color: str | None
) -> tuple[pandas.DataFrame, int, float | None]:
    """The front, thinned to what a person reads; its size before; and by how much it was."""
    find = functools.partial(
        answers.pareto_front, minimize=minimize, maximize=maximize, by=[color] if color else []
    )
    full = find(x)
    front, thinned = full, None
    for epsilon in _EPSILONS:
        if len(front) <= FRONT_ROWS:
            break
        front, thinned = find(full, epsilon=epsilon), epsilon
    return front.head(FRONT_ROWS), len(full), thinned


def _document(x: Any) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """What a sweep, or the file it wrote, says about itself; nothing of rows from elsewhere."""
    plan = getattr(x, "_plan", None)
    if plan is not None:
        funnel: Funnel = x.funnel()
        return store.document(plan, funnel), funnel.as_dict()
    if isinstance(x, str | os.PathLike):
        first = sources.opened(x).files[0].path  # type: ignore[attr-defined]
        try:
            found = store.read_document(first)
        except OutputError:
            return {}, None
        return found, found.get("funnel")
    return {}, None


def _shown_columns(
    front: pandas.DataFrame, objectives: Sequence[str], color: str | None
) -> list[str]:
    inputs = [name for name in front.columns if name in VOCABULARY]
    telling = [name for name in _TELLING if name in front.columns]
    first = [color] if color else []
    return list(dict.fromkeys([*first, *objectives, *inputs, *telling]))


def _numeric(front: pandas.DataFrame, names: Sequence[str]) -> list[str]:
    return [name for name in names if front[name].dtype.kind in "iufb"]


def _scales(
    source: Source, names: Sequence[str], named: Mapping[str, str]
) -> tuple[dict[str, Scale], int]:
    """The ends of each column over all rows, and how many rows there are."""
    low, high, count = dict.fromkeys(names, np.inf), dict.fromkeys(names, -np.inf), 0
    for batch in source.batches(names):
        count += len(batch.ids)
        for name in names:
            values = batch.numbers[name].astype(float)
            values = values[np.isfinite(values)]
            if len(values):
                low[name] = min(low[name], float(values.min()))
                high[name] = max(high[name], float(values.max()))
    found = {}
    for name in names:
        if low[name] > high[name]:
            low[name] = high[name] = 0.0
        log = low[name] > 0 and high[name] / low[name] > 20
        found[name] = Scale(name, named.get(name, ""), low[name], high[name], log)
    return found, count


def _pictures(
    source: Source,
    front: pandas.DataFrame,
    objectives: Sequence[tuple[str, str]],
    scales: Mapping[str, Scale],
    color: str | None,
    shown: Sequence[str],
    count: int,
) -> dict[str, Any]:
    """Scatter, heat map and parallel coordinates, in a second pass over the rows."""
    names = list(scales)
    x, y = (
        ([n for n, _ in objectives] * 2)[:2]
        if len(objectives) == 1
        else [
            objectives[1][0],
            objectives[0][0],
        ]
    )
    density = np.zeros(BINS, np.int64)
    heat, largest = _Heat(scales, objectives[0]), objectives[0][1] == "most"
    stride, seen, lines = -(-count // SAMPLE_ROWS), 0, []
    line_colors: list[str] = []
    for batch in source.batches(names, [color] if color else []):
        density += _binned(batch, scales[x], scales[y])
        heat.add(batch, largest)
        at = np.arange(-seen % stride, len(batch.ids), stride)
        lines += np.column_stack(
            [scales[n].place(batch.numbers[n][at].astype(float)) for n in names]
        ).tolist()
        if color:
            codes, labels = batch.labels[color]
            line_colors += [str(labels[code]) for code in codes[at]]
        seen += len(batch.ids)
    colors = sorted({*front[color].astype(str), *line_colors}) if color else []
    cells = [[int(i), int(j), int(density[i, j])] for i, j in np.argwhere(density)]
    texts = tables.shown_cells(front, shown)
    return {
        "color": {"name": color, "values": colors},
        "scatter": {
            "x": scales[x].as_dict(),
            "y": scales[y].as_dict(),
            "bins": list(BINS),
            "cells": cells,
            "points": [
                [_rounded(a), _rounded(b), colors.index(c) if color else 0]
                for a, b, c in zip(
                    scales[x].place(front[x].to_numpy(float)),
                    scales[y].place(front[y].to_numpy(float)),
                    front[color].astype(str) if color else [""] * len(front),
                    strict=True,
                )
            ],
            "texts": texts,
            "columns": list(shown),
        },
        "heat": heat.as_dict(),
        "parallel": {
            "axes": [scales[n].as_dict() for n in names],
            "lines": [[_rounded(value) for value in line] for line in lines],
            "colors": [colors.index(c) for c in line_colors] if color else [0] * len(lines),
        },
    }


def _rounded(value: float) -> float | None:
    return round(float(value), 4) if np.isfinite(value) else None


def _binned(batch: Batch, x: Scale, y: Scale) -> Array:
    places = [scale.place(batch.numbers[scale.name].astype(float)) for scale in (x, y)]
    there = np.isfinite(places[0]) & np.isfinite(places[1])
    found, _, _ = np.histogram2d(
        places[0][there], places[1][there], bins=BINS, range=((0, 1), (0, 1))
    )
    return found.astype(np.int64)


class _Heat:
    """The best of the first objective for each tp and pp, over all the rest."""

    def __init__(self, scales: Mapping[str, Scale], objective: tuple[str, str]) -> None:
        self._has = {"tp", "pp"} <= set(scales)
        self._objective = scales[objective[0]]
        self._best: dict[tuple[float, float], float] = {}

    def add(self, batch: Batch, largest: bool) -> None:
        if not self._has:
            return
        rows = np.stack([batch.numbers["tp"], batch.numbers["pp"]], axis=1)
        pairs, at = np.unique(rows, axis=0, return_inverse=True)
        best = np.full(len(pairs), -np.inf if largest else np.inf)
        values = batch.numbers[self._objective.name].astype(float)
        (np.fmax if largest else np.fmin).at(best, at.reshape(-1), values)
        pick = max if largest else min
        for (tp, pp), value in zip(pairs.tolist(), best.tolist(), strict=True):
            self._best[tp, pp] = pick(value, self._best.get((tp, pp), value))

    def as_dict(self) -> dict[str, Any] | None:
        """Rows of tp, columns of pp, evenly spaced ones where there are very many."""
        if not self._best:
            return None
        tp, pp = (_some(sorted({pair[i] for pair in self._best})) for i in (0, 1))
        scale = self._objective
        grid = [[self._best.get((a, b), np.nan) for b in pp] for a in tp]
        texts = [[_label(v, scale.unit) if np.isfinite(v) else "" for v in row] for row in grid]
        places = [[_rounded(v) for v in scale.place(np.array(row)).tolist()] for row in grid]
        return {"objective": scale.name, "tp": tp, "pp": pp, "texts": texts, "places": places}


def _some(values: list[float]) -> list[float]:
    if len(values) <= HEAT_VALUES:
        return values
    at = np.linspace(0, len(values) - 1, HEAT_VALUES).round().astype(int)
    return [values[i] for i in np.unique(at)]


# --- words ---------------------------------------------------------------------------------------


def _question(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    axes = document.get("axes", {})
    for name, size in axes.items():
        yield name, f"{size:,} values"
    for name, value in document.get("inputs", {}).items():
        if name in axes:
            continue
        unit = VOCABULARY[name].unit if name in VOCABULARY else "1"
        yield name, _worded(value, unit)


def _worded(value: Any, unit: str) -> str:
    if isinstance(value, bool | str) or value is None:
        return str(value)
    return units.human(float(value), unit) if isinstance(value, int | float) else str(value)


def _funnel(funnel: Mapping[str, Any] | None) -> Iterator[tuple[str, str, str, str]]:
    if funnel is None:
        return
    yield "all points", "", f"{funnel['points']:,}", ""
    for row in funnel["rules"]:
        miss = row.get("nearest_miss")
        near = ""
        if miss:
            where = " ".join(f"{name}={value}" for name, value in miss["layout"].items())
            near = f"{where} ({miss_text(miss['shortfall'])})"
        yield row["rule"], f"{row['rejected']:,}", f"{row['left']:,}", near


def _facts(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for row in document.get("catalog", ()):
        yield f"{row.get('table', '')} {row.get('name', '')}", ", ".join(_addresses(row))


def _addresses(row: Any) -> list[str]:
    """Every address in a catalog row, once each."""
    if isinstance(row, str):
        return [row] if row.startswith("https://") else []
    values = row.values() if isinstance(row, Mapping) else row if isinstance(row, list) else ()
    found = [address for value in values for address in _addresses(value)]
    return list(dict.fromkeys(found))
