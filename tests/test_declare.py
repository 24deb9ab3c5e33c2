"""Declaring formulas: what is read off a function, and what is refused when a model is made."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mlsysim_sweep as ms
from mlsysim_sweep import units
from mlsysim_sweep.declare import Floats, Ints, Model, graph, output
from mlsysim_sweep.kernels import model
from tests.asking import sweep

OURS = model("parallel_layout")


@output(unit="dollar", source="a price list")
def rent(step_time: Floats, n_devices: Ints, tdp: Floats | float = 700.0) -> Floats:
    """Rent of one step: ``step_time n_devices tdp``.

    More of it.
    """
    return step_time * n_devices * tdp


@output(unit="1", source="here")
def pieces(rent: Floats) -> Ints:
    """Pieces of rent, where there are any."""
    return np.where(rent > 2e6, np.ceil(rent), np.nan)


def made(name: str, *parameters: str, unit: str = "1") -> Callable[..., Any]:
    """A formula that has a name and parameters, and nothing to compute."""

    def function() -> None:
        """Something."""

    function.__name__ = name
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    named = [inspect.Parameter(parameter, kind) for parameter in parameters]
    function.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
    return output(unit=unit, source="here")(function)


def test_everything_is_read_off_the_function() -> None:
    found = rent.__output__  # type: ignore[attr-defined]
    assert (found.name, found.unit, found.source) == ("rent", "dollar", "a price list")
    assert (found.description, found.equation) == ("Rent of one step", "step_time n_devices tdp")
    assert (found.required, found.optional) == (("step_time", "n_devices"), ("tdp",))
    assert not found.whole and pieces.__output__.whole  # type: ignore[attr-defined]
    assert rent(np.array([2.0]), np.array([8])).tolist() == [11200.0]


REFUSED = {
    "unknown parameter": (
        [made("rent", "stpe_time")],
        "rent: unknown parameter 'stpe_time'.*'step_time'",
    ),
    "declared twice": ([made("bubble", "tp")], "bubble: declared twice"),
    "name of an input": ([made("tp", "pp")], "tp: declared twice"),
    "case twin of an output": ([made("Step_Time", "tp")], "Step_Time|step_time: declared twice"),
    "case twin of an input": ([made("TP", "pp")], "TP: declared twice .also 'tp'"),
    "cycle": ([made("a", "b"), made("b", "a")], "a cycle: "),
    "itself": ([made("a", "a")], "a cycle: a -> a"),
    "nothing declared": ([len], "no function declared with @output"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_when_the_model_is_made(case: str) -> None:
    formulas, message = REFUSED[case]
    with pytest.raises(ms.DeclarationError, match=message):
        OURS.extended(*formulas)
    with pytest.raises(ms.DeclarationError, match=message):
        sweep(formulas=formulas)


def test_a_formula_needs_a_docstring_and_a_unit() -> None:
    def bare(tp: Ints) -> Ints:
        return tp

    with pytest.raises(ms.DeclarationError, match=r"bare: needs a docstring"):
        output(unit="1", source="here")(bare)
    with pytest.raises(units.UnitError, match=r"unknown unit 'secnds'"):
        made("a", "tp", unit="secnds")


def test_an_identity_computes_an_input() -> None:
    module = types.ModuleType("sizes")
    module.total = made("total", "tp")  # type: ignore[attr-defined]
    with pytest.raises(ms.DeclarationError, match=r"total: an identity must compute an input"):
        Model.of("m", identities=[module])


def test_the_same_formula_twice_is_one() -> None:
    assert OURS.extended(rent, rent).outputs.keys() == OURS.extended(rent).outputs.keys()


def test_graph_leaves_out_what_cannot_be_evaluated() -> None:
    found = graph(OURS, frozenset({"tp", "pp", "dp"}))
    assert set(found.formulas) == {"n_devices"}
    assert found.missing("bubble") == ("microbatches",)
    assert found.missing("n_devices") == ()
    assert set(found.missing("efficiency")) >= {"link_bandwidth", "peak_flops"}
    assert graph(OURS, frozenset({"tp", "pp", "dp"})) is found


def test_identities_are_used_only_where_their_input_is_not_given() -> None:
    sizes = {"tp", "pp", "devices"}
    assert "dp" in graph(OURS, frozenset(sizes)).formulas
    assert "dp" not in graph(OURS, frozenset({*sizes, "dp"})).formulas


def test_own_formulas_are_columns_rules_and_units() -> None:
    asked = sweep(
        axes={"microbatches": [1, 8, 32]},
        feasible={"memory": "off", "where": "rent < 2e6 dollar"},
        formulas=[rent, pieces],
    )
    frame = asked.table()
    assert frame["rent"].tolist() == (frame["step_time"] * frame["n_devices"] * 700).tolist()
    assert 0 < len(frame) < 3 and (frame["rent"] < 2e6).all()
    assert frame.attrs["mlsysim_sweep"]["rent"]["unit"] == "dollar"
    assert asked.dataset()["rent"].attrs["units"] == "dollar"
    with pytest.raises(ms.RuleError, match=r"dollar and time"):
        sweep(feasible={"where": "rent < 5 s"}, formulas=[rent])


def test_a_whole_quantity_that_does_not_exist_is_null() -> None:
    asked = sweep(axes={"microbatches": [1, 32]}, formulas=[rent, pieces])
    whole = asked.arrow()["pieces"]
    assert whole.type == "int64"
    assert whole.null_count == 1
    assert sum(v is None for v in whole.to_pylist()) == 1
    assert asked.dataset()["pieces"].isnull().sum() == 1


def test_a_whole_quantity_that_is_not_whole_is_a_mistake() -> None:
    @output(unit="1", source="here")
    def half(tp: Ints) -> Ints:
        """Half of tp."""
        return np.true_divide(tp, 2)

    with pytest.raises(ms.Mistake, match=r"half: Float value 0.5"):
        sweep(inputs={"tp": 1}, feasible={"memory": "off"}, formulas=[half]).arrow()
