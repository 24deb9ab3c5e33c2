"""``"step_time < 2 s"`` as a predicate on arrays, and the funnel: what was dropped and why.

The grammar is our own and small: comparisons of quantities, inputs and numbers with units,
``and`` / ``or`` / ``not``, ``+ - * / %``, parentheses and ``in [...]``. Nothing is ever executed.

NaN satisfies no comparison, negated or not: a value that does not exist cannot make a layout
feasible.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mlsysim_sweep import units
from mlsysim_sweep.errors import Mistake, shown, suggestion

Values: TypeAlias = npt.NDArray[Any]
Lookup: TypeAlias = Callable[[str], Values]
UnitOf: TypeAlias = Mapping[str, str | None]
"""Name -> unit of what a rule may mention; None for names of choices, whose values are text."""
Labels: TypeAlias = Mapping[str, Collection[str]]
"""Choice -> the names that it may be compared with."""

_LONGEST = 2000
_DEEPEST = 40

_TOKENS = re.compile(
    r"""\s*(?:
      (?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,4})?)
      (?:\s*(?P<unit>(?!%\s*(?!(?:and|or|not|in)\b)[\w.(])  # not the % of 96 % pp
                     (?!(?:and|or|not|in)\b)[A-Za-zµμ$%][A-Za-zµμ]*(?:/[A-Za-z]+)*))?
    | (?P<name>[A-Za-z_][A-Za-z_0-9]*)
    | "(?P<double>[^"\n]*)" | '(?P<single>[^'\n]*)'
    | (?P<op><=|>=|==|!=|\*\*|[<>^+\-*/%(),\[\]])
    )""",
    re.VERBOSE | re.ASCII,
)
_COMPARISONS = ("<=", ">=", "==", "!=", "<", ">")
_FOREIGN = ("if", "else", "for", "lambda")
_NEGATED = {"<": ">=", ">=": "<", ">": "<=", "<=": ">", "==": "!=", "!=": "=="}
_HINTS = {"=": "==", "=<": "<=", "=>": ">=", "&&": "and", "||": "or", "&": "and", "|": "or"}


class RuleError(Mistake):
    """A rule that cannot be read, or that compares what cannot be compared."""

    def __init__(self, text: str, reason: str, field: str = "") -> None:
        self.text = text
        self.reason = reason
        super().__init__(field, f"{shown(text)}: {reason}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.text, self.reason, self.field)

    def within(self, place: str) -> RuleError:
        """The same error, placed in a spec."""
        return RuleError(self.text, self.reason, place)


@dataclass(frozen=True, slots=True)
class Number:
    """A literal in base units; ``dimension`` is None for a bare number, ``text`` is as written."""

    amount: float
    dimension: units.Dimension | None
    text: str


@dataclass(frozen=True, slots=True)
class Name:
    """A quantity, an input or a choice."""

    name: str


@dataclass(frozen=True, slots=True)
class Text:
    """A quoted name of a choice."""

    text: str


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """``left op right`` with one of ``+ - * / %``."""

    op: str
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class Comparison:
    """``left op right`` with one of ``< <= > >= == !=``."""

    op: str
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class Logic:
    """All of (``and``) or any of (``or``) several predicates."""

    op: str
    parts: tuple[Predicate, ...]


Expression: TypeAlias = Number | Name | Text | Arithmetic
Predicate: TypeAlias = Comparison | Logic
Node: TypeAlias = Expression | Predicate


# --- reading -------------------------------------------------------------------------------------


@dataclass
class _Reader:
    """Recursive descent over the tokens of one rule."""

    text: str
    tokens: list[tuple[str, Any]] = field(default_factory=list)
    position: int = 0
    depth: int = 0

    def fail(self, problem: str) -> RuleError:
        return RuleError(self.text, problem)

    def peek(self) -> Any:
        return self.tokens[self.position][1] if self.position < len(self.tokens) else None

    def kind(self) -> str:
        return self.tokens[self.position][0] if self.position < len(self.tokens) else "end"

    def take(self) -> Any:
        value = self.peek()
        self.position += 1
        return value

    def accept(self, *symbols: str) -> str | None:
        if self.kind() in ("op", "word") and self.peek() in symbols:
            return str(self.take())
        return None

    def expect(self, symbol: str) -> None:
        if self.accept(symbol) is None:
            raise self.fail(f"expected {symbol!r} {self.here()}")

    def here(self) -> str:
        return f"before {shown(str(self.peek()))}" if self.kind() != "end" else "at the end"

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise self.fail(f"nested more than {_DEEPEST} levels deep")

    def disjunction(self) -> Node:
        return self.chain("or", self.conjunction)

    def conjunction(self) -> Node:
        return self.chain("and", self.negation)

    def chain(self, word: str, part: Callable[[], Node]) -> Node:
        parts = [part()]
        while self.accept(word):
            parts.append(part())
        return parts[0] if len(parts) == 1 else _logic(word, [self.predicate(p) for p in parts])

    def predicate(self, node: Node) -> Predicate:
        if not isinstance(node, Comparison | Logic):
            raise self.fail("a comparison is needed, such as step_time < 5 s")
        return node

    def negation(self) -> Node:
        if not self.accept("not"):
            return self.comparison()
        self.deeper()
        inner = _negate(self.predicate(self.negation()))
        self.depth -= 1
        return inner

    def comparison(self) -> Node:
        left = self.sum()
        if self.accept("in"):
            return self.membership(left, "==", "or")
        if self.accept("not"):
            self.expect("in")
            return self.membership(left, "!=", "and")
        found: list[Predicate] = []
        while op := self.accept(*_COMPARISONS):
            right = self.sum()
            found.append(Comparison(op, self.expression(left), self.expression(right)))
            left = right
        if not found:
            return left
        return _logic("and", found)

    def membership(self, left: Node, op: str, word: str) -> Predicate:
        self.expect("[")
        items = [self.sum()]
        while self.accept(","):
            items.append(self.sum())
        self.expect("]")
        one = self.expression(left)
        return _logic(word, [Comparison(op, one, self.expression(item)) for item in items])

    def expression(self, node: Node) -> Expression:
        if isinstance(node, Comparison | Logic):
            raise self.fail("a comparison stands where a value is needed")
        return node

    def sum(self) -> Node:
        return self.operators(("+", "-"), self.product)

    def product(self) -> Node:
        return self.operators(("*", "/", "%"), self.factor)

    def operators(self, symbols: tuple[str, ...], part: Callable[[], Node]) -> Node:
        node = part()
        while op := self.accept(*symbols):
            node = Arithmetic(op, self.expression(node), self.expression(part()))
            self.deeper()
        return node

    def factor(self) -> Node:
        if self.accept("-"):
            self.deeper()
            inner = self.expression(self.factor())
            self.depth -= 1
            if isinstance(inner, Number):
                return Number(-inner.amount, inner.dimension, f"-{inner.text}")
            return Arithmetic("*", Number(-1.0, None, "-1"), inner)
        return self.atom()

    def atom(self) -> Node:
        kind = self.kind()
        if self.accept("("):
            self.deeper()
            node = self.disjunction()
            self.expect(")")
            self.depth -= 1
            return node
        if kind == "number":
            return self.take()  # type: ignore[no-any-return]
        if kind == "name":
            name = Name(self.take())
            if (self.kind(), self.peek()) == ("op", "("):
                raise self.fail(f"functions are not understood: {name.name}(...)")
            return name
        if kind == "text":
            return Text(self.take())
        raise self.fail(f"a quantity, a number or ( is needed {self.here()}")


def _tokenize(text: str) -> Iterator[tuple[str, Any]]:
    position, end = 0, len(text.rstrip())
    while position < end:
        match = _TOKENS.match(text, position)
        if match is None:
            rest = text[position:].lstrip()
            hint = _HINTS.get(rest[:2]) or _HINTS.get(rest[:1])
            raise RuleError(
                text,
                f"cannot read {shown(rest[:20])}" + (f"; did you mean {hint}?" if hint else ""),
            )
        position = match.end()
        if match["unit"] in _FOREIGN or match["name"] in _FOREIGN:
            raise RuleError(text, "only comparisons with and, or, not are understood")
        if match["op"] in ("**", "^"):
            raise RuleError(text, "powers are not understood: write a product")
        if match["number"] is not None:
            yield "number", _literal(text, match["number"], match["unit"])
        elif match["name"] in ("and", "or", "not", "in"):
            yield "word", match["name"]
        elif match["name"] is not None:
            yield "name", match["name"]
        elif match["op"] is not None:
            yield "op", match["op"]
        else:
            quoted = match["double"] if match["double"] is not None else match["single"]
            yield "text", unicodedata.normalize("NFC", quoted)


def _literal(text: str, number: str, unit: str | None) -> Number:
    try:
        exact, _ = units.split_number(number)
        if unit is None:
            return Number(units.to_float(exact), None, number)
        parsed = units.parse_unit(unit)
        amount = units.to_float(exact * parsed.factor)
    except units.UnitError as error:
        raise RuleError(text, str(error)) from None
    return Number(amount, units.without_counts(parsed.dimension), f"{number} {unit}")


def _logic(word: str, parts: Sequence[Predicate]) -> Predicate:
    """``and``/``or`` of parts, nested ones of the same word flattened; a single part by itself."""
    flat: list[Predicate] = []
    for part in parts:
        flat += part.parts if isinstance(part, Logic) and part.op == word else (part,)
    return Logic(word, tuple(flat)) if len(flat) > 1 else flat[0]


def _negate(node: Predicate) -> Predicate:
    """The opposite predicate, ``not`` pushed down to the comparisons so that NaN never passes."""
    if isinstance(node, Comparison):
        return Comparison(_NEGATED[node.op], node.left, node.right)
    return Logic("or" if node.op == "and" else "and", tuple(_negate(p) for p in node.parts))


def parse(text: str) -> Predicate:
    """Read a rule.

    Raises
    ------
    RuleError
        Whatever the text: it is read, or refused with this one error.

    >>> sorted(names(parse("step_time < 5 s and pp <= layers")))
    ['layers', 'pp', 'step_time']
    """
    if not isinstance(text, str):
        raise Mistake("", f"{shown(text)} given", 'a rule in quotes, such as "step_time < 5 s"')
    if len(text) > _LONGEST:
        raise RuleError(text, f"{len(text)} characters; at most {_LONGEST} are read")
    reader = _Reader(text, list(_tokenize(text)))
    node = reader.disjunction()
    if reader.kind() != "end":
        hint = ' (write "==" to compare)' if reader.peek() == "=" else ""
        raise reader.fail(f"an operator is missing {reader.here()}{hint}")
    return reader.predicate(node)


def unparse(node: Node) -> str:
    """The text of a node, in one canonical form.

    >>> unparse(parse("not (pp>3 or tp in [1,2]) and step_time<5s"))
    'pp <= 3 and tp != 1 and tp != 2 and step_time < 5 s'
    """
    if isinstance(node, Number):
        return node.text
    if isinstance(node, Name):
        return node.name
    if isinstance(node, Text):
        return f"'{node.text}'" if '"' in node.text else f'"{node.text}"'
    if isinstance(node, Logic):
        return f" {node.op} ".join(
            f"({unparse(part)})" if isinstance(part, Logic) else unparse(part)
            for part in node.parts
        )
    left, right = (
        f"({unparse(side)})" if _needs_parentheses(side, node) else unparse(side)
        for side in (node.left, node.right)
    )
    return f"{left} {node.op} {right}"


def _needs_parentheses(side: Expression, node: Arithmetic | Comparison) -> bool:
    if isinstance(side, Arithmetic):
        return isinstance(node, Arithmetic)
    # Without them "96 % -1" is 96 percent minus 1.
    return node.op == "%" and isinstance(side, Number) and side.text.startswith("-")


# --- checking ------------------------------------------------------------------------------------


def names(node: Node) -> frozenset[str]:
    """Every quantity, input and choice that a rule mentions."""
    if isinstance(node, Name):
        return frozenset({node.name})
    if isinstance(node, Arithmetic | Comparison):
        return names(node.left) | names(node.right)
    if isinstance(node, Logic):
        return frozenset().union(*(names(part) for part in node.parts))
    return frozenset()


def texts(node: Predicate) -> Iterator[tuple[str, str]]:
    """Each name that a rule compares a choice with, after that choice."""
    if isinstance(node, Logic):
        for part in node.parts:
            yield from texts(part)
        return
    for one, other in ((node.left, node.right), (node.right, node.left)):
        if isinstance(one, Name) and isinstance(other, Text):
            yield one.name, other.text


def check(node: Predicate, unit_of: UnitOf, text: str, labels: Labels | None = None) -> None:
    """Refuse unknown names, and comparisons or sums of different dimensions.

    Quoted names are compared with ``labels``, for the choices that have an entry there. Tokens,
    parameters and devices count as plain numbers here, so that bare numbers compare.

    Raises
    ------
    RuleError
        Naming what does not fit, with the closest known name.
    """
    if isinstance(node, Logic):
        for part in node.parts:
            check(part, unit_of, text, labels)
        return
    _refuse_unquoted(node, unit_of, text)
    left, right = _type(node.left, unit_of, text), _type(node.right, unit_of, text)
    if left == "text" or right == "text":
        if left != right:
            raise RuleError(text, 'a name compares only with quoted text, as accelerator == "H100"')
        if node.op not in ("==", "!="):
            raise RuleError(text, f"names have no order: use == or !=, not {node.op}")
        _refuse_unknown(node, labels or {}, text)
        return
    _same(left, right, node.op, text)


def _refuse_unquoted(node: Comparison, unit_of: UnitOf, text: str) -> None:
    for one, other in ((node.left, node.right), (node.right, node.left)):
        is_choice = isinstance(one, Name) and unit_of.get(one.name, "") is None
        unquoted = sorted(names(other) - unit_of.keys()) if is_choice else ()
        for name in unquoted:
            quoted = f'"{name}"' if isinstance(other, Name) else f'{unparse(one)} == "H100"'
            raise RuleError(text, f"unknown {shown(name)}; put names in quotes: {quoted}")


def _refuse_unknown(node: Comparison, labels: Labels, text: str) -> None:
    for choice, label in texts(node):
        known = labels.get(choice)
        if known is not None and label not in known:
            raise RuleError(text, f"unknown {shown(label)}{suggestion(label, known)}")


_Type: TypeAlias = units.Dimension | str


def _type(node: Expression, unit_of: UnitOf, text: str) -> _Type:
    """Dimension of a value, ``"text"``, or ``"bare"`` for a number without a unit."""
    if isinstance(node, Number):
        return "bare" if node.dimension is None else node.dimension
    if isinstance(node, Text):
        return "text"
    if isinstance(node, Name):
        if node.name not in unit_of:
            raise RuleError(text, f"unknown {shown(node.name)}{suggestion(node.name, unit_of)}")
        unit = unit_of[node.name]
        return "text" if unit is None else _rule_dimension(unit)
    left, right = _type(node.left, unit_of, text), _type(node.right, unit_of, text)
    if "text" in (left, right):
        raise RuleError(text, f"names cannot be combined with {node.op}")
    if node.op in ("/", "%") and isinstance(node.right, Number) and node.right.amount == 0:
        raise RuleError(text, "division by zero")
    if node.op in ("*", "/"):
        return _product(left, right, 1 if node.op == "*" else -1)
    return _same(left, right, node.op, text)


def _rule_dimension(unit: str) -> units.Dimension:
    dimension = units.without_counts(units.dimension_of(unit))
    return {} if units.bare_allowed(unit) else dimension


def _product(left: _Type, right: _Type, sign: int) -> _Type:
    if left == "bare" and right == "bare":
        return "bare"
    powers = dict(left) if isinstance(left, Mapping) else {}
    for base, power in right.items() if isinstance(right, Mapping) else ():
        powers[base] = powers.get(base, 0) + sign * power
    return {base: power for base, power in powers.items() if power}


def _same(left: _Type, right: _Type, op: str, text: str) -> _Type:
    if left == "bare" and right == "bare":
        return "bare"
    sides = [side if isinstance(side, Mapping) else {} for side in (left, right)]
    if sides[0] != sides[1]:
        needed = next(side for side in sides if side)
        lacking = "bare" in (left, right)
        raise RuleError(
            text,
            f"{op} needs the same kind on both sides: {units.describe(sides[0])} and "
            f"{units.describe(sides[1])}"
            + (f"; give the number a unit, such as {_unit_example(needed)}" if lacking else ""),
        )
    return sides[0]


def _unit_example(dimension: units.Dimension) -> str:
    for unit in ("s", "byte", "byte/s", "flop/s", "W"):
        if units.dimension_of(unit) == dimension:
            return units.example(unit).split('"')[1]
    return units.describe(dimension)


def conjuncts(node: Predicate) -> tuple[Predicate, ...]:
    """The parts that must all hold."""
    return node.parts if isinstance(node, Logic) and node.op == "and" else (node,)


# --- evaluating ----------------------------------------------------------------------------------

_COMPARE: Mapping[str, Callable[[Any, Any], Any]] = {
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
    "==": np.equal,
}
_ARITHMETIC: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "%": np.mod,
}


def value(node: Expression, lookup: Lookup) -> Any:
    """Values of an expression; arithmetic is in float64, so that whole numbers cannot wrap."""
    if isinstance(node, Number):
        return node.amount
    if isinstance(node, Text):
        return node.text
    if isinstance(node, Name):
        return lookup(node.name)
    left, right = (np.asarray(value(side, lookup), float) for side in (node.left, node.right))
    return _ARITHMETIC[node.op](left, right)


def mask(node: Predicate, lookup: Lookup) -> Values:
    """Where a rule holds, on the axes that its names vary on."""
    if isinstance(node, Logic):
        combine = np.logical_and if node.op == "and" else np.logical_or
        holds = mask(node.parts[0], lookup)
        for part in node.parts[1:]:
            holds = combine(holds, mask(part, lookup))
        return holds
    left, right = value(node.left, lookup), value(node.right, lookup)
    if node.op != "!=":
        return np.asarray(_COMPARE[node.op](left, right), bool)
    if isinstance(node.left, Text) or isinstance(node.right, Text):
        return np.asarray(np.not_equal(left, right), bool)
    return np.asarray(np.less(left, right) | np.greater(left, right), bool)


def margin(node: Comparison, lookup: Lookup) -> Values:
    """Room to spare in the unit of the comparison: negative outside, NaN for text."""
    if any(isinstance(side, Text) for side in (node.left, node.right)):
        return np.asarray(np.nan)
    left, right = (np.asarray(value(side, lookup)) for side in (node.left, node.right))
    if left.dtype == object or right.dtype == object:
        return np.asarray(np.nan)
    room: Values = np.asarray(right, float) - np.asarray(left, float)
    if node.op in ("==", "!="):
        room = np.abs(room)
    return room if node.op in ("<", "<=", "!=") else 0.0 - room


def shortfall(node: Predicate, lookup: Lookup) -> Values:
    """How far outside a rule a point lies, relative to its right side; 0 only where it holds.

    ``and`` takes the worst of its parts, ``or`` the best. Text, and values that do not exist, are
    infinitely far.
    """
    if isinstance(node, Logic):
        combine = np.maximum if node.op == "and" else np.minimum
        worst = shortfall(node.parts[0], lookup)
        for part in node.parts[1:]:
            worst = combine(worst, shortfall(part, lookup))
        return worst
    holds = mask(node, lookup)
    missing = np.abs(margin(node, lookup))
    right = value(node.right, lookup)
    scale = 1.0 if isinstance(right, str) else _scale(np.asarray(right))
    short = np.nan_to_num(missing / scale, nan=np.inf, posinf=np.inf)
    return np.where(holds, 0.0, np.maximum(short, np.finfo(float).tiny))


def _scale(right: Values) -> Values:
    if right.dtype == object:
        return np.asarray(1.0)
    size = np.abs(np.asarray(right, float))
    return np.where(size > 0, size, 1.0)


def unit_of_comparison(node: Comparison, describe: Callable[[str], tuple[str, str]]) -> str:
    """Unit of a comparison's margin: that of the first quantity in it that has one."""
    for name in (n.name for side in (node.left, node.right) for n in _leaves(side)):
        unit, _ = describe(name)
        if unit != "1":
            return unit
    return "1"


