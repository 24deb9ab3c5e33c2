"""Rows for people, spreadsheets and programs: SI prefixes, CSV, JSON, Parquet."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mlsysim_sweep import store, units
from mlsysim_sweep.errors import Mistake, printable

if TYPE_CHECKING:
    import pandas

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def units_of(frame: pandas.DataFrame) -> dict[str, str]:
    """Unit of each column that has one, from what a sweep wrote."""
    described = frame.attrs.get(store.METADATA_KEY, {})
    found = {name: described.get(name, {}).get("unit", "") for name in frame.columns}
    return {name: unit for name, unit in found.items() if unit not in ("", "1")}


def plain(value: Any) -> Any:
    """A cell as JSON holds it: a Python number or text; what is no finite number is null.

    >>> import numpy as np
    >>> plain(np.int64(3)), plain(float("nan")), plain("H100")
    (3, None, 'H100')
    """
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool) else None


def records(frame: pandas.DataFrame) -> list[dict[str, Any]]:
    """Rows as plain dictionaries, numbers in base units."""
    columns = {name: frame[name].tolist() for name in frame.columns}
    return [{name: plain(columns[name][i]) for name in columns} for i in range(len(frame))]


def csv_text(frame: pandas.DataFrame, *, raw: bool = False) -> str:
    """Rows as CSV in base units, which the headers name; a number that does not exist is empty.

    Text that a spreadsheet would take for a formula gets a quote before it, unless ``raw``.

    >>> import pandas
    >>> print(csv_text(pandas.DataFrame({"name": ["=1+1"], "step_time": [-2.5]})), end="")
    name,step_time
    '=1+1,-2.5
    """
    named, rows = units_of(frame), [list(record.values()) for record in records(frame)]
    heads = [f"{name} [{named[name]}]" if name in named else name for name in frame.columns]
    # Python leaves a carriage return unquoted where lines end otherwise.
    has_return = any("\r" in str(cell) for row in [heads, *rows] for cell in row)
    quoting: Literal[0, 2] = csv.QUOTE_NONNUMERIC if has_return else csv.QUOTE_MINIMAL
    with io.StringIO() as text:
        writer = csv.writer(text, lineterminator="\n", quoting=quoting)
        writer.writerows([csv_cell(cell, raw) for cell in row] for row in [heads, *rows])
        return text.getvalue()


def csv_cell(value: Any, raw: bool = False) -> Any:
    """A cell as CSV holds it: a quote before text that a spreadsheet would compute."""
    is_formula = isinstance(value, str) and not raw and value.startswith(_FORMULA)
    return f"'{value}" if is_formula else value


def shown_cells(frame: pandas.DataFrame, names: Sequence[str]) -> list[list[str]]:
    """Some columns as people read them: SI prefixes, control characters escaped."""
    named = units_of(frame)
    return [
        [_shown(record[name], named.get(name, "1")) for name in names] for record in records(frame)
    ]


def _shown(value: Any, unit: str) -> str:
    if value is None:
        return "–"
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and unit == "1":
        return f"{value:,}"
    return units.human(float(value), unit)


def scatter_text(
    x: Sequence[float], y: Sequence[float], labels: Sequence[str], size: tuple[int, int] = (64, 18)
) -> str:
    """Points as characters, one letter for each label, on logarithmic axes where values span much.

    >>> print(scatter_text([1, 10, 100], [3, 2, 1], ["a", "b", "a"], (5, 3)))
    A....
    ..B..
    ....A
    A a   B b
    """
    width, height = size
    letters = {label: chr(ord("A") + i % 26) for i, label in enumerate(dict.fromkeys(labels))}
    lines = [["."] * width for _ in range(height)]
    for column, row, label in zip(_places(x, width), _places(y, height), labels, strict=True):
        lines[height - 1 - row][column] = letters[label]
    named = [f"{letter} {printable(label)}" for label, letter in letters.items() if label]
    return "\n".join(["".join(line) for line in lines] + ["   ".join(named)] * bool(named))


def _places(values: Sequence[float], size: int) -> list[int]:
    low, high = min(values), max(values)
    if low > 0 and high / low > 20:
        values, low, high = [math.log(v) for v in values], math.log(low), math.log(high)
    span = (high - low) or 1.0
    return [round((value - low) / span * (size - 1)) for value in values]


def save(frame: pandas.DataFrame, path: Path, *, overwrite: bool, raw: bool = False) -> None:
    """Write rows as ``.parquet`` or ``.csv``, which appears when it is whole.

    Raises
    ------
    Mistake
        If the name ends otherwise.
    OutputError
        If it exists and ``overwrite`` is not set, or cannot be written.
    """
    if path.suffix not in (".parquet", ".csv"):
        raise Mistake("-o", f"{path.name} given", "a name that ends in .parquet or .csv")
    with store.staged(path, overwrite=overwrite) as staging, staging.open("wb") as sink:
        if path.suffix == ".csv":
            sink.write(csv_text(frame, raw=raw).encode())
        else:
            _write_parquet(frame, sink)
        store.sync(sink)


def _write_parquet(frame: pandas.DataFrame, sink: Any) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    found = pa.Table.from_pandas(frame, preserve_index=False)
    attrs = {b"PANDAS_ATTRS": json.dumps(frame.attrs, ensure_ascii=False).encode()}
    pq.write_table(found.replace_schema_metadata({**found.schema.metadata, **attrs}), sink)
