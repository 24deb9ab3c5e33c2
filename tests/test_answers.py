"""Fronts and rankings of every kind of source, against a comparison of all pairs of rows."""

import itertools
from unittest import mock

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mlsysim_sweep as ms
from mlsysim_sweep import answers, pareto, sources
from tests.asking import sweep as ask

AXES = {
    "accelerator": ["H100", "B200"],
    "tp": [1, 2, 8],
    "pp": {"divisors_of": 12},
    "dp": {"range": [1, 9]},
    "microbatches": [1, 4, 16],
}
KEY = ["accelerator", "tp", "pp", "dp", "microbatches"]


@pytest.fixture(scope="module")
def asked():
    return ask(axes=AXES, feasible={"memory": "off", "where": ["n_devices <= 300"]})


@pytest.fixture(scope="module")
def kinds(asked, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")
    asked.to_parquet(folder / "one.parquet")
    asked.to_parquet(f"{folder}/parts/")
    asked.to_parquet(f"{folder}/hive/", partition="accelerator")
    (folder / "foreign").mkdir()
    rows = asked.arrow()
    pq.write_table(rows.slice(0, 100), folder / "foreign" / "a.parquet")
    pq.write_table(rows.slice(100), folder / "foreign" / "b.parquet", row_group_size=50)
    one = str(folder / "one.parquet")
    duckdb.sql(f"copy (select * from '{one}') to '{folder}/duck.parquet' (format parquet)")
    return {
        "sweep": asked,
        "dataset": asked.dataset(),
        "lazy dataset": asked.dataset(chunks=5),
        "frame": asked.table(),
        "arrow": rows,
        "polars": pl.read_parquet(one),
        "duckdb": duckdb.sql(f"select * from '{one}'"),
        "file": one,
        "path": folder / "one.parquet",
        "folder": f"{folder}/parts",
        "hive": f"{folder}/hive/",
        "foreign": folder / "foreign",
        "duckdb file": f"{folder}/duck.parquet",
    }


KINDS = ["sweep", "dataset", "lazy dataset", "frame", "arrow", "polars", "duckdb", "file", "path"]
KINDS += ["folder", "hive", "foreign", "duckdb file"]


def keys(frame):
    return [tuple(row) for row in frame[KEY].astype({"accelerator": str}).to_numpy().tolist()]


def ranks_of(frame, minimize, maximize):
    """Ranks by comparison of all pairs."""
    signed = [frame[n].to_numpy(float) for n in minimize]
    costs = np.array(signed + [-frame[n].to_numpy(float) for n in maximize])
    ranks, left, rank = np.zeros(len(frame), int), np.arange(len(frame)), 0
    while len(left):
        rank += 1
        here = costs[:, left]
        worse = np.all(here[:, :, None] <= here[:, None], 0) & np.any(
            here[:, :, None] < here[:, None], 0
        )
        front = left[~worse.any(axis=0)]
        ranks[front] = rank
        left = np.setdiff1d(left, front)
    return ranks


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by", [(), "accelerator", ["accelerator", "n_devices"]])
@pytest.mark.parametrize("rank", [1, 3])
def test_fronts_of_every_source(asked, kinds, kind, by, rank):
    objectives = {"minimize": ["step_time", "n_devices"], "maximize": ["efficiency"]}
    found = ms.pareto_front(kinds[kind], **objectives, by=by, rank=rank)
    table = asked.table()
    names = [by] if isinstance(by, str) else list(by)
    groups = [g for _, g in table.groupby(names, observed=True)] if names else [table]
    expected = {}
    for group in groups:
        ranks = ranks_of(group, **objectives)
        kept = ranks <= rank
        expected |= dict(zip(keys(group[kept]), ranks[kept].tolist(), strict=True))
    got = found["rank"].tolist() if rank > 1 else [1] * len(found)
    assert dict(zip(keys(found), got, strict=True)) == expected
    assert len(found) == len(expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("per", [(), "accelerator", ["accelerator", "n_devices"]])
@pytest.mark.parametrize("largest", [False, True])
def test_rankings_of_every_source(asked, kinds, kind, per, largest):
    found = ms.top(kinds[kind], 3, by="efficiency", per=per, largest=largest)
    table = asked.table().sort_values("efficiency", ascending=not largest, kind="stable")
    names = [per] if isinstance(per, str) else list(per)
    expected = table.groupby(names, observed=True).head(3) if names else table.head(3)
    assert sorted(keys(found)) == sorted(keys(expected))
    parts = found.groupby(names, observed=True)["efficiency"] if names else [((), found.efficiency)]
    for _, values in parts:
        assert values.is_monotonic_decreasing if largest else values.is_monotonic_increasing


@pytest.mark.parametrize("kind", KINDS)
def test_rows_come_in_full_with_units(asked, kinds, kind):
    found = ms.pareto_front(kinds[kind], minimize=["step_time", "n_devices"])
    table = asked.table()
    rows = table.set_index(KEY).loc[keys(found)].reset_index()
    columns = [name for name in table.columns if name not in KEY]
    assert set(found.columns) == set(table.columns)
    pd.testing.assert_frame_equal(
        found[columns].reset_index(drop=True), rows[columns], check_dtype=False
    )
    assert found["step_time"].is_monotonic_increasing
    if kind not in ("polars", "duckdb", "duckdb file"):
        assert found.attrs["mlsysim_sweep"]["step_time"]["unit"] == "s"


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.sampled_from([1, 2, 3, 5]), min_size=1, max_size=3, unique=True),
    st.lists(st.integers(1, 40), min_size=1, max_size=8, unique=True),
    st.sampled_from(["step_time", "efficiency", "n_devices", "bubble", "zero1_state_per_device"]),
    st.sampled_from(["exposed_time", "microbatches", "min_devices_for_state"]),
    st.integers(1, 50),
)
def test_blocks_of_any_size_give_the_same_front(tp, dp, first, second, block):
    """And the rows that are judged together, and the sample that is evaluated first."""
    axes = {"tp": tp, "dp": dp, "pp": [1, 2, 4], "microbatches": [1, 3, 8]}
    asked = ask(axes=axes, feasible={"memory": "off", "where": ["n_devices != 6"]})
    with mock.patch.multiple(
        answers, BLOCK_POINTS=block, RUN_POINTS=block, ROW_POINTS=block // 3, SAMPLE_POINTS=5
    ):
        found = asked.pareto(minimize=first, maximize=second)
    table = asked.table()
    expected = table[ranks_of(table, [first], [second]) == 1]
    columns = ["tp", "pp", "dp", "microbatches"]
    assert sorted(found[columns].to_numpy().tolist()) == sorted(
        expected[columns].to_numpy().tolist()
    )


