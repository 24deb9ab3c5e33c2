"""How a formula is declared: once, as a function whose name is the quantity and whose parameters
are the quantities it needs.

A :class:`Model` is a checked set of such functions; the graph between them follows from the names.
"""

from __future__ import annotations

import difflib
import functools
import graphlib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from mlsysim_sweep import units
from mlsysim_sweep.vocabulary import VOCABULARY

Floats: TypeAlias = npt.NDArray[np.float64]
"""Float values on an open mesh: any shape, length 1 on the axes that do not matter."""

Ints: TypeAlias = npt.NDArray[np.int64]
"""Whole values on an open mesh; as a result, a quantity that is whole wherever it is defined."""

Formula = TypeVar("Formula", bound=Callable[..., Any])


class DeclarationError(TypeError):
    """A formula that cannot be part of a model: unknown parameter, name used twice, cycle."""


@dataclass(frozen=True, slots=True)
class Output:
    """One declared quantity: what a formula gives, and from what."""

    name: str
    unit: str
    source: str
    description: str
    equation: str
    required: tuple[str, ...]
    optional: tuple[str, ...]
    whole: bool
    function: Callable[..., Any]

    @property
    def parameters(self) -> tuple[str, ...]:
        """All names that the formula reads, required ones first."""
        return self.required + self.optional


def output(*, unit: str, source: str) -> Callable[[Formula], Formula]:
    """Declare a formula: its name is the quantity, its parameter names are what it needs.

    A parameter with a default is optional: the default stands where the quantity is not given.
    The first line of the docstring is ``Description: ``equation``.``.

    Parameters
    ----------
    unit
        Unit of the result, in base units (``s``, ``byte``, ``flop/s``, ``1``).
    source
        Where the equation comes from.

    Raises
    ------
    DeclarationError
        If the docstring has no first line.
    """

    def declare(function: Formula) -> Formula:
        units.dimension_of(unit)
        function.__output__ = _read(function, unit, source)  # type: ignore[attr-defined]
        return function

    return declare


def _read(function: Callable[..., Any], unit: str, source: str) -> Output:
    name = function.__name__
    first_paragraph = " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())
    if not first_paragraph:
        raise DeclarationError(f"{name}: needs a docstring that says what it is")
    description, _, rest = first_paragraph.partition(": ``")
    equation = re.match(r"(.*?)``", rest)
    parameters = inspect.signature(function).parameters.values()
    return Output(
        name=name,
        unit=unit,
        source=source,
        description=description.rstrip("."),
        equation=equation[1] if equation else "",
        required=tuple(p.name for p in parameters if p.default is p.empty),
        optional=tuple(p.name for p in parameters if p.default is not p.empty),
        whole=function.__annotations__.get("return") in ("Ints", Ints),
        function=function,
    )


def declared(source: ModuleType | Callable[..., Any]) -> Iterator[Output]:
    """Outputs declared in a module, or the one of a single function, in order of appearance."""
    candidates = vars(source).values() if isinstance(source, ModuleType) else (source,)
    for candidate in candidates:
        found = getattr(candidate, "__output__", None)
        if isinstance(found, Output):
            yield found


@dataclass(frozen=True, eq=False)
class Model:
    """A checked set of formulas that meet by name.

    ``outputs`` are its results. ``identities`` compute an input from other inputs (``dp`` from
    ``devices``); they are used only where that input is not given itself. ``leaves_out`` says what
    the model does not count, in sentences for people.
    """

    name: str
    outputs: Mapping[str, Output]
    identities: Mapping[str, Output]
    leaves_out: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        name: str,
        *sources: ModuleType | Callable[..., Any],
        identities: Iterable[ModuleType] = (),
        leaves_out: tuple[str, ...] = (),
    ) -> Model:
        """Collect and check the formulas of modules and single functions.

        Raises
        ------
        DeclarationError
            For a parameter that nothing provides, a name declared twice, or a cycle.
        """
        model = cls(
            name,
            _collect(found for source in sources for found in declared(source)),
            _collect(found for source in identities for found in declared(source)),
            leaves_out,
        )
        check(model)
        return model

    def extended(self, *sources: ModuleType | Callable[..., Any]) -> Model:
        """This model with a user's own formulas added."""
        added = _collect(found for source in sources for found in declared(source))
        if not added:
            raise DeclarationError("formulas: no function declared with @output was found")
        return self._with(added)

    def _with(self, added: Mapping[str, Output]) -> Model:
        both = _collect((*self.outputs.values(), *added.values()))
        model = Model(self.name, both, self.identities, self.leaves_out)
        check(model)
        return model

    @functools.cached_property
    def formulas(self) -> Mapping[str, Output]:
        """Outputs and identities together."""
        return {**self.identities, **self.outputs}

    def describe(self, name: str) -> tuple[str, str]:
        """Unit and one-line meaning of an output or input.

        >>> from mlsysim_sweep.kernels import model
        >>> model("parallel_layout").describe("bubble")
        ('1', 'Share of the pipeline that waits')
        """
        if name in self.outputs:
            return self.outputs[name].unit, self.outputs[name].description
        return VOCABULARY[name].unit, VOCABULARY[name].meaning


