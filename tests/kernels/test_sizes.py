"""Sizes that follow from other sizes: exact where they exist, NaN where there is no whole one."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from mlsysim_sweep import kernels

sizes: Any = kernels.sizes  # numbers stand for arrays
small = st.integers(1, 2**17)


@given(small, small, small)
def test_dp_fills_the_devices(tp: int, pp: int, replicas: int) -> None:
    assert sizes.dp(tp * pp * replicas, tp, pp) == replicas


@given(st.integers(1, 2**53), small, small)
def test_dp_exists_only_where_it_is_whole(devices: int, tp: int, pp: int) -> None:
    whole, rest = divmod(devices, tp * pp)
    found = float(sizes.dp(devices, tp, pp))
    assert math.isnan(found) if rest else found == whole


@given(small, small, small)
def test_microbatches_share_out_the_batch(dp: int, tokens: int, count: int) -> None:
    assume(dp * tokens * count <= 2**53)
    batch = float(dp * tokens * count)
    assert sizes.microbatches(batch, dp, tokens) == count


@given(st.integers(1, 2**53), small, small)
def test_microbatches_exist_only_where_they_are_whole(batch: int, dp: int, tokens: int) -> None:
    whole, rest = divmod(batch, dp * tokens)
    found = float(sizes.microbatches(float(batch), dp, tokens))
    assert math.isnan(found) if rest or not whole else found == whole


@given(small)
def test_without_a_whole_dp_there_are_no_microbatches(tokens: int) -> None:
    assert math.isnan(sizes.microbatches(2e6, math.nan, tokens))


@given(small, small)
def test_microbatch_tokens(size: int, seq_len: int) -> None:
    assert sizes.microbatch_tokens(size, seq_len) == size * seq_len


def test_counted_parameters_are_all_or_the_active_ones() -> None:
    total, active = 671e9, 37e9
    assert sizes.counted_parameters(total) == sizes.counted_parameters(total, active, 0) == total
    assert sizes.counted_parameters(total, active, 1) == active
