"""Filters are pushed down, points gathered, grids cut into blocks: the answer never changes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mlsysim_sweep as ms
from mlsysim_sweep import store
from mlsysim_sweep.constraints import shortfall
from mlsysim_sweep.engine.evaluate import evaluate, feasible
from mlsysim_sweep.engine.mesh import Points, _spread
from mlsysim_sweep.engine.plan import Plan
from mlsysim_sweep.engine.run import Walk, explain
from tests import strategies
from tests.engine.brute import WHERE, all_of, decided, everywhere, spread, survivors

BLOCKS = (1, 7, 1000, 10**9)
sweeps = strategies.sweeps(tuple(WHERE))


@settings(max_examples=100)
@given(sweeps)
def test_a_table_is_the_filtered_grid(asked: dict[str, Any]) -> None:
    grid = ms.Sweep(**asked).grid
    expected = survivors(Plan(grid))
    for block_points in BLOCKS:
        plan = Plan(grid, block_points)
        table = store.to_pandas(store.table(plan))
        assert tuple(table.columns) == grid.axis_columns + grid.columns
        for name, column in expected.items():
            np.testing.assert_array_equal(table[name].to_numpy(), column, name)


@settings(max_examples=50)
@given(sweeps)
def test_a_dataset_is_the_whole_grid(asked: dict[str, Any]) -> None:
    grid = ms.Sweep(**asked).grid
    values = everywhere(Plan(grid))
    for block_points in BLOCKS:
        plan = Plan(grid, block_points)
        for name, found in evaluate(plan, grid.columns).items():
            np.testing.assert_array_equal(spread(plan, found, plan.dims[name]), values[name], name)
        holds = spread(plan, feasible(plan), plan.rule_dims(plan.rules))
        np.testing.assert_array_equal(holds, all_of(decided(plan, values), plan))


@settings(max_examples=200)
@given(sweeps)
def test_the_funnel_counts_every_point(asked: dict[str, Any]) -> None:
    sweep = ms.Sweep(**asked)
    plan = Plan(sweep.grid)
    values = everywhere(plan)
    holds = decided(plan, values)
    fails = np.sum([~here for here in holds], axis=0)
    funnel = explain(plan)
    before = np.ones(plan.grid.shape, bool)
    for rule, row, here in zip(plan.rules, funnel.rows, holds, strict=True):
        rejected = before & ~here
        assert (row.rule, row.axes) == (rule.name, plan.rule_dims([rule]))
        assert row.rejected == np.count_nonzero(rejected)
        assert row.rejects == np.count_nonzero(~here)
        assert row.rejected_only == np.count_nonzero(~here & (fails == 1))
        before = before & here
        assert row.left == np.count_nonzero(before)
        assert (row.nearest is None) == (not rejected.any())
        if row.nearest is not None:
            far = np.broadcast_to(shortfall(rule.predicate, values.__getitem__), plan.grid.shape)
            place = min(zip(*np.nonzero(rejected), strict=True), key=far.__getitem__)
            assert row.nearest.shortfall == far[place] >= 0
            assert row.nearest.layout == layout(plan, place)
    assert (funnel.points, funnel.feasible) == (sweep.points, int(np.count_nonzero(before)))
    assert all(explain(Plan(sweep.grid, block_points)) == funnel for block_points in BLOCKS)


def layout(plan: Plan, place: tuple[Any, ...]) -> dict[str, Any]:
    return {
        name: labels[position]
        for axis, position in zip(plan.grid.axes, place, strict=True)
        for name, labels in axis.labels.items()
    }


@settings(max_examples=100)
@given(sweeps)
def test_a_walk_visits_every_point_once(asked: dict[str, Any]) -> None:
    grid = ms.Sweep(**asked).grid
    for block_points in BLOCKS:
        plan = Plan(grid, block_points)
        walk = Walk(plan)
        seen, survivors = [], 0
        for points in walk:
            seen.append(walk.visited)
            survivors += points.count
        assert walk.visited == grid.points
        assert seen == sorted(set(seen))
        in_order = [(row.rule, row.rejected, row.left) for row in explain(plan).rows]
        found = walk.funnel()
        assert [(row.rule, row.rejected, row.left) for row in found.rows] == in_order
        assert (found.points, found.feasible) == (grid.points, survivors)


@given(sweeps)
def test_blocks_cover_the_grid_in_the_order_of_rows(asked: dict[str, Any]) -> None:
    grid = ms.Sweep(**asked).grid
    numbers = np.arange(grid.points).reshape(grid.shape)
    for block_points in BLOCKS:
        plan = Plan(grid, block_points)
        blocks = [numbers[slices].reshape(-1) for slices in plan.blocks()]
        assert len(blocks) == plan.block_count
        assert np.concatenate(blocks).tolist() == list(range(grid.points))
        assert max(map(len, blocks)) <= block_points


@given(sweeps)
def test_rules_are_decided_smallest_box_first(asked: dict[str, Any]) -> None:
    plan = Plan(ms.Sweep(**asked).grid)
    cells = [plan.cells(plan.rule_dims([rule])) for rule in plan.rules]
    assert cells == sorted(cells)
    assert sorted(plan.rules, key=id) == sorted(plan.grid.rules, key=id)
    assert plan.table_rules + plan.block_rules == plan.rules


@settings(max_examples=50)
@given(sweeps)
def test_the_order_of_axes_is_only_the_order_of_rows(asked: dict[str, Any]) -> None:
    one = ms.Sweep(**asked)
    other = ms.Sweep(**{**asked, "axes": dict(reversed(asked["axes"].items()))})
    tables = [
        sweep.table().sort_values(list(one.grid.axis_columns), ignore_index=True)[list(one.columns)]
        for sweep in (one, other)
    ]
    pd.testing.assert_frame_equal(*tables, check_exact=True)


@pytest.mark.parametrize("block_points", BLOCKS)
def test_gathered_points_are_those_of_the_box(block_points: int) -> None:
    """Positions, and values evaluated after gathering, against the same on the whole box."""
    sweep = ms.Sweep.load("gpt3-1k-h100").variant(
        axes={"dp": [1, 8, 32, 1024], "microbatches": [1, 32]}, feasible={"devices": {"max": 2048}}
    )
    plan = Plan(sweep.grid, block_points)
    walk = Walk(plan)
    for points in walk:
        everything = Points(points.box, None)
        flat = np.arange(points.count) if points.flat is None else points.flat
        for name in plan.grid.columns:
            np.testing.assert_array_equal(points(name), everything(name)[flat], name)
        for dim in plan.grid.dims:
            np.testing.assert_array_equal(points.positions(dim), everything.positions(dim)[flat])


@given(st.data())
def test_an_open_mask_is_spread_in_the_order_of_rows(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=5)))
    open_shape = tuple(data.draw(st.sampled_from([1, n])) for n in shape)
    size = math.prod(open_shape)
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=size, max_size=size)), bool)
    mask = mask.reshape(open_shape)
    assert _spread(mask, shape).tolist() == np.flatnonzero(np.broadcast_to(mask, shape)).tolist()
