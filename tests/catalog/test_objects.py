"""mlsysim's objects, and rows, wherever a catalog name goes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from mlsysim.core.units import Q_

import mlsysim_sweep as ms
from mlsysim_sweep.catalog import Row, bundled_table, read_row
from mlsysim_sweep.catalog.objects import PRECISION_ALIASES, adopt
from mlsysim_sweep.vocabulary import PRECISIONS
from tests.asking import CHIP, sweep

mlsysim: Any = pytest.importorskip("mlsysim")
H100 = mlsysim.Hardware.Cloud.H100
A100 = mlsysim.Hardware.Cloud.A100
GPT3 = mlsysim.Models.Language.GPT3


def test_an_accelerator() -> None:
    row = adopt("accelerator", H100)
    assert row.name == H100.name
    assert row.peaks["fp8"] == H100.compute.precision_flops["fp8"].m_as("flop/s") == 1979e12
    assert row.facts["device_memory"] == 80 * 2**30
    assert row.facts["memory_bandwidth"] == 3.35e12
    assert row.facts["tdp"] == 700
    # Theirs counts both directions, ours one.
    assert row.facts["scaleup_bandwidth"] == 450e9


def test_sparse_peaks_are_left_out() -> None:
    row = adopt("accelerator", H100)
    sparse = {key for key in H100.compute.precision_flops if key.endswith("_sparse")}
    assert sparse and sparse.isdisjoint(PRECISION_ALIASES)
    assert row.peaks["fp16"] == row.peaks["bf16"] == 989e12
    assert {ours for names in PRECISION_ALIASES.values() for ours in names} == set(PRECISIONS)


def test_a_precision_of_its_own_wins_over_an_alias() -> None:
    peaks = {"bf16": Q_(300, "TFLOPs/s"), "fp16_dense": Q_(400, "TFLOPs/s")}
    for given in (peaks, dict(reversed(peaks.items()))):
        core = H100.compute.model_copy(update={"precision_flops": given})
        row = adopt("accelerator", H100.model_copy(update={"compute": core}))
        assert row.peaks == {"bf16": 300e12, "fp16": 400e12}


def test_an_accelerator_without_a_dense_peak_is_refused() -> None:
    core = H100.compute.model_copy(update={"precision_flops": {"fp16_sparse": Q_(1, "PFLOPs/s")}})
    with pytest.raises(
        ms.Mistake, match=r"^accelerator: .* has no dense peak; needed: one of fp32"
    ):
        adopt("accelerator", H100.model_copy(update={"compute": core}))


def test_a_workload() -> None:
    row = adopt("workload", GPT3)
    assert row.facts["parameters"] == 175e9
    assert (row.facts["layers"], row.facts["heads"], row.facts["hidden"]) == (96, 96, 12288)
    moe = adopt("workload", mlsysim.Models.Language.DeepSeek_V3)
    assert moe.facts["active_parameters"] == 37e9


def test_a_model_size_of_its_own_is_what_16_bit_gradients_take() -> None:
    sized = GPT3.model_copy(update={"name": "sized", "model_size": Q_(352, "GB")})
    for precision, expected in (("fp16", 352e9), ("bf16", 352e9), ("fp8", 175e9), ("FP16", 350e9)):
        asked = sweep({"workload": sized}).variant({"gradient_precision": precision})
        assert asked.point().quantities["gradient_bytes"] == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize(
    ("table", "given", "message"),
    [
        (
            "accelerator",
            5,
            "accelerator: 5 given; needed: a name, a catalog row or an mlsysim object",
        ),
        ("accelerator", None, "accelerator: nothing given"),
        ("workload", object, "workload: <class 'object'> given"),
        ("link", GPT3, "link: TransformerWorkload"),
        ("workload", H100, "workload: HardwareNode"),
        ("accelerator", bundled_table("workload")["GPT3"], "a row of the workload table given"),
    ],
)
def test_anything_else_is_refused(table: str, given: Any, message: str) -> None:
    with pytest.raises(ms.Mistake) as caught:
        adopt(table, given)
    assert message in str(caught.value)
    with pytest.raises(ms.Mistake):
        sweep({table: given})


def test_objects_go_where_names_go() -> None:
    mine = read_row("accelerator", "Mine", CHIP)
    axes = {"accelerator": [H100, "B200", mine]}
    asked = sweep({"workload": GPT3}, axes, feasible={"tp_within_node": False})
    assert asked.grid.fields["accelerator"].values.tolist() == [H100.name, "B200", "Mine"]
    assert [row.name for row in asked.grid.rows if row.table == "accelerator"] == [
        H100.name,
        "B200",
        "Mine",
    ]
    zipped = sweep(zip={"accelerator": [mine, "B200"], "link_bandwidth": ["100 Gbps", "400 Gbps"]})
    assert zipped.table()["accelerator"].tolist() == ["Mine", "B200"]
    assert asked.spec["axes"]["accelerator"] == [H100.name, "B200", "Mine"]


def test_the_same_object_twice_is_the_same_name_twice() -> None:
    with pytest.raises(ms.Mistake, match=r"is given twice"):
        sweep(axes={"accelerator": [H100, H100]})


def test_the_size_of_a_node_is_asked_for_where_an_object_lacks_it() -> None:
    message = r"devices_per_node.*tp_within_node needs it.*tp_within_node = false"
    with pytest.raises(ms.Mistake, match=message):
        sweep(axes={"accelerator": [H100, "B200"]})
    with pytest.raises(ms.Mistake, match=r"devices_per_node: missing.*devices_per_node = 8"):
        sweep({"accelerator": H100})
    assert len(sweep({"accelerator": H100, "devices_per_node": 8}).table()) == 1


def test_objects_give_what_the_same_facts_in_a_row_give() -> None:
    by_object = sweep({"accelerator": H100}, feasible={"tp_within_node": False}).point()
    by_name = sweep({"accelerator": "H100"}).point()
    for name in by_name.quantities:
        assert by_object.quantities[name] == by_name.quantities[name]


def test_quantities_of_their_registry_are_read_as_text() -> None:
    theirs = sweep(
        {"link_bandwidth": Q_(400, "Gbps"), "device_memory": Q_(80, "GiB"), "batch_tokens": 2e6}
    )
    assert theirs.point().quantities == sweep().point().quantities
    several = sweep(axes={"link_bandwidth": [Q_(100, "Gbps"), "400 Gbps"], "tp": [4, 8]})
    assert several.grid.fields["link_bandwidth"].values.tolist() == [12.5e9, 50e9]


def test_look_alikes_with_parts_missing_are_not_guessed_at() -> None:
    with pytest.raises(AttributeError):
        adopt("accelerator", SimpleNamespace(compute=None, memory=None, name="x"))
    assert isinstance(adopt("link", Row("link", "x", {"link_bandwidth": 1.0})), Row)
