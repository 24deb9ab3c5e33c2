"""Third law: with every axis longer than 1, a quantity varies on the axes that the graph says.

Each grid makes an axis of everything that the model reads. Values are far enough apart that no
``min``, ceiling or rounding hides a dependence for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import mlsysim_sweep as ms
from mlsysim_sweep.engine.evaluate import evaluate
from mlsysim_sweep.engine.plan import Plan
from mlsysim_sweep.kernels import MODELS, model
from tests.engine.brute import Array, everywhere, spread

NUMBERS: dict[str, list[Any]] = {
    "tp": [3, 8],
    "pp": [2, 5],
    "dp": [4, 96],
    "microbatches": [3, 32],
    "batch_tokens": [1.3e6, 4.7e7],
    "flops_per_param_token": [6, 7.7],
    "local_efficiency": [0.3, 0.55],
    "link_bandwidth": ["23 GB/s", "1.7 GB/s"],
    "overlap_fraction": [0.35, 0.93],
    "window_resolution": ["0.01 s", "0.3 s"],
    "peak_flops": ["1.9 PFLOP/s", "313 TFLOP/s"],
    "device_memory": ["80 GB", "7 GB"],
    "parameters": [7.1e9, 1.75e11],
    "active_parameters": [1.3e9, 5e9],
    "active_share": [0, 1],
    "finite_ring": [0, 1],
    "gradient_bytes_per_param": [1, 2],
    "replicated_bytes_per_param": [4, 6],
    "optimizer_bytes_per_param": [12, 8],
}
LAYOUT = {name: NUMBERS[name] for name in ("tp", "pp", "batch_tokens", "local_efficiency")}
CHOICES: dict[str, list[Any]] = {
    "accelerator": ["H100", "B200"],
    "precision": ["fp8", "bf16"],
    "workload": ["GPT3", "Mixtral-8x7B"],
    "link": ["InfiniBand-NDR", "InfiniBand-HDR"],
    "gradient_precision": ["fp16", "fp8"],
    "collective": ["ring", "large_n_ring"],
    "parameter_count": ["all", "active"],
}
GRIDS: Mapping[str, Mapping[str, Any]] = {
    "numbers": NUMBERS,
    "choices": {**LAYOUT, **CHOICES, "dp": [4, 96], "microbatches": [3, 32]},
    "sizes that follow": {
        **LAYOUT,
        **{n: NUMBERS[n] for n in ("parameters", "peak_flops", "link_bandwidth", "device_memory")},
        # n_devices follows devices alone, but for whether there is a whole dp.
        "tp": [3, 8],
        "pp": [2, 5],
        "devices": [1024, 480],
        "batch_tokens": [2**22, 2**23],
        "microbatch_size": [1, 2],
        "seq_len": [1024, 2048],
    },
}
FIXED = {"flops_per_param_token": 6, "overlap_fraction": 0.6, "window_resolution": "0.01 s"}


def sweep(axes: Mapping[str, Any], of_model: str) -> ms.Sweep:
    inputs = {name: value for name, value in FIXED.items() if name not in axes}
    rules = {"memory": "off", "tp_within_node": False}
    return ms.Sweep(model=of_model, inputs=inputs, axes=axes, feasible=rules)


def varying(values: Array, dims: tuple[str, ...]) -> tuple[str, ...]:
    """The axes along which some values differ."""
    there = np.nan_to_num(values, nan=-1.0)
    return tuple(d for i, d in enumerate(dims) if (there != there.take([0], i)).any())


@pytest.mark.parametrize("of_model", MODELS)
@pytest.mark.parametrize("axes", GRIDS.values(), ids=GRIDS)
def test_rank(of_model: str, axes: Mapping[str, Any]) -> None:
    plan = Plan(sweep(axes, of_model).grid)
    assert all(size > 1 for size in plan.grid.shape)
    values = everywhere(plan)
    for name in plan.graph.formulas:
        assert varying(values[name], plan.grid.dims) == plan.dims[name], name
    for name, found in evaluate(plan, tuple(plan.graph.formulas)).items():
        np.testing.assert_array_equal(spread(plan, found, plan.dims[name]), values[name], name)


@pytest.mark.parametrize("of_model", MODELS)
def test_every_formula_is_in_some_grid(of_model: str) -> None:
    plans = [Plan(sweep(axes, of_model).grid) for axes in GRIDS.values()]
    assert set().union(*(plan.graph.formulas for plan in plans)) == set(model(of_model).formulas)


def test_an_input_that_varies_on_no_axis_leaves_a_quantity_a_scalar() -> None:
    axes = {"microbatches": [1, 2]}
    inputs = {n: v[0] for n, v in GRIDS["choices"].items() if n != "microbatches"}
    one = ms.Sweep(inputs={**FIXED, **inputs}, axes=axes)
    assert one.dataset()["n_devices"].dims == ()
    assert one.dataset()["bubble"].dims == ("microbatches",)


def test_a_length_of_one_does_not_change_the_rank() -> None:
    short = sweep({name: values[:1] for name, values in NUMBERS.items()}, "parallel_layout")
    long = sweep(NUMBERS, "parallel_layout")
    assert Plan(short.grid).dims == Plan(long.grid).dims
