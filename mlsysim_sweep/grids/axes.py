"""Values of inputs and axes, read and checked once.

Whole numbers become int64, numbers float64 in base units, names object arrays of text. The length
of an axis is known before anything is allocated.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mlsysim_sweep import units
from mlsysim_sweep.catalog import clean_name
from mlsysim_sweep.errors import Mistake, shown, unknown
from mlsysim_sweep.vocabulary import LARGEST_WHOLE, VOCABULARY, Input, Kind

Array: TypeAlias = npt.NDArray[Any]

LONGEST_AXIS = 10**8
"""More values than this on one axis are refused."""


def read_value(name: str, given: object) -> Array:
    """One value of an input, as an array without axes.

    Raises
    ------
    Mistake
        Naming the input.
    """
    return read_values(name, [given]).reshape(())


def read_values(name: str, given: Sequence[Any] | Array) -> Array:
    """Values of an input from a list, tuple, range, NumPy array or pint array.

    Raises
    ------
    Mistake
        Naming the input, the position and value that is not allowed, and the allowed range.
    """
    entry = VOCABULARY[name]
    if entry.kind is Kind.CHOICE:
        labels = np.empty(len(given), object)
        labels[:] = [_text(name, i, v) for i, v in enumerate(given)]
        return labels
    values = _numbers(entry, given)
    bad = ~(np.isfinite(values) & (values >= entry.low) & (values <= entry.high))
    if not entry.low_allowed:
        bad |= values == entry.low
    if entry.kind is Kind.WHOLE:
        bad |= values != np.floor(np.where(np.isfinite(values), values, 0.5))
    if bad.any():
        raise _refused(entry, int(np.flatnonzero(bad)[0]), given)
    return values.astype(np.int64) if entry.kind is Kind.WHOLE else values.astype(np.float64)


def _text(name: str, index: int, given: object) -> str:
    if not isinstance(given, str):
        raise Mistake(name, f"{shown(given)} given at position {index}", 'a name, such as "H100"')
    return clean_name(given, name)


def _numbers(entry: Input, given: Sequence[Any] | Array) -> Array:
    """The numbers of one input in base units, not yet checked against its range."""
    if hasattr(given, "magnitude") and hasattr(given, "units"):
        factor = units.to_si(type(given)(1.0, given.units), entry.unit)
        return np.asarray(given.magnitude, float) * factor
    plain = _plain(given)
    if plain is not None and units.bare_allowed(entry.unit):
        return plain
    return np.array([_one_number(entry, i, v) for i, v in enumerate(given)], float)


def _plain(given: Sequence[Any] | Array) -> Array | None:
    """A numeric array of values that are all plain numbers, checked at C speed; else None."""
    if isinstance(given, np.ndarray):
        return given if given.dtype.kind in "iuf" else None
    kinds = set(map(type, given))
    if kinds == {int}:
        return np.array(given, np.int64) if max(map(abs, given)) <= LARGEST_WHOLE else None
    return np.array(given, float) if kinds == {float} else None


def _one_number(entry: Input, index: int, given: object) -> float:
    example = f"{entry.name} = {units.example(entry.unit)}"
    is_text = isinstance(given, str) and entry.kind is not Kind.WHOLE
    is_number = isinstance(given, numbers.Real) and not isinstance(given, bool | np.bool_)
    if not (is_text or is_number or hasattr(given, "magnitude")):
        raise _refused(entry, index, [given] * (index + 1))
    try:
        return units.to_si(given, entry.unit)
    except (units.UnitError, OverflowError) as error:
        raise Mistake(entry.name, f"{shown(given)}: {error}", entry.allowed, example) from None


def _refused(entry: Input, index: int, given: Sequence[Any] | Array) -> Mistake:
    where = f" at position {index}" if len(given) > 1 else ""
    value = given[index]
    plain = value.item() if isinstance(value, np.generic) else value
    example = "16" if entry.kind is Kind.WHOLE else units.example(entry.unit)
    return Mistake(
        entry.name, f"{shown(plain)} given{where}", entry.allowed, f"{entry.name} = {example}"
    )


# --- axes ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AxisValues:
    """The values of one axis, not yet made: how many there are, and how to make them."""

    name: str
    count: int
    make: Callable[[], Array]


def read_axis(name: str, given: object) -> AxisValues:
    """Read one axis: a list of values, or a form such as ``{ powers_of_two = [1, 8] }``.

    Raises
    ------
    Mistake
        If the form is unknown, the axis is empty or too long, or a value is not allowed or twice.
    """
    if name not in VOCABULARY:
        raise unknown("axes", name, VOCABULARY)
    if isinstance(given, Mapping):
        axis = _read_form(name, given)
    elif isinstance(given, str | bytes) or not hasattr(given, "__len__") or _is_scalar(given):
        raise Mistake(
            name, f"{shown(given)} given", "a list of values or a form", f"{name} = [{shown(given)}]"
        )
    else:
        values: Any = given
        axis = AxisValues(name, len(values), lambda: read_values(name, values))
    if axis.count < 1:
        raise Mistake(name, "an empty axis", "at least one value")
    if axis.count > LONGEST_AXIS:
        raise Mistake(name, f"{axis.count:,} values", f"at most {LONGEST_AXIS:,} on one axis")
    return AxisValues(name, axis.count, lambda: _distinct(name, axis.make()))


def _is_scalar(given: Any) -> bool:
    return np.ndim(getattr(given, "magnitude", given)) == 0 and not isinstance(given, range)


def _distinct(name: str, values: Array) -> Array:
    unique, counts = np.unique(values.astype(str) if values.dtype == object else values,
                               return_counts=True)
    if len(unique) < len(values):
        twice = unique[counts > 1][0]
        plain = twice.item() if isinstance(twice, np.generic) else twice
        raise Mistake(name, f"{shown(plain)} is given twice", "each value once")
    return values


_FORMS: Mapping[str, str] = {
    "powers_of_two": "{ powers_of_two = [1, 64] }",
    "divisors_of": "{ divisors_of = 96 }",
    "range": "{ range = [1, 1024] } or { range = [0, 1024, 8] }, both ends included",
    "linspace": "{ linspace = [0.3, 0.6, 7] }",
    "geomspace": '{ geomspace = ["100 Gbps", "1600 Gbps", 9] }',
}


def _read_form(name: str, given: Mapping[str, Any]) -> AxisValues:
    if len(given) != 1:
        raise Mistake(name, f"{shown(dict(given))} given", "one form", next(iter(_FORMS.values())))
    form, arguments = next(iter(given.items()))
    if form not in _FORMS:
        raise unknown(name, form, _FORMS)
    entry = VOCABULARY[name]
    if entry.kind is Kind.CHOICE:
        raise Mistake(name, f"{form} given", "a list of names", f'{name} = ["..."]')
    reader = {"divisors_of": _divisors, "powers_of_two": _powers, "range": _range}.get(form, _space)
    return reader(entry, form, arguments)


def _arguments(entry: Input, form: str, given: object, least: int, most: int) -> list[Any]:
    if not isinstance(given, list | tuple) or not least <= len(given) <= most:
        raise Mistake(entry.name, f"{form} = {shown(given)} given", _FORMS[form])
    return list(given)


def _whole(entry: Input, form: str, given: object) -> int:
    exact = isinstance(given, int | np.integer) or (isinstance(given, float) and given.is_integer())
    if isinstance(given, bool) or not exact or not 1 <= int(given) <= LARGEST_WHOLE:  # type: ignore[call-overload]
        raise Mistake(entry.name, f"{form}: {shown(given)} given", _FORMS[form])
    return int(given)  # type: ignore[call-overload]


def _whole_only(entry: Input, form: str) -> None:
    if entry.kind is not Kind.WHOLE:
        raise Mistake(entry.name, f"{form} given", "linspace or geomspace for this input")


def _powers(entry: Input, form: str, given: object) -> AxisValues:
    _whole_only(entry, form)
    low, high = (_whole(entry, form, v) for v in _arguments(entry, form, given, 2, 2))
    powers = [2**i for i in range(54) if low <= 2**i <= high]
    return AxisValues(entry.name, len(powers), lambda: np.array(powers, np.int64))


def _divisors(entry: Input, form: str, given: object) -> AxisValues:
    _whole_only(entry, form)
    whole = _whole(entry, form, given)
    if whole > 10**12:
        raise Mistake(entry.name, f"{form}: {whole} given", "a number up to 10^12")
    low = [i for i in range(1, math.isqrt(whole) + 1) if whole % i == 0]
    divisors = sorted({*low, *(whole // i for i in low)})
    return AxisValues(entry.name, len(divisors), lambda: np.array(divisors, np.int64))


def _range(entry: Input, form: str, given: object) -> AxisValues:
    """``[first, last]`` or ``[first, last, step]``, both ends included, counted exactly."""
    arguments = _arguments(entry, form, given, 2, 3)
    if entry.kind is not Kind.WHOLE and len(arguments) == 2:
        raise Mistake(entry.name, f"{form} = {shown(given)} given", "a step as third value")
    first, last, step = (
        Fraction(_one_number(entry, 0, v)) for v in (*arguments, *([1] * (3 - len(arguments))))
    )
    if step <= 0:
        raise Mistake(entry.name, f"{form}: a step of {float(step):g} given", "a step above 0")
    count = max(0, math.floor((last - first) / step * (1 + Fraction(1, 2**48))) + 1)

    def make() -> Array:
        values = float(first) + np.arange(count) * float(step)
        return read_values(entry.name, values if entry.kind is Kind.REAL else _to_whole(values))

    return AxisValues(entry.name, count, make)


def _to_whole(values: Array) -> Array:
    return values.astype(np.int64) if (values == np.floor(values)).all() else values


def _space(entry: Input, form: str, given: object) -> AxisValues:
    """``[first, last, number]``; for whole inputs rounded, equal neighbours kept once."""
    first, last, number = _arguments(entry, form, given, 3, 3)
    low, high, count = _one_number(entry, 0, first), _one_number(entry, 0, last), _whole(entry, form, number)
    if form == "geomspace" and not (low > 0 and high > 0):
        raise Mistake(entry.name, f"{form} = {shown(given)} given", "ends above 0")
    spaced = np.geomspace if form == "geomspace" else np.linspace
    if entry.kind is Kind.WHOLE and count <= LONGEST_AXIS:
        values = np.unique(np.rint(spaced(low, high, count)).astype(np.int64))
        values = values if low <= high else values[::-1]
        return AxisValues(entry.name, len(values), lambda: read_values(entry.name, values))
    return AxisValues(entry.name, count, lambda: read_values(entry.name, spaced(low, high, count)))


def is_axis_form(given: object) -> bool:
    """Whether a value stands for several: a list, an array or a form."""
    if isinstance(given, Mapping) or hasattr(getattr(given, "magnitude", None), "__len__"):
        return True
    return isinstance(given, Iterable) and not isinstance(given, str | bytes) and not _is_scalar(given)
