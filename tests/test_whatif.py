"""Regimes, robustness, inversion and differences, each against what a sweep says of every point."""

import itertools

import numpy as np
import pandas as pd
import pytest

import mlsysim_sweep as ms
from tests.asking import sweep as ask

LAYOUT = ["tp", "pp", "devices", "microbatches"]
AXES = {
    "tp": [1, 2, 4, 8],
    "pp": {"divisors_of": 96},
    "devices": [1024],
    "microbatches": [16, 64],
}
BANDWIDTHS = ["10 Gbps", "25 Gbps", "100 Gbps", "400 Gbps", "1600 Gbps"]


def over_bandwidth():
    return ask(axes={"link_bandwidth": BANDWIDTHS, **AXES}, without=["dp"])


def asked(**inputs):
    return ask(inputs, axes=AXES, without=["dp"])


def time_of(layout, bandwidth):
    """Step time of a layout, from the one-layout interface."""
    stated = {name: layout[name] for name in LAYOUT}
    point = asked(link_bandwidth=f"{bandwidth!r} byte/s").point(**stated)
    return point.quantities["step_time"] if point.feasible else np.inf


def test_regimes_are_the_best_of_each_value():
    found = ms.regimes(over_bandwidth(), "link_bandwidth", minimize="step_time")
    table = over_bandwidth().table()
    assert found.best["link_bandwidth"].is_monotonic_increasing
    for row in found.best.to_dict("records"):
        here = table[table["link_bandwidth"] == row["link_bandwidth"]]
        assert row["step_time"] == here["step_time"].min()


def test_at_a_crossover_two_layouts_take_equally_long():
    found = ms.regimes(over_bandwidth(), "link_bandwidth", minimize="step_time")
    assert len(found.crossovers) >= 2
    for row in found.crossovers.to_dict("records"):
        before, after = ({n: row[f"{n} {when}"] for n in LAYOUT} for when in ("before", "after"))
        at = row["link_bandwidth"]
        assert time_of(before, at) == pytest.approx(time_of(after, at), rel=1e-9)
        assert time_of(before, at * 0.999) < time_of(after, at * 0.999)
        assert time_of(before, at * 1.001) > time_of(after, at * 1.001)
    assert found.crossovers.attrs["mlsysim_sweep"]["link_bandwidth"]["unit"] == "byte/s"


def test_a_layout_that_no_longer_fits_gives_way():
    """Memory decides here, not time: the crossover is where the state just fits."""
    sizes = {"device_memory": ["15 GB", "40 GB"], "pp": [4, 8], "microbatches": [64]}
    swept = ask(axes=sizes, feasible={"memory": "zero1", "headroom": 1.0})
    (row,) = ms.regimes(swept, "device_memory", maximize="efficiency").crossovers.to_dict("records")
    assert (row["pp before"], row["pp after"]) == (8, 4)
    needed = swept.point(pp=4, device_memory="40 GB", microbatches=64)
    expected = needed.quantities["zero1_state_per_device"]
    assert row["device_memory"] == pytest.approx(expected, rel=1e-9)


def test_regimes_over_two_axes_and_whole_ones():
    swept = over_bandwidth()
    found = ms.regimes(swept, ["microbatches", "link_bandwidth"], minimize="step_time")
    assert len(found.best) == 2 * len(BANDWIDTHS)
    for row in found.crossovers.to_dict("records"):
        assert row["microbatches"] in (16, 64)


def test_robustness_against_every_case():
    swept = asked()
    uncertain = {"local_efficiency": [0.3, 0.5, 0.6], "link_bandwidth": ["25 Gbps", "400 Gbps"]}
    found = ms.robust(swept, uncertain, minimize="step_time", k=3)
    table = swept.variant(axes=uncertain).table()
    cases = ["local_efficiency", "link_bandwidth"]
    best = table.groupby(cases)["step_time"].min()
    assert len(found.cases) == len(best) == 6
    for row in found.layouts.to_dict("records"):
        mine = table[(table[LAYOUT] == [row[n] for n in LAYOUT]).all(axis=1)].set_index(cases)
        regret = (mine["step_time"] / best) - 1
        assert row["worst step_time"] == mine["step_time"].max()
        assert row["mean_regret"] == pytest.approx(regret.mean())
        assert row["max_regret"] == pytest.approx(regret.max())
        assert row["feasible_share"] == 1
        worst = regret.idxmax()
        assert (row["local_efficiency at worst"], row["link_bandwidth at worst"]) == worst
    assert found.layouts["nominal step_time"].is_monotonic_increasing
    for row in found.neighbours.to_dict("records"):
        there = {n: row[n] for n in LAYOUT}
        point = swept.point(**{**there, row["step"]: row["to"]})
        same = [point.quantities["step_time"], float(point.feasible)]
        np.testing.assert_equal(same, [row["step_time"], float(row["feasible"])])


