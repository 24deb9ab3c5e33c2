"""The engine's answers the slow way: every quantity at every point, every rule by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mlsysim_sweep.engine.plan import Plan

Array: TypeAlias = npt.NDArray[Any]
Values: TypeAlias = Mapping[str, Array]
Holds: TypeAlias = Callable[[Values], Array]

WHERE: Mapping[str, Mapping[str, Holds]] = {
    "step_time < 20 s": {"step_time < 20 s": lambda v: v["step_time"] < 20},
    "efficiency > 50 %": {"efficiency > 50 %": lambda v: v["efficiency"] > 0.5},
    "pp <= layers": {"pp <= layers": lambda v: v["pp"] <= v["layers"]},
    "layers % pp == 0": {"layers % pp == 0": lambda v: v["layers"] % v["pp"] == 0},
    "tp in [1, 8]": {"tp == 1 or tp == 8": lambda v: (v["tp"] == 1) | (v["tp"] == 8)},
    'accelerator != "A100-80GB"': {
        'accelerator != "A100-80GB"': lambda v: v["accelerator"] != "A100-80GB"
    },
    'accelerator == "H100" or bubble < 0.2': {
        'accelerator == "H100" or bubble < 0.2': lambda v: (
            (v["accelerator"] == "H100") | (v["bubble"] < 0.2)
        )
    },
    "not (tp > 4 and pp > 1)": {"tp <= 4 or pp <= 1": lambda v: (v["tp"] <= 4) | (v["pp"] <= 1)},
    "microbatches >= pp": {"microbatches >= pp": lambda v: v["microbatches"] >= v["pp"]},
    "tp * dp < 100 and exposed_time < 1 s": {
        "tp * dp < 100": lambda v: v["tp"] * v["dp"] < 100,
        "exposed_time < 1 s": lambda v: v["exposed_time"] < 1,
    },
    "overlap_share >= 0.3": {"overlap_share >= 0.3": lambda v: v["overlap_share"] >= 0.3},
    "dp != 7": {"dp != 7": lambda v: (v["dp"] < 7) | (v["dp"] > 7)},
}
"""A rule as asked -> the rules it makes, by name, each with what it means."""

_DEVICES: Mapping[str, Callable[[Array, Any], Array]] = {
    "equal": lambda n, given: n == given,
    "max": lambda n, given: n <= given,
    "min": lambda n, given: n >= given,
    "multiple_of": lambda n, given: n % given == 0,
    "one_of": np.isin,
}
_STATE = {"plain": "state_per_device", "zero1": "zero1_state_per_device"}


def everywhere(plan: Plan) -> dict[str, Array]:
    """Every input and quantity on fully broadcast arrays: no rank, block or order is used."""
    fields = plan.grid.fields.items()
    found = {name: spread(plan, field.values, field.dims) for name, field in fields}
    with np.errstate(all="ignore"):
        for name, formula in plan.graph.formulas.items():
            arguments = {parent: found[parent] for parent in plan.graph.parents(name)}
            found[name] = np.asarray(formula.function(**arguments))
    return found


def spread(plan: Plan, values: Array, dims: tuple[str, ...]) -> Array:
    """Values on some axes of a grid, repeated along the others."""
    pairs = zip(plan.grid.dims, plan.grid.shape, strict=True)
    open_shape = [n if d in dims else 1 for d, n in pairs]
    return np.broadcast_to(values.reshape(open_shape), plan.grid.shape)


def meanings(plan: Plan) -> dict[str, Holds]:
    """What each rule of a sweep means, by the name it has in the funnel."""
    feasible = plan.grid.spec.feasible
    found: dict[str, Holds] = {
        "whole dp": lambda v: v["dp"] >= 1,
        "whole microbatches": lambda v: v["microbatches"] >= 1,
        "precision on accelerator": lambda v: v["peak_flops"] > 0,
        "tp_within_node": lambda v: v["tp"] <= v["devices_per_node"],
        "step takes time": lambda v: v["step_time"] > 0,
    }
    for key, given in feasible.devices.items():
        found[f"devices {key}"] = _on_devices(_DEVICES[key], given)
    if feasible.memory in _STATE:
        state, share = _STATE[feasible.memory], feasible.headroom
        found[f"memory {feasible.memory}"] = lambda v: v[state] <= share * v["device_memory"]
    for asked in feasible.where:
        found |= WHERE[asked]
    return found


def _on_devices(rule: Callable[[Array, Any], Array], given: Any) -> Holds:
    return lambda v: rule(v["n_devices"], given)


def decided(plan: Plan, values: Values) -> list[Array]:
    """Where each rule of a plan holds, in the plan's order, on the whole grid."""
    known = meanings(plan)
    with np.errstate(all="ignore"):
        return [np.broadcast_to(known[rule.name](values), plan.grid.shape) for rule in plan.rules]


def all_of(rules: list[Array], plan: Plan) -> Array:
    """Where all of them hold."""
    return np.asarray(np.logical_and.reduce([np.ones(plan.grid.shape, bool), *rules]))


def survivors(plan: Plan) -> dict[str, Array]:
    """The columns of a table, by filtering everything everywhere."""
    values = everywhere(plan)
    holds = all_of(decided(plan, values), plan)
    found = {name: values[name][holds] for name in plan.grid.columns}
    for axis in plan.grid.axes:
        position = np.nonzero(holds)[plan.grid.dims.index(axis.name)]
        found |= {name: labels[position] for name, labels in axis.labels.items()}
    return found
