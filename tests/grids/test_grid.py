"""Grids: counted before they are made, laid out on axes, with the facts and rules that follow."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlsysim_sweep as ms
from mlsysim_sweep.grids.spec import MOST_POINTS
from mlsysim_sweep.kernels import model
from tests.asking import CHIP, sweep

FREE = {"memory": "off", "tp_within_node": False}


# --- absurd grids --------------------------------------------------------------------------------

ABSURD: dict[str, tuple[Mapping[str, Any], int]] = {
    "six axes of 1,000": (
        {n: {"range": [1, 1000]} for n in ("tp", "pp", "dp", "microbatches", "layers", "heads")},
        10**18,
    ),
    "seven axes of 1,000": (
        {
            n: list(range(1, 1001))
            for n in ("tp", "pp", "dp", "microbatches", "layers", "heads", "hidden")
        },
        10**21,
    ),
    "four axes of 65,536": (
        {n: np.arange(1, 65537) for n in ("tp", "pp", "dp", "microbatches")},
        2**64,
    ),
    "forms that nobody could hold": (
        {
            "dp": {"range": [1, 10**8]},
            "local_efficiency": {"linspace": [0.1, 1, 10**8]},
            "batch_tokens": {"geomspace": [1, 1e9, 10**8]},
        },
        10**24,
    ),
    "one point too many": (
        {"tp": {"range": [1, 10**6]}, "dp": {"range": [1, 10**6 + 1]}},
        10**12 + 10**6,
    ),
}


@pytest.mark.parametrize("case", ABSURD)
def test_absurd_grids_are_refused_before_anything_is_made(case: str) -> None:
    axes, points = ABSURD[case]
    sweep()  # what is loaded once
    tracemalloc.start()
    with pytest.raises(ms.Mistake) as caught:
        sweep(axes=axes)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    said = str(caught.value)
    assert said.startswith(f"axes: {points:,} points (")
    assert "of results and about" in said and "years of evaluation" in said
    assert f"needed: at most {MOST_POINTS:,} points: cut " in said
    assert peak < 2**22


def test_the_longest_axis_is_the_one_to_cut() -> None:
    axes = {"tp": [1, 2], "dp": {"range": [1, 10**7]}, "microbatches": {"range": [1, 10**6]}}
    with pytest.raises(
        ms.Mistake, match=r"cut dp \(10,000,000 values\) first, or raise max_points"
    ):
        sweep(axes=axes)


def test_the_limit_is_ones_own() -> None:
    axes = {"tp": [1, 2], "pp": [1, 2]}
    assert sweep(axes=axes, max_points=4).points == 4
    with pytest.raises(ms.Mistake, match=r"axes: 4 points .* at most 3 points"):
        sweep(axes=axes, max_points=3)
    wide = {name: {"range": [1, 10**4]} for name in ("tp", "pp", "dp", "microbatches")}
    asked = sweep(axes=wide, max_points=1e16, feasible=FREE)
    assert asked.points == asked.plan()["points"] == 10**16


# --- layout --------------------------------------------------------------------------------------


def test_order_of_axes_is_order_of_rows() -> None:
    asked = sweep(
        axes={"pp": [4, 1], "tp": [2, 8, 1]},
        zip={"dp": [64, 8], "microbatches": [8, 1]},
        feasible=FREE,
    )
    assert asked.sizes == {"pp": 2, "tp": 3, "dp": 2}
    rows = asked.table()[["pp", "tp", "dp", "microbatches"]].values.tolist()
    expected = [[pp, tp, dp, m] for pp in (4, 1) for tp in (2, 8, 1) for dp, m in ((64, 8), (8, 1))]
    assert rows == expected


def test_a_permuted_axis_gives_the_same_rows() -> None:
    one = sweep(axes={"tp": [1, 2, 4, 8], "dp": [8, 32]}, feasible=FREE).table()
    other = sweep(axes={"dp": [32, 8], "tp": [4, 1, 8, 2]}, feasible=FREE).table()
    key = ["tp", "dp"]
    left = one.sort_values(key).reset_index(drop=True)
    assert left.equals(other[one.columns].sort_values(key).reset_index(drop=True))


@pytest.mark.parametrize("axes", [{}, {"tp": [8]}, {"tp": [8], "accelerator": ["H100"]}])
def test_one_point_is_a_grid(axes: dict[str, Any], tmp_path: Path) -> None:
    asked = sweep(axes=axes)
    assert asked.points == 1 and asked.table().shape[0] == 1
    assert asked.dataset()["step_time"].size == 1
    assert asked.to_parquet(tmp_path / "one.parquet").rows == 1
    assert asked.funnel().feasible == 1
    assert asked.point(**{n: v[0] for n, v in axes.items()}).feasible
    assert asked.table()["step_time"].tolist() == [sweep().point().quantities["step_time"]]


def test_a_choice_of_the_point_is_asked_for_by_axis() -> None:
    with pytest.raises(ms.Mistake) as caught:
        sweep(axes={"tp": [1, 8]}).point()
    said = "tp: an axis of 2 values, and none is chosen; needed: one value for each axis"
    assert str(caught.value) == f"{said}; for example tp=1"
    off_grid = sweep(axes={"tp": [1, 8]}).point(tp=5)
    assert off_grid.inputs["tp"] == 5


def test_rows_are_distinct_in_a_group() -> None:
    assert sweep(zip={"tp": [1, 1], "dp": [8, 16]}).points == 2
    with pytest.raises(ms.Mistake, match=r"^tp and dp: 1, 8 is given twice"):
        sweep(zip={"tp": [1, 2, 1], "dp": [8, 8, 8]})


def test_an_input_has_one_value() -> None:
    for value in ([8], (8,), {"range": [1, 2]}, np.array([8]), range(8)):
        with pytest.raises(
            ms.Mistake, match=r"^inputs\.tp: .*needed: one value; several make an axis"
        ):
            sweep({"tp": value})


# --- sizes that follow ---------------------------------------------------------------------------


def test_replicas_follow_from_devices() -> None:
    asked = sweep({"devices": 96}, {"tp": [1, 5, 8], "pp": [1, 12]}, without=["dp"], feasible=FREE)
    assert asked.table()[["tp", "pp", "dp"]].values.tolist() == [
        [1, 1, 96],
        [1, 12, 8],
        [8, 1, 12],
        [8, 12, 1],
    ]
    (rule,) = [row for row in asked.funnel().rows if row.rule == "whole dp"]
    assert (rule.rejects, rule.rejected_only) == (2, 2)


def test_microbatches_follow_from_their_size() -> None:
    asked = sweep(
        {"batch_tokens": 2**21, "microbatch_size": 4, "seq_len": 2048},
        {"dp": [24, 32, 256, 512]},
        without=["microbatches"],
        feasible=FREE,
    )
    assert asked.table()[["dp", "microbatches"]].values.tolist() == [[32, 8], [256, 1]]
    assert asked.arrow()["microbatches"].type == "int64"


# --- choices and facts ---------------------------------------------------------------------------


def test_a_precision_that_one_accelerator_lacks_is_infeasible_by_name() -> None:
    asked = sweep(axes={"accelerator": ["H100", "A100-80GB", "B200"], "tp": [4, 8]}, feasible=FREE)
    assert asked.table()["accelerator"].unique().tolist() == ["H100", "B200"]
    (rule,) = asked.funnel().rows
    assert (rule.rule, rule.rejects, rule.left) == ("precision on accelerator", 2, 4)
    assert math.isnan(asked.dataset()["step_time"].sel(accelerator="A100-80GB", tp=8))


def test_a_precision_that_none_has_is_a_mistake() -> None:
    with pytest.raises(ms.Mistake) as caught:
        sweep(axes={"accelerator": ["V100", "A100-80GB"]})
    said = 'precision: "fp8": no peak for it on V100, A100-80GB; needed: one of'
    assert str(caught.value) == f"{said} bf16, fp16, fp32, int8, tf32"
    with pytest.raises(ms.Mistake, match=r'^precision: "fp4": no peak'):
        sweep(axes={"precision": ["fp8", "fp4"]})


def test_precision_as_an_axis() -> None:
    asked = sweep(
        axes={"precision": ["fp8", "bf16"], "accelerator": ["H100", "A100-80GB"]}, feasible=FREE
    )
    rows = asked.table()[["precision", "accelerator"]].values.tolist()
    assert rows == [["fp8", "H100"], ["bf16", "H100"], ["bf16", "A100-80GB"]]
    peaks = asked.grid.fields["peak_flops"].values
    assert peaks[:, 0].tolist() == [1979e12, 989e12] and peaks[1, 1] == 312e12


def test_a_ring_is_a_choice_on_an_axis() -> None:
    asked = sweep(axes={"collective": ["large_n_ring", "ring"], "dp": [1, 32]}, feasible=FREE)
    frame = asked.table().set_index(["collective", "dp"])["allreduce_time"]
    assert frame["large_n_ring", 1] == frame["large_n_ring", 32] == 0.4375
    assert frame["ring", 1] == 0
    assert frame["ring", 32] == pytest.approx(0.4375 * 31 / 32, rel=1e-15)
    with pytest.raises(ms.Mistake, match=r'^collective: unknown "rign"; did you mean "ring"'):
        sweep({"collective": "rign"})


def test_experts_are_counted_as_asked_and_noted() -> None:
    asked = sweep(
        {"workload": "DeepSeek-V3"}, {"parameter_count": ["all", "active"]}, feasible=FREE
    )
    flops = dict(asked.table()[["parameter_count", "step_flops"]].itertuples(index=False))
    assert flops == {"all": 6 * 671e9 * 2e6, "active": 6 * 37e9 * 2e6}
    note = (
        "step_flops counts all 6.71e+11 parameters of DeepSeek-V3; a token passes through 3.7e+10"
    )
    assert any(found.startswith(note) for found in sweep({"workload": "DeepSeek-V3"}).notes)
    active = sweep({"workload": "DeepSeek-V3", "parameter_count": "active"})
    assert not any("step_flops" in found for found in active.notes)
    assert not any("step_flops" in found for found in sweep().notes)
    # Memory and gradients are of all parameters either way.
    assert active.point().quantities["state_total"] == 16 * 671e9


def test_tp_stays_within_a_node_unless_asked() -> None:
    axes = {"tp": [4, 8, 16, 72, 144], "accelerator": ["H100", "GB200"]}
    inside = sweep(axes=axes, feasible={"memory": "off"})
    assert inside.table().groupby("accelerator", observed=True)["tp"].max().to_dict() == {
        "H100": 8,
        "GB200": 72,
    }
    assert [row.rule for row in inside.funnel().rows] == ["tp_within_node"]
    assert len(sweep(axes=axes, feasible=FREE).table()) == 10
    assert (
        sweep({"devices_per_node": 16}, {"tp": [8, 16]}, feasible={"memory": "off"})
        .table()["tp"]
        .max()
        == 16
    )


def test_memory_rules() -> None:
    axes = {"pp": [1, 2, 4, 8, 16, 32, 48]}
    fitting = {
        memory: sweep(axes=axes, feasible={"memory": memory, "headroom": share})
        .table()["pp"]
        .tolist()
        for memory, share in (("plain", 1), ("zero1", 1), ("off", 1))
    }
    assert fitting["plain"] == [8, 16, 32, 48]
    assert fitting["zero1"] == [2, 4, 8, 16, 32, 48]
    assert fitting["off"] == axes["pp"]
    tight = sweep(axes=axes, feasible={"headroom": 0.25})
    assert tight.table()["pp"].tolist() == [8, 16, 32, 48]
    assert tight.funnel().rows[-1].text == "zero1_state_per_device <= 0.25 * device_memory"


@pytest.mark.parametrize(
    ("rule", "kept"),
    [
        ({"equal": 64}, [64]),
        ({"max": 64}, [32, 48, 64]),
        ({"min": 64}, [64, 96]),
        ({"multiple_of": 32}, [32, 64, 96]),
        ({"one_of": [48, 96, 7]}, [48, 96]),
        ({"one_of": 48}, [48]),
        ({"min": 33, "max": 95}, [48, 64]),
    ],
)
def test_device_rules(rule: dict[str, Any], kept: list[int]) -> None:
    asked = sweep({"tp": 8, "pp": 1}, {"dp": [4, 6, 8, 12]}, feasible={**FREE, "devices": rule})
    assert asked.table()["n_devices"].tolist() == kept


def test_facts_of_the_workload_serve_rules() -> None:
    where = ["pp <= layers", "layers % pp == 0", "heads % tp == 0"]
    axes = {"pp": [1, 5, 96, 97, 192], "tp": [1, 5, 7, 96]}
    asked = sweep(axes=axes, feasible={**FREE, "where": where})
    found = asked.table()[["pp", "tp"]].values.tolist()
    assert found == [[1, 1], [1, 96], [96, 1], [96, 96]]


def test_a_fact_that_a_row_lacks_is_asked_for() -> None:
    with pytest.raises(ms.Mistake) as caught:
        sweep(
            axes={"accelerator": ["H100", "H100-PCIe"]},
            feasible={"where": "scaleout_bandwidth > 1 GB/s", **FREE},
        )
    assert "accelerator.H100-PCIe.scaleout_bandwidth: the catalog has no value" in str(caught.value)
    assert "the rule scaleout_bandwidth > 1 GB/s needs it" in str(caught.value)
    lacking = {"x": {"peak_flops": {"fp8": "1 PFLOP/s"}}}
    with pytest.raises(ms.Mistake, match=r"device_memory"):
        sweep({"accelerator": "x"}, accelerator=lacking, feasible={"tp_within_node": False})
    assert len(sweep({"accelerator": "x"}, accelerator=lacking, feasible=FREE).table()) == 1


def test_what_is_given_wins_over_what_a_row_says() -> None:
    inputs = sweep({"device_memory": "1 TB"}).point().inputs
    assert inputs["device_memory"] == 1e12
    by_link = sweep({"link": "InfiniBand-NDR"}, without=["link_bandwidth"])
    assert by_link.point().inputs["link_bandwidth"] == 50e9


def test_a_name_that_changes_nothing_is_refused() -> None:
    with pytest.raises(ms.Mistake, match="link: given together with link_bandwidth"):
        sweep({"link": "InfiniBand-NDR", "link_bandwidth": "1 GB/s"})
    with pytest.raises(ms.Mistake, match=r"axes\.precision: changes nothing here"):
        sweep({"peak_flops": "1 PFLOP/s"}, {"precision": ["bf16", "fp8"]})
    replaced = sweep({"link_bandwidth": "1 GB/s"}).variant(inputs={"link": "InfiniBand-NDR"})
    assert replaced.point().inputs["link_bandwidth"] == 50e9


def test_rows_of_ones_own_on_an_axis() -> None:
    asked = sweep(axes={"accelerator": ["Mine", "H100"]}, accelerator={"Mine": CHIP})
    assert asked.table()["accelerator"].tolist() == ["Mine", "H100"]
    assert (
        asked.table()["compute_time"].iloc[0] == asked.table()["compute_time"].iloc[1] * 1979 / 1000
    )


# --- columns -------------------------------------------------------------------------------------


def test_columns_are_quantities_inputs_or_all() -> None:
    every = sweep(axes={"tp": [1, 8]}).columns
    assert set(model("parallel_layout").outputs) - {"ring_correction"} <= set(every)
    some = sweep(
        axes={"tp": [1, 8]}, columns=["layers", "step_time", "tp", "accelerator", "device_memory"]
    )
    assert some.columns == ("tp", "layers", "step_time", "accelerator", "device_memory")
    (row,) = some.table().to_dict("records")
    assert (row["layers"], row["accelerator"], row["device_memory"]) == (96, "H100", 80 * 2**30)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (["stpe_time"], 'output.columns: unknown "stpe_time"; did you mean "step_time"?'),
        (["window_resolution"], "window_resolution: missing; needed: a value"),
    ],
)
def test_columns_that_cannot_be(columns: list[str], said: str) -> None:
    with pytest.raises(ms.Mistake) as caught:
        sweep(columns=columns)
    assert str(caught.value).startswith(said)


def test_few_columns_need_few_inputs(tmp_path: Path) -> None:
    asked = ms.Sweep(
        axes={"tp": [1, 2], "pp": [1, 2]},
        inputs={"dp": 4},
        columns=["tp"],
        feasible={"memory": "off"},
    )
    assert asked.columns == ("tp", "pp")
    saved = asked.to_parquet(tmp_path / "few.parquet")
    assert (saved.rows, saved.ranked_by) == (4, "tp")


# --- what cannot be computed ---------------------------------------------------------------------


def test_the_corner_of_every_range_is_finite() -> None:
    for extreme in (1e-30, 1e30):
        asked = sweep(
            {"batch_tokens": extreme, "flops_per_param_token": extreme, "parameters": extreme},
            feasible=FREE,
            columns=["step_time", "efficiency", "state_total"],
        )
        assert np.isfinite(asked.table().to_numpy(float)).all()


@np.errstate(all="raise")
def test_the_smallest_layout_divides_by_nothing() -> None:
    ones = {"tp": 1, "pp": 1, "dp": 1, "microbatches": 1, "overlap_fraction": 0}
    for collective in ("large_n_ring", "ring"):
        found = sweep({**ones, "collective": collective}, feasible=FREE).point().quantities
        assert (found["bubble"], found["n_devices"], found["ring_bytes"]) == (0, 1, 0)
        assert all(math.isfinite(value) for value in found.values())


def test_a_whole_number_beyond_int64_is_never_wrapped() -> None:
    asked = sweep({"device_memory": "1e-20 GB"}, feasible=FREE)
    assert asked.dataset()["min_devices_for_state"] == pytest.approx(2.8e23)
    assert asked.point().quantities["min_devices_for_state"] == pytest.approx(2.8e23)
    with pytest.raises(
        ms.Mistake, match=r"^min_devices_for_state: .*needed: whole numbers below 2\^63"
    ):
        asked.arrow()


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ('accelerator != "H10O"', 'unknown "H10O"; did you mean "H100"?'),
        ('accelerator == "h100"', 'did you mean "H100"?'),
        ('"GPT-3" == workload', 'did you mean "GPT3"?'),
        ('precision == "fp17"', 'did you mean "fp16"?'),
        ('tp < 9 or collective in ["ring", "rign"]', 'unknown "rign"; did you mean "ring"?'),
    ],
)
def test_a_rule_about_a_name_that_there_is_not_is_no_rule(rule: str, said: str) -> None:
    with pytest.raises(ms.RuleError) as caught:
        sweep(feasible={"where": rule})
    assert str(caught.value).startswith("feasible.where[0]: ") and said in str(caught.value)


def test_rules_about_names() -> None:
    axes = {"accelerator": ["H100", "Café"], "gradient_precision": ["FP16", "fp8"]}
    rules = {
        'accelerator == "Cafe\u0301"': 2,
        'accelerator in ["B200", "Café"]': 2,
        'gradient_precision == "FP16"': 2,
        'gradient_precision == "fp8" and accelerator != "H100"': 1,
        'precision == "bf16"': 0,
    }
    for rule, kept in rules.items():
        asked = sweep(axes=axes, accelerator={"Café": CHIP}, feasible={**FREE, "where": rule})
        assert len(asked.table()) == kept