def test_a_case_in_which_a_layout_does_not_fit_is_an_infinite_regret():
    swept = ask(axes={"pp": [4, 8]}, feasible={"memory": "zero1", "headroom": 1.0})
    best = swept.top(1, by="efficiency", largest=True)
    assert best["pp"].tolist() == [4]
    found = ms.robust(swept, {"device_memory": ["80 GB", "15 GB"]}, maximize="efficiency", k=2)
    first, second = found.layouts.to_dict("records")
    assert (first["feasible_share"], first["max_regret"]) == (0.5, np.inf)
    assert second["feasible_share"] == 1.0 and 0 < second["max_regret"] < np.inf


@pytest.mark.parametrize(
    ("name", "where", "between"),
    [
        ("link_bandwidth", "step_time < 3 s", ("1 Gbps", "10 Tbps")),
        ("local_efficiency", "step_time < 3 s", (0.05, 1.0)),
        ("device_memory", "efficiency > 0", ("1 GB", "1 TB")),
        ("overlap_fraction", "exposed_time < 0.05 s", (0, 1)),
    ],
)
def test_the_smallest_value_just_meets_the_target(name, where, between):
    unit = {"link_bandwidth": "byte/s", "device_memory": "byte"}.get(name, "")
    swept = asked()
    found = ms.invert(swept, name, where, between)
    assert len(found) and found[name].is_monotonic_increasing
    for row in found.iloc[:: max(1, len(found) // 6)].to_dict("records"):
        stated = {n: row[n] for n in LAYOUT}

        def meets(value, stated=stated):
            given = f"{value!r} {unit}" if unit else value
            changed = swept.variant(inputs={name: given}, feasible={"where": [where]})
            return changed.point(**stated).feasible

        assert meets(row[name])
        if row[name] != between[0]:
            assert not meets(row[name] * (1 - 1e-6))


def test_layouts_that_never_meet_it_are_left_out():
    assert len(ms.invert(asked(), "link_bandwidth", "step_time < 1 ms", ("1 bps", "1 Tbps"))) == 0


@pytest.mark.parametrize(
    ("name", "where", "between", "said"),
    [
        ("tp", "step_time < 1 s", (1, 8), "tp: an axis of the sweep"),
        ("accelerator", "step_time < 1 s", (1, 8), 'unknown "accelerator"'),
        ("link_bandwidth", "bubble < 0.1", ("1 Gbps", "2 Gbps"), "no rule depends on it"),
        ("link_bandwidth", "step_time < 1 s", ("2 Gbps", "1 Gbps"), "a smaller and a larger"),
    ],
)
def test_what_cannot_be_inverted_is_refused(name, where, between, said):
    with pytest.raises(ms.Mistake) as error:
        ms.invert(asked(), name, where, between)
    assert said in str(error.value)


def test_differences_of_two_fabrics():
    a, b = asked(), asked(link_bandwidth="50 Gbps")
    found = ms.diff(a, b, per="microbatches")
    assert (found.only_a, found.only_b) == (0, 0)
    moved = found.columns.set_index("quantity")["moved"]
    assert moved["bubble"] == moved["compute_time"] == 0
    assert moved["step_time"] == len(a.table()) - sum(a.table()["allreduce_time"] == 0)
    for row, other in itertools.product(found.rows.head(3).to_dict("records"), [b.table()]):
        mine = other[(other[LAYOUT] == [row[n] for n in LAYOUT]).all(axis=1)]
        assert mine["step_time"].tolist() == [row["step_time b"]]
    for row in found.winners.to_dict("records"):
        for side, swept in (("a", a), ("b", b)):
            table = swept.table()
            best = table[table["microbatches"] == row["microbatches"]]["step_time"].min()
            assert row[f"step_time {side}"] == best
        assert row["changed"] == any(row[f"{n} a"] != row[f"{n} b"] for n in ("tp", "pp"))


def test_the_same_twice_differs_in_nothing(tmp_path):
    asked().to_parquet(tmp_path / "a.parquet")
    found = ms.diff(asked(), tmp_path / "a.parquet")
    assert found.columns["moved"].sum() == 0 and not found.winners["changed"].any()


def test_rows_that_cannot_be_aligned_are_refused():
    with pytest.raises(ms.Mistake, match="no input in common"):
        ms.diff(asked(), pd.DataFrame({"x": [1]}))
    twice = pd.concat([asked().table()] * 2)
    with pytest.raises(ms.Mistake, match="two rows for one combination"):
        ms.diff(asked(), twice)


@pytest.mark.parametrize("options", [{}, {"minimize": "step_time", "maximize": "efficiency"}])
def test_one_objective_is_needed(options):
    with pytest.raises(ms.Mistake, match="one of minimize and maximize"):
        ms.regimes(over_bandwidth(), "link_bandwidth", **options)
    with pytest.raises(ms.Mistake, match='over: unknown "color"'):
        ms.regimes(over_bandwidth(), "color", minimize="step_time")
    with pytest.raises(ms.Mistake, match="is an axis of the sweep"):
        ms.robust(asked(), {"tp": [1]}, minimize="step_time")
