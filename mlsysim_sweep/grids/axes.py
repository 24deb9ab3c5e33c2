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
from mlsysim_sweep.catalog import clean_name, example
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
    return _checked(entry, _numbers(entry, given), given)


def _checked(entry: Input, values: Array, given: Sequence[Any] | Array | None = None) -> Array:
    """Numbers in base units, their range checked, in the type of the input."""
    bad = ~(np.isfinite(values) & (values >= entry.low) & (values <= entry.high))
    if not entry.low_allowed:
        bad |= values == entry.low
    if entry.kind is Kind.WHOLE:
        bad |= values != np.floor(np.where(np.isfinite(values), values, 0.5))
    if bad.any():
        several = values if given is None else given
        index = int(np.flatnonzero(bad)[0])
        raise _refused(entry, several[index], index if len(several) > 1 else None)
    return values.astype(np.int64) if entry.kind is Kind.WHOLE else values.astype(np.float64)


def _text(name: str, index: int, given: object) -> str:
    if not isinstance(given, str):
        raise Mistake(name, f"{shown(given)} given at position {index}", 'a name, such as "H100"')
    return clean_name(given, name)


def _numbers(entry: Input, given: Sequence[Any] | Array) -> Array:
    """The numbers of one input in base units, not yet checked against its range."""
    if hasattr(given, "magnitude") and hasattr(given, "units"):
        one: Any = type(given)
        return np.asarray(given.magnitude, float) * _one_number(entry, one(1.0, given.units))
    plain = _plain(given)
    if plain is not None and units.bare_allowed(entry.unit):
        return plain
    if len(given) == 1:
        return np.array([_one_number(entry, given[0])])
    return np.array([_one_number(entry, v, i) for i, v in enumerate(given)], float)


def _plain(given: Sequence[Any] | Array) -> Array | None:
    """A numeric array of values that are all plain numbers, checked at C speed; else None."""
    if isinstance(given, np.ndarray):
        return given if given.dtype.kind in "iuf" else None
    kinds = set(map(type, given))
    if kinds == {int}:
        return np.array(given, np.int64) if max(map(abs, given)) <= LARGEST_WHOLE else None
    return np.array(given, float) if kinds == {float} else None


def _one_number(entry: Input, given: object, index: int | None = None) -> float:
    is_text = isinstance(given, str) and entry.kind is not Kind.WHOLE
    is_number = isinstance(given, numbers.Real) and not isinstance(given, bool | np.bool_)
    too_large = isinstance(given, numbers.Integral) and abs(int(given)) > entry.high
    # NaN and infinity are numbers that nothing allows.
    is_odd = isinstance(given, float | np.floating) and not np.isfinite(given)
    if too_large or is_odd or not (is_text or is_number or hasattr(given, "magnitude")):
        raise _refused(entry, given, index)
    try:
        return units.to_si(given, entry.unit)
    except units.UnitError as error:
        raise _refused(entry, given, index, error) from None