VALUES = st.one_of(st.none(), st.sampled_from([float("nan"), float("inf"), -0.0, 0.0, 1.0, 2.0]))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(VALUES, VALUES, st.sampled_from("ab")), max_size=40), st.integers(1, 9))
def test_missing_numbers_are_never_ranked(rows, batch):
    """Fault 32: NaN and null are neither on a front nor among the best, and push nothing out."""
    x, y, label = (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [])
    table = pa.table({"x": pa.array(x, pa.float64()), "y": pa.array(y, pa.float64()), "g": label})
    there = [i for i, (a, b, _) in enumerate(rows) if None not in (a, b) and a == a and b == b]
    front = [
        i
        for i in there
        if not any(x[j] <= x[i] and y[j] <= y[i] and (x[j] < x[i] or y[j] < y[i]) for j in there)
    ]
    numbered = table.append_column("id", pa.array(range(len(rows)), pa.int64()))
    with mock.patch.object(sources, "BATCH_ROWS", batch):
        assert sorted(ms.pareto_front(numbered, minimize=["x", "y"])["id"]) == front
        best = ms.top(numbered, 2, by="x", per="g")["id"].tolist()
    expected = []
    for group in dict.fromkeys(label):
        members = [i for i in range(len(rows)) if label[i] == group and x[i] is not None]
        expected += sorted((i for i in members if x[i] == x[i]), key=lambda i: (x[i], i))[:2]
    assert best == expected


def test_whole_numbers_are_compared_exactly():
    """Fault 33: neither uint8 nor the least int64 wraps round, and 2^53 + 1 is not 2^53."""
    table = pa.table(
        {
            "small": pa.array([0, 255, 7], pa.uint8()),
            "large": pa.array([-(2**63), 2**53 + 1, 2**53], pa.int64()),
        }
    )
    assert ms.pareto_front(table, maximize="small")["small"].tolist() == [255]
    assert ms.pareto_front(table, minimize="large")["large"].tolist() == [-(2**63)]
    assert ms.top(table, 3, by="large", largest=True)["large"].tolist() == [
        2**53 + 1,
        2**53,
        -(2**63),
    ]


def test_whole_numbers_beside_missing_ones_are_refused_rather_than_rounded():
    table = pa.table({"x": pa.array([None, 2**53 + 1], pa.int64())})
    with pytest.raises(ms.Mistake, match="x: has missing values"):
        ms.pareto_front(table, minimize="x")


