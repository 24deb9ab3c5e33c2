"""What a person asked for and cannot have, said once and in one form."""

from __future__ import annotations

import datetime
import difflib
import itertools
import re
from collections.abc import Iterable, Mapping
from typing import Any


class Mistake(ValueError):
    """A mistake in what was asked: names the field, what was given, what is needed and a fix.

    >>> raise Mistake("tp", "0 given", "a whole number from 1", "tp = 1")
    Traceback (most recent call last):
    mlsysim_sweep.errors.Mistake: tp: 0 given; needed: a whole number from 1; for example tp = 1
    """

    def __init__(self, field: str, problem: str, needed: str = "", fix: str = "") -> None:
        self.field = field
        self.problem = problem
        self.needed = needed
        self.fix = fix
        text = f"{field}: {problem}" if field else problem
        if needed:
            text += f"; needed: {needed}"
        if fix:
            text += f"; for example {fix}"
        super().__init__(printable(text))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.field, self.problem, self.needed, self.fix)

    def within(self, place: str) -> Mistake:
        """The same mistake, its field named inside ``place`` (``axes`` -> ``axes.tp``)."""
        field = f"{place}.{self.field}" if self.field else place
        return Mistake(field, self.problem, self.needed, self.fix)


class NothingFeasible(Mistake):
    """A question that no layout answers, where an answer needs one."""


def printable(text: str) -> str:
    """A text on one line, control characters escaped."""
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)


def shown(value: object) -> str:
    r"""A given value as it may stand in a message: as in TOML, on one line and not too long.

    >>> shown("a\x1b[2J" + "x" * 100)[:12]
    '"a\\u001b[2Jx'
    >>> print(shown({"powers_of_two": [1, 8.0]}))
    { powers_of_two = [1, 8] }
    """
    if isinstance(value, str):
        body = printable(value[:60])
        return f'"{body}"' if len(value) <= 60 else f'"{body}..."'
    text = printable(" ".join(_toml(value, 4).split()))
    return text if len(text) <= 60 else text[:57] + "..."


def _toml(value: object, levels: int) -> str:
    """A value as TOML has it; of a long or deep one, no more than a message can show."""
    if isinstance(value, Mapping | list | tuple):
        return _toml_items(value, levels - 1) if levels else "..."
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(float(value)).removesuffix(".0")
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return f'"{value[:60]}"' if isinstance(value, str) else repr(value)


def _toml_items(given: Mapping[object, object] | Iterable[object], levels: int) -> str:
    if not isinstance(given, Mapping):
        items = (_toml(item, levels) for item in itertools.islice(given, 60))
        return f"[{', '.join(items)}]"
    pairs = (
        f"{_toml_key(key)} = {_toml(item, levels)}"
        for key, item in itertools.islice(given.items(), 60)
    )
    return f"{{ {', '.join(pairs)} }}" if given else "{}"


def _toml_key(key: object) -> str:
    text = str(key)[:60]
    return text if re.fullmatch(r"[A-Za-z0-9_-]+", text) else f'"{text}"'


def suggestion(name: str, known: Iterable[str]) -> str:
    """``; did you mean "H100"?`` for a name close to a known one, else an empty text.

    Known names that start with the given one come first, up to three of them.

    >>> suggestion("H10O", ["A100", "H100"])
    '; did you mean "H100"?'
    """
    by_folded = {candidate.casefold(): candidate for candidate in known}
    given = name[:60].casefold()
    longer = [c for c in by_folded if given and given not in by_folded and c.startswith(given)]
    close = longer[:3] or difflib.get_close_matches(given, by_folded, 1, 0.5)
    found = " or ".join(f'"{by_folded[folded]}"' for folded in close)
    return f"; did you mean {found}?" if found else ""


def unknown(field: str, name: object, known: Iterable[str], listing: str = "") -> Mistake:
    """The mistake of a name that is not among the known ones."""
    names = list(known)
    if not isinstance(name, str):
        return Mistake(field, f"{shown(name)} given", f"a name, such as {shown(names[0])}")
    problem = f"unknown {shown(name)}{suggestion(name, names)}"
    if listing:
        return Mistake(field, problem, f"a name that `{listing}` shows")
    return Mistake(field, problem, f"one of {', '.join(names)}" if len(names) <= 12 else "")


class OutputError(Exception):
    """An output that exists, is damaged or cannot be written; nothing already written is lost."""

    def __init__(self, path: object, problem: str, fix: str = "") -> None:
        self.path = path
        self.problem = problem
        self.fix = fix
        super().__init__(printable(f"{path}: {problem}" + (f"; {fix}" if fix else "")))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self.path), self.problem, self.fix)
