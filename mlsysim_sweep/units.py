"""Units at the door: text or a pint quantity in, an SI float out, and back for people to read.

Inside the engine every number is a plain float in the base units named here: byte, flop, token,
parameter, device, dollar, second, joule. Only units in :data:`UNITS` are understood: an open-ended
unit language reads "400 Gb/s" as gilbert per second and "80 G" as gauss.

Counts (tokens, parameters, devices, FLOPs per parameter and token) may be written as bare numbers;
anything in bytes, seconds, FLOP/s, joules or dollars needs its unit.
"""

from __future__ import annotations

import difflib
import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from mlsysim_sweep.errors import shown

if TYPE_CHECKING:
    import pint

Dimension = Mapping[str, int]

COUNTS = frozenset({"token", "parameter", "device"})
"""Base dimensions that count things: bare numbers are accepted for them."""

_LONGEST_TEXT = 100
_LARGEST_EXPONENT = 300


class UnitError(ValueError):
    """A value whose unit is missing, unknown or of the wrong dimension.

    ``reason`` leaves out what is needed, for messages that give an example of their own.
    """

    def __init__(self, reason: str, needed: str = "") -> None:
        self.reason = reason
        super().__init__(f"{reason}; needed: {needed}" if needed else reason)


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit as an exact factor to SI and the powers of its base dimensions."""

    factor: Fraction
    powers: tuple[tuple[str, int], ...]

    @property
    def dimension(self) -> Dimension:
        """Base dimension -> power, zero powers left out."""
        return dict(self.powers)

    def times(self, other: Unit, power: int = 1) -> Unit:
        """Product of this unit and ``other`` raised to a whole power."""
        powers = dict(self.powers)
        for base, exponent in other.powers:
            powers[base] = powers.get(base, 0) + power * exponent
        kept = tuple(sorted((base, p) for base, p in powers.items() if p))
        return Unit(self.factor * other.factor**power, kept)


_ONE = Unit(Fraction(1), ())
_DECIMAL = {"k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18, "Z": 21}
_SMALL = {"m": -3, "u": -6, "µ": -6, "μ": -6, "n": -9}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50}
_DECIMAL_WORDS = {"kilo": 3, "mega": 6, "giga": 9, "tera": 12, "peta": 15, "exa": 18, "zetta": 21}
_SMALL_WORDS = {"milli": -3, "micro": -6, "nano": -9}
_BINARY_WORDS = {"kibi": 10, "mebi": 20, "gibi": 30, "tebi": 40, "pebi": 50}

# Spellings, factor, powers of the base dimensions, prefixes of the short and of the long spellings.
_BYTE = (("byte", 1),)
_BYTE_RATE = (("byte", 1), ("second", -1))
_FLOP = (("flop", 1),)
_FLOP_RATE = (("flop", 1), ("second", -1))
_TEN = "decimal"
_TWO = "binary"
_SUB = "small"
_ATOMS: tuple[
    tuple[tuple[str, ...], Fraction, tuple[tuple[str, int], ...], tuple[str, ...]], ...
] = (
    (("B", "byte", "bytes"), Fraction(1), _BYTE, (_TEN, _TWO)),
    (("bit", "bits"), Fraction(1, 8), _BYTE, (_TEN, _TWO)),
    # Pint's own name of bit/s is baud: a quantity of "400 Gbps" arrives here as gigabaud.
    (("bps", "baud"), Fraction(1, 8), _BYTE_RATE, (_TEN,)),
    (("s", "sec", "second", "seconds"), Fraction(1), (("second", 1),), (_SUB,)),
    (("min", "minute", "minutes"), Fraction(60), (("second", 1),), ()),
    (("h", "hr", "hour", "hours"), Fraction(3600), (("second", 1),), ()),
    (("d", "day", "days"), Fraction(86400), (("second", 1),), ()),
    (("flop", "FLOP", "FLOPs"), Fraction(1), _FLOP, (_TEN,)),
    (("FLOPS", "OPS"), Fraction(1), _FLOP_RATE, (_TEN,)),
    (("token", "tokens"), Fraction(1), (("token", 1),), (_TEN,)),
    (("param", "params", "parameter", "parameters"), Fraction(1), (("parameter", 1),), (_TEN,)),
    (("Bparam",), Fraction(10**9), (("parameter", 1),), ()),
    (("device", "devices"), Fraction(1), (("device", 1),), ()),
    (("dollar", "dollars", "USD", "$"), Fraction(1), (("dollar", 1),), ()),
    (("J", "joule", "joules"), Fraction(1), (("joule", 1),), (_TEN,)),
    (("W", "watt", "watts"), Fraction(1), (("joule", 1), ("second", -1)), (_TEN,)),
    (("Wh",), Fraction(3600), (("joule", 1),), (_TEN,)),
    (("%", "percent"), Fraction(1, 100), (), ()),
    (("count", "dimensionless"), Fraction(1), (), ()),
)


def _prefixes(spelling: str, kinds: tuple[str, ...]) -> dict[str, Fraction]:
    """Prefix -> factor for one spelling: letters before all, words before words."""
    is_word = spelling.islower() and len(spelling) > 2
    tables = {
        _TEN: (_DECIMAL_WORDS if is_word else {}, _DECIMAL, 10),
        _TWO: (_BINARY_WORDS if is_word else {}, _BINARY, 2),
        _SUB: (_SMALL_WORDS if is_word else {}, _SMALL, 10),
    }
    found = {"": Fraction(1)}
    for kind in kinds:
        words, letters, base = tables[kind]
        for prefix, exponent in {**words, **letters}.items():
            found[prefix] = Fraction(base) ** exponent
    return found


def _all_units() -> dict[str, Unit]:
    return {
        prefix + spelling: Unit(scale * factor, powers)
        for spellings, factor, powers, kinds in _ATOMS
        for spelling in spellings
        for prefix, scale in _prefixes(spelling, kinds).items()
    }


UNITS: Mapping[str, Unit] = _all_units()
"""Every unit spelling that is understood, with its exact factor to SI."""

_HINTS = {
    "Gb": "Gbit (bits) or GB (bytes)",
    "Mb": "Mbit (bits) or MB (bytes)",
    "Tb": "Tbit (bits) or TB (bytes)",
    "kb": "kbit (bits) or kB (bytes)",
    "gb": "GB (bytes) or Gbit (bits)",
    "mb": "MB (bytes) or Mbit (bits)",
    "tb": "TB (bytes) or Tbit (bits)",
    "gbps": "Gbps",
    "GBps": "GB/s",
    "MBps": "MB/s",
    "TBps": "TB/s",
    "kBps": "kB/s",
    "KBps": "kB/s",
    "G": "GB or Gbit",
    "GFLOPs": "GFLOP/s",
    "S": "s (seconds)",
    "Ms": "ms (milliseconds)",
}
_SUFFIXES = {"k": "4e3", "K": "4e3", "M": "4e6", "T": "4e12"}
"""Multiples without a unit, as in "4M", and how to write such a number."""

_TOKEN = re.compile(
    r"\s*(?:(?P<name>[A-Za-zµμ$%]+)|(?P<op>\*\*|\^|[*/])|(?P<power>-?\d{1,2}))", re.ASCII
)
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,4})?", re.ASCII)


def _unknown(name: str) -> UnitError:
    if name in _SUFFIXES:
        written = f"write the number out, such as {_SUFFIXES[name]}"
        return UnitError(f"unknown unit {name!r}; {written}")
    hint = _HINTS.get(name) or ", ".join(difflib.get_close_matches(name, UNITS, 1, 0.6))
    return UnitError(f"unknown unit {name!r}" + (f"; did you mean {hint}?" if hint else ""))


def parse_unit(text: str) -> Unit:
    """Read a unit such as ``GB``, ``TFLOP/s`` or ``flop/parameter/token``.

    Raises
    ------
    UnitError
        If a name is not in :data:`UNITS`, or the text is not a product of units.

    >>> float(parse_unit("Gbps").factor)
    125000000.0
    >>> parse_unit("flop / parameter / token").dimension
    {'flop': 1, 'parameter': -1, 'token': -1}
    """
    if len(text) > _LONGEST_TEXT:
        raise UnitError(f"a unit of {len(text)} characters; at most {_LONGEST_TEXT} are read")
    unit, sign, expects_name, last = _ONE, 1, True, _ONE
    position = 0
    stripped = text.rstrip()
    while position < len(stripped):
        match = _TOKEN.match(stripped, position)
        if match is None:
            raise UnitError(f"cannot read the unit {text!r}")
        position = match.end()
        if expects_name:
            name = match["name"]
            if name is None and match["power"] == "1":
                last = _ONE
            elif name is None:
                raise UnitError(f"cannot read the unit {text!r}")
            elif name not in UNITS:
                raise _unknown(name)
            else:
                last = UNITS[name]
            unit, expects_name = unit.times(last, sign), False
        elif match["op"] in ("*", "/"):
            sign, expects_name = (1 if match["op"] == "*" else -1), True
        elif match["op"]:
            exponent = _TOKEN.match(stripped, position)
            if exponent is None or exponent["power"] is None:
                raise UnitError(f"cannot read the unit {text!r}")
            unit, position = unit.times(last, sign * (int(exponent["power"]) - 1)), exponent.end()
        else:
            raise UnitError(f"cannot read the unit {text!r}: write * or / between units")
    if expects_name and stripped.strip():
        raise UnitError(f"cannot read the unit {text!r}: it ends in an operator")
    return unit


def dimension_of(unit: str) -> Dimension:
    """Base dimensions of a unit text; ``1`` is dimensionless."""
    return _cached_unit(unit).dimension


@functools.lru_cache(maxsize=1024)
def _cached_unit(text: str) -> Unit:
    return parse_unit(text)


def without_counts(dimension: Dimension) -> Dimension:
    """The dimension with tokens, parameters and devices taken as plain numbers."""
    return {base: power for base, power in dimension.items() if base not in COUNTS}


def bare_allowed(unit: str) -> bool:
    """Whether a bare number is clear in a field of this unit: counts, shares and FLOPs a token."""
    left = without_counts(dimension_of(unit))
    return not left or unit in ("flop/parameter/token", "byte/parameter")


def split_number(text: str) -> tuple[Fraction, str]:
    """Split ``"400 Gbps"`` into its exact number and its unit text.

    Raises
    ------
    UnitError
        If the text does not start with a plain decimal number of reasonable size.
    """
    shown = text if len(text) <= _LONGEST_TEXT else text[:40] + "..."
    stripped = text.strip()
    match = _NUMBER.match(stripped)
    if match is None or len(text) > _LONGEST_TEXT:
        raise UnitError(f"cannot read {shown!r} as a number with a unit")
    _, _, exponent = match[0].lower().partition("e")
    if exponent and abs(int(exponent)) > _LARGEST_EXPONENT:
        raise UnitError(f"{shown!r} is outside the range of numbers understood")
    return Fraction(match[0]), stripped[match.end() :].strip()


def to_si(value: object, unit: str) -> float:
    """Convert text, a number or a pint quantity of any registry to the SI value of ``unit``.

    Parameters
    ----------
    value
        ``"400 Gbps"``, a bare number (only where :func:`bare_allowed`), or a pint quantity.
    unit
        The unit that the field is declared with, such as ``byte/s``.

    Raises
    ------
    UnitError
        If the unit is missing, unknown or of another dimension.

    >>> to_si("400 Gbps", "byte/s")
    50000000000.0
    >>> to_si("80 GiB", "byte")
    85899345920.0
    >>> to_si(2e6, "token")
    2000000.0
    """
    if isinstance(value, str):
        number, text = split_number(value)
    elif hasattr(value, "magnitude") and hasattr(value, "units"):
        number, text = _fraction(value.magnitude), str(value.units)
    else:
        number, text = _fraction(value), ""
    if not text:
        if not bare_allowed(unit):
            raise UnitError("a number without a unit", example(unit))
        return to_float(number)
    given = _cached_unit(text)
    needed = dimension_of(unit)
    if given.dimension != needed and not (bare_allowed(unit) and not given.dimension):
        if text == "B" and not without_counts(needed):
            raise UnitError("'B' is bytes; write the number out, such as 4e9")
        raise UnitError(f"{text!r} is not a unit of {describe(needed)}", example(unit))
    return to_float(number * given.factor)


def to_float(number: Fraction) -> float:
    """The float nearest to a number.

    Raises
    ------
    UnitError
        If the number is beyond all floats.
    """
    try:
        return float(number)
    except OverflowError:
        raise UnitError("outside the range of numbers understood") from None


def _fraction(value: object) -> Fraction:
    is_array = getattr(value, "ndim", 0) > 0
    if is_array or isinstance(value, bool) or not hasattr(value, "__float__"):
        raise UnitError(f"{shown(value)} is not a number")
    if isinstance(value, int):
        return Fraction(value)
    number = float(value)
    if not math.isfinite(number):
        raise UnitError(f"{number} is not a finite number")
    return Fraction(number)


_KINDS = {
    "byte": "memory",
    "byte/s": "bandwidth",
    "s": "time",
    "flop": "work",
    "flop/s": "compute rate",
    "W": "power",
    "token": "tokens",
    "parameter": "parameters",
    "1": "plain numbers",
}
_EXAMPLES = {
    "byte": '"80 GB" or "80 GiB"',
    "byte/s": '"400 Gbps" or "50 GB/s"',
    "s": '"0.1 s"',
    "flop/s": '"989 TFLOP/s"',
    "W": '"700 W"',
    "token": "2e6",
    "parameter": "175e9",
    "flop/parameter/token": "6",
    "byte/parameter": "4",
    "1": "0.5",
}


def describe(dimension: Dimension) -> str:
    """Name of a dimension for an error message.

    >>> describe({"byte": 1, "second": -1})
    'bandwidth'
    """
    for unit, name in _KINDS.items():
        if dimension_of(unit) == dimension:
            return name
    return "·".join(f"{base}^{p}" if p != 1 else base for base, p in sorted(dimension.items()))


def example(unit: str) -> str:
    """A value that a field of this unit accepts, for an error message."""
    return _EXAMPLES.get(unit, f'"1 {unit}"')


_STEPS = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_STEPS_BELOW = ((1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))
_SYMBOLS = {"byte": "B", "byte/s": "B/s", "flop": "FLOP", "flop/s": "FLOP/s"}
_NEVER_SCALED = frozenset({"1", "byte/parameter", "flop/parameter/token"})


def human(value: float, unit: str, digits: int = 4) -> str:
    """A number for people, with an SI prefix and its unit.

    >>> human(2.38, "s"), human(87.5e9, "byte"), human(5e10, "byte/s"), human(0.25, "1")
    ('2.38 s', '87.5 GB', '50 GB/s', '0.25')
    """
    if not math.isfinite(value):
        return "–" if math.isnan(value) else str(value)
    if unit == "1":
        return f"{value:.{digits}g}" if abs(value) < 1e6 else f"{value:,.0f}"
    symbol = _SYMBOLS.get(unit, unit)
    if unit in _NEVER_SCALED or value == 0:
        return f"{value:.{digits}g} {symbol}"
    steps = _STEPS[-1:] + _STEPS_BELOW if unit == "s" else _STEPS
    scale, prefix = next((s for s in steps if abs(value) >= s[0] * 0.99999), steps[-1])
    return f"{value / scale:.{digits}g} {prefix}{symbol}"


_DEFINITIONS = (
    "byte = [byte] = B = bytes",
    "bit = byte / 8 = bit = bits",
    "bps = bit / second = bps",
    "flop = [flop] = FLOP = FLOPs = flops",
    "token = [token] = token = tokens",
    "parameter = [parameter] = parameter = param = params = parameters",
    "device = [device] = device = devices",
    "dollar = [dollar] = USD = dollars",
)


@functools.cache
def registry() -> pint.UnitRegistry[Any]:
    """Our own pint registry, in which bytes, FLOPs, tokens and the rest are dimensions.

    It understands everything that pint's default registry does. Plain pint counts in bits without a
    dimension, so it takes "400 GHz" for a bandwidth; here that is an error.

    >>> registry()("400 Gbps").to("GB/s").magnitude
    50.0
    """
    return _new_registry(arrays=False)


@functools.cache
def array_registry() -> pint.UnitRegistry[Any]:
    """A registry like :func:`registry` whose quantities are always arrays, as xarray needs."""
    return _new_registry(arrays=True)


def _new_registry(*, arrays: bool) -> pint.UnitRegistry[Any]:
    import pint

    ours: pint.UnitRegistry[Any] = pint.UnitRegistry(
        on_redefinition="ignore", force_ndarray_like=arrays
    )
    for line in _DEFINITIONS:
        ours.define(line)
    # Pint reads the dimensions of its default units once, when it is made: byte was one of them.
    ours._build_cache()
    return ours
