"""Datasets: each variable on its own axes, with units that pint reads; no registry changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pint
import pytest
import xarray as xr

import mlsysim_sweep as ms
from mlsysim_sweep import units
from mlsysim_sweep.kernels import model
from mlsysim_sweep.vocabulary import CHOICES
from tests.asking import CHIP, sweep

AXES: dict[str, Any] = {
    "accelerator": ["H100", "Café"],
    "tp": [8, 1, 4],
    "pp": [1, 3, 4, 12],
    "dp": [16, 32, 8, 4, 2],
    "microbatches": [1, 2, 4, 8, 16, 32],
}
GROUP = {"link_bandwidth": ["400 Gbps", "1 GB/s"], "overlap_fraction": [0.5, 1]}


@pytest.fixture(scope="module")
def asked() -> ms.Sweep:
    return sweep(axes=AXES, zip=GROUP, accelerator={"Café": CHIP}, name="é")


@pytest.fixture(scope="module")
def ds(asked: ms.Sweep) -> xr.Dataset:
    return asked.dataset()


DIMS = {
    "n_devices": ("tp", "pp", "dp"),
    "step_flops": (),
    "compute_time": ("accelerator", "tp", "pp", "dp"),
    "gradient_bytes": (),
    "dp_shard": ("tp", "pp"),
    "ring_bytes": ("tp", "pp", "dp"),
    "allreduce_time": ("tp", "pp", "link_bandwidth"),
    "bubble": ("pp", "microbatches"),
    "step_time": ("accelerator", "tp", "pp", "dp", "microbatches", "link_bandwidth"),
    "state_total": (),
    "state_per_device": ("tp", "pp"),
    "zero1_state_per_device": ("tp", "pp", "dp"),
    "min_devices_for_state": ("accelerator",),
}


def test_each_variable_has_its_own_dimensions(ds: xr.Dataset) -> None:
    assert {name: ds[name].dims for name in DIMS} == DIMS
    assert ds.sizes == {name: len(values) for name, values in AXES.items()} | {"link_bandwidth": 2}
    assert set(ds.data_vars) == {*model("parallel_layout").outputs, "feasible"} - {
        "ring_correction"
    }


def test_coordinates_are_the_axes_in_the_order_asked(ds: xr.Dataset) -> None:
    for name in ("tp", "pp", "dp", "microbatches"):
        assert ds[name].values.tolist() == AXES[name]
        assert ds[name].dtype == np.int64
    assert ds["accelerator"].values.tolist() == ["H100", "Café"]
    assert ds["link_bandwidth"].values.tolist() == [50e9, 1e9]
    assert ds["overlap_fraction"].dims == ("link_bandwidth",)
    assert ds["overlap_fraction"].values.tolist() == [0.5, 1]


def test_whole_quantities_are_whole_and_rules_are_bool(ds: xr.Dataset) -> None:
    kinds = {name: variable.dtype.kind for name, variable in ds.data_vars.items()}
    assert {name for name, kind in kinds.items() if kind == "i"} == {
        "n_devices",
        "min_devices_for_state",
    }
    assert {name for name, kind in kinds.items() if kind == "b"} == {"feasible"}
    assert set(kinds.values()) == {"i", "b", "f"}


def test_values_are_those_of_the_points(asked: ms.Sweep, ds: xr.Dataset) -> None:
    where = {"accelerator": "Café", "tp": 4, "pp": 12, "dp": 2, "microbatches": 8}
    for bandwidth, overlap in ((50e9, 0.5), (1e9, 1.0)):
        given = {"link_bandwidth": f"{bandwidth!r} B/s", "overlap_fraction": overlap}
        layout = asked.point(**where, **given)
        at = {**where, "link_bandwidth": bandwidth}
        expected: dict[Any, Any] = {**layout.quantities, "feasible": layout.feasible}
        for name in ds.data_vars:
            here = {dim: value for dim, value in at.items() if dim in ds[name].dims}
            assert ds[name].sel(here).item() == expected[name], name


def test_feasible_counts_what_a_table_holds(asked: ms.Sweep, ds: xr.Dataset) -> None:
    spread = ds["feasible"].broadcast_like(ds["step_time"])
    assert int(spread.sum()) == len(asked.table()) == asked.funnel().feasible


def test_attributes(ds: xr.Dataset) -> None:
    ours = units.registry()
    for name, variable in ds.variables.items():
        assert variable.attrs["long_name"]
        if name in CHOICES or name == "feasible":
            assert "units" not in variable.attrs
        else:
            ours.Unit(variable.attrs["units"])
    for name in model("parallel_layout").outputs:
        if name in ds:
            assert ds[name].attrs["source"]
    assert ds["step_time"].attrs["units"] == "s"
    assert (ds.attrs["title"], ds.attrs["model"]) == ("é", "parallel_layout")
    assert json.loads(ds.attrs["spec"])["axes"]["tp"] == [8, 1, 4]


def test_quantify(ds: xr.Dataset) -> None:
    quantified = ds.pint.quantify()
    step = quantified["step_time"].pint.to("ms")
    np.testing.assert_allclose(step.pint.dequantify(), ds["step_time"] * 1000, rtol=1e-15)
    state = quantified["state_per_device"].pint.to("GB").pint.dequantify()
    np.testing.assert_allclose(state, ds["state_per_device"] / 1e9, rtol=1e-15)
    assert quantified.pint.dequantify().equals(ds)


def test_quantities_of_different_kinds_do_not_add(ds: xr.Dataset) -> None:
    quantified = ds.pint.quantify()
    with pytest.raises(pint.DimensionalityError):
        quantified["step_time"] + quantified["state_total"]
    with pytest.RaisesGroup(pint.DimensionalityError):
        quantified["step_flops"].pint.to("byte")


def test_a_variant_on_one_point_has_no_axes() -> None:
    ds = sweep().dataset()
    assert dict(ds.sizes) == {}
    assert ds["step_time"].item() == sweep().point().quantities["step_time"]
    assert ds.pint.quantify()["step_time"].pint.to("ms").pint.magnitude.item() > 0


def test_whole_sizes_that_do_not_exist_are_nan() -> None:
    asked = sweep({"devices": 96}, {"tp": [1, 5]}, without=["dp"], feasible={"memory": "off"})
    ds = asked.dataset()
    assert ds["dp"].isnull().values.tolist() == [False, True]
    assert ds["feasible"].values.tolist() == [True, False]
    assert asked.variant(axes={"tp": [1, 2]}).dataset()["dp"].dtype == np.int64


def test_too_large_for_memory_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = sweep(axes={"tp": {"range": [1, 1000]}, "dp": {"range": [1, 1000]}})
    sizes = {"SC_PHYS_PAGES": 2**12, "SC_PAGE_SIZE": 2**10}
    monkeypatch.setattr(os, "sysconf", sizes.__getitem__)
    with pytest.raises(ms.Mistake) as caught:
        asked.dataset()
    said = str(caught.value)
    assert said.startswith("dataset: needs ") and "this machine has 4.194 MB" in said
    assert "needed: to_parquet(), which streams" in said


PINT_IS_AS_IT_WAS = """
import pint
before = pint.get_application_registry().get()
import mlsysim_sweep as ms
{ask}
assert pint.get_application_registry().get() is before
assert type(pint.UnitRegistry().Quantity(1.0, "m").magnitude) is float
assert type(pint.Quantity(1.0, "m").magnitude) is float
import pint_xarray, xarray
from mlsysim_sweep import units
assert pint_xarray.unit_registry is units.array_registry()
quantified = xarray.Dataset({{"a": ("x", [1.0], {{"units": "GB"}})}}).pint.quantify()
assert quantified["a"].pint.to("byte").pint.magnitude.tolist() == [1e9]
"""


def test_no_other_registry_is_changed(tmp_path: Path) -> None:
    ask = "ms.Sweep.load('gpt3-1k-h100').variant(axes={'dp': [16]}).dataset()"
    code = PINT_IS_AS_IT_WAS.format(ask=ask)
    command = [sys.executable, "-P", "-W", "error", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