def _refused(
    entry: Input, given: object, index: int | None, error: units.UnitError | None = None
) -> Mistake:
    plain = given.item() if isinstance(given, np.generic) else given
    place = "" if index is None else f" at position {index}"
    problem = f"{shown(plain)}{place}: {error.reason}" if error else f"{shown(plain)} given{place}"
    return Mistake(entry.name, problem, "" if error else entry.allowed, example(entry.name))


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
        If the form is unknown, the axis is empty or too long, or a value is not allowed.
    """
    if name not in VOCABULARY:
        raise unknown("axes", name, VOCABULARY)
    if isinstance(given, Mapping):
        axis = _read_form(name, given)
    elif isinstance(given, str | bytes) or not hasattr(given, "__len__") or _rank(given) != 1:
        fix = f"{name} = [{shown(given)}]" if isinstance(given, str | int | float) else ""
        raise Mistake(name, f"{shown(given)} given", "a list of values or a form", fix)
    else:
        values: Any = given
        if not (
            isinstance(given, list | tuple | range | np.ndarray) or hasattr(given, "magnitude")
        ):
            values = list(values)
        axis = AxisValues(name, len(values), lambda: read_values(name, values))
    if axis.count < 1:
        raise Mistake(name, "an empty axis", "at least one value")
    if axis.count > LONGEST_AXIS:
        raise Mistake(name, f"{axis.count:,} values", f"at most {LONGEST_AXIS:,} on one axis")
    return axis


def _rank(given: Any) -> int:
    # Not np.ndim of a list: it would make an array of it, which pint quantities refuse.
    is_list = isinstance(given, list | tuple | range)
    return 1 if is_list else np.ndim(getattr(given, "magnitude", given))


def make_labels(group: Sequence[AxisValues]) -> dict[str, Array]:
    """The values of one axis, or of several that are walked together.

    Raises
    ------
    Mistake
        If a value is there twice; of axes walked together, a combination of values.
    """
    labels = {axis.name: axis.make() for axis in group}
    if any(_is_sorted(values) for values in labels.values()):
        return labels
    codes = np.zeros(group[0].count, np.int64)
    for values in labels.values():
        code = _codes(values.astype(str) if values.dtype == object else values)
        codes = _codes(codes * len(code) + code)
    if np.max(codes) + 1 < len(codes):
        seen, counts = np.unique(codes, return_counts=True)
        twice = int(np.flatnonzero(codes == seen[counts > 1][0])[0])
        given = ", ".join(shown(v[twice : twice + 1].tolist()[0]) for v in labels.values())
        raise Mistake(" and ".join(labels), f"{given} is given twice", "each value once")
    return labels


def _is_sorted(values: Array) -> bool:
    """Whether values only rise or only fall, so that none is there twice."""
    if values.dtype == object:
        return False
    left, right = values[:-1], values[1:]
    return bool((left < right).all() or (left > right).all())


def _codes(values: Array) -> Array:
    """The place of each value among the distinct ones."""
    return np.unique(values, return_inverse=True)[1]


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
    is_number = isinstance(given, int | float | np.integer) and not isinstance(given, bool)
    number: Any = given if is_number else 0
    if not 1 <= number <= LARGEST_WHOLE or number != int(number):
        raise Mistake(entry.name, f"{form}: {shown(given)} given", _FORMS[form])
    return int(number)


def _whole_only(entry: Input, form: str) -> None:
    if entry.kind is not Kind.WHOLE:
        raise Mistake(entry.name, f"{form} given", "linspace or geomspace for this input")


def _backwards(entry: Input, form: str, arguments: Sequence[Any]) -> Mistake:
    first, last, *step = arguments
    problem = f"{form} = {shown(arguments)} ends before it starts"
    turned = shown({form: [last, first, *step]})
    return Mistake(entry.name, problem, "the smaller end first", f"{entry.name} = {turned}")


def _powers(entry: Input, form: str, given: object) -> AxisValues:
    _whole_only(entry, form)
    low, high = (_whole(entry, form, v) for v in _arguments(entry, form, given, 2, 2))
    if low > high:
        raise _backwards(entry, form, (low, high))
    powers = [2**i for i in range(54) if low <= 2**i <= high]
    if not powers:
        problem = f"no power of two from {low} to {high}"
        raise Mistake(entry.name, problem, "at least one value", f"{entry.name} = {_FORMS[form]}")
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
    # As the decimals that people write: 0.1, and not the float nearest to it.
    first, last, step = (
        Fraction(repr(_one_number(entry, v))) for v in (*arguments, *([1] * (3 - len(arguments))))
    )
    if step <= 0:
        raise Mistake(entry.name, f"{form}: a step of {float(step):g} given", "a step above 0")
    if last < first:
        raise _backwards(entry, form, arguments)
    count = (last - first) // step + 1
    return AxisValues(entry.name, count, lambda: _checked(entry, _steps(first, step, count)))


def _steps(first: Fraction, step: Fraction, count: int) -> Array:
    """``first + k step``, each rounded once where that is possible: 0.1 + 2 x 0.1 is 0.3."""
    scale = math.lcm(first.denominator, step.denominator)
    start, stride = int(first * scale), int(step * scale)
    if max(scale, abs(start), abs(start + count * stride)) < 2**53:
        return (start + np.arange(count) * stride) / scale
    return np.linspace(float(first), float(first + (count - 1) * step), count)


_MOST_ROUNDED = 10**6


def _space(entry: Input, form: str, given: object) -> AxisValues:
    """``[first, last, number]``; for whole inputs rounded, equal neighbours kept once."""
    first, last, number = _arguments(entry, form, given, 3, 3)
    low, high = _one_number(entry, first), _one_number(entry, last)
    count = _whole(entry, form, number)
    for end, given_end in ((low, first), (high, last)):
        if not entry.low <= end <= entry.high:
            raise _refused(entry, given_end, None)
    if form == "geomspace" and not (low > 0 and high > 0):
        raise Mistake(entry.name, f"{form} = {shown(given)} given", "ends above 0")

    def spaced() -> Array:
        if form == "geomspace":
            return np.geomspace(low, high, count)
        start = Fraction(repr(low))
        return _steps(start, (Fraction(repr(high)) - start) / max(count - 1, 1), count)

    if entry.kind is not Kind.WHOLE:
        return AxisValues(entry.name, count, lambda: _checked(entry, spaced()))
    if count > _MOST_ROUNDED:
        needed = f"at most {_MOST_ROUNDED:,} whole numbers, or a range"
        raise Mistake(entry.name, f"{form}: {count:,} values given", needed)
    values = np.unique(np.rint(spaced()).astype(np.int64))
    values = values if low <= high else values[::-1]
    return AxisValues(entry.name, len(values), lambda: values)


def is_axis_form(given: object) -> bool:
    """Whether a value stands for several: a list, an array or a form."""
    if isinstance(given, Mapping) or hasattr(getattr(given, "magnitude", None), "__len__"):
        return True
    return isinstance(given, Iterable) and not isinstance(given, str | bytes) and _rank(given) > 0
