"""First law: called with quantities, a formula gives its declared dimension.

Bytes, FLOPs, tokens and parameters are dimensions of our registry, so that a forgotten factor of
bytes per parameter is a forgotten dimension.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pint
import pytest

from mlsysim_sweep import units
from mlsysim_sweep.declare import Floats, Model, Output, declared, output
from mlsysim_sweep.kernels import model
from tests.laws.registry import arguments, every_formula

ROUNDS_IN_SECONDS = "window_resolution"
SCALED = {
    "s": "ms",
    "byte": "GB",
    "byte/s": "GB/s",
    "flop": "petaflop",
    "flop/s": "teraflop/s",
    "token": "megatoken",
    "parameter": "gigaparameter",
}


def called(owner: Model, formula: Output, given: dict[str, Any], scaled: bool = False) -> Any:
    """What a formula gives for quantities, in base units or in scaled ones."""
    registry = units.registry()
    quantities = {}
    for name, value in given.items():
        unit = owner.describe(name)[0]
        quantity = value if unit == "1" else registry.Quantity(value, unit)
        quantities[name] = quantity.to(SCALED[unit]) if scaled and unit in SCALED else quantity
    return formula.function(**quantities)


def in_declared_unit(formula: Output, result: Any) -> Any:
    """The result as a plain number in the declared unit; fails where that is another dimension."""
    unit = "dimensionless" if formula.unit == "1" else formula.unit
    return units.registry().Quantity(result).m_as(unit)


@every_formula
def test_dimension(owner: Model, formula: Output) -> None:
    given = arguments(owner, formula, np.random.default_rng(1), 20)
    expected = formula.function(**given)
    found = in_declared_unit(formula, called(owner, formula, given))
    np.testing.assert_array_equal(found, expected)


@every_formula
def test_scaled_units(owner: Model, formula: Output) -> None:
    given = arguments(owner, formula, np.random.default_rng(2), 20)
    # Decimals are decimals of a second: a rounded window is the one thing that units change.
    given.pop(ROUNDS_IN_SECONDS, None)
    expected = formula.function(**given)
    found = in_declared_unit(formula, called(owner, formula, given, scaled=True))
    np.testing.assert_allclose(found, expected, rtol=1e-14)


@output(unit="byte", source="a mistake")
def forgotten_width(parameters: Floats) -> Floats:
    """Gradients of the whole model, bytes per parameter forgotten: ``P``."""
    return parameters


@output(unit="s", source="a mistake")
def forgotten_bandwidth(dp_shard: Floats, link_bandwidth: Floats, compute_time: Floats) -> Floats:
    """A sum of a time and of bytes: ``compute_time + 2 dp_shard``."""
    return compute_time + 2 * dp_shard


@output(unit="byte", source="a mistake")
def forgotten_parameters(replicated_bytes_per_param: Floats, tp: Floats) -> Floats:
    """State of one device, the parameters forgotten: ``4 / tp``."""
    return replicated_bytes_per_param / tp


@pytest.mark.parametrize("mistake", [forgotten_width, forgotten_bandwidth, forgotten_parameters])
def test_the_law_can_fail(mistake: Any) -> None:
    owner = model("parallel_layout").extended(mistake)
    (formula,) = declared(mistake)
    given = arguments(owner, formula, np.random.default_rng(3), 5)
    with pytest.raises(pint.DimensionalityError):
        in_declared_unit(formula, called(owner, formula, given))
