"""mlsysim's scenarios as ours, and both packages loaded in either order."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mlsysim.core.units import Q_

import mlsysim_sweep as ms

mlsysim: Any = pytest.importorskip("mlsysim")
THEIRS = mlsysim.Scenarios.Gpt3ThreeDParallel1K


def test_a_scenario_comes_over_field_by_field() -> None:
    ours = ms.from_mlsysim(THEIRS)
    assert (ours.name, ours.tp_size, ours.pp_size, ours.dp_size) == (THEIRS.name, 8, 4, 32)
    assert ours.workload is THEIRS.workload
    assert ours.result.step_time.m_as("s") == pytest.approx(2.40625, rel=1e-13)
    assert ours.result.min_devices_for_state == 35


def test_precisions_are_renamed_never_replaced() -> None:
    dense = THEIRS.variant(precision="fp16_dense")
    assert ms.from_mlsysim(dense).precision == "fp16"
    on_a100 = THEIRS.variant(accelerator=mlsysim.Hardware.Cloud.A100, precision="fp8")
    with pytest.raises(ms.Mistake, match=r'^precision: "fp8": no peak for it on NVIDIA A100'):
        ms.from_mlsysim(on_a100)
    with pytest.raises(ms.Mistake, match=r'^precision: unknown "fp16_sparse"'):
        ms.from_mlsysim(THEIRS.variant(precision="fp16_sparse"))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"overlap_fraction": 1.5}, "overlap_fraction"),
        ({"local_efficiency": 0.0}, "local_efficiency"),
        ({"link_bandwidth": Q_(0.0, "Gbps")}, "link_bandwidth"),
        ({"window_resolution": Q_(-0.1, "s")}, "window_resolution"),
        ({"tp_size": 0}, "tp_size"),
    ],
)
def test_what_they_accept_and_we_do_not(changes: dict[str, Any], field: str) -> None:
    fields = {name: getattr(THEIRS, name) for name in type(THEIRS).model_fields}
    with pytest.raises(ms.Mistake, match=f"^{field}: .* given; needed: "):
        ms.from_mlsysim(SimpleNamespace(**{**fields, **changes}))


@pytest.mark.parametrize("given", [None, 5, "Gpt3ThreeDParallel1K", THEIRS.workload])
def test_other_objects_are_refused(given: object) -> None:
    with pytest.raises(
        ms.Mistake, match=r"^from_mlsysim: .* has no .*; needed: an mlsysim Parallel"
    ):
        ms.from_mlsysim(given)


ORDERS = {
    "mlsysim first": "import mlsysim\nimport mlsysim_sweep as ms",
    "mlsysim last": "import mlsysim_sweep as ms\ndataset()\nimport mlsysim",
    "pint-xarray first": "import pint_xarray\nimport mlsysim\nimport mlsysim_sweep as ms",
}
BOTH = """
def dataset():
    import mlsysim_sweep as ms
    return ms.Sweep.load("gpt3-1k-h100").variant(axes={{"dp": [16, 32]}}).dataset()

{imports}
from mlsysim.core.units import Q_
quantified = dataset().pint.quantify()
step = quantified["step_time"].pint.to("ms")
assert str(step.pint.units) == "millisecond", step.pint.units
assert str(quantified["dp_shard"].pint.units) == "byte"
theirs = mlsysim.Scenarios.Gpt3ThreeDParallel1K.result
assert type(Q_(1.0, "GB").magnitude) is float, type(Q_(1.0, "GB").magnitude)
assert round(theirs.step_time.m_as("s"), 5) == 2.40625
ours = ms.from_mlsysim(mlsysim.Scenarios.Gpt3ThreeDParallel1K).result
assert abs(ours.step_time.m_as("s") - 2.40625) < 1e-12
assert type(ours.step_time.magnitude) is float
"""


@pytest.mark.parametrize("order", ORDERS)
def test_both_packages_in_either_order(order: str, tmp_path: Path) -> None:
    code = BOTH.format(imports=ORDERS[order])
    if order == "pint-xarray first":
        # pint-xarray itself turns the scalars of whoever comes next into arrays.
        code = code.replace('assert type(Q_(1.0, "GB").magnitude) is float', "assert True")
    command = [sys.executable, "-P", "-W", "error", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
