"""Rules: the grammar, what it refuses, and masks against a slow evaluation point by point."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mlsysim_sweep as ms
from mlsysim_sweep import constraints
from mlsysim_sweep.constraints import (
    Arithmetic,
    Comparison,
    Expression,
    Logic,
    Name,
    Number,
    Predicate,
    RuleError,
    check,
    margin,
    mask,
    miss_text,
    names,
    parse,
    shortfall,
    unparse,
)
from mlsysim_sweep.errors import Mistake
from tests.asking import refusal, sweep
from tests.strategies_text import NAMES, any_text, comparisons, predicates

Values = npt.NDArray[np.float64]
UNITS: Mapping[str, str | None] = {
    "step_time": "s",
    "device_memory": "byte",
    "link_bandwidth": "byte/s",
    "efficiency": "1",
    "tp": "1",
    "pp": "1",
    "layers": "1",
    "batch_tokens": "token",
    "parameters": "parameter",
    "flops_per_param_token": "flop/parameter/token",
    "step_flops": "flop",
    "accelerator": None,
}

CANONICAL = {
    "step_time<5s": "step_time < 5 s",
    "1 < tp <= 8": "1 < tp and tp <= 8",
    "not tp < 8 and pp > 1": "tp >= 8 and pp > 1",
    "not (tp < 8 and pp > 1)": "tp >= 8 or pp <= 1",
    "not not tp < 8": "tp < 8",
    "tp in [1, 2]": "tp == 1 or tp == 2",
    "tp in [8]": "tp == 8",
    "tp not in [1, 2]": "tp != 1 and tp != 2",
    "tp == 1 or tp == 2 and pp == 3": "tp == 1 or (tp == 2 and pp == 3)",
    "(tp == 1 or tp == 2) or pp == 3": "tp == 1 or tp == 2 or pp == 3",
    "tp + 2 * pp - 1 > 3": "(tp + (2 * pp)) - 1 > 3",
    "tp - -2 > --3": "tp - -2 > --3",
    "-tp < -(pp + 1)": "-1 * tp < -1 * (pp + 1)",
    "96 % pp == 0": "96 % pp == 0",
    "96%(pp) == 0": "96 % pp == 0",
    "96 % (-5) == tp": "96 % (-5) == tp",
    "efficiency > 50 % and tp > 1": "efficiency > 50 % and tp > 1",
    "efficiency > 50% or tp > 1": "efficiency > 50 % or tp > 1",
    "efficiency > 50%": "efficiency > 50 %",
    "layers % pp == 0": "layers % pp == 0",
    "accelerator == 'H100'": 'accelerator == "H100"',
    "accelerator != 'my \"chip\"'": "accelerator != 'my \"chip\"'",
    'accelerator in ["H100", "é"]': 'accelerator == "H100" or accelerator == "é"',
    "step_time in [1 s, 500 ms]": "step_time == 1 s or step_time == 500 ms",
    "link_bandwidth >= 400 Gbps": "link_bandwidth >= 400 Gbps",
    "step_time * link_bandwidth < 1 GB": "step_time * link_bandwidth < 1 GB",
    "tp < 8  ": "tp < 8",
}


@pytest.mark.parametrize("text", CANONICAL)
def test_grammar(text: str) -> None:
    node = parse(text)
    check(node, UNITS, text)
    assert unparse(node) == CANONICAL[text]
    assert parse(unparse(node)) == node


REFUSED = {
    # words and signs
    "": "a quantity, a number or ( is needed at the end",
    "tp": "a comparison is needed",
    "tp and pp": "a comparison is needed",
    "tp =< 8": 'cannot read "=< 8"; did you mean <=?',
    "tp => 8": "did you mean >=?",
    "tp = 8": "did you mean ==?",
    "tp == 8 && pp == 1": "did you mean and?",
    "tp == 8 || pp == 1": "did you mean or?",
    "tp == 8 pp == 1": "unknown unit 'pp'",
    "tp == 8 (pp == 1)": 'an operator is missing before "("',
    "tp < 8 >": "a quantity, a number or ( is needed at the end",
    "(tp < 8": "expected ')' at the end",
    "tp in (1, 2)": "expected '['",
    "tp in []": "a quantity, a number or ( is needed",
    "tp not 8": "expected 'in'",
    "(tp < 8) + 1 > 2": "a comparison stands where a value is needed",
    "not tp": "a comparison is needed",
    "tp < 8; pp < 8": 'cannot read "; pp < 8"',
    "tp < 8 # tp": "cannot read",
    "accelerator == 'H100": "cannot read",
    # names
    "stpe_time < 2 s": 'unknown "stpe_time"; did you mean "step_time"?',
    "Tp < 8": 'unknown "Tp"; did you mean "tp"?',
    "True == 1": 'unknown "True"',
    # units
    "step_time < 2": "both sides: time and plain numbers; give the number a unit, such as 0.1 s",
    "step_time < 2 GB": "time and memory",
    "step_time < 2 S": "did you mean s (seconds)?",
    "link_bandwidth > 400 Gb/s": "did you mean Gbit (bits) or GB (bytes)?",
    "step_time + tp < 2 s": "+ needs the same kind on both sides: time and plain numbers",
    "step_time % 2 < 1 s": "% needs the same kind",
    "step_time * step_time < 1 s": "< needs the same kind on both sides: second^2 and time",
    "tp < 8 GB": "plain numbers and memory",
    "tp < 1e300 ZB": "outside the range",
    "tp < 1e999": "outside the range",
    "tp < " + "9" * 90 + "e300": "outside the range",
    # choices
    "accelerator == H100": 'unknown "H100"; put names in quotes: "H100"',
    "H100 != accelerator": 'unknown "H100"; put names in quotes: "H100"',
    "accelerator in [H100, H200]": 'put names in quotes: "H100"',
    "accelerator == A100-80GB": 'unknown "A100"; put names in quotes: accelerator == "H100"',
    "accelerator == 100": "a name compares only with quoted text",
    'accelerator < "H100"': "names have no order: use == or !=, not <",
    'accelerator + "x" == "H100x"': "names cannot be combined with +",
    'tp == "8"': "a name compares only with quoted text",
    # other languages
    "tp == 8 if pp > 5 else tp > 1": "only comparisons with and, or, not are understood",
    "tp < 5 else pp": "only comparisons with and, or, not are understood",
    "lambda == 1": "only comparisons with and, or, not are understood",
    "max(tp, pp) < 8": "functions are not understood: max(...)",
    "tp < foo (8)": "functions are not understood: foo(...)",
    "tp ** 2 < 8": "powers are not understood: write a product",
    "tp^2 < 8": "powers are not understood: write a product",
    "batch_tokens > 4M": "unknown unit 'M'; write the number out, such as 4e6",
    # zero
    "tp % 0 == 0": "division by zero",
    "step_time / -0.0 > 1 s": "division by zero",
    # sizes
    "tp < " + "1" * 200: "cannot read",
    "tp < 8 or " * 300 + "tp < 8": "at most 2000 are read",
    "(" * 41 + "tp < 8" + ")" * 41: "nested more than 40 levels deep",
    "tp < " + "-" * 41 + "8": "nested more than 40 levels deep",
    "not " * 41 + "tp < 8": "nested more than 40 levels deep",
    "tp" + " + 1" * 41 + " < 8": "nested more than 40 levels deep",
}


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text[:30])
def test_refused(text: str) -> None:
    with pytest.raises(RuleError) as caught:
        check(parse(text), UNITS, text)
    assert REFUSED[text] in str(caught.value)
    assert isinstance(caught.value, Mistake)
    assert len(str(caught.value)) < 400
    assert str(caught.value).isprintable()


LABELS = {"accelerator": ("H100", "é", "A100-80GB")}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('accelerator == "H101"', 'unknown "H101"; did you mean "H100"?'),
        ('"A100" != accelerator', 'unknown "A100"; did you mean "A100-80GB"?'),
        ('tp > 1 or accelerator in ["H100", "zzz"]', 'unknown "zzz"'),
    ],
)
def test_quoted_names_are_known_ones(text: str, said: str) -> None:
    check(parse(text), UNITS, text)
    check(parse(text), UNITS, text, {"link": ["x"]})
    for refused in (
        lambda: check(parse(text), UNITS, text, LABELS),
        lambda: constraints.Rule.read("", text, UNITS, LABELS),
    ):
        error = refusal(refused, RuleError)
        assert error is not None and str(error).endswith(said)


def test_known_names_may_be_compared() -> None:
    text = 'accelerator in ["H100", "é"] and tp < 9'
    assert constraints.Rule.read("", text, UNITS, LABELS).predicate == parse(text)


def test_refused_in_a_sweep_by_place() -> None:
    with pytest.raises(RuleError) as caught:
        sweep(feasible={"where": ["tp < 9", "stpe_time < 2 s"]})
    assert caught.value.field == "feasible.where[1]"
    assert str(caught.value).startswith('feasible.where[1]: "stpe_time < 2 s": unknown "stpe_time"')


@pytest.mark.parametrize("where", [5, None, [5], [None], [["tp < 8"]], {"tp": 8}, b"tp < 8"])
def test_rules_are_texts(where: object) -> None:
    with pytest.raises(Mistake, match=r"^feasible\.where: .* given; needed: text"):
        sweep(feasible={"where": where})
    with pytest.raises(Mistake, match=r"a rule in quotes"):
        parse(5)  # type: ignore[arg-type]


CODE = (
    "__import__('os').mkdir('x') == 1",
    "tp.__class__ == 1",
    "().__class__.__bases__[0] == 1",
    "(lambda: 1)() == 1",
    "[x for x in tp] == 1",
    "{1: 2} == 1",
    "f'{tp}' == 'x'",
    "tp[0] == 1",
    "9**9**9 > tp",
    "@tp == 1",
    "`tp` == 1",
    "tp if pp else 1",
    "(tp := 8) == 8",
    "print('x')",
    "tp == 8\n__import__('os')",
    "tp == \x00",
    "(" * 10_000 + "tp < 8" + ")" * 10_000,
    "-" * 1990 + "8 < tp",
    "not " * 490 + "tp < 8",
    "tp < 8 and " * 100_000 + "tp < 8",
    "9" * 10**6,
)


@pytest.mark.parametrize("text", CODE, ids=range(len(CODE)))
def test_code_is_refused(text: str) -> None:
    with pytest.raises(RuleError):
        check(parse(text), UNITS, text)


def test_texts_too_long_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def no(_: str) -> None:
        raise AssertionError

    monkeypatch.setattr(constraints, "_tokenize", no)
    with pytest.raises(RuleError, match=r"1048576 characters; at most 2000 are read"):
        parse("tp < 8 or " * 104857 + " " * 6)


def test_nothing_in_the_package_executes_text() -> None:
    package = Path(ms.__file__).parent
    forbidden = re.compile(
        r"\b(eval|exec|compile|__import__|pickle|marshal|shelve|numexpr|os\.system|shell=True)\b"
        r"|\.(query|eval)\(|yaml"
    )
    allowed = re.compile(r"re\.compile\(")
    found = [
        f"{file.name}: {line.strip()}"
        for file in sorted(package.rglob("*.py"))
        for line in file.read_text(encoding="utf-8").splitlines()
        if forbidden.search(allowed.sub("", line)) and not line.lstrip().startswith(("#", '"'))
    ]
    prose = ("No `eval`", "is ever executed", "are executed")
    assert [line for line in found if not any(words in line for words in prose)] == []


@given(any_text)
def test_any_text_is_read_or_refused(text: str) -> None:
    error = refusal(lambda: check(parse(text), UNITS, text), RuleError)
    if error is None:
        assert names(parse(text)) <= set(UNITS)
        assert parse(unparse(parse(text))) == parse(text)
    else:
        assert error.text == text


@given(predicates)
def test_text_and_tree_agree(node: Predicate) -> None:
    read = parse(unparse(node))
    assert read == node
    assert unparse(read) == unparse(node)


# --- against a slow evaluation, point by point ---------------------------------------------------

COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": lambda left, right: left < right or left > right,
}


def slow_value(node: Expression, point: Mapping[str, float]) -> float:
    if isinstance(node, Number):
        return node.amount
    if isinstance(node, Name):
        return point[node.name]
    assert isinstance(node, Arithmetic)
    left, right = (
        np.float64(slow_value(node.left, point)),
        np.float64(slow_value(node.right, point)),
    )
    apply = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide, "%": np.mod}
    return float(apply[node.op](left, right))


def slow(node: Predicate, point: Mapping[str, float]) -> bool:
    if isinstance(node, Logic):
        return {"and": all, "or": any}[node.op]([slow(part, point) for part in node.parts])
    return COMPARE[node.op](slow_value(node.left, point), slow_value(node.right, point))


AMOUNTS = (0.0, -0.0, 1.0, 2.0, 3.0, -1.0, 0.5, 1e308, 5e-324, math.inf, -math.inf, math.nan)
numbers = st.sampled_from(AMOUNTS) | st.floats()
points = st.lists(st.tuples(numbers, numbers, st.integers(1, 2**53)), min_size=1, max_size=5)


def lookup_of(rows: list[tuple[float, float, int]]) -> Callable[[str], npt.NDArray[np.generic]]:
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    return MappingProxyType(dict(zip(NAMES, columns, strict=True))).__getitem__


@given(predicates, points)
@np.errstate(all="ignore")
def test_mask_is_the_slow_evaluation(node: Predicate, rows: list[tuple[float, float, int]]) -> None:
    expected = [slow(node, dict(zip(NAMES, row, strict=True))) for row in rows]
    holds = np.broadcast_to(mask(node, lookup_of(rows)), (len(rows),))
    assert holds.dtype == bool
    assert holds.tolist() == expected


@given(predicates, points)
@np.errstate(all="ignore")
def test_negation_is_the_complement_where_there_are_values(
    node: Predicate, rows: list[tuple[float, float, int]]
) -> None:
    lookup = lookup_of(rows)
    opposite = parse(f"not ({unparse(node)})")
    both = np.broadcast_to(mask(node, lookup) & mask(opposite, lookup), (len(rows),))
    neither = ~np.broadcast_to(mask(node, lookup) | mask(opposite, lookup), (len(rows),))
    assert not both.any()
    assert parse(f"not ({unparse(opposite)})") == node
    absent = np.zeros(len(rows), bool)
    for part in _comparisons(node):
        sides = [np.asarray(constraints.value(s, lookup), float) for s in (part.left, part.right)]
        absent |= np.broadcast_to(np.isnan(sides[0]) | np.isnan(sides[1]), (len(rows),))
    assert not (neither & ~absent).any()


def _comparisons(node: Predicate) -> list[Comparison]:
    if isinstance(node, Comparison):
        return [node]
    return [found for part in node.parts for found in _comparisons(part)]


@given(comparisons, comparisons)
def test_de_morgan(one: Comparison, other: Comparison) -> None:
    left, right = unparse(one), unparse(other)
    assert parse(f"not ({left} and {right})") == parse(f"not ({left}) or not ({right})")
    assert parse(f"not ({left} or {right})") == parse(f"not ({left}) and not ({right})")


@pytest.mark.parametrize("op", COMPARE)
@pytest.mark.parametrize("negated", [False, True])
def test_nan_never_passes(op: str, negated: bool) -> None:
    values = {"a": np.array([math.nan, 1.0]), "b": np.array([1.0, math.nan])}
    for text in (f"a {op} b", f"a {op} 1", f"a + 1 {op} b * 0", f"a {op} a and a {op} b"):
        node = parse(f"not ({text})" if negated else text)
        assert not mask(node, values.__getitem__)[0]


@given(predicates, points)
@np.errstate(all="ignore")
def test_shortfall_is_zero_exactly_inside(
    node: Predicate, rows: list[tuple[float, float, int]]
) -> None:
    lookup = lookup_of(rows)
    short = shortfall(node, lookup)
    assert not np.isnan(short).any()
    assert (short >= 0).all()
    np.testing.assert_array_equal(short == 0, np.broadcast_to(mask(node, lookup), short.shape))


@given(comparisons, points)
@np.errstate(all="ignore")
def test_margin_has_the_sign_of_the_mask(
    node: Comparison, rows: list[tuple[float, float, int]]
) -> None:
    lookup = lookup_of(rows)
    room, holds = np.broadcast_arrays(margin(node, lookup), mask(node, lookup))
    known = ~np.isnan(room)
    assert (room[known & holds] >= 0).all()
    assert (room[known & ~holds] <= 0).all()


def test_shortfall_is_relative_to_the_right_side() -> None:
    values = {"step_time": np.array([4.0, 5.0, 6.0, 10.0]), "tp": np.array([8, 8, 9, 16])}
    lookup = values.__getitem__
    assert shortfall(parse("step_time < 5 s"), lookup)[[0, 2, 3]].tolist() == [0, 0.2, 1]
    assert 0 < shortfall(parse("step_time < 5 s"), lookup)[1] < 1e-300
    both = parse("step_time <= 5 s and tp <= 8")
    either = parse("step_time <= 5 s or tp <= 8")
    assert shortfall(both, lookup).tolist() == [0, 0, 0.2, 1]
    assert shortfall(either, lookup).tolist() == [0, 0, 0.125, 1]


@pytest.mark.parametrize(
    ("short", "text"),
    [
        (float(np.finfo(float).tiny), "exactly at the limit"),
        (1e-6, "0.0001% off"),
        (0.0178, "1.78% off"),
        (0.9996, "100% off"),
        (9.999, "1000% off"),
        (12.0, "12 times off"),
        (123456.0, "123,456 times off"),
        (1e9, ""),
        (math.inf, ""),
    ],
)
def test_misses_in_words(short: float, text: str) -> None:
    assert miss_text(short) == text


def test_names_of_choices_are_compared_as_text() -> None:
    names_given = np.array(["H100", "é", "h100"], object)
    lookup = {"accelerator": names_given}.__getitem__
    assert mask(parse('accelerator == "H100"'), lookup).tolist() == [True, False, False]
    assert mask(parse('accelerator not in ["H100", "é"]'), lookup).tolist() == [False, False, True]
    node = parse('accelerator == "é"')
    assert isinstance(node, Comparison)
    assert np.isnan(margin(node, lookup)).all()
    assert shortfall(node, lookup).tolist() == [math.inf, 0, math.inf]


def test_whole_numbers_do_not_wrap() -> None:
    lookup = {"tp": np.array([2**52]), "pp": np.array([2**52])}.__getitem__
    assert mask(parse("tp * pp > 1e30"), lookup).tolist() == [True]
    assert mask(parse("tp - pp - 1 < 0"), lookup).tolist() == [True]


def test_a_rule_without_names_holds_everywhere_or_nowhere() -> None:
    assert (
        len(sweep(axes={"tp": [1, 8]}, feasible={"memory": "off", "where": "1 < 2"}).table()) == 2
    )
    assert (
        len(sweep(axes={"tp": [1, 8]}, feasible={"memory": "off", "where": "1 > 2"}).table()) == 0
    )


def test_rules_are_split_and_named_by_their_text() -> None:
    asked = sweep(feasible={"where": ["tp < 9 and pp<9", "tp in [1,8] or pp == 2"]})
    named = [row.rule for row in asked.funnel().rows][-3:]
    assert named == ["tp < 9", "pp < 9", "tp == 1 or tp == 8 or pp == 2"]
