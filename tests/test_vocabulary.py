"""The vocabulary: one word a quantity, ranges that hold the formulas inside float64 and int64."""

from __future__ import annotations

import math
import tomllib
from importlib import resources

import pytest

from mlsysim_sweep import units
from mlsysim_sweep.catalog import FACTS, choice_rows
from mlsysim_sweep.grids.axes import read_value
from mlsysim_sweep.kernels import MODELS, model
from mlsysim_sweep.vocabulary import CHOICES, LARGEST_WHOLE, PRECISIONS, VOCABULARY, Input, Kind

every_input = pytest.mark.parametrize("entry", VOCABULARY.values(), ids=VOCABULARY)


@every_input
def test_an_input_says_what_it_is(entry: Input) -> None:
    assert entry.name.isidentifier() and entry.name.islower()
    assert not entry.meaning[0].islower() and not entry.meaning.endswith(".")
    assert units.parse_unit(entry.unit).factor == 1
    assert entry.allowed.startswith("a ")
    assert (entry.kind is Kind.CHOICE) == (entry.name in CHOICES)


@every_input
def test_ranges_are_bounded(entry: Input) -> None:
    assert 0 <= entry.low < entry.high <= 1e30
    if entry.kind is Kind.WHOLE:
        assert (entry.low, entry.high) == (1, LARGEST_WHOLE)
        assert units.bare_allowed(entry.unit)


@every_input
def test_defaults_are_allowed(entry: Input) -> None:
    if entry.default is not None:
        assert read_value(entry.name, entry.default).item() == entry.default
        assert not entry.optional


def test_floats_hold_every_whole_number_and_any_product_of_ten() -> None:
    assert math.isfinite(1e30**10) and 1e-30**10 > 0
    assert float(LARGEST_WHOLE) - float(LARGEST_WHOLE - 1) == 1


def test_names_differ_in_more_than_case() -> None:
    names = [*VOCABULARY, *(name for found in MODELS for name in model(found).outputs)]
    assert len({name.casefold() for name in names}) == len(names)


def test_facts_of_the_catalog_are_inputs() -> None:
    assert {fact for facts in FACTS.values() for fact in facts} <= set(VOCABULARY)


def test_what_choices_stand_for_are_inputs() -> None:
    text = resources.files("mlsysim_sweep.catalog").joinpath("choices.toml").read_text()
    for choice in tomllib.loads(text):
        assert VOCABULARY[choice].kind is Kind.CHOICE
        for name, row in choice_rows(choice).items():
            assert name == name.casefold()
            for fact, value in row.items():
                assert VOCABULARY[fact].low <= value <= VOCABULARY[fact].high


def test_gradients_are_as_wide_as_their_format() -> None:
    bits = {"fp32": 32, "tf32": 32, "fp16": 16, "bf16": 16, "fp8": 8, "int8": 8, "int4": 4}
    rows = choice_rows("gradient_precision")
    assert {name: row["gradient_bytes_per_param"] * 8 for name, row in rows.items()} == bits
    assert VOCABULARY["precision"].default in PRECISIONS
