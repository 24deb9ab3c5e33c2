"""No bare number with a unit in a formula: such numbers are data, with a source."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import mlsysim_sweep.kernels

FOLDER = Path(mlsysim_sweep.kernels.__file__).parent
ALLOWED: set[float] = {0, 1, 2}
"""Counting and doubling. Anything else is a fact of the world, or one of the functions below."""

ARITHMETIC: dict[str, set[float]] = {
    "_TENS": {10, 23},
    "_rounded": {0, 22, 1e-12},
    "_round_half_even": {1, 0, 0.5, 2.0, 53},
    "_split": {2.0, 27, 1},
}
"""Rounding to the last bit: constants of float64 and of the decimal system, none with a unit."""


def bare_numbers(source: str) -> list[str]:
    """Numeric literals that are not allowed where they stand, with their line."""
    found = []
    for statement in ast.parse(source).body:
        allowed = ALLOWED | ARITHMETIC.get(_name(statement), set())
        for node in ast.walk(statement):
            if not isinstance(node, ast.Constant) or type(node.value) not in (int, float, complex):
                continue
            if node.value not in allowed:
                found.append(f"line {node.lineno}: {node.value!r}")
    return found


def _name(statement: ast.stmt) -> str:
    if isinstance(statement, ast.FunctionDef):
        return statement.name
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    return target.id if isinstance(target, ast.Name) else ""


@pytest.mark.parametrize("file", sorted(FOLDER.rglob("*.py")), ids=lambda file: file.name)
def test_no_bare_numbers(file: Path) -> None:
    assert bare_numbers(file.read_text(encoding="utf-8")) == []


def test_the_scan_can_fail() -> None:
    assert bare_numbers("def state_total(parameters):\n    return 16 * parameters\n") == [
        "line 2: 16"
    ]
    assert bare_numbers("ADAM = 12.0\n") == ["line 1: 12.0"]
    assert bare_numbers("def ring_bytes(dp):\n    return 2 * (dp - 1) / dp\n") == []