def _leaves(node: Expression) -> Iterator[Name]:
    if isinstance(node, Name):
        yield node
    elif isinstance(node, Arithmetic):
        yield from _leaves(node.left)
        yield from _leaves(node.right)


# --- rules and the funnel ------------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """A named predicate of a sweep; ``text`` is what was asked."""

    name: str
    text: str
    predicate: Predicate

    @classmethod
    def read(cls, name: str, text: str, unit_of: UnitOf, labels: Labels | None = None) -> Rule:
        """Parse and check one rule; it is called by its text where ``name`` is empty."""
        predicate = parse(text)
        check(predicate, unit_of, text, labels)
        return cls(name or unparse(predicate), text, predicate)

    def split(self) -> tuple[Rule, ...]:
        """One rule for each part that must hold, so that each is decided where it is cheapest."""
        parts = conjuncts(self.predicate)
        if len(parts) == 1:
            return (self,)
        return tuple(Rule(unparse(part), self.text, part) for part in parts)

    @property
    def names(self) -> frozenset[str]:
        """Quantities, inputs and choices that the rule mentions."""
        return names(self.predicate)


@dataclass(frozen=True)
class Miss:
    """The layout that came closest to passing a rule, and by how much it misses, relatively."""

    layout: Mapping[str, Any]
    shortfall: float


