"""One good sweep and one good scenario, for tests that change one thing in them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

import mlsysim_sweep as ms

INPUTS: Mapping[str, Any] = {
    "workload": "GPT3",
    "accelerator": "H100",
    "tp": 8,
    "pp": 4,
    "dp": 32,
    "microbatches": 32,
    "batch_tokens": 2e6,
    "flops_per_param_token": 6,
    "local_efficiency": 0.5,
    "link_bandwidth": "400 Gbps",
    "overlap_fraction": 0.75,
}
CHIP: Mapping[str, Any] = {
    "peak_flops": {"fp8": "1 PFLOP/s", "bf16": "500 TFLOP/s"},
    "device_memory": "80 GB",
    "devices_per_node": 8,
}
"""A row of one's own for the accelerator table."""


def sweep(
    inputs: Mapping[str, Any] | None = None,
    axes: Mapping[str, Any] | None = None,
    zip: Mapping[str, Any] | Sequence[Mapping[str, Any]] = (),
    without: Collection[str] = (),
    **others: Any,
) -> ms.Sweep:
    """The good sweep with some inputs changed, put on axes or left out."""
    groups = [zip] if isinstance(zip, Mapping) else zip
    gone = {*without, *(axes or {}), *(name for group in groups for name in group)}
    held = {name: value for name, value in INPUTS.items() if name not in gone}
    return ms.Sweep(inputs={**held, **(inputs or {})}, axes=axes, zip=zip, **others)


Error = TypeVar("Error", bound=Exception)


def refusal(ask: Callable[[], object], kind: type[Error]) -> Error | None:
    """The error of this kind with which something is refused; None where it is not."""
    try:
        ask()
    except kind as error:
        return error
    return None


def scenario(**changes: Any) -> ms.ParallelLayoutScenario:
    """The good scenario with some fields changed."""
    sizes = {"tp": "tp_size", "pp": "pp_size", "dp": "dp_size"}
    fields = {sizes.get(name, name): value for name, value in INPUTS.items()}
    return ms.ParallelLayoutScenario(**{"name": "good", "description": "", **fields, **changes})
