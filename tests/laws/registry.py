"""The formulas that the laws hold for, and random values of what they take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mlsysim_sweep.declare import Model, Output, graph
from mlsysim_sweep.kernels import MODELS, model
from mlsysim_sweep.vocabulary import VOCABULARY, Kind

every_formula = pytest.mark.parametrize(
    ("owner", "formula"),
    [
        pytest.param(model(name), formula, id=f"{name}-{formula.name}")
        for name in MODELS
        for formula in model(name).formulas.values()
    ],
)
"""Parametrizes a test over every output and identity of every model."""


def values(owner: Model, name: str, rng: np.random.Generator, count: int) -> npt.NDArray[Any]:
    """Generic values of an input or output: whole numbers, shares, or numbers of any size."""
    if name == "window_resolution":
        return rng.choice([1e-3, 0.01, 1.0, 100.0, 0.25, 0.3], count)
    entry = VOCABULARY.get(name)
    whole = owner.formulas[name].whole if entry is None else entry.kind is Kind.WHOLE
    if whole:
        return 2 ** rng.integers(0, 8, count) * rng.integers(1, 4, count)
    if owner.describe(name)[0] == "1":
        return rng.uniform(0.01, 0.99, count)
    return np.exp(rng.uniform(-3, 10, count))


def arguments(
    owner: Model, formula: Output, rng: np.random.Generator, count: int
) -> dict[str, npt.NDArray[Any]]:
    """Values of everything that a formula takes, optional parameters included."""
    return {name: values(owner, name, rng, count) for name in formula.parameters}


def evaluated(owner: Model, given: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that follows from some quantities, straight from the kernels."""
    found = graph(owner, frozenset(given))
    values = dict(given)
    for name, formula in found.formulas.items():
        values[name] = formula.function(**{p: values[p] for p in found.parents(name)})
    return values
