"""Messages: one form, one line, nothing that a terminal would act on."""

from __future__ import annotations

import datetime
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlsysim_sweep.constraints import RuleError
from mlsysim_sweep.errors import Mistake, OutputError, shown, suggestion, unknown

HOSTILE = "a\x1b[2J\nb\r\u202ec\x00\ud800"


def test_form() -> None:
    assert str(Mistake("tp", "0 given")) == "tp: 0 given"
    assert str(Mistake("", "0 given", "1")) == "0 given; needed: 1"
    assert (
        str(Mistake("tp", "0 given", "1", "tp = 1")) == "tp: 0 given; needed: 1; for example tp = 1"
    )
    assert isinstance(Mistake("", ""), ValueError)


@pytest.mark.parametrize(
    "error",
    [
        Mistake("tp", "0 given", "a size", "tp = 1"),
        RuleError("tp ? 2", "no rule", "feasible.where"),
        OutputError("out/", "exists already", "name another"),
    ],
)
def test_messages_survive_the_way_from_a_worker(error: Exception) -> None:
    there = pickle.loads(pickle.dumps(error))
    assert (type(there), str(there), vars(there)) == (type(error), str(error), vars(error))


def test_place() -> None:
    error = Mistake("tp", "0 given", "a size", "tp = 1").within("axes")
    assert (error.field, error.problem, error.needed, error.fix) == (
        "axes.tp",
        "0 given",
        "a size",
        "tp = 1",
    )
    assert Mistake("", "bad").within("zip").field == "zip"


@pytest.mark.parametrize(
    "error", [Mistake("f", HOSTILE, HOSTILE, HOSTILE), OutputError(HOSTILE, HOSTILE)]
)
def test_messages_are_one_plain_line(error: Exception) -> None:
    assert str(error).isprintable()
    assert "\\u001b" in str(error) and "\\u202e" in str(error)


@given(st.text(st.characters()) | st.binary() | st.lists(st.text()) | st.floats() | st.none())
def test_shown_is_short_and_plain(value: object) -> None:
    assert shown(value).isprintable()
    assert len(shown(value)) <= 60 * 6 + 5


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (None, "nothing"),
        (-4000000.0, "-4000000"),
        (1e300, "1e+300"),
        (np.float64(2.5), "2.5"),
        ({"powers_of_two": [1, 8]}, "{ powers_of_two = [1, 8] }"),
        ({"a b": {"c": False}}, '{ "a b" = { c = false } }'),
        (["me", (1, None)], '["me", [1, nothing]]'),
        ({}, "{}"),
        ([], "[]"),
        (datetime.date(2026, 12, 1), "2026-12-01"),
        (b"a", "b'a'"),
        ([[[[[1]]]]], "[[[[...]]]]"),
        (["a\nb"], '["a b"]'),
    ],
)
def test_values_are_shown_as_toml(value: object, text: str) -> None:
    assert shown(value) == text


def test_what_contains_itself_or_is_long_is_shown_in_part() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert shown(loop) == "[[[[...]]]]"
    assert shown([1] * 10**6) == "[" + "1, " * 18 + "1,..."


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("H10O", "H100"),
        ("h100", "H100"),
        ("H100 SXM", "H100"),
        ("B20", "B200"),
        ("", ""),
        ("zzzzzz", ""),
        ("H100" * 10**5, ""),
    ],
)
def test_suggestion(name: str, expected: str) -> None:
    found = suggestion(name, ["A100", "H100", "B200"])
    assert found == (f'; did you mean "{expected}"?' if expected else "")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("A100", '"A100-40GB" or "A100-80GB"'),
        ("a100-8", '"A100-80GB"'),
        ("h100", '"H100"'),
        ("TPU", '"TPUv4" or "TPUv5e" or "TPUv5p"'),
    ],
)
def test_names_that_start_alike_are_suggested_first(name: str, expected: str) -> None:
    known = ["A10", "A100-40GB", "A100-80GB", "H100", "H100-NVL"]
    known += ["TPUv4", "TPUv5e", "TPUv5p", "TPUv6e"]
    assert suggestion(name, known) == f"; did you mean {expected}?"


def test_unknown_says_how_to_list() -> None:
    few, many = ["a1", "b1"], [f"n{i}" for i in range(99)]
    assert (
        str(unknown("x", "a2", few)) == 'x: unknown "a2"; did you mean "a1"?; needed: one of a1, b1'
    )
    assert "needed" not in str(unknown("x", "zzz", many))
    assert str(unknown("x", "zzz", many, "show x")).endswith("needed: a name that `show x` shows")
    assert str(unknown("x", 5, few)) == 'x: 5 given; needed: a name, such as "a1"'
