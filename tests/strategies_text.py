"""Strategies of texts that people may type: rules, values with units, names."""

from __future__ import annotations

from hypothesis import strategies as st

from mlsysim_sweep.constraints import (
    Arithmetic,
    Comparison,
    Expression,
    Logic,
    Name,
    Number,
    Predicate,
    _logic,
)

_WORDS = (
    *("step_time", "tp", "pp", "efficiency", "accelerator", "and", "or", "not", "in", "lambda"),
    *("<", "<=", ">", ">=", "==", "!=", "=", "=<", "&&", "+", "-", "*", "/", "%", "(", ")"),
    *(
        "[",
        "]",
        ",",
        '"H100"',
        "'H100'",
        '"',
        "'",
        "5",
        "5 s",
        "0.5",
        "1e300",
        "1e300 ZB",
        "9" * 90,
    ),
    *(
        "50 %",
        "96 %",
        "2 GiB",
        "400 Gbps",
        "3 Gb",
        "5µs",
        "1e99999",
        ".",
        "_",
        "\x00",
        "é",
        "٣",
        "\n",
    ),
)
rule_like = st.lists(st.sampled_from(_WORDS), max_size=12).flatmap(
    lambda words: st.sampled_from((" ", "")).map(lambda space: space.join(words))
)
"""Texts made of the pieces of rules, mostly in no order that means anything."""

any_text = st.text(max_size=60) | rule_like

_UNITS = ("GB", "GiB", "Gbit", "Gbps", "s", "ms", "TFLOP/s", "token", "%", "$", "B^2", "Gb", "degC")
_NUMBERS = (
    "400",
    "-5",
    "1e400",
    "nan",
    "inf",
    "0x10",
    "1_000",
    "٣",
    "9" * 80,
    "1e-300",
    "",
    "1.",
    ".5",
)
value_like = st.builds(
    lambda number, space, units: number + space + units,
    st.sampled_from(_NUMBERS) | st.floats().map(repr),
    st.sampled_from(("", " ", "\t")),
    st.lists(st.sampled_from((*_UNITS, "*", "/", "^", "**", "99", " ")), max_size=6).map("".join),
)
"""Texts that look like a value with a unit."""

# --- rules as trees ------------------------------------------------------------------------------

NAMES = ("a", "b", "n")
"""What the rules below are about; all are plain numbers, ``n`` is whole."""

_OPERATORS = ("+", "-", "*", "/", "%")
_COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
_numbers = st.sampled_from((0.0, 1.0, 2.0, 0.5, -1.0, 3.0, 1e6)).map(
    lambda amount: Number(amount, None, repr(amount))
)
_expressions: st.SearchStrategy[Expression] = st.recursive(
    st.sampled_from(NAMES).map(Name) | _numbers,
    lambda inner: st.builds(Arithmetic, st.sampled_from(_OPERATORS), inner, inner),
    max_leaves=5,
)
comparisons = st.builds(Comparison, st.sampled_from(_COMPARISONS), _expressions, _expressions)


def _joined(inner: st.SearchStrategy[Predicate]) -> st.SearchStrategy[Predicate]:
    parts = st.lists(inner, min_size=2, max_size=3)
    return st.builds(_logic, st.sampled_from(("and", "or")), parts)


predicates: st.SearchStrategy[Predicate] = st.recursive(comparisons, _joined, max_leaves=6)
"""Rules as the parser may give them: no ``and`` directly inside an ``and``."""


def count(node: Predicate) -> int:
    """Number of comparisons in a rule."""
    return sum(map(count, node.parts)) if isinstance(node, Logic) else 1
