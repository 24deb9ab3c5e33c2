"""Non-dominated sets, mergeable block by block.

A point dominates another if it is at most as large in every cost and smaller in one (Kung, Luccio
and Preparata, "On finding the maxima of a set of vectors", JACM 22, 1975). Equal points do not
dominate each other. Costs are one-dimensional arrays, one for each objective, of any numeric type;
:func:`oriented` turns what is to be maximised into a cost without leaving its type.

Most points of most sets are far from the front. A few strong points, chosen on a sample, drop
those in a pass over blocks that stay in the cache; an exact algorithm then decides the rest: sort
and sweep for two costs, over a staircase for three, and comparison with the front so far for more.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
Columns: TypeAlias = Sequence[Array]

_SAMPLE = 2**11
_PIVOTS = 16
_TRIED = 64
_BLOCK = 2**15
_CHUNK = 384
_BUCKETED = 2**20
_WAITING = 2**15
_JUDGES = 2**8
_NEIGHBOURS = 2**5
_MANY = 2**12
"""Beyond this many points that few strong ones do not drop, moocore decides four costs and more."""


def oriented(values: Array, maximize: bool) -> Array:
    """Values as a cost: smaller is better.

    Whole numbers are turned round by their bits: ``~x`` is ``-x - 1`` when signed, and
    ``max - x`` when not, so that nothing overflows.

    >>> oriented(np.array([0, 255], np.uint8), maximize=True)
    array([255,   0], dtype=uint8)
    """
    if not maximize:
        return values
    return -values if values.dtype.kind == "f" else ~values


def non_dominated(costs: Columns, *, distinct: bool = False) -> Array:
    """Positions, ascending, of the points that no other point dominates.

    Points with a NaN cost are left out and dominate nothing. Of equal points all are kept, or with
    ``distinct`` the first.

    >>> non_dominated([np.array([1.0, 2.0, 2.0, 1.0]), np.array([2.0, 1.0, 2.0, 2.0])])
    array([0, 1, 3])
    """
    numbers = [cost for cost in costs if cost.dtype.kind == "f"]
    kept = None
    if any(np.isnan(np.min(cost, initial=np.inf)) for cost in numbers):
        kept = np.flatnonzero(~np.any([np.isnan(cost) for cost in numbers], axis=0))
    while True:
        here = costs if kept is None else [cost[kept] for cost in costs]
        count = len(here[0])
        near = _near(here)
        if near is not None:
            kept = near if kept is None else kept[near]
        if near is None or len(near) > count // 2:
            break
    here = costs if kept is None else [cost[kept] for cost in costs]
    found = _exact(here)
    if distinct:
        found = found[_firsts([cost[found] for cost in here])]
    return found if kept is None else kept[found]


def layers(costs: Columns, rank: int, *, distinct: bool = False) -> tuple[Array, Array]:
    """Positions of the points of the first ``rank`` successive fronts, ascending, and their ranks.

    The second front is that of the points without the first, and so on (Goldberg, "Genetic
    Algorithms in Search, Optimization, and Machine Learning", 1989).

    >>> layers([np.array([3, 1, 2, 1]), np.array([0, 0, 0, 1])], 2)
    (array([1, 2, 3]), array([1, 2, 2]))
    """
    left = np.arange(len(costs[0]))
    found, ranks = [left[:0]], [left[:0]]
    for k in range(1, rank + 1):
        here = [cost[left] for cost in costs]
        front = non_dominated(here)
        if not len(front):
            break
        kept = front[_firsts([cost[front] for cost in here])] if distinct else front
        found.append(left[kept])
        ranks.append(np.full(len(found[-1]), k))
        left = np.delete(left, front)
    places, place_ranks = np.concatenate(found), np.concatenate(ranks)
    order = np.argsort(places)
    return places[order], place_ranks[order]


class Front:
    """The front of all points added so far; more exactly, of their first ``rank`` fronts.

    The front of a union is the front of the union of fronts, so that a set of any size is seen
    part by part. Points wait until there are as many as on the front, so that each is compared a
    few times only, however large the front is.
    """

    def __init__(self, rank: int = 1, *, distinct: bool = False) -> None:
        self._rank, self._distinct = rank, distinct
        self._waiting: list[tuple[list[Array], Array]] = []
        self._count = 0
        self._ranks = np.empty(0, np.int64)
        self._filter: list[Array] = []

    def prime(self, costs: Columns) -> None:
        """Judge by these points too, which are of the set but are not added now: a sample."""
        self._sharpen(*_picked(costs, self._rank))

    def add(self, costs: Columns, ids: Array) -> None:
        """Take in more points; of equal ones the smallest ids are the first."""
        self._waiting.append(([np.array(cost) for cost in costs], ids))
        self._count += len(ids)
        if self._count > 2 * len(self._ranks) + _WAITING:
            self.settle()

    def result(self) -> tuple[list[Array], Array, Array]:
        """Costs, ids and ranks, by id."""
        self.settle()
        return (*self._waiting[0], self._ranks) if self._waiting else ([], self._ranks, self._ranks)

    @property
    def waiting(self) -> int:
        """How many points wait to be compared."""
        return self._count - len(self._ranks)

    def settle(self) -> None:
        """Compare what waits, and drop what is not on the front."""
        if not self._waiting:
            return
        parts = [costs for costs, _ in self._waiting]
        ids = np.concatenate([ids for _, ids in self._waiting])
        order = np.argsort(ids, kind="stable")
        costs = [np.concatenate(column)[order] for column in zip(*parts, strict=True)]
        places, self._ranks = layers(costs, self._rank, distinct=self._distinct)
        costs = [cost[places] for cost in costs]
        self._waiting = [(costs, ids[order][places])]
        self._count = len(places)
        self._sharpen(costs, self._ranks)

    def _sharpen(self, costs: Columns, ranks: Array) -> None:
        """Judge by the last front: that all its points dominate leaves no room for what they do."""
        last = [cost[ranks == self._rank] for cost in costs]
        if self._filter:
            last = [np.concatenate(pair) for pair in zip(self._filter, last, strict=True)]
        kept = non_dominated(last, distinct=True)
        kept = kept[np.argsort(last[0][kept])]
        if len(costs) > 2:
            kept = kept[:: len(kept) // _JUDGES + 1]
        self._filter = [cost[kept] for cost in last]

    def drops(self, costs: Columns) -> Array:
        """Which points, or groups of points by their smallest costs, are surely not on the front.

        Not all are found that are not, except with two costs and all points added up to now.
        """
        dropped, judges = np.zeros(len(costs[0]), bool), self._filter
        if not judges or not len(judges[0]):
            return dropped
        beaten = _above if len(costs) == 2 else _dominated
        # Neighbours are judged together first: where their smallest costs are beaten, all are.
        starts = np.arange(0, len(dropped), _NEIGHBOURS)
        corners = [np.minimum.reduceat(cost, starts) for cost in costs] if len(starts) > 1 else []
        kept = np.arange(len(dropped))
        if corners:
            dropped = np.repeat(beaten(corners, judges), _NEIGHBOURS)[: len(dropped)]
            kept = np.flatnonzero(~dropped)
        dropped[kept] = beaten([cost[kept] for cost in costs], judges)
        return dropped


def _picked(costs: Columns, rank: int) -> tuple[list[Array], Array]:
    places, ranks = layers(costs, rank)
    return [cost[places] for cost in costs], ranks


def _above(points: Columns, stairs: Columns) -> Array:
    """Which points are dominated by a step of a front of two costs, by ascending first cost."""
    (x, y), (stairs_x, stairs_y) = points, stairs
    step = np.searchsorted(stairs_x, x, side="right") - 1
    lower = (stairs_y[step] < y) | ((stairs_y[step] == y) & (stairs_x[step] < x))
    found: Array = lower & (step >= 0)
    return found


def _dominated(points: Columns, front: Columns) -> Array:
    found = np.zeros(len(points[0]), bool)
    for start in range(0, len(front[0]), _CHUNK):
        part = [cost[start : start + _CHUNK, np.newaxis] for cost in front]
        pairs = list(zip(part, points, strict=True))
        dominates = _all([cost <= point for cost, point in pairs])
        dominates &= _any([cost < point for cost, point in pairs])
        found |= dominates.any(axis=0)
    return found


def _all(masks: Sequence[Array]) -> Array:
    every: Array = np.logical_and.reduce(masks)
    return every


def _any(masks: Sequence[Array]) -> Array:
    some: Array = np.logical_or.reduce(masks)
    return some


# --- few strong points drop most -----------------------------------------------------------------


def _near(costs: Columns) -> Array | None:
    """Positions of the points left by a few strong ones; None where these would drop few."""
    count = len(costs[0])
    if count < 2 * _SAMPLE or len(costs) == 1:
        return None
    sample = [np.ascontiguousarray(cost[:: count // _SAMPLE]) for cost in costs]
    # Being larger in one cost and at least as large in the others is a test of one comparison for
    # each cost that never drops an equal point; it is sharpest where few values are equal.
    strict = int(np.argmax([len(np.unique(column)) for column in sample]))
    pivots = _pivots(sample, strict)
    if not pivots:
        return None
    blocks = (
        _left([cost[start : start + _BLOCK] for cost in costs], pivots, strict) + start
        for start in range(0, count, _BLOCK)
    )
    return np.concatenate(list(blocks))


def _pivots(sample: Columns, strict: int) -> list[tuple[Any, ...]]:
    """Points of a sample that together dominate most of it, strongest first.

    Those are tried that would dominate most if the costs were independent: the share of points
    above one is then the product of its shares by each cost alone.
    """
    count = len(sample[0])
    share = np.zeros(count)
    for column in sample:
        order = np.argsort(column)
        share[order] += np.log1p(-np.arange(count) / count)
    tried = np.argsort(share)[-_TRIED:]
    points = [column[tried] for column in sample]
    drops = points[strict][:, np.newaxis] < sample[strict]
    for k, column in enumerate(sample):
        if k != strict:
            drops &= points[k][:, np.newaxis] <= column
    left = np.ones(count, bool)
    chosen: list[tuple[Any, ...]] = []
    while len(chosen) < _PIVOTS and left.any():
        dropped = np.count_nonzero(drops[:, left], axis=1)
        best = int(np.argmax(dropped))
        if dropped[best] < np.count_nonzero(left) / 8:
            break
        left &= ~drops[best]
        chosen.append(tuple(column[best] for column in points))
    return chosen


def _left(block: Columns, pivots: Sequence[tuple[Any, ...]], strict: int) -> Array:
    """Positions in a block that none of the pivots drops."""
    places = np.flatnonzero(_beside(block, pivots[0], strict))
    block = [cost[places] for cost in block]
    for pivot in pivots[1:]:
        keep = np.flatnonzero(_beside(block, pivot, strict))
        if len(keep) < len(places):
            places, block = places[keep], [cost[keep] for cost in block]
    return places


def _beside(costs: Columns, pivot: tuple[Any, ...], strict: int) -> Array:
    """Which points a pivot does not drop."""
    beside: Array = costs[strict] <= pivot[strict]
    for k, cost in enumerate(costs):
        if k != strict:
            beside |= cost < pivot[k]
    return beside


# --- exact ---------------------------------------------------------------------------------------


def _exact(costs: Columns) -> Array:
    """:func:`non_dominated` where no cost is NaN."""
    count = len(costs[0])
    if len(costs) == 1:
        return np.flatnonzero(costs[0] == np.min(costs[0])) if count else np.arange(0)
    if len(costs) == 2:
        return _two(*costs)
    if len(costs) > 3 and count > _MANY and (moocore := _moocore()):
        return np.flatnonzero(moocore.is_nondominated(_floats(costs), keep_weakly=True))
    order, ordered = _lexicographic(costs)
    new = _first_of_run(ordered)
    decide = _staircase if len(costs) == 3 else _compared
    if new.all():
        holds = decide(ordered)
    else:
        holds = decide([cost[new] for cost in ordered])[np.cumsum(new) - 1]
    return _ascending(order[holds], count)


def _firsts(costs: Columns) -> Array:
    """Positions, ascending, of the first of each run of equal points."""
    order, ordered = _lexicographic(costs)
    return _ascending(order[_first_of_run(ordered)], len(order))


def _buckets(values: Array) -> Iterator[Array]:
    """Positions in parts: all values of a part are smaller than those of the next.

    Each part is sorted in the cache, which takes less time than one large sort.
    """
    count = len(values)
    if count < _BUCKETED:
        yield np.arange(count)
        return
    sample = np.sort(values[:: count // _SAMPLE])
    bounds = np.unique(sample[:: len(sample) // 64 + 1])
    bucket = np.empty(count, np.uint8)
    for start in range(0, count, _BLOCK):
        bucket[start : start + _BLOCK] = np.searchsorted(bounds, values[start : start + _BLOCK])
    ends = np.cumsum(np.bincount(bucket, minlength=len(bounds) + 1))
    yield from np.split(np.argsort(bucket, kind="stable"), ends[:-1])


def _lexicographic(costs: Columns) -> tuple[Array, list[Array]]:
    """Order by the first cost, then the next, ..., then by position; and the costs in that order.

    Both are made bucket by bucket: to gather from large arrays at random takes much longer.
    """
    parts = []
    for places in _buckets(costs[0]):
        here = [cost[places] for cost in costs]
        order = _sorted(here)
        parts.append([places[order], *(cost[order] for cost in here)])
    order, *ordered = (np.concatenate(column) for column in zip(*parts, strict=True))
    return order, ordered


def _sorted(costs: Columns) -> Array:
    """Lexicographic order; only runs of equal first costs pay for a sort by several keys."""
    order = np.argsort(costs[0])
    first = costs[0][order]
    tied = first[1:] == first[:-1]
    if tied.any():
        in_run = np.zeros(len(order), bool)
        in_run[1:] |= tied
        in_run[:-1] |= tied
        places = np.sort(order[in_run])
        order[in_run] = places[np.lexsort([cost[places] for cost in reversed(costs)])]
    return order


def _two(x: Array, y: Array) -> Array:
    """Front of two costs: by ascending ``x``, all that go below the lowest ``y`` so far."""
    held = np.zeros(len(x), bool)
    lowest = None
    for places in _buckets(x):
        high = y[places]
        if lowest is not None:
            below = np.flatnonzero(high < lowest)
            places, high = places[below], high[below]
        if len(places):
            held[places[_descents(x[places], high)]] = True
            lowest = high.min()
    return np.flatnonzero(held)


def _descents(x: Array, y: Array) -> Array:
    """One part of :func:`_two`: of each run of equal ``x`` only the smallest ``y`` count."""
    order = np.argsort(x)
    x, y = x[order], y[order]
    starts = np.flatnonzero(_first_of_run([x]))
    if len(starts) == len(order):
        holds = _falls(y)
    else:
        lowest, lengths = np.minimum.reduceat(y, starts), np.diff(starts, append=len(order))
        holds = np.repeat(_falls(lowest), lengths) & (y == np.repeat(lowest, lengths))
    found: Array = order[holds]
    return found


def _ascending(places: Array, count: int) -> Array:
    """Different positions below ``count``, sorted; faster than a sort where they are many."""
    if len(places) < count // 64:
        return np.sort(places)
    held = np.zeros(count, bool)
    held[places] = True
    return np.flatnonzero(held)


def _falls(values: Array) -> Array:
    """Which values are smaller than all before them."""
    falls = np.ones(len(values), bool)
    falls[1:] = values[1:] < np.minimum.accumulate(values)[:-1]
    return falls


def _first_of_run(columns: Columns) -> Array:
    """Which rows differ from the row before."""
    first = np.ones(len(columns[0]), bool)
    first[1:] = _any([column[1:] != column[:-1] for column in columns])
    return first


@dataclass
class _Stairs:
    """A front of two costs, by ascending ``x`` and so by descending ``y``."""

    x: Array
    y: Array

    def below(self, x: Array, y: Array) -> Array:
        """Which points have a step at or below them in both costs."""
        if not len(self.x):
            return np.zeros(len(x), bool)
        step = np.searchsorted(self.x, x, side="right") - 1
        return (step >= 0) & (self.y[step] <= y)

    def joined(self, x: Array, y: Array) -> _Stairs:
        """With more points."""
        x, y = np.concatenate([self.x, x]), np.concatenate([self.y, y])
        steps = _descents(x, y)
        return _Stairs(x[steps], y[steps])


def _staircase(unique: Columns) -> Array:
    """Three costs, in lexicographic order and all different.

    In the order of the first cost a point is dominated if an earlier one is at or below it in the
    two others. Of the earlier points a staircase tells; within a chunk all pairs are compared.
    What is new is collected in a small staircase first, so that the large one is rebuilt seldom.
    """
    _, x, y = unique
    holds = np.ones(len(x), bool)
    ahead = np.triu(np.ones((_CHUNK, _CHUNK), bool), 1)
    large, small = _Stairs(x[:0], y[:0]), _Stairs(x[:0], y[:0])
    for start in range(0, len(x), _CHUNK):
        # By ascending x, of equal x in the order of the first cost: a search with sorted keys is
        # fast, and of all pairs only those above the diagonal can count.
        place = np.argsort(x[start : start + _CHUNK], kind="stable")
        cx, cy = x[start + place], y[start + place]
        pairs = _at_most(cy) & ahead[: len(place), : len(place)]
        rank = place.astype(np.int16)
        pairs &= rank[:, np.newaxis] < rank
        here = ~(pairs.any(axis=0) | large.below(cx, cy) | small.below(cx, cy))
        holds[start + place] = here
        small = small.joined(cx[here], cy[here])
        if len(small.x) > 2 * _CHUNK + len(large.x) // 8:
            large, small = large.joined(small.x, small.y), _Stairs(x[:0], y[:0])
    return holds


def _at_most(values: Array) -> Array:
    """``[i, j]``: value i is at most value j; decided on ranks of two bytes, four times as fast."""
    order = np.argsort(values)
    ranks = np.empty(len(values), np.int16)
    ranks[order] = np.cumsum(_first_of_run([values[order]]))
    return ranks[:, np.newaxis] <= ranks


@functools.cache
def _moocore() -> Any:
    """An extra, used where it is installed: twelve times as fast on 2**15 points of four costs."""
    try:
        import moocore
    except ImportError:
        return None
    return moocore


def _floats(costs: Columns) -> Array:
    """Costs as rows of finite floats: what a float does not hold, as its rank.

    moocore 0.3 takes some points with an infinite cost for equal.
    """
    return np.column_stack([_float(cost) for cost in costs])


def _float(cost: Array) -> Array:
    floats = cost.astype(np.float64)
    if np.abs(floats).max() < (2**53 if cost.dtype.kind in "iu" else np.inf):
        return floats
    return np.unique(cost, return_inverse=True)[1].astype(np.float64)


def _compared(unique: Columns) -> Array:
    """Any number of costs, in lexicographic order and all different.

    Each chunk is compared with the front so far and with itself.
    """
    count = len(unique[0])
    holds = np.ones(count, bool)
    for start in range(0, count, _CHUNK):
        chunk = [cost[start : start + _CHUNK] for cost in unique]
        n = len(chunk[0])
        left = np.arange(n)
        found = np.flatnonzero(holds[:start])
        for at in range(0, len(found), 4 * _CHUNK):
            front = [cost[found[at : at + 4 * _CHUNK]] for cost in unique]
            left = left[~_below([cost[left] for cost in chunk], front).any(axis=0)]
        chunk = [cost[left] for cost in chunk]
        pairs = _below(chunk, chunk)
        np.fill_diagonal(pairs, val=False)
        here = np.zeros(n, bool)
        here[left[~pairs.any(axis=0)]] = True
        holds[start : start + n] = here
    return holds


def _below(points: Columns, front: Columns) -> Array:
    """``[i, j]``: point i of a front is at or below point j in every cost but the first."""
    below = front[1][:, np.newaxis] <= points[1]
    for cost, other in zip(front[2:], points[2:], strict=True):
        below &= cost[:, np.newaxis] <= other
    below &= front[0][:, np.newaxis] <= points[0]
    return below
