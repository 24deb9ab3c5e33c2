"""Random grids: every point of a sweep is what the reference computes, one layout at a time."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mlsysim.core.units import Q_

import mlsysim_sweep as ms
from mlsysim_sweep.catalog.objects import PRECISION_ALIASES
from tests.parity.conftest import Batch
from tests.parity.reference import (
    ACCELERATORS,
    FIELDS,
    WORKLOADS,
    Array,
    Scenario,
    answers,
    compare,
    gradient,
    pick,
    precisions,
    resolution,
    size,
)

Draw = Callable[[np.random.Generator], Any]
MOST_POINTS = 200
THEIRS = {"tp": "tp_size", "pp": "pp_size", "dp": "dp_size"}
DRAWS: Mapping[str, Draw] = {
    "workload": lambda rng: pick(rng, WORKLOADS),
    "accelerator": lambda rng: pick(rng, ACCELERATORS),
    "tp": lambda rng: size(rng, 8),
    "pp": lambda rng: size(rng, 8),
    "dp": lambda rng: size(rng, 12),
    "microbatches": lambda rng: size(rng, 8),
    "batch_tokens": lambda rng: float(rng.integers(1000, 10**8)),
    "flops_per_param_token": lambda rng: float(rng.integers(4, 33) / 4),
    "local_efficiency": lambda rng: float(rng.integers(1, 41) / 40),
    "link_bandwidth": lambda rng: Q_(float(rng.integers(1, 2000)), "Gbps"),
    "overlap_fraction": lambda rng: float(rng.integers(0, 21) / 20),
    "gradient_precision": gradient,
}
OPTIONAL: Mapping[str, Draw] = {
    "device_memory": lambda rng: Q_(float(rng.integers(1, 500)), "GB"),
    "window_resolution": lambda rng: resolution(rng) or Q_(0.01, "s"),
}


@dataclass
class Asked:
    """A random sweep: axes, axes that are walked together, and inputs held fixed."""

    axes: dict[str, list[Any]] = field(default_factory=dict)
    together: dict[str, list[Any]] = field(default_factory=dict)
    inputs: dict[str, Any] = field(default_factory=dict)

    def sweep(self) -> ms.Sweep:
        rules = {"memory": "off", "tp_within_node": False}
        zips = [self.together] if self.together else []
        return ms.Sweep(inputs=self.inputs, axes=self.axes, zip=zips, feasible=rules)

    def scenarios(self) -> Iterator[Any | None]:
        """The reference's scenario of each point, in the order of rows; None without a peak."""
        steps = [[{name: v} for v in values] for name, values in self.axes.items()]
        if self.together:
            rows = zip(*self.together.values(), strict=True)
            steps.append([dict(zip(self.together, row, strict=True)) for row in rows])
        for parts in itertools.product(*steps):
            point = {name: v for part in (self.inputs, *parts) for name, v in part.items()}
            yield _scenario({THEIRS.get(name, name): v for name, v in point.items()})


def _scenario(fields: dict[str, Any]) -> Any | None:
    accelerator, wanted = fields["accelerator"], fields["precision"]
    keys = [key for key in precisions(accelerator) if wanted in PRECISION_ALIASES[key]]
    if not keys:
        return None
    fields.setdefault("device_memory", accelerator.memory.capacity)
    key = wanted if wanted in keys else keys[0]
    return Scenario(**{**fields, "name": "", "description": "", "precision": key})


def draw(rng: np.random.Generator) -> Asked:
    """A sweep over any of the inputs, its axes in any order."""
    asked = Asked()
    room = MOST_POINTS
    draws = {**DRAWS, **{n: d for n, d in OPTIONAL.items() if rng.random() < 0.5}}
    if rng.random() < 0.3:
        asked.together = {
            n: distinct(rng, draws.pop(n), 3) for n in ("accelerator", "link_bandwidth")
        }
        room //= 3
    for name in rng.permutation([*draws, "precision"]):
        count = int(rng.integers(2, 5)) if rng.random() < 0.5 else 1
        count = count if count <= room else 1
        room //= count
        if name == "precision":
            asked.axes["precision"] = [count]  # values below, once the accelerators are known
            continue
        found = distinct(rng, draws[name], count)
        if count > 1 or rng.random() < 0.2:
            asked.axes[str(name)] = found
        else:
            asked.inputs[str(name)] = found[0]
    every = {**asked.axes, **asked.together}.get("accelerator") or [asked.inputs["accelerator"]]
    known = sorted(
        {ours for a in every for key in precisions(a) for ours in PRECISION_ALIASES[key]}
    )
    asked.axes["precision"] = known[: asked.axes["precision"][0]]
    return asked


def distinct(rng: np.random.Generator, make: Draw, count: int) -> list[Any]:
    found: dict[str, Any] = {}
    while len(found) < count:
        value = make(rng)
        found.setdefault(_key(value), value)
    return list(found.values())


def _key(value: Any) -> str:
    in_base = f"{value.to_base_units():.12g~P}" if hasattr(value, "magnitude") else value
    return str(getattr(value, "name", in_base))


def everywhere(sweep: ms.Sweep) -> tuple[dict[str, Array], Array]:
    """Every field of a sweep, and where it is feasible, at every point in the order of rows."""
    variables: Any = sweep.dataset().variables
    spread = {n: variables[n].set_dims(sweep.sizes).values.ravel() for n in (*FIELDS, "feasible")}
    return spread, spread.pop("feasible")


def test_random_grids(batch: Batch, record_property: Callable[[str, object], None]) -> None:
    rng, left = batch.rng(2), batch.points
    counts: Counter[str] = Counter()
    while left > 0:
        asked = draw(rng)
        sweep = asked.sweep()
        scenarios = list(asked.scenarios())
        ours, feasible = everywhere(sweep)
        exists = np.array([scenario is not None for scenario in scenarios])
        np.testing.assert_array_equal(feasible, exists)
        ours = {name: values[exists] for name, values in ours.items()}
        found = compare(ours, *answers([s for s in scenarios if s is not None]))
        table = sweep.table()
        for name in FIELDS:
            np.testing.assert_array_equal(table[name].to_numpy(), ours[name], err_msg=name)
        left -= len(table)
        counts.update({"grids": 1, "grid points": len(table), **found})
    for name, count in counts.items():
        record_property(f"parity: {name}", count)