def _collect(outputs: Iterable[Output]) -> dict[str, Output]:
    collected: dict[str, Output] = {}
    for found in outputs:
        if found.name in collected and collected[found.name] != found:
            raise DeclarationError(f"{found.name}: declared twice")
        collected[found.name] = found
    return collected


def check(model: Model) -> None:
    """Refuse a model with an unknown parameter, a name declared twice or a cycle.

    Raises
    ------
    DeclarationError
        Naming the formula, the parameter and the closest known name.
    """
    _check_names(model)
    known = set(VOCABULARY) | set(model.outputs)
    for found in model.formulas.values():
        for parameter in found.parameters:
            if parameter not in known:
                close = difflib.get_close_matches(parameter, known, 1)
                hint = f"; did you mean {close[0]!r}?" if close else ""
                raise DeclarationError(
                    f"{found.name}: unknown parameter {parameter!r}, neither an input nor an "
                    f"output{hint}"
                )
    _check_cycles(model)


def _check_names(model: Model) -> None:
    folded: dict[str, str] = {}
    # A Dataset has a variable "feasible" beside the quantities.
    for name in ("feasible", *VOCABULARY, *model.outputs):
        if name.casefold() in folded:
            raise DeclarationError(f"{name}: declared twice (also {folded[name.casefold()]!r})")
        folded[name.casefold()] = name
    for name in model.identities:
        if name not in VOCABULARY:
            raise DeclarationError(f"{name}: an identity must compute an input of the vocabulary")


def _check_cycles(model: Model) -> None:
    graph = {found.name: set(found.parameters) for found in model.formulas.values()}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        raise DeclarationError(f"a cycle: {' -> '.join(error.args[1])}") from None


@dataclass(frozen=True)
class Graph:
    """A model with some inputs given: which formulas can be evaluated, in what order, from what."""

    model: Model
    given: frozenset[str]

    @functools.cached_property
    def formulas(self) -> Mapping[str, Output]:
        """Formulas whose needs are met, in an order in which they can be evaluated.

        An identity is left out where its input is given itself.
        """
        formulas = {n: f for n, f in self.model.formulas.items() if n not in self.given}
        needs = {n: [p for p in f.parameters if p in formulas] for n, f in formulas.items()}
        met: dict[str, Output] = {}
        for name in graphlib.TopologicalSorter(needs).static_order():
            if all(p in self.given or p in met for p in formulas[name].required):
                met[name] = formulas[name]
        return met

    def has(self, name: str) -> bool:
        """Whether a quantity is given or can be evaluated."""
        return name in self.given or name in self.formulas

    def parents(self, name: str) -> tuple[str, ...]:
        """What a formula reads here: its required parameters, and the optional ones that exist."""
        found = self.formulas[name]
        return found.required + tuple(p for p in found.optional if self.has(p))

    def upstream(self, names: Iterable[str]) -> frozenset[str]:
        """The quantities named and everything that they depend on."""
        seen: set[str] = set()
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name not in seen:
                seen.add(name)
                waiting += self.parents(name) if name in self.formulas else ()
        return frozenset(seen)

    def missing(self, name: str) -> tuple[str, ...]:
        """Inputs that would have to be given for a quantity to exist here; empty if it does."""
        if self.has(name):
            return ()
        if name not in self.model.outputs:
            return (name,)
        lacking = (self.missing(p) for p in self.model.outputs[name].required)
        return tuple(dict.fromkeys(leaf for leaves in lacking for leaf in leaves))


@functools.lru_cache(maxsize=256)
def graph(model: Model, given: frozenset[str]) -> Graph:
    """The graph of a model for a set of given inputs; the same object for the same question."""
    return Graph(model, given)
