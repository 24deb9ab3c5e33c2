"""The compute window is rounded as Python rounds: element by element, to the last bit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given

from mlsysim_sweep.kernels.parallel_layout import _rounded
from tests import strategies

Array = npt.NDArray[np.float64]
DECIMALS = range(-22, 23)
OTHERS = (0.25, 0.125, 0.3, 2.5, 7.0, 0.1 + 5e-12, 1e3 / 3, 30.0, 2.0**-20)


def rounded(values: Any, resolution: Any) -> Any:
    with np.errstate(all="ignore"):
        return _rounded(np.asarray(values, float), np.asarray(resolution, float))


def by_python(value: float, resolution: float) -> float:
    """What the reference does with one value."""
    digits = round(-math.log10(resolution))
    if abs(10**-digits - resolution) < 1e-12:
        return round(value, digits)
    return round(value / resolution) * resolution


def hard_values(resolution: float, count: int = 5000) -> Array:
    """Ties and their neighbours, values around the last place that the resolution reaches, and all
    magnitudes down to the subnormal ones."""
    rng = np.random.default_rng([round(1000 * math.log10(resolution)) + 10**6])
    ties = (rng.integers(0, 10**6, count) + 0.5) * resolution
    near = ties * (1 + rng.integers(-3, 4, count) * 2.0**-53)
    exact = rng.integers(0, 2**20, count) / 2.0 ** rng.integers(0, 30, count)
    wide = np.exp(rng.uniform(math.log(1e-320), math.log(1e285), count))
    last = rng.integers(2**51, 2**54, count) * resolution
    middle = rng.uniform(0, 1e17, count) ** rng.uniform(0, 1, count) * resolution
    return np.concatenate([ties, near, exact, wide, last, middle, [0.0, 5e-324, 2.3e-308, 1e290]])


@pytest.mark.parametrize("decimals", DECIMALS)
def test_powers_of_ten(decimals: int) -> None:
    resolution = float(f"1e{-decimals}")
    values = hard_values(resolution)
    expected = [round(value, decimals) for value in values.tolist()]
    np.testing.assert_array_equal(rounded(values, resolution), expected)


@pytest.mark.parametrize("resolution", OTHERS)
def test_other_resolutions(resolution: float) -> None:
    values = hard_values(resolution)
    expected = [round(value / resolution) * resolution for value in values.tolist()]
    np.testing.assert_array_equal(rounded(values, resolution), expected)


@given(strategies.window_values(), strategies.window_resolutions())
@example(2.675, 0.01)
@example(505362.86497651413, 1e-10)
@example(0.1, 0.1 + 5e-13)
@example(2.5e22, 1e22)
def test_any_value(value: float, resolution: float) -> None:
    assert float(rounded(value, resolution)) == by_python(value, resolution)


def test_ties_go_to_even() -> None:
    assert rounded([0.375, 0.125, 0.625], 0.25).tolist() == [0.5, 0.0, 0.5]
    assert rounded([0.5, 1.5, 2.5], 1.0).tolist() == [0.0, 2.0, 2.0]
    assert rounded([25.0, 35.0], 10.0).tolist() == [20.0, 40.0]


def test_numpys_own_rounding_would_not_do() -> None:
    values = (np.arange(10_000) + 0.5) / 100
    by_hand = np.array([round(value, 2) for value in values.tolist()])
    np.testing.assert_array_equal(rounded(values, 0.01), by_hand)
    assert np.count_nonzero(np.round(values, 2) != by_hand) > 100


def test_each_element_has_its_own_resolution() -> None:
    values = hard_values(0.01, 200)
    resolutions = np.array([0.01, 0.25, 10.0, 0.3, 1e-6])[:, None]
    expected = [[by_python(v, float(r)) for v in values.tolist()] for r in resolutions[:, 0]]
    np.testing.assert_array_equal(rounded(values, resolutions), expected)


def test_what_does_not_exist_stays_so() -> None:
    assert np.isnan(rounded(np.nan, [0.1, 0.25])).all()
