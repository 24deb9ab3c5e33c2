"""Sizes that follow from other sizes, and axes that are walked together."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pandas as pd
import pytest

import mlsysim_sweep as ms

BATCH = 2**21
INPUTS = {
    "workload": "GPT3",
    "accelerator": "H100",
    "batch_tokens": BATCH,
    "flops_per_param_token": 6,
    "local_efficiency": 0.5,
    "link_bandwidth": "400 Gbps",
    "overlap_fraction": 0.75,
}
TP, PP, DP, DEVICES = [1, 2, 3, 8], [1, 4, 5], [1, 8, 12], [96, 1000]
SIZES = ["tp", "pp", "dp", "microbatches"]


def sweep(*zips: dict[str, Any], inputs: dict[str, Any] | None = None, **axes: Any) -> ms.Sweep:
    varied = {*axes, *itertools.chain.from_iterable(zips)}
    held = {n: v for n, v in {**INPUTS, **(inputs or {})}.items() if n not in varied}
    return ms.Sweep(inputs=held, axes=axes, zip=list(zips), feasible={"memory": "off"})


def same_rows(left: pd.DataFrame, right: pd.DataFrame, keys: list[str]) -> None:
    """The same layouts with the same quantities, whatever the order of rows and extra columns."""
    names = [name for name in left if name in set(right)]
    tables = [t[names].sort_values(keys, ignore_index=True) for t in (left, right)]
    pd.testing.assert_frame_equal(*tables, check_exact=True, check_dtype=False)


@pytest.mark.parametrize("devices", DEVICES)
def test_devices_give_the_whole_dp(devices: int) -> None:
    found = sweep(tp=TP, pp=PP, inputs={"devices": devices}).table()
    layouts = {(tp, pp, devices // (tp * pp)) for tp in TP for pp in PP if devices % (tp * pp) == 0}
    assert set(zip(found["tp"], found["pp"], found["dp"], strict=True)) == layouts
    assert found["dp"].dtype == np.int64
    assert (found["n_devices"] == devices).all()
    every_dp = sorted(set(found["dp"].tolist()))
    direct = sweep(tp=TP, pp=PP, dp=every_dp).table()
    same_rows(found, direct[direct["n_devices"] == devices], ["tp", "pp", "dp"])


def test_devices_as_an_axis_are_the_union_of_its_values() -> None:
    together = sweep(tp=TP, pp=PP, devices=DEVICES).table()
    one_by_one = [sweep(tp=TP, pp=PP, inputs={"devices": n}).table() for n in DEVICES]
    same_rows(together, pd.concat(one_by_one), ["n_devices", "tp", "pp"])


def test_a_layout_without_a_whole_dp_is_nan_and_not_feasible() -> None:
    made = sweep(tp=TP, pp=PP, devices=DEVICES)
    dataset = made.dataset()
    for tp, pp, devices in itertools.product(TP, PP, DEVICES):
        point = dataset.sel(tp=tp, pp=pp, devices=devices)
        whole = devices % (tp * pp) == 0
        assert bool(point["feasible"]) == whole
        for name in ("dp", "n_devices", "step_time", "efficiency", "zero1_state_per_device"):
            assert bool(np.isfinite(point[name])) == whole, name
        assert np.isfinite(point["bubble"]) and np.isfinite(point["state_per_device"])
    row = next(row for row in made.funnel().rows if row.rule == "whole dp")
    assert row.rejects == made.points - len(made.table())


def test_microbatch_tokens_give_the_whole_microbatches() -> None:
    tokens = [512, 2048, 3000, BATCH // 8, BATCH]
    found = sweep(dp=DP, microbatch_tokens=tokens, pp=PP).table()
    expected = {
        (dp, size, BATCH // (dp * size)) for dp in DP for size in tokens if BATCH % (dp * size) == 0
    }
    rows = zip(found["dp"], found["microbatch_tokens"], found["microbatches"], strict=True)
    assert set(rows) == expected
    assert found["microbatches"].dtype == np.int64
    direct = sweep(dp=DP, microbatches=sorted(set(found["microbatches"].tolist())), pp=PP).table()
    keys = ["dp", "microbatches", "pp"]
    same_rows(found, direct.merge(found[keys], on=keys), keys)


def test_microbatch_size_and_seq_len_are_the_tokens_of_a_microbatch() -> None:
    sizes, lengths = [1, 2, 3], [1024, 4096]
    found = sweep(dp=DP, microbatch_size=sizes, seq_len=lengths).table()
    tokens = found["microbatch_size"] * found["seq_len"]
    assert (found["microbatches"] * found["dp"] * tokens == BATCH).all()
    direct = sweep(dp=DP, microbatch_tokens=sorted({a * b for a in sizes for b in lengths})).table()
    found["microbatch_tokens"] = tokens
    assert set(found["microbatch_size"]) == {1, 2}
    keys = ["dp", "microbatch_tokens"]
    once = found.drop_duplicates(keys)
    same_rows(once, direct, keys)


def test_everything_may_follow_at_once() -> None:
    inputs = {"devices": 1024, "microbatch_size": 1, "seq_len": 2048}
    found = sweep(tp=[1, 8], pp=[1, 4, 6], inputs=inputs).table()
    assert found[SIZES].to_numpy().tolist() == [
        [1, 1, 1024, 1],
        [1, 4, 256, 4],
        [8, 1, 128, 8],
        [8, 4, 32, 32],
    ]


def test_a_zip_is_the_diagonal_of_the_product() -> None:
    pair: dict[str, Any] = {
        "accelerator": ["H100", "H200", "B200"],
        "link_bandwidth": ["400 Gbps", "400 Gbps", "800 Gbps"],
    }
    walked = sweep(pair, dp=DP, tp=TP)
    assert walked.sizes == {"dp": 3, "tp": 4, "accelerator": 3}
    distinct: dict[str, Any] = {**pair, "link_bandwidth": ["400 Gbps", "800 Gbps"]}
    product = sweep(dp=DP, tp=TP, **distinct).table()
    wanted = dict(zip(pair["accelerator"], [50e9, 50e9, 100e9], strict=True))
    diagonal = product[product["accelerator"].astype(str).map(wanted) == product["link_bandwidth"]]
    same_rows(walked.table(), diagonal, ["dp", "tp", "accelerator"])


def test_zipped_sizes() -> None:
    walked = sweep({"tp": [1, 8, 8], "pp": [1, 1, 4], "dp": [1024, 128, 32]}, microbatches=[1, 32])
    table = walked.table()
    assert table[["tp", "pp", "dp"]].drop_duplicates().to_numpy().tolist() == [
        [1, 1, 1024],
        [8, 1, 128],
        [8, 4, 32],
    ]
    assert table["microbatches"].tolist() == [1, 1, 1, 32, 32, 32]
    dataset = walked.dataset()
    assert dataset["n_devices"].dims == ("tp",)
    assert dataset["pp"].dims == ("tp",)


def test_a_combination_twice_in_a_zip_is_refused() -> None:
    with pytest.raises(ms.Mistake, match="tp and pp: 8, 1 is given twice"):
        sweep({"tp": [8, 1, 8], "pp": [1, 1, 1]}, dp=DP)


@pytest.mark.parametrize("rules", [{}, {"devices": {"max": 8192}, "where": "step_time < 9 s"}])
def test_a_grid_of_several_blocks(rules: dict[str, Any]) -> None:
    """Larger than one block, and than what is evaluated once: against plain filtering."""
    axes = {"accelerator": ["H100", "B200"], "dp": {"range": [1, 700]}, "pp": [1, 2, 4, 8, 16]}
    made = ms.Sweep.load("gpt3-1k-h100").variant(axes=axes, feasible=rules)
    assert made.points > 100_000
    dataset, table = made.dataset(), made.table()
    keep = dataset["feasible"].broadcast_like(dataset["step_time"]).transpose(*made.sizes)
    assert len(table) == int(keep.sum()) > 0
    for name in made.grid.columns:
        spread = dataset[name].broadcast_like(keep).transpose(*made.sizes)
        np.testing.assert_array_equal(table[name], spread.values[keep.values], name)
