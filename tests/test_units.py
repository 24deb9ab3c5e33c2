"""Units at the door: exact factors, what is refused, and agreement with pint."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pint
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlsysim_sweep import units
from mlsysim_sweep.units import UNITS, Unit, UnitError, parse_unit, to_si
from mlsysim_sweep.vocabulary import VOCABULARY, Kind
from tests.asking import refusal
from tests.strategies_text import value_like

EXACT: dict[tuple[str, str], int | Fraction] = {
    ("400 GB/s", "byte/s"): 400 * 10**9,
    ("400 Gbps", "byte/s"): 50 * 10**9,
    ("400Gbps", "byte/s"): 50 * 10**9,
    ("400 Gbit/s", "byte/s"): 50 * 10**9,
    ("1 Tbit / s", "byte/s"): 125 * 10**9,
    ("80 GB", "byte"): 80 * 10**9,
    ("80 GiB", "byte"): 80 * 2**30,
    ("1.5 TiB", "byte"): 3 * 2**39,
    ("1 gibibyte", "byte"): 2**30,
    ("8e9 bit", "byte"): 10**9,
    ("500 ms", "s"): Fraction(1, 2),
    ("1 µs", "s"): Fraction(1, 10**6),  # micro sign
    ("1 μs", "s"): Fraction(1, 10**6),  # Greek mu
    ("2 h", "s"): 7200,
    ("989 TFLOP/s", "flop/s"): 989 * 10**12,
    ("989 TFLOPS", "flop/s"): 989 * 10**12,
    ("1 PFLOP/s", "flop/s"): 10**15,
    ("0.7 kW", "W"): 700,
    ("700 J/s", "W"): 700,
    ("4 Mtoken", "token"): 4 * 10**6,
    ("175 Bparam", "parameter"): 175 * 10**9,
    ("175 Gparam", "parameter"): 175 * 10**9,
    ("50 %", "1"): Fraction(1, 2),
    ("6 flop/parameter/token", "flop/parameter/token"): 6,
    ("6", "flop/parameter/token"): 6,
    ("+.5e1", "1"): 5,
    ("5.", "1"): 5,
}


@pytest.mark.parametrize(("text", "unit"), EXACT)
def test_values_are_exact(text: str, unit: str) -> None:
    assert to_si(text, unit) == float(EXACT[text, unit])


def test_bytes_and_bits_are_eight_apart() -> None:
    assert to_si("400 GB/s", "byte/s") / to_si("400 Gbps", "byte/s") == 8
    assert to_si("80 GB", "byte") < to_si("82e9 B", "byte") < to_si("80 GiB", "byte")


REFUSED = {
    ("400 Gb/s", "byte/s"): "did you mean Gbit (bits) or GB (bytes)?",
    ("1 Mb", "byte"): "did you mean Mbit (bits) or MB (bytes)?",
    ("80 gb", "byte"): "did you mean GB (bytes) or Gbit (bits)?",
    ("80 G", "byte"): "did you mean GB or Gbit?",
    ("400 gbps", "byte/s"): "did you mean Gbps?",
    ("400 GBps", "byte/s"): "unknown unit 'GBps'; did you mean GB/s?",
    ("400 MBps", "byte/s"): "did you mean MB/s?",
    ("4 TBps", "byte/s"): "did you mean TB/s?",
    ("4 kBps", "byte/s"): "did you mean kB/s?",
    ("4M", "token"): "unknown unit 'M'; write the number out, such as 4e6",
    ("4M tokens", "token"): "unknown unit 'M'",
    ("4K", "token"): "write the number out, such as 4e3",
    ("4k", "token"): "write the number out, such as 4e3",
    ("4T", "token"): "write the number out, such as 4e12",
    ("175B", "parameter"): "'B' is bytes; write the number out, such as 4e9",
    ("2 B", "byte/parameter"): "'B' is not a unit of",
    ("2 S", "s"): "did you mean s (seconds)?",
    ("500 Ms", "s"): "did you mean ms (milliseconds)?",
    ("3 GFLOPs", "flop/s"): "is not a unit of compute rate",
    ("3 TFLOP", "flop/s"): "'TFLOP' is not a unit of compute rate; needed: \"989 TFLOP/s\"",
    ("400 GHz", "byte/s"): "unknown unit 'GHz'",
    ("20 degC", "s"): "unknown unit 'degC'",
    ("80 secnds", "s"): "did you mean seconds?",
    ("80 GB", "byte/s"): 'is not a unit of bandwidth; needed: "400 Gbps" or "50 GB/s"',
    ("80", "byte"): 'a number without a unit; needed: "80 GB" or "80 GiB"',
    ("0.1", "s"): "a number without a unit",
    ("2 s s", "s"): "write * or / between units",
    ("2 s/", "s"): "it ends in an operator",
    ("2 s^s", "s"): "cannot read the unit",
    ("2 s^\u0661", "s"): "cannot read the unit",
    ("2 2", "s"): "cannot read the unit",
    ("nan GB", "byte"): "cannot read",
    ("inf s", "s"): "cannot read",
    ("1,5 s", "s"): "cannot read the unit",
    ("1_000 s", "s"): "cannot read the unit",
    ("١٢ s", "s"): "cannot read",
    ("0x10", "1"): "unknown unit 'x'",
    ("", "1"): "cannot read",
    ("s", "s"): "cannot read",
    ("1e400 s", "s"): "outside the range of numbers understood",
    ("1e300 ZB", "byte"): "outside the range of numbers understood",
    ("9" * 90 + "e300", "token"): "outside the range of numbers understood",
    ("6^800000 GB", "byte"): "cannot read the unit",
    ("1 " + "s*" * 60 + "s", "s"): "cannot read",
    ("1" * 10**6, "1"): "cannot read",
    ("1 s/" + "s" * 10**6, "s"): "cannot read",
}


@pytest.mark.parametrize(("text", "unit"), REFUSED, ids=lambda value: value[:20])
def test_refused(text: str, unit: str) -> None:
    with pytest.raises(UnitError) as caught:
        to_si(text, unit)
    assert REFUSED[text, unit] in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "value", [True, None, "x", b"1", [1], np.array([1.0]), math.nan, math.inf, 10**400]
)
def test_what_is_no_number_is_refused(value: object) -> None:
    with pytest.raises(UnitError):
        to_si(value, "1")


def test_messages_may_leave_out_what_is_needed() -> None:
    with pytest.raises(UnitError) as caught:
        to_si(5, "s")
    assert str(caught.value) == 'a number without a unit; needed: "0.1 s"'
    assert caught.value.reason == "a number without a unit"


def test_bare_numbers_are_for_counts_and_shares() -> None:
    fields = {name: entry.unit for name, entry in VOCABULARY.items() if entry.kind is Kind.REAL}
    bare = {unit for unit in fields.values() if units.bare_allowed(unit)}
    assert bare == {"1", "token", "parameter", "flop/parameter/token", "byte/parameter"}


@given(text=value_like | st.text(max_size=120), unit=st.sampled_from(("byte", "byte/s", "s", "1")))
def test_any_text_is_read_or_refused(text: str, unit: str) -> None:
    error = refusal(lambda: to_si(text, unit), UnitError)
    if error is None:
        assert math.isfinite(to_si(text, unit))
    else:
        assert len(str(error)) < 400


@given(st.sampled_from(sorted(UNITS)), st.sampled_from(sorted(UNITS)), st.integers(-3, 3))
def test_units_multiply_and_divide(one: str, other: str, power: int) -> None:
    left, right = UNITS[one], UNITS[other]
    assert parse_unit(f"{one}/{other}*{other}") == left
    assert parse_unit(f"{one}*{other}") == left.times(right) == right.times(left)
    assert parse_unit(f"{one}^{power}") == Unit(
        left.factor**power, left.times(left, power - 1).powers
    )


# --- pint ----------------------------------------------------------------------------------------

UNKNOWN_TO_PINT = {"FLOPS", "OPS", "Bparam", "baud", "$"}
"""Endings of spellings that are ours alone; pint counts a baud without a dimension."""


def test_every_spelling_means_what_it_means_to_pint() -> None:
    ours = units.registry()
    compared = 0
    for spelling, unit in UNITS.items():
        if spelling.endswith(tuple(UNKNOWN_TO_PINT)):
            continue
        theirs = ours.Quantity(1, spelling)
        bases = "*".join(f"{base}**{power}" for base, power in unit.powers) or "dimensionless"
        assert theirs.m_as(bases) == pytest.approx(float(unit.factor), rel=1e-15), spelling
        compared += 1
    assert compared > 300


def test_bytes_flops_and_tokens_are_dimensions() -> None:
    ours = units.registry()
    for one, other in (
        ("byte", "flop"),
        ("token", "parameter"),
        ("GHz", "Gbps"),
        ("dollar", "device"),
    ):
        with pytest.raises(pint.DimensionalityError):
            ours.Quantity(1, one).to(other)
    assert ours.Quantity(400, "Gbps").m_as("GB/s") == 50


REGISTRIES = {
    "plain": pint.UnitRegistry(),
    "ours": units.registry(),
    "arrays": units.array_registry(),
}


@pytest.mark.parametrize("registry", REGISTRIES)
@pytest.mark.parametrize(
    ("amount", "text", "unit", "expected"),
    [
        (400, "Gbps", "byte/s", 50e9),
        (400, "Gbit/s", "byte/s", 50e9),
        (50, "GB/s", "byte/s", 50e9),
        (80, "GiB", "byte", 80 * 2**30),
        (80, "gigabyte", "byte", 80e9),
        (1, "terabit", "byte", 125e9),
        (500, "ms", "s", 0.5),
        (2, "hour", "s", 7200.0),
        (700, "watt", "W", 700.0),
        (0.25, "dimensionless", "1", 0.25),
        (25, "percent", "1", 0.25),
    ],
)
def test_quantities_of_any_registry(
    registry: str, amount: float, text: str, unit: str, expected: float
) -> None:
    assert to_si(REGISTRIES[registry].Quantity(amount, text), unit) == expected


def test_quantities_of_mlsysim() -> None:
    core = pytest.importorskip("mlsysim.core.units")
    quantities: list[tuple[Any, str, float]] = [
        (core.Q_(400, "Gbps"), "byte/s", 50e9),
        (core.Q_(80, "GB"), "byte", 80e9),
        (core.Q_(80, "GiB"), "byte", 80.0 * 2**30),
        (core.Q_(989, "TFLOPs/s"), "flop/s", 989e12),
        (core.Q_(175e9, "param"), "parameter", 175e9),
        (core.Q_(0.1, "s"), "s", 0.1),
    ]
    for quantity, unit, expected in quantities:
        assert to_si(quantity, unit) == expected


@pytest.mark.parametrize("text", ["second", "degree_Celsius", "hertz", "gauss", "meter"])
def test_quantities_of_another_dimension_are_refused(text: str) -> None:
    with pytest.raises(UnitError):
        to_si(pint.UnitRegistry().Quantity(20.0, text), "byte/s")


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0, "s", "0 s"),
        (2.5e-4, "s", "250 µs"),
        (7200.0, "s", "7200 s"),
        (1.5e12, "byte", "1.5 TB"),
        (6.0, "flop/parameter/token", "6 flop/parameter/token"),
        (1234567.0, "1", "1,234,567"),
        (math.nan, "s", "–"),
        (math.inf, "s", "inf"),
    ],
)
def test_human(value: float, unit: str, text: str) -> None:
    assert units.human(value, unit) == text
