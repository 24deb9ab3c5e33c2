"""Fronts against a comparison of all pairs, in any order and in any parts."""

import functools
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlsysim_sweep import pareto
from mlsysim_sweep.pareto import Front, layers, non_dominated, oriented

SMALL = {
    "_SAMPLE": 4,
    "_BLOCK": 5,
    "_CHUNK": 3,
    "_BUCKETED": 8,
    "_MANY": 10,
    "_WAITING": 4,
    "_JUDGES": 3,
}
"""Sizes at which every way through the module is taken by a few dozen points."""


def beats(points, i, j):
    """Whether point i dominates point j."""
    pairs = list(zip(points[i], points[j], strict=True))
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


def ranked(points):
    """Rank of each point by comparison of all pairs; None where a cost is NaN."""
    left = [i for i, point in enumerate(points) if all(cost == cost for cost in point)]
    ranks, rank = [None] * len(points), 0
    while left:
        rank += 1
        front = [i for i in left if not any(beats(points, j, i) for j in left)]
        for i in front:
            ranks[i] = rank
        left = [i for i in left if i not in front]
    return ranks


def columns(points, kinds):
    return [np.array([p[k] for p in points], kind) for k, kind in enumerate(kinds)]


WHOLE = st.sampled_from(["uint8", "int64", "uint64"])
ODD = {
    "float64": [float("nan"), float("inf"), float("-inf"), -0.0, 0.0, 5e-324, 1e308],
    "uint8": [0, 255],
    "int64": [-(2**63), 2**63 - 1, 2**53, 2**53 + 1],
    "uint64": [0, 2**64 - 1],
}


@st.composite
def costs(draw, largest=60):
    """Points as tuples of Python numbers, and the types of their columns."""
    kinds = draw(st.lists(st.one_of(st.just("float64"), WHOLE), min_size=1, max_size=5))
    few = st.integers(0, draw(st.integers(0, 6)))
    value = {
        kind: st.one_of(few.map(float if kind == "float64" else int), st.sampled_from(ODD[kind]))
        for kind in ODD
    }
    points = draw(st.lists(st.tuples(*(value[kind] for kind in kinds)), max_size=largest))
    return points, kinds


def sized(test):
    """The same test with the sizes as they are and with small ones."""

    @functools.wraps(test)
    def both(*args, **kwargs):
        test(*args, **kwargs)
        with mock.patch.multiple(pareto, **SMALL):
            test(*args, **kwargs)

    return both


@settings(max_examples=300)
@given(costs())
@sized
def test_fronts_are_those_of_all_pairs(made):
    points, kinds = made
    ranks = ranked(points)
    front = [i for i, rank in enumerate(ranks) if rank == 1]
    assert non_dominated(columns(points, kinds)).tolist() == front
    first = [i for i in front if points.index(points[i]) == i]
    assert non_dominated(columns(points, kinds), distinct=True).tolist() == first


@settings(max_examples=150)
@given(costs(30), st.integers(1, 4))
@sized
def test_successive_fronts(made, most):
    points, kinds = made
    expected = [(i, r) for i, r in enumerate(ranked(points)) if r is not None and r <= most]
    places, ranks = layers(columns(points, kinds), most)
    assert list(zip(places.tolist(), ranks.tolist(), strict=True)) == expected


@settings(max_examples=150)
@given(costs(30), st.integers(1, 3), st.booleans(), st.integers(1, 7), st.randoms())
@sized
def test_parts_join_to_the_same_front(made, rank, distinct, part, random):
    points, kinds = made
    whole, parts = Front(rank, distinct=distinct), Front(rank, distinct=distinct)
    ids = np.arange(len(points))
    whole.add(columns(points, kinds), ids)
    for start in range(0, len(points), part):
        here = columns(points[start : start + part], kinds)
        if not parts.drops([cost.min(keepdims=True) for cost in here])[0]:
            parts.add(here, ids[start : start + part])
    expected = layers(columns(points, kinds), rank, distinct=distinct)
    assert [found.tolist() for found in whole.result()[1:]] == [e.tolist() for e in expected]
    assert [found.tolist() for found in parts.result()[1:]] == [e.tolist() for e in expected]
    order = random.sample(range(len(points)), len(points))
    found = non_dominated(columns([points[i] for i in order], kinds))
    assert sorted(order[i] for i in found) == non_dominated(columns(points, kinds)).tolist()


@settings(max_examples=50)
@given(costs(), st.data())
def test_maximised_is_minimised_the_other_way(made, data):
    points, kinds = made
    flags = data.draw(st.lists(st.booleans(), min_size=len(kinds), max_size=len(kinds)))
    turned = [tuple(-v if f else v for v, f in zip(p, flags, strict=True)) for p in points]
    expected = [i for i, rank in enumerate(ranked(turned)) if rank == 1]
    made_costs = [
        oriented(c, maximize=f) for c, f in zip(columns(points, kinds), flags, strict=True)
    ]
    assert non_dominated(made_costs).tolist() == expected


LARGE = 30_000


@pytest.mark.parametrize("n_costs", [2, 3, 4])
@pytest.mark.parametrize("kind", ["uniform", "correlated", "front", "equal", "coarse"])
@pytest.mark.parametrize("has_moocore", [True, False])
def test_large_sets(kind, n_costs, has_moocore):
    """Front points are not dominated, and all others are, by a front point."""
    if kind == "front" and n_costs == 4 and not has_moocore:
        pytest.skip("comparison of all pairs of 30,000")
    rng = np.random.default_rng(7)
    x = rng.random((n_costs, LARGE))
    if kind == "correlated":
        x = x[0] + 0.1 * x
    elif kind == "front":
        x[-1] = -x[:-1].sum(axis=0)
    elif kind == "equal":
        x[:] = x[:, :1]
    elif kind == "coarse":
        x = np.floor(x * 50)
    with mock.patch.object(pareto, "_moocore", pareto._moocore if has_moocore else lambda: None):
        found = non_dominated(list(x))
    if kind in ("front", "equal"):
        assert len(found) == LARGE
        return
    front = x[:, found]
    for start in range(0, LARGE, 1000):
        block = x[:, start : start + 1000, np.newaxis]
        worse = np.all(front[:, np.newaxis] <= block, axis=0)
        worse &= np.any(front[:, np.newaxis] < block, axis=0)
        beaten = np.flatnonzero(~worse.any(axis=1)) + start
        assert beaten.tolist() == found[(found >= start) & (found < start + 1000)].tolist()
