"""Whole grids: own rank against fully broadcast arrays, the reference's loop, and the stream."""

import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

import mlsysim
import numpy as np
from _ratio import HIGHER, Report, in_turns, run, seconds
from mlsysim.core.units import Q_
from mlsysim.solvers import ParallelLayoutModel

from mlsysim_sweep import Sweep
from mlsysim_sweep.engine.evaluate import evaluate
from mlsysim_sweep.engine.plan import Plan
from mlsysim_sweep.engine.run import Walk
from mlsysim_sweep.store import columns
from mlsysim_sweep.vocabulary import CHOICES

INPUTS = {
    "workload": "GPT3",
    "precision": "fp8",
    "batch_tokens": 2e6,
    "flops_per_param_token": 6,
    "local_efficiency": 0.5,
    "link_bandwidth": "400 Gbps",
    "overlap_fraction": 0.75,
}


def grid(quick: bool) -> Plan:
    """18,087,936 layouts of GPT-3, all kept."""
    sweep = Sweep(
        inputs=INPUTS,
        axes={
            "accelerator": ["H100", "H200", "B200", "MI300X"],
            "tp": {"powers_of_two": [1, 8]},
            "pp": {"divisors_of": 96},
            "dp": {"range": [1, 16 if quick else 1024]},
            "microbatches": {"range": [1, 92]},
        },
        feasible={"memory": "off", "tp_within_node": False},
    )
    return Plan(sweep.grid)


def broadcast_inputs(plan: Plan, *, constants: bool) -> dict[str, Any]:
    """What the formulas read, each axis written out at full shape, as after numpy.meshgrid.

    ``constants`` writes out the inputs that do not vary, too.
    """
    grid = plan.grid
    found = {}
    for name in plan.graph.upstream(grid.columns) & grid.fields.keys() - set(CHOICES):
        given = grid.fields[name]
        shape = [n if d in given.dims else 1 for d, n in zip(grid.dims, grid.shape, strict=True)]
        values = given.values.reshape(shape)
        if given.dims or constants:
            values = np.ascontiguousarray(np.broadcast_to(values, grid.shape))
        found[name] = values
    return found


def evaluate_broadcast(plan: Plan, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The same formulas in the same order, one whole array after another; all results kept."""
    values = dict(inputs)
    with np.errstate(all="ignore"):
        for name, formula in plan.graph.formulas.items():
            values[name] = formula.function(**{p: values[p] for p in plan.graph.parents(name)})
    return {name: values[name] for name in plan.grid.columns}


class Reference:
    """The reference's loop over a sample of the same grid, its answers checked against ours."""

    def __init__(self, plan: Plan, layouts: int) -> None:
        self.plan = plan
        rng = np.random.default_rng(2026)
        places = np.unravel_index(rng.integers(plan.grid.points, size=layouts), plan.grid.shape)
        self.places = dict(zip(plan.grid.dims, places, strict=True))
        self.layouts = [self._layout(i) for i in range(layouts)]
        self.solve = ParallelLayoutModel().solve

    def _value(self, name: str, i: int) -> Any:
        given = self.plan.grid.fields[name]
        return given.values[tuple(self.places[dim][i] for dim in given.dims)].item()

    def _layout(self, i: int) -> dict[str, Any]:
        return {
            "model": mlsysim.Models.Language.GPT3,
            **{f"{size}_size": self._value(size, i) for size in ("tp", "pp", "dp")},
            "microbatches": self._value("microbatches", i),
            "batch_tokens": INPUTS["batch_tokens"],
            "flops_per_param_token": INPUTS["flops_per_param_token"],
            "peak_flops": Q_(self._value("peak_flops", i), "flop/s"),
            "local_efficiency": INPUTS["local_efficiency"],
            "link_bandwidth": Q_(self._value("link_bandwidth", i), "byte/s"),
            "overlap_fraction": INPUTS["overlap_fraction"],
            "device_memory": Q_(self._value("device_memory", i), "byte"),
        }

    def check(self) -> None:
        """Refuse to compare the speed of two sides that do not agree."""
        values = evaluate(self.plan, ("step_time",))["step_time"]
        ours = values[tuple(self.places[dim] for dim in self.plan.dims["step_time"])]
        theirs = [self.solve(**layout).step_time.m_as("s") for layout in self.layouts]
        np.testing.assert_allclose(ours, theirs, rtol=1e-13)

    def __call__(self) -> None:
        for layout in self.layouts:
            self.solve(**layout)


def stream(plan: Plan) -> None:
    """Visit every block and gather every column, as a file is written."""
    for points in Walk(plan):
        with np.errstate(all="ignore"):
            for name in columns(plan):
                points.positions(name) if name in CHOICES else points(name)


def main(quick: bool) -> int:
    report = Report(quick)
    plan = grid(quick)
    points, rounds = plan.grid.points, 1 if quick else 7
    print(f"{points:,} points, {len(plan.grid.columns)} outputs, one thread", file=sys.stderr)

    def own_rank() -> float:
        return seconds(lambda: evaluate(plan, plan.grid.columns))

    def rate(cost: float) -> str:
        return f"{points / cost / 1e6:,.1f} M points/s"

    for what, constants in (("axes", False), ("axes and constants", True)):
        broadcast = partial(evaluate_broadcast, plan, broadcast_inputs(plan, constants=constants))
        ours, full, ratio = in_turns(own_rank, partial(seconds, broadcast), rounds)
        name = f"own rank / fully broadcast {what}, points/s"
        report.ratio(name, ratio, HIGHER, 2.5, f"{rate(ours)} / {rate(full)}")
        del broadcast

    reference = Reference(plan, 20 if quick else 500)
    reference.check()
    each = len(reference.layouts)
    ours, theirs, ratio = in_turns(own_rank, partial(seconds, reference), rounds)
    report.ratio(
        "own rank / loop of mlsysim 0.3.0, points/s",
        ratio * points / each,
        HIGHER,
        30_000,
        f"{rate(ours)} / {each / theirs:,.0f} layouts/s",
    )
    streamed, ours, ratio = in_turns(partial(seconds, partial(stream, plan)), own_rank, rounds)
    report.ratio(
        "stream of all columns, gathered / own rank, points/s",
        ratio,
        HIGHER,
        None,
        f"{rate(streamed)} / {rate(ours)}",
    )
    return report.exit_code()


if __name__ == "__main__":
    run(main)