def test_nothing_feasible_has_an_empty_front(tmp_path):
    """Fault 30: empty, with all columns, from a sweep and from its file."""
    asked = ask(axes={"tp": [1, 2]}, feasible={"where": ["step_time < 1e-12 s"]})
    asked.to_parquet(tmp_path / "none.parquet")
    for source in (asked, tmp_path / "none.parquet", asked.table(), asked.dataset()):
        front = ms.pareto_front(source, minimize=["step_time", "n_devices"], rank=2)
        assert len(front) == 0 and "step_time" in front and "rank" in front
        assert len(ms.top(source, 3, by="step_time", per="tp")) == 0


def test_one_point_is_its_own_front():
    asked = ask(axes={}, feasible={"memory": "off"})
    assert len(asked.pareto(minimize="step_time")) == 1
    assert len(ms.pareto_front(asked.dataset(), minimize="step_time")) == 1


def test_distinct_keeps_the_first_of_equal_rows():
    frame = pd.DataFrame({"x": [1, 0, 0, 1], "y": [0, 1, 1, 0], "id": [0, 1, 2, 3]})
    assert ms.pareto_front(frame, minimize=["x", "y"])["id"].tolist() == [1, 2, 0, 3]
    found = ms.pareto_front(frame, minimize=["x", "y"], distinct=True)
    assert found["id"].tolist() == [1, 0]


def test_the_index_of_a_frame_survives():
    frame = pd.DataFrame({"x": [3, 1, 2]}, index=["a", "b", "c"])
    assert ms.top(frame, 2, by="x").index.tolist() == ["b", "c"]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60),
    st.floats(0.01, 2.0),
)
def test_what_thinning_drops_is_near_what_it_keeps(xs, epsilon):
    frame = pd.DataFrame({"x": sorted(xs), "y": sorted(xs, reverse=True)})
    front = ms.pareto_front(frame, minimize=["x", "y"])
    thin = ms.pareto_front(frame, minimize=["x", "y"], epsilon=epsilon)
    assert {front.x.min(), front.x.max()} <= set(thin.x)
    assert len(thin.merge(front, on=["x", "y"])) >= len(thin)
    for _, row in front.iterrows():
        assert any(
            all(near(row[n], other[n], epsilon) for n in "xy") for _, other in thin.iterrows()
        )


def near(a, b, epsilon):
    if a == b:
        return True
    return a * b > 0 and max(abs(a), abs(b)) <= min(abs(a), abs(b)) * (1 + epsilon) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "minimize: no objective given"),
        ({"minimize": "step_tim"}, 'minimize: unknown "step_tim"; did you mean "step_time"'),
        ({"minimize": "accelerator"}, "accelerator: holds"),
        ({"minimize": "tp", "maximize": "tp"}, "minimize: tp is given twice"),
        ({"minimize": "tp", "by": "color"}, 'by: unknown "color"'),
        ({"minimize": "tp", "rank": 0}, "rank: 0 given"),
        ({"minimize": "tp", "epsilon": 0}, "epsilon: 0 given"),
        ({"minimize": "tp", "epsilon": float("nan")}, "epsilon: nan given"),
    ],
)
@pytest.mark.parametrize("kind", ["sweep", "dataset", "arrow", "file"])
def test_what_cannot_be_meant_is_refused(kinds, kind, options, message):
    with pytest.raises(ms.Mistake) as error:
        ms.pareto_front(kinds[kind], **options)
    assert message in str(error.value)


@pytest.mark.parametrize("x", [3, None, [1, 2], {"x": 1}])
def test_what_holds_no_rows_is_refused(x):
    with pytest.raises(ms.Mistake, match="needed: a Sweep, Dataset"):
        ms.top(x, 1, by="x")


def test_a_path_that_is_not_there_or_not_parquet_is_said(tmp_path):
    (tmp_path / "text.parquet").write_text("no")
    for path in ("none.parquet", "text.parquet", "."):
        with pytest.raises(ms.OutputError):
            ms.top(tmp_path / path, 1, by="x")


def test_a_large_front_joins_often(asked):
    """With room for few points to wait, and few to judge by, the front is the same."""
    expected = keys(asked.pareto(minimize=["step_time", "n_devices", "microbatches"]))
    for waiting, judges in itertools.product((1, 50), (1, 3)):
        with mock.patch.multiple(pareto, _WAITING=waiting, _JUDGES=judges):
            found = asked.pareto(minimize=["step_time", "n_devices", "microbatches"])
        assert keys(found) == expected


def test_fronts_of_many_groups_settle_often(asked):
    """Whether groups are slabs of their own or come mixed, and however little may wait."""
    options = {"minimize": ["step_time", "zero1_state_per_device"], "by": ["tp", "pp"]}
    expected = keys(asked.pareto(**options))
    for waiting, sample in itertools.product((0, 2**22), (1, 2**16)):
        with mock.patch.multiple(answers, WAITING_POINTS=waiting, SAMPLE_POINTS=sample):
            assert keys(asked.pareto(**options)) == expected
