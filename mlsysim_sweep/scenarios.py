"""One layout at a time, with the field names of the reference.

A scenario is the one-point sweep: every number comes from the same kernels as a grid's.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlsysim_sweep import units
from mlsysim_sweep.catalog import Row, clean_name
from mlsysim_sweep.engine.mesh import whole
from mlsysim_sweep.engine.plan import Plan
from mlsysim_sweep.errors import Mistake, suggestion
from mlsysim_sweep.grids.grid import Grid, build
from mlsysim_sweep.grids.spec import Feasible, Spec

_SIZES = {"tp_size": "tp", "pp_size": "pp", "dp_size": "dp"}
_ABSENT_WITHOUT = {"min_devices_for_state": "device_memory"}


class Result(Mapping[str, Any]):
    """The quantities of one layout: pint quantities, whole numbers and plain floats by name.

    ``result.step_time`` and ``result["step_time"]`` are the same.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._values:
            raise AttributeError(f"no quantity {name!r}{suggestion(name, self._values or [''])}")
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._values]

    def __repr__(self) -> str:
        rows = (f"  {name} = {value!r}" for name, value in self._values.items())
        return "Result(\n" + "\n".join(rows) + "\n)"


@dataclass(frozen=True, kw_only=True)
class ParallelLayoutScenario:
    """One training layout, checked when it is made.

    Field names, types and defaults are the reference's. ``workload`` and ``accelerator`` are
    catalog names, catalog rows or mlsysim objects; quantities are text or pint.

    Raises
    ------
    Mistake
        For a value that is not allowed, naming the field.

    >>> scenario = Scenarios.Gpt3ThreeDParallel1K
    >>> scenario.n_devices, f"{scenario.result.step_time:.5f~}"
    (1024, '2.40625 s')
    >>> f"{scenario.variant(microbatches=8).result.bubble:.4f}"
    '0.2727'
    """

    name: str
    description: str
    workload: str | Row | Any
    tp_size: int = 1
    pp_size: int = 1
    dp_size: int
    microbatches: int = 1
    batch_tokens: float
    flops_per_param_token: float
    accelerator: str | Row | Any
    precision: str = "fp8"
    local_efficiency: float
    link_bandwidth: str | Any
    overlap_fraction: float
    gradient_precision: str = "fp16"
    window_resolution: str | Any | None = None
    device_memory: str | Any | None = None

    def __post_init__(self) -> None:
        self._grid  # noqa: B018 -- checks every field

    @functools.cached_property
    def _grid(self) -> Grid:
        clean_name(self.name, "name")
        inputs = {
            _SIZES.get(field.name, field.name): getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name not in ("name", "description")
        }
        given = {name: value for name, value in inputs.items() if value is not None}
        free = Feasible(memory="off", tp_within_node=False)
        try:
            return build(Spec(name=self.name, inputs=given, feasible=free))
        except Mistake as error:
            raise _renamed(error) from None

    @property
    def n_devices(self) -> int:
        """Devices that the layout occupies."""
        return int(self.result.n_devices)

    @functools.cached_property
    def result(self) -> Result:
        """All quantities of the layout, under the reference's names."""
        grid = self._grid
        box = whole(Plan(grid))
        with np.errstate(all="ignore"):
            values = {name: box(name) for name in grid.model.outputs if grid.graph.has(name)}
        found = {name: _quantity(grid, name, value) for name, value in values.items()}
        for name, needed in _ABSENT_WITHOUT.items():
            if getattr(self, needed) is None:
                found[name] = None
        return Result(found)

    def variant(self, **changes: Any) -> ParallelLayoutScenario:
        """A copy with some fields changed.

        Raises
        ------
        Mistake
            For an unknown field, with the closest known one, or a value that is not allowed.
        """
        known = [field.name for field in dataclasses.fields(self)]
        for name in changes:
            if name not in known:
                raise Mistake(
                    "variant",
                    f'unknown field "{name}"{suggestion(name, known)}',
                    f"one of {', '.join(known)}",
                )
        return dataclasses.replace(self, **changes)


def _quantity(grid: Grid, name: str, value: Any) -> Any:
    formula = grid.model.outputs[name]
    number = value.item()
    if formula.whole:
        return int(number)
    return number if formula.unit == "1" else units.registry().Quantity(number, _unit(formula.unit))


@functools.cache
def _unit(text: str) -> Any:
    return units.registry().Unit(text)


def _renamed(error: Mistake) -> Mistake:
    """A mistake in the words of the scenario: ``inputs.tp`` is ``tp_size`` here."""
    ours = {value: key for key, value in _SIZES.items()}
    field = " x ".join(
        ours.get(part, part) for part in error.field.removeprefix("inputs.").split(" x ")
    )
    fix = error.fix
    for name, renamed in ours.items():
        fix = fix.replace(f"{name} =", f"{renamed} =") if fix.startswith(f"{name} =") else fix
    return Mistake(field, error.problem, error.needed, fix)


class _Scenarios:
    """The reference's named scenarios: GPT-3 175B on H100s. Made when first asked for."""

    @functools.cached_property
    def Gpt3DataParallel1K(self) -> ParallelLayoutScenario:
        """1,024 devices, data-parallel only: the all-reduce dominates."""
        return ParallelLayoutScenario(
            name="GPT-3 175B on 1,024 H100s: DP 1,024",
            description="Data parallelism alone: every device reduces all gradients.",
            workload="GPT3",
            dp_size=1024,
            batch_tokens=2e6,
            flops_per_param_token=6,
            accelerator="H100",
            local_efficiency=0.5,
            link_bandwidth="400 Gbps",
            overlap_fraction=0.75,
            window_resolution="0.1 s",
            device_memory="80 GB",
        )

    @functools.cached_property
    def Gpt3TensorDataParallel1K(self) -> ParallelLayoutScenario:
        """1,024 devices, TP 8 inside each node."""
        return self.Gpt3DataParallel1K.variant(
            name="GPT-3 175B on 1,024 H100s: TP 8, DP 128",
            description="Tensor parallelism inside the node cuts the gradient shard by eight.",
            tp_size=8,
            dp_size=128,
        )

    @functools.cached_property
    def Gpt3ThreeDParallel1K(self) -> ParallelLayoutScenario:
        """1,024 devices, TP 8 and four pipeline stages."""
        return self.Gpt3TensorDataParallel1K.variant(
            name="GPT-3 175B on 1,024 H100s: TP 8, PP 4, DP 32",
            description="Four pipeline stages trade a smaller shard for a bubble.",
            pp_size=4,
            dp_size=32,
            microbatches=32,
        )

    @functools.cached_property
    def Gpt3ThreeDParallel16K(self) -> ParallelLayoutScenario:
        """16,384 devices, TP 8 and sixteen pipeline stages."""
        return self.Gpt3ThreeDParallel1K.variant(
            name="GPT-3 175B on 16,384 H100s: TP 8, PP 16, DP 128",
            description="Sixteen stages with as many microbatches: the bubble grows.",
            pp_size=16,
            dp_size=128,
        )


Scenarios = _Scenarios()
