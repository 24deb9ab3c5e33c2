"""Second law: picking points before or after a formula is the same, bit for bit.

So one kernel serves whole boxes of a grid and points gathered out of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mlsysim_sweep.declare import Model, Output
from tests.laws.registry import arguments, every_formula

COUNT = 3000


def same_bits(left: Any, right: Any) -> bool:
    left, right = np.asarray(left), np.asarray(right)
    same: bool = left.dtype == right.dtype and left.tobytes() == right.tobytes()
    return same


def selections(rng: np.random.Generator) -> dict[str, Any]:
    return {
        "permutation": rng.permutation(COUNT),
        "mask": rng.random(COUNT) < 0.1,
        "few": rng.integers(0, COUNT, 3),
        "strided": slice(1, None, 7),
        "one": slice(17, 18),
        "none": slice(0, 0),
    }


@every_formula
def test_picked_points(owner: Model, formula: Output) -> None:
    rng = np.random.default_rng(4)
    given = arguments(owner, formula, rng, COUNT)
    everywhere = np.asarray(formula.function(**given))
    for kind, index in selections(rng).items():
        picked = {name: np.ascontiguousarray(value[index]) for name, value in given.items()}
        assert same_bits(formula.function(**picked), everywhere[index]), kind


@every_formula
def test_one_point_at_a_time(owner: Model, formula: Output) -> None:
    given = arguments(owner, formula, np.random.default_rng(5), COUNT)
    everywhere = np.asarray(formula.function(**given))
    for i in range(0, COUNT, 50):
        one = formula.function(**{name: value[i] for name, value in given.items()})
        assert same_bits(one, everywhere[i])


@every_formula
def test_open_mesh(owner: Model, formula: Output) -> None:
    """Each input on an axis of its own, against the same points in one long row."""
    rng = np.random.default_rng(6)
    lengths = [3 if i % 2 else 2 for i in range(len(formula.parameters))]
    row = arguments(owner, formula, rng, 3)
    opened = {
        name: row[name][:n].reshape([n if i == k else 1 for i in range(len(lengths))])
        for k, (name, n) in enumerate(zip(formula.parameters, lengths, strict=True))
    }
    spread: dict[str, npt.NDArray[Any]] = {
        name: np.ascontiguousarray(np.broadcast_to(value, lengths)).reshape(-1)
        for name, value in opened.items()
    }
    meshed = np.broadcast_to(formula.function(**opened), lengths)
    assert same_bits(np.ascontiguousarray(meshed).reshape(-1), formula.function(**spread))


@every_formula
def test_optional_inputs_left_out(owner: Model, formula: Output) -> None:
    rng = np.random.default_rng(7)
    given = arguments(owner, formula, rng, COUNT)
    required = {name: given[name] for name in formula.required}
    everywhere = np.asarray(formula.function(**required))
    index = rng.permutation(COUNT)
    picked = {name: value[index] for name, value in required.items()}
    assert same_bits(formula.function(**picked), everywhere[index])