def miss_text(shortfall: float) -> str:
    """How far a miss is off, in words; empty where no number says it.

    >>> miss_text(0.0178), miss_text(12.0), miss_text(float("inf"))
    ('1.78% off', '12 times off', '')
    """
    if shortfall <= 1e-300:  # the bound itself, where only values below it pass
        return "exactly at the limit"
    if shortfall < 10:
        percent = 100 * shortfall
        return f"{percent:.3g}% off" if percent < 100 else f"{percent:.0f}% off"
    return f"{shortfall:,.0f} times off" if shortfall < 1e9 else ""


@dataclass(frozen=True)
class FunnelRow:
    """What one rule dropped.

    ``rejected`` counts the points that passed every rule before this one and fail it; ``left`` is
    what remains. ``rejects`` counts all points that fail the rule, whatever the others say;
    ``rejected_only`` those that fail no other rule. The latter two, and the nearest miss, are None
    where they were not counted: `explain` counts them all, a run only drops.
    """

    rule: str
    text: str
    axes: tuple[str, ...]
    rejected: int
    left: int
    rejects: int | None = None
    rejected_only: int | None = None
    nearest: Miss | None = None


@dataclass(frozen=True)
class Funnel:
    """From all points of a grid to the feasible ones, rule by rule, cheapest first."""

    points: int
    rows: tuple[FunnelRow, ...]
    feasible: int

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "points": self.points,
            "feasible": self.feasible,
            "rules": [_row_dict(row) for row in self.rows],
        }

    def __str__(self) -> str:
        width = max([len(row.rule) for row in self.rows] + [len("all points")])
        lines = [f"{'all points':<{width}}  {'':>15}  {self.points:>15,}"]
        lines += [
            f"{row.rule:<{width}}  {-row.rejected:>15,}  {row.left:>15,}" for row in self.rows
        ]
        return "\n".join(lines)


def _row_dict(row: FunnelRow) -> dict[str, Any]:
    shown_row: dict[str, Any] = {
        "rule": row.rule,
        "text": row.text,
        "axes": list(row.axes),
        "rejected": row.rejected,
        "left": row.left,
    }
    if row.rejects is not None:
        shown_row |= {"rejects": row.rejects, "rejected_only": row.rejected_only}
    if row.nearest is not None:
        short = row.nearest.shortfall
        shown_row["nearest_miss"] = {
            "layout": dict(row.nearest.layout),
            "shortfall": short if np.isfinite(short) else None,
        }
    return shown_row
