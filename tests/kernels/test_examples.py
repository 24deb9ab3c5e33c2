"""Every formula has an example that is run: here, and by pytest's collection of the package."""

from __future__ import annotations

import doctest

import pytest

from mlsysim_sweep.kernels import MODELS, model

FORMULAS = {n: f for name in MODELS for n, f in model(name).formulas.items()}


@pytest.mark.parametrize("name", FORMULAS)
def test_example(name: str) -> None:
    formula = FORMULAS[name]
    (found,) = doctest.DocTestFinder().find(formula.function, formula.name)
    calls = [example for example in found.examples if f"{formula.name}(" in example.source]
    assert calls, f"{formula.name} has no example"
    assert doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(found).failed == 0


def test_pytest_collects_the_examples(request: pytest.FixtureRequest) -> None:
    assert request.config.getoption("doctestmodules")
    assert "mlsysim_sweep" in request.config.getini("testpaths")
    modules = {formula.function.__module__ for formula in FORMULAS.values()}
    assert all(name.startswith("mlsysim_sweep.kernels.") for name in modules)
