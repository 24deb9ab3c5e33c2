"""The exact ring collective against the large-N bound that is the default."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlsysim_sweep.kernels import parallel_layout

kernels: Any = parallel_layout  # numbers stand for arrays
SHARDS = st.floats(1e-6, 1e15)


@given(SHARDS, st.integers(1, 2**40))
def test_ring_bytes(shard: float, dp: int) -> None:
    exact = 2 * Fraction(dp - 1, dp) * Fraction(shard)
    assert kernels.ring_bytes(shard, dp) == pytest.approx(float(exact), rel=1e-15)


@given(SHARDS, st.integers(1, 2**20), st.floats(1e6, 1e13))
def test_an_exact_ring_takes_as_long_as_its_bytes(shard: float, dp: int, bandwidth: float) -> None:
    correction = kernels.ring_correction(1, dp)
    ring = kernels.allreduce_time(shard, bandwidth, correction)
    bound = kernels.allreduce_time(shard, bandwidth)
    assert ring == pytest.approx(kernels.ring_bytes(shard, dp) / bandwidth, rel=1e-14)
    assert ring <= bound == 2 * shard / bandwidth
    assert (ring == 0) == (dp == 1)


@given(SHARDS, st.integers(1, 2**20), st.floats(1e6, 1e13))
def test_the_bound_is_the_same_whether_it_is_asked_for_or_not(
    shard: float, dp: int, bandwidth: float
) -> None:
    asked = kernels.allreduce_time(shard, bandwidth, kernels.ring_correction(0, dp))
    assert asked == kernels.allreduce_time(shard, bandwidth)


def test_one_replica_hides_all_of_nothing() -> None:
    with np.errstate(all="ignore"):
        share = kernels.overlap_share(np.float64(0.75), np.float64(2.1), np.float64(0.0))
    assert share == 0.75
