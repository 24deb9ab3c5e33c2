"""Messages: one form, one line, nothing that a terminal would act on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlsysim_sweep.errors import Mistake, OutputError, shown, suggestion, unknown

HOSTILE = "a\x1b[2J\nb\r\u202ec\x00\ud800"


def test_form() -> None:
    assert str(Mistake("tp", "0 given")) == "tp: 0 given"
    assert str(Mistake("", "0 given", "1")) == "0 given; needed: 1"
    assert (
        str(Mistake("tp", "0 given", "1", "tp = 1")) == "tp: 0 given; needed: 1; for example tp = 1"
    )
    assert isinstance(Mistake("", ""), ValueError)


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


def test_unknown_says_how_to_list() -> None:
    few, many = ["a1", "b1"], [f"n{i}" for i in range(99)]
    assert (
        str(unknown("x", "a2", few)) == 'x: unknown "a2"; did you mean "a1"?; needed: one of a1, b1'
    )
    assert "needed" not in str(unknown("x", "zzz", many))
    assert str(unknown("x", "zzz", many, "show x")).endswith("needed: a name that `show x` shows")
    assert str(unknown("x", 5, few)) == 'x: 5 given; needed: a name, such as "a1"'
